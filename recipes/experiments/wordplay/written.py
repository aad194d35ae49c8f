"""What the model writes, and the strategies side by side: `report.md`, `report.json`, `strategies.png`.

    python recipes/experiments/wordplay/written.py outputs/wordplay --prompts "The " --strategies ddp zero3

Rates are medians over the rows of the history after the first, which includes one-off work. MFU and measured memory
exist on GPUs alone; planned memory is that of `hmm-datasets plan`. The loss is compared, row by row, with that of the
first strategy.
"""

import argparse
import statistics
from pathlib import Path
from typing import Any


def main() -> None:
    """Write, compare, draw."""
    from hmm_datasets.files import atomic_file, read_json, write_json
    from hmm_datasets.runtime.one_line_errors import one_line_errors

    parser = argparse.ArgumentParser(description="What the model writes, and the strategies side by side.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--prompts", nargs="+", required=True)
    parser.add_argument("--temperature", type=float, default=0.8)
    parser.add_argument("--strategies", nargs="*", default=[])
    arguments = parser.parse_args()
    with one_line_errors():
        folder = arguments.folder
        texts = written(folder / "model", arguments.prompts, arguments.temperature)
        bits = read_json(folder / "evaluation" / "report.json")["text"]["bits_per_byte"]
        report: dict[str, Any] = {"texts": texts, "bits_per_byte": bits}
        lines = [f"{bits:.3f} bits per byte on the held-out text", *(f"```\n{text}\n```" for text in texts)]
        print("\n\n".join([lines[0], *texts]))
        if arguments.strategies:
            report["strategies"] = [measured(folder / "strategies" / name) for name in arguments.strategies]
            table = strategy_table(report["strategies"])
            print(f"\n{table.text()}")
            lines.append(table.markdown())
        write_json(folder / "report.json", report)
        with atomic_file(folder / "report.md") as temporary:
            temporary.write_text("\n\n".join(lines) + "\n", encoding="utf-8")
        if arguments.strategies:
            draw(report["strategies"], folder / "strategies.png")
        print(f"\n{folder}/: report.md, report.json{', strategies.png' * bool(arguments.strategies)}")


def written(folder: Path, prompts: list[str], temperature: float) -> list[str]:
    """A text of the model for each prompt, as long as its context."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, set_seed

    from hmm_datasets.compat.transformers_caches import generate
    from hmm_datasets.training.pretrained import load_pretrained

    model = load_pretrained(AutoModelForCausalLM, str(folder)).eval()
    tokenizer = load_pretrained(AutoTokenizer, str(folder))
    texts = []
    for prompt in prompts:
        set_seed(0)
        asked = tokenizer(prompt, return_tensors="pt")
        sampling = {"do_sample": temperature > 0, "temperature": temperature or None}
        with torch.inference_mode():
            text = generate(model, **asked, max_length=model.config.max_position_embeddings, **sampling)
        texts.append(tokenizer.decode(text[0], skip_special_tokens=True))
    return texts


def measured(folder: Path) -> dict[str, Any]:
    """What a run under a strategy did: its rates, its memory and its losses."""
    from transformers import AutoConfig

    from hmm_datasets.files import read_json, read_log
    from hmm_datasets.training.plan.memory import STRATEGIES, memory_per_rank, peak_activations
    from hmm_datasets.training.pretrained import load_pretrained

    record, plan = read_json(folder / "run.json"), read_json(folder / "plan.json")
    rows = [row for row in read_log(folder / "history.jsonl") if "loss" in row]
    rates = rows[1:] or rows

    def middle(name: str) -> float | None:
        return statistics.median(row[name] for row in rates) if all(name in row for row in rates) else None

    figures = {
        "strategy": folder.name,
        "world_size": record["world_size"],
        "device": record["device"],
        **{name: middle(name) for name in ("samples_per_second", "tokens_per_second", "mfu")},
        "memory_allocated": max((row.get("memory_allocated", 0) for row in rows), default=0) or None,
        "planned_memory": None,
        "losses": {str(row["step"]): row["loss"] for row in rows},
    }
    if folder.name in STRATEGIES:
        config = load_pretrained(AutoConfig, str(folder))
        micro = record["settings"]["per_device_train_batch_size"]
        low_precision = record["settings"]["bf16"]
        figures["planned_memory"] = memory_per_rank(
            folder.name,
            parameters=plan["parameters"],
            world_size=record["world_size"],
            activations=peak_activations(
                config,
                micro_batch_size=micro,
                length=plan["row_length"],
                low_precision=low_precision,
                low_weights=folder.name != "ddp",
            ),
            largest_layer=plan["parameters_without_embeddings"] // config.num_hidden_layers,
            low_precision=low_precision,
            reduces_once=record["settings"]["gradient_accumulation_steps"] > 1,
        )["total"]
    return figures


def strategy_table(results: list[dict[str, Any]]):
    """One row for each strategy."""
    from hmm_datasets.report.tables import Table, figure_text

    rows = []
    for row in results:
        memory = [row["memory_allocated"], row["planned_memory"]]
        rows.append([
            row["strategy"],
            str(row["world_size"]),
            figure_text(row["samples_per_second"], ",.1f"),
            figure_text(row["tokens_per_second"], ",.0f"),
            figure_text(row["mfu"], ".1%"),
            *("-" if size is None else f"{size / 2**20:,.0f}" for size in memory),
            f"{list(row['losses'].values())[-1]:.4f}",
            f"{loss_difference(row, results[0]):.1e}",
        ])  # fmt: skip
    header = ["strategy", "ranks", "samples/s", "tokens/s", "MFU", "MiB per rank", "MiB planned", "last loss"]
    header.append(f"largest difference of loss from {results[0]['strategy']}")
    note = f"Device: {results[0]['device']}. MFU is shown where the device's peak is known."
    return Table("The same model on the same rows under each strategy", header, rows, note)


def loss_difference(first: dict[str, Any], other: dict[str, Any]) -> float:
    """The largest absolute difference between the losses of two runs at the same step."""
    return max(abs(loss - other["losses"][step]) for step, loss in first["losses"].items())


def draw(rows: list[dict[str, Any]], path: Path) -> None:
    """Draw tokens per second as bars, and the losses, which should lie on each other."""
    from matplotlib.figure import Figure

    from hmm_datasets.report.plots import save_figure

    figure = Figure(figsize=(9, 3.2), layout="constrained")
    left, right = figure.subplots(1, 2)
    names = [row["strategy"] for row in rows]
    left.barh(names, [row["tokens_per_second"] for row in rows], color="#0072B2")
    left.invert_yaxis()
    left.set_xlabel("tokens per second, all ranks")
    colors = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#D55E00", "#56B4E9")
    for number, row in enumerate(rows):
        steps = [int(step) for step in row["losses"]]
        style = {"color": colors[number % len(colors)], "linewidth": 1 + 1.2 * (len(rows) - number - 1)}
        right.plot(steps, list(row["losses"].values()), label=row["strategy"], **style)
    right.set(xlabel="step", ylabel="loss, nats per character")
    right.legend(frameon=False, loc="center left", bbox_to_anchor=(1.0, 0.5))
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
    save_figure(figure, path)


if __name__ == "__main__":
    main()
