"""The tasks along pretraining: every checkpoint that was kept is evaluated, and the measures are drawn.

    python recipes/experiments/zac_gpt/along.py outputs/zac_gpt --targets outputs/zac_gpt/tokens/text/test

It writes `along.json` and `along.png`: bits per byte, right facts and, with `--core_data`, the CORE score against the
tokens trained on. Checkpoints that are evaluated already are not evaluated again.
"""

import argparse
import shlex
import sys
from pathlib import Path


def main() -> None:
    """Evaluate, read, draw."""
    from hmm_datasets.files import read_json, read_log, write_json
    from hmm_datasets.operations.stages import run_stages
    from hmm_datasets.runtime.one_line_errors import one_line_errors

    parser = argparse.ArgumentParser(description="The tasks along pretraining.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--targets", required=True)
    parser.add_argument("--core_data")
    parser.add_argument("--flags", default="", help="flags of every evaluation")
    arguments = parser.parse_args()
    with one_line_errors():
        folder, reports = arguments.folder / "pretrain", arguments.folder / "evaluation" / "along"
        steps = sorted(int(path.name.partition("-")[2]) for path in folder.glob("checkpoint-*"))
        tasks = "text completions" if arguments.core_data is None else "text completions core"
        core = "" if arguments.core_data is None else f"--core_data {shlex.quote(arguments.core_data)} "
        code = run_stages([
            (
                f"pretrain, step {step:,}",
                f"hmm-datasets evaluate {shlex.quote(f'{folder}/checkpoint-{step}')} --targets "
                f"{shlex.quote(arguments.targets)} --tasks {tasks} {core}{arguments.flags} --output_dir "
                f"{shlex.quote(str(reports / str(step)))}",
            )
            for step in steps
            if not (reports / str(step) / "report.json").exists()
        ])  # fmt: skip
        if code != 0:
            sys.exit(code)
        tokens = {row["step"]: row["tokens"] for row in read_log(folder / "history.jsonl") if "tokens" in row}
        plan = read_json(folder / "plan.json")
        rows = []
        for step in steps:
            report = read_json(reports / str(step) / "report.json")
            facts = report["completions"]
            rows.append({
                "step": step,
                "tokens": tokens.get(step, round(step * plan["tokens"] / plan["steps"])),
                "bits_per_byte": report["text"]["bits_per_byte"],
                "facts": facts["facts_correct"] / facts["facts"],
                "core": report["core"]["score"] if "core" in report else None,
            })  # fmt: skip
        write_json(arguments.folder / "along.json", {"checkpoints": rows})
        draw(rows, arguments.folder / "along.png")
        print(f"\n{arguments.folder}/: along.json, along.png, of {len(rows)} checkpoints")


def draw(rows: list[dict], path: Path) -> None:
    """Draw one panel for each measure."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import EngFormatter

    from hmm_datasets.report.plots import save_figure

    titles = {"bits_per_byte": "bits per byte of held-out text", "facts": "share of right facts", "core": "CORE"}
    titles = {name: title for name, title in titles.items() if rows and rows[-1][name] is not None}
    figure = Figure(figsize=(3.6 * max(1, len(titles)), 2.8), layout="constrained")
    for number, (name, title) in enumerate(titles.items(), 1):
        axes = figure.add_subplot(1, len(titles), number)
        axes.plot([row["tokens"] for row in rows], [row[name] for row in rows], color="#0072B2", marker="o")
        axes.set(xlabel="tokens of pretraining", ylabel=title)
        axes.locator_params("x", nbins=5)
        axes.xaxis.set_major_formatter(EngFormatter(sep=""))
        if name == "facts":
            axes.set_ylim(-0.05, 1.05)
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(alpha=0.25, linewidth=0.6)
    save_figure(figure, path)


if __name__ == "__main__":
    main()
