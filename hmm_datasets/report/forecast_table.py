"""The plan of a run as a table: what it consumes, how much memory it needs, when it ends."""

from collections.abc import Sequence
from typing import Any

from ..quantities import format_duration
from .tables import text_table

_GIB = 1 << 30


def forecast_text(found: dict[str, Any]) -> str:
    """The tables of a forecast."""
    ((name, amount),) = found["budget"].items()
    batch = (
        f"{found['micro_batch_size']} micro-batch x {found['gradient_accumulation_steps']} accumulation x "
        f"{found['world_size']} ranks = {found['global_batch_size']:,} rows"
    )
    rows = [
        ("parameters", f"{found['parameters']:,}", f"{found['parameters_without_embeddings']:,} without embeddings"),
        (
            "FLOPs per token",
            f"{found['flops_per_token']:,}",
            "6 N, and for attention 12 layers x width x length; forward and backward",
        ),
        ("global batch", f"{found['global_batch_size']:,}", batch),
        ("tokens per step", f"{found['tokens_per_step']:,}", f"rows of {found['row_length']:,}"),
        ("steps", f"{found['steps']:,}", f"budget: {name} {amount:,.12g}"),
        ("tokens", f"{found['tokens']:,}", f"{found['tokens_per_parameter']:.3g} per parameter"),
        ("FLOPs", f"{found['flops']:.4g}", "of the model, without padding and recomputation"),
    ]
    if found["batch_ramp"]:
        stages = found["batch_ramp"]
        told = stages if len(stages) <= 4 else [*stages[:2], "...", stages[-1]]
        rows.insert(3, ("batch ramp", " ".join(told), f"rows:steps of {len(stages)} stages before the full batch"))
    if found["trained_parameters"] < found["parameters"]:
        rows.insert(
            1, ("trained", f"{found['trained_parameters']:,}", "parameters; the others cost 4 N instead of 6 N")
        )
    if found.get("assumed_vocab_size") is not None:
        rows.append(("epochs", "unknown", f"the data were not read; a vocabulary of {found['assumed_vocab_size']:,}"))
    elif not found["corpora"] and found["epochs"] is None:
        rows.append(("epochs", "none", "no sequence is repeated"))
    elif not found["corpora"]:
        rows.append(("epochs", f"{found['epochs']:,.2f}", f"{found['rows']:,} rows in all"))
    for corpus in found["corpora"]:
        share = f", {corpus['share']:.0%} of the run" if corpus.get("share") is not None else ""
        rows.append(("epochs", f"{corpus['epochs']:,.2f}", f"{corpus['name']}: {corpus['tokens']:,} tokens{share}"))
    if "time" in found:
        time = found["time"]
        rows.append(("tokens per second", f"{time['tokens_per_second']:,.0f}", time["rate"]))
        rows.append(("time", format_duration(time["seconds"]), f"{time['device_hours']:,.3g} device hours"))
        rows.append(("ends", time["ends"].replace("T", " "), "if it starts now"))
        if "cost" in time:
            rows.append(("cost", f"{time['cost']:,.2f}", "at price_per_hour"))
    else:
        rows.append(("time", "unknown", "set assumed_run, assumed_device or assumed_tokens_per_second"))
    return "\n\n".join((_left(rows), _memory_table(found)))


def consumption_table(plan: dict[str, Any], summary: dict[str, Any]) -> str:
    """A table of what was planned and what the run consumed.

    Args:
        plan (`dict`): `plan.json` of a run.
        summary (`dict`): its `summary.json`.
    """
    names = ("steps", "tokens", "flops")
    rows = [[name, *(f"{found[name]:,.0f}" for found in (plan, summary))] for name in names]
    return text_table(["", "planned", "consumed"], rows)


def _memory_table(found: dict[str, Any]) -> str:
    columns = ("weights", "gradients", "optimizer", "activations", "total")
    rows = [[strategy, *(_size(sizes[column]) for column in columns)] for strategy, sizes in found["memory"].items()]
    title = f"Memory per rank in GiB, {found['precision']}, AdamW; allocator overhead and CUDA's context not included"
    return f"{title}\n\n{text_table(['', *columns], rows)}"


def _left(rows: Sequence[tuple[str, str, str]]) -> str:
    name, value = (max(len(row[column]) for row in rows) for column in (0, 1))
    return "\n".join(f"{row[0]:<{name}}  {row[1]:>{value}}  {row[2]}" for row in rows)


def _size(size: int) -> str:
    return f"{size / _GIB:.2f}" if size >= _GIB / 10 else f"{size / _GIB:.4f}"
