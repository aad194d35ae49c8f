"""The plan of a run as a table: what it consumes, how much memory it needs, when it ends."""

from collections.abc import Sequence
from typing import Any

from ..display import counted, format_duration
from .tables import text_table

_GIB = 1 << 30


def plan_text(plan: dict[str, Any]) -> str:
    """The tables of a plan of a run, see [`~hmm_datasets.operations.planning.plan_recipe`]."""
    ((name, amount),) = plan["budget"].items()
    batch = (
        f"{plan['micro_batch_size']} micro-batch x {plan['gradient_accumulation_steps']} accumulation x "
        f"{plan['world_size']} ranks = {plan['global_batch_size']:,} rows"
    )
    ranks, shown_ranks = plan["possible_ranks"], " ".join(map(str, plan["possible_ranks"][:8]))
    checkpoints = plan["checkpoints"]
    rows = [
        ("parameters", f"{plan['parameters']:,}", f"{plan['parameters_without_embeddings']:,} without embeddings"),
        (
            "FLOPs per token",
            f"{plan['flops_per_token']:,}",
            "6 N, and for attention 12 layers x width x length; forward and backward",
        ),
        ("global batch", f"{plan['global_batch_size']:,}", batch),
        ("tokens per step", f"{plan['tokens_per_step']:,}", f"rows of {plan['row_length']:,}"),
        ("steps", f"{plan['steps']:,}", f"budget: {name} {amount:,.12g}"),
        ("tokens", f"{plan['tokens']:,}", f"{plan['tokens_per_parameter']:.3g} per parameter"),
        (
            "FLOPs",
            f"{plan['flops']:.4g}",
            "of the model, without padding and recomputation; fewer if sequences are shorter than rows",
        ),
        ("possible ranks", shown_ranks + (f" ... {ranks[-1]}" if len(ranks) > 8 else ""), "for every batch"),
        (
            "disk",
            f"{checkpoints['most'] * checkpoints['bytes'] / _GIB:,.3g} GiB",
            f"{counted(checkpoints['most'], 'checkpoint')} of {_size(checkpoints['bytes'])} GiB at once; "
            "ZeRO's are larger",
        ),
    ]
    if stages := plan["batch_ramp"]:
        shown = stages if len(stages) <= 4 else [*stages[:2], "...", stages[-1]]
        rows.insert(3, ("batch ramp", " ".join(shown), f"rows:steps of {len(stages)} stages before the full batch"))
    if plan["trained_parameters"] < plan["parameters"]:
        rows.insert(1, ("trained", f"{plan['trained_parameters']:,}", "parameters; others cost 4 N instead of 6 N"))
    if plan.get("assumed_vocab_size") is not None:
        rows.append(("epochs", "unknown", f"the data were not read; a vocabulary of {plan['assumed_vocab_size']:,}"))
    elif not plan["corpora"] and plan["epochs"] is None:
        rows.append(("epochs", "none", "no sequence is repeated"))
    elif not plan["corpora"]:
        rows.append(("epochs", f"{plan['epochs']:,.2f}", f"{plan['rows']:,} rows in all"))
    for corpus in plan["corpora"]:
        share = f", {corpus['share']:.0%} of the run" if corpus.get("share") is not None else ""
        rows.append(("epochs", f"{corpus['epochs']:,.2f}", f"{corpus['name']}: {corpus['tokens']:,} tokens{share}"))
    if "time" in plan:
        time = plan["time"]
        rows.append(("tokens per second", f"{time['tokens_per_second']:,.0f}", time["rate"]))
        rows.append(("time", format_duration(time["seconds"]), f"{time['device_hours']:,.3g} device hours"))
        rows.append(("ends", time["ends"].replace("T", " "), "if it starts now"))
        if "cost" in time:
            rows.append(("cost", f"{time['cost']:,.2f}", "at price_per_hour"))
    else:
        rows.append(("time", "unknown", "set assumed_rate"))
    law = [_law_table(plan["law"], plan["flops"])] if "law" in plan else []
    return "\n\n".join((_left(rows), *law, _memory_table(plan)))


def _law_table(law: dict[str, Any], flops: float) -> str:
    least, most = law["fitted_flops"]
    beyond = f", {flops / most:,.3g} times the largest" if flops > most else ""
    title = f"Best for these FLOPs, by the law of {law['runs']} runs of {least:.3g} to {most:.3g} FLOPs{beyond}"
    forms, parts = {"parameters": ",.0f", "tokens": ",.0f", "loss": ",.5g"}, ("value", "low", "high")
    rows = [[name, *(format(law[name][part], form) for part in parts)] for name, form in forms.items()]
    return f"{title}\n\n{text_table(['95%', *parts], rows)}"


def consumption_table(plan: dict[str, Any], summary: dict[str, Any]) -> str:
    """A table of what was planned and what the run consumed: fewer FLOPs where sequences are shorter than rows.

    Args:
        plan (`dict`): `plan.json` of a run.
        summary (`dict`): its `summary.json`.
    """
    names = ("steps", "tokens", "flops")
    rows = [[name, *(f"{counts[name]:,.0f}" for counts in (plan, summary))] for name in names]
    return text_table(["", "planned", "consumed"], rows)


def _memory_table(memory: dict[str, Any]) -> str:
    columns = ("weights", "gradients", "optimizer", "activations", "total")
    rows = [[strategy, *(_size(sizes[column]) for column in columns)] for strategy, sizes in memory["memory"].items()]
    title = f"Memory per rank in GiB, {memory['precision']}, {memory['optimizer']}; no allocator or CUDA overhead"
    if "device" not in memory:
        return f"{title}\n\n{text_table(['', *columns], rows)}"
    device = memory["device"]
    for row, sizes in zip(rows, memory["memory"].values(), strict=True):
        row.append("yes" if sizes["total"] <= device["usable"] else "NO")
    fits = f"fits the {_size(device['usable'])} usable of {device['name']}"
    return f"{title}\n\n{text_table(['', *columns, fits], rows)}"


def _left(rows: Sequence[tuple[str, str, str]]) -> str:
    name, value = (max(len(row[column]) for row in rows) for column in (0, 1))
    return "\n".join(f"{row[0]:<{name}}  {row[1]:>{value}}  {row[2]}" for row in rows)


def _size(size: int) -> str:
    return f"{size / _GIB:.2f}" if size >= _GIB / 10 else f"{size / _GIB:.4f}"
