"""Does a pretrained model learn a process in fewer tokens than a new one, and what does it forget?

    hmm-datasets experiment after-pretraining --model FOLDER [--hmm mess3] [--text FILE] [--core_data FOLDER]

A pretrained model of text is trained further on a mixture: half of the windows are sequences of a process, written as
text with a letter for each symbol (`A B B A`), and half are windows of text. Models of the same configuration with
random weights, one for each seed, are trained on the same rows. Sequences are drawn from the process, so the loss of
the exact HMM on the held-out ones is known; the excess over it is shown by the number of symbols trained on, beside
those of predictors that remember nothing or the last symbol. Losses count the whole vocabulary.

What the pretrained model forgets is seen in its loss on held-out text of the mixture, in simple facts and, with
`--core_data`, in some tasks of CORE. When started again the experiment continues where it stopped.
"""

import shlex
import time
from collections.abc import Mapping
from dataclasses import MISSING, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hmm_datasets.errors import InputError
from hmm_datasets.runtime.program import run
from hmm_datasets.runtime.settings import setting

if TYPE_CHECKING:
    from hmm_datasets.hmm.process import Process

LEARNING_RATE, NEW_LEARNING_RATE = 1e-4, 1e-3
"""Learning rates of the pretrained model and of the new ones."""
BATCH_SIZE = 8
"""Windows per step, half of them of the process."""
LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
CORE_TASKS = "arc_easy copa winograd"


@dataclass
class AfterPretrainingSettings:
    """Settings of the experiment."""

    model: str = setting(MISSING, "Folder, GGUF file or Hub name of a pretrained model of text.")
    output_dir: str = setting("outputs/after_pretraining", "Output folder.")
    hmm: str = setting("mess3", "Process with an exact distribution: name, folder or call.")
    text: str = setting("tinystories-sample", "A corpus: the text of the mixture.")
    length: int = setting(128, "Tokens per window, symbols per sequence.")
    max_steps: int = setting(64, "Optimizer steps of each model.")
    num_sequences: int = setting(32, "Held-out sequences, and windows of held-out text.")
    seeds: list[int] = setting([0, 1, 2], "Seeds of the new models.")
    core_data: str | None = setting(None, "Folder with the questions of CORE.")

    def __post_init__(self):
        if self.num_sequences < 2:
            raise InputError(f"num_sequences is {self.num_sequences}; expected 2 or more, for a standard error")


def main(settings: AfterPretrainingSettings) -> None:
    """Write the sequences and the new models, train, evaluate, report."""
    from hmm_datasets.hmm.loading import load_source
    from hmm_datasets.operations.stages import run_or_exit

    began, process = time.monotonic(), load_source(settings.hmm)
    write_sequences(settings, process)
    write_new_models(settings)
    run_or_exit(stages(settings))
    report(settings, process, time.monotonic() - began)


def folder_of(settings: AfterPretrainingSettings, name: str) -> Path:
    """A folder of the experiment."""
    return Path(settings.output_dir) / name


def held_out(settings: AfterPretrainingSettings, process: "Process") -> Any:
    """The held-out sequences of the process."""
    return process.sample(settings.num_sequences, settings.length, seed=1)


def write_sequences(settings: AfterPretrainingSettings, process: "Process") -> None:
    """Write sequences of the process as token streams of the model's tokenizer, one after the other."""
    from transformers import AutoTokenizer

    from hmm_datasets.evaluation.benchmark.symbols import SymbolTokens
    from hmm_datasets.text.stream.tokenization import tokenizer_hash
    from hmm_datasets.text.stream.writer import write_tokens
    from hmm_datasets.training.pretrained import load_pretrained

    tokenizer = load_pretrained(AutoTokenizer, settings.model)
    symbols = SymbolTokens.of(tokenizer, LETTERS[: process.num_symbols])
    if symbols.before:
        raise InputError(f"{settings.model}: its tokenizer does not write ' A' as one token")
    rows = settings.max_steps * BATCH_SIZE // 2
    for split, tokens in (
        ("train", process.sample(rows, settings.length, seed=0)),
        ("test", held_out(settings, process)),
    ):
        folder = folder_of(settings, "sequences") / split
        if not (folder / "index.json").is_file():
            write_tokens(
                [[symbols.last[symbol] for symbol in tokens.ravel().tolist()]],
                folder,
                vocab_size=len(tokenizer),
                eos_id=tokenizer.eos_token_id,
                tokenizer_hash=tokenizer_hash(tokenizer),
                corpus=f"{settings.hmm}, {split}",
            )


def write_new_models(settings: AfterPretrainingSettings) -> None:
    """Write models of the same configuration with random weights."""
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, set_seed

    from hmm_datasets.training.pretrained import load_pretrained

    for seed in settings.seeds:
        folder = folder_of(settings, f"random_{seed}")
        if not (folder / "model.safetensors").is_file():
            set_seed(seed)
            AutoModelForCausalLM.from_config(load_pretrained(AutoConfig, settings.model)).save_pretrained(folder)
            load_pretrained(AutoTokenizer, settings.model).save_pretrained(folder)


def stages(settings: AfterPretrainingSettings) -> list[tuple[str, str]]:
    """Title and command of every stage."""
    root, model, text = (
        shlex.quote(text_of_flag) for text_of_flag in (settings.output_dir, settings.model, settings.text)
    )

    def training(start: str, rate: float, seed: int, name: str) -> str:
        """The command that trains a model."""
        return (
            f"hmm-datasets midtrain --config after_pretraining/midtrain.yaml --model {start} --learning_rate {rate} "
            f"--streams {root}/sequences {root}/tokens/text --length {settings.length} "
            f"--max_steps {settings.max_steps} "
            f"--global_batch_size {BATCH_SIZE} --num_test_sequences {settings.num_sequences} "
            f"--seed {seed} --data_seed {seed} --output_dir {root}/{name}"
        )

    tasks = "--tasks completions"
    if settings.core_data is not None:
        core_data = shlex.quote(settings.core_data)
        tasks += f" core --core_data {core_data} --core_tasks {CORE_TASKS} --core_max_per_task 60 --batch_size 8"
    return [
        ("Text as tokens", f"hmm-datasets tokenize --corpus {text} --tokenizer {model} --output_dir {root}/tokens"),
        (f"{settings.model}, trained further", training(model, LEARNING_RATE, 0, "pretrained")),
        *(
            (
                f"A new model, seed {seed}",
                training(f"{root}/random_{seed}", NEW_LEARNING_RATE, seed, f"new_{seed}"),
            )
            for seed in settings.seeds
        ),
        *(
            (
                f"{title}: what it knows",
                f"hmm-datasets evaluate {folder} {tasks} --output_dir {root}/evaluation/{title}",
            )
            for title, folder in (("before", model), ("after", f"{root}/pretrained"))
        ),
    ]


def optimum_and_baselines(settings: AfterPretrainingSettings, process: "Process") -> dict[str, float]:
    """Losses on the held-out sequences from the second symbol on, as `midtrain` measures them, in nats per symbol."""
    import numpy as np
    import torch

    from hmm_datasets.hmm.analysis.predictors import predictors_of

    tokens = torch.from_numpy(held_out(settings, process).astype(np.int64))
    return {
        name: float(-predict(tokens)[:, 1:-1].gather(-1, tokens[:, 1:, None]).log().mean())
        for name, predict in predictors_of(process).items()
        if name in ("uniform", "unigram", "process_unigram", "bigram", "process_bigram", "bayes")
    }


def report(settings: AfterPretrainingSettings, process: "Process", seconds: float) -> None:
    """Write and print the table, draw the curves."""
    from report_page import write_report_page

    from hmm_datasets.files import read_json, read_jsonl
    from hmm_datasets.report.plots import STYLES
    from hmm_datasets.report.tables import Table

    folder, losses = Path(settings.output_dir), optimum_and_baselines(settings, process)
    per_step = BATCH_SIZE // 2 * settings.length
    curves = {
        name: list(
            {
                row["step"]: {  # the end is evaluated twice
                    "symbols": row["step"] * per_step,
                    "excess": row["eval_sequences_loss"] - losses["bayes"],
                    "text": row["eval_text_loss"],
                }
                for row in read_jsonl(folder / name / "history.jsonl")
                if "eval_sequences_loss" in row
            }.values()
        )
        for name in ("pretrained", *(f"new_{seed}" for seed in settings.seeds))
    }
    rows = [
        [
            f"{at['symbols']:,}",
            f"{at['excess']:.3f}",
            *(f"{curves[f'new_{seed}'][index]['excess']:.3f}" for seed in settings.seeds),
            f"{at['text']:.3f}",
        ]
        for index, at in enumerate(curves["pretrained"])
    ]
    header = [
        "symbols trained on",
        "pretrained",
        *(f"new, seed {seed}" for seed in settings.seeds),
        "text, pretrained",
    ]
    tables = [Table(f"Nats per symbol of {settings.hmm} above the optimal loss; nats per token of text", header, rows)]
    baselines = [[STYLES[name]["label"], f"{loss - losses['bayes']:.3f}"] for name, loss in losses.items()]
    tables.append(Table("Predictors, nats per symbol above the optimal loss", ["predictor", "excess"], baselines))
    known = {name: read_json(folder / "evaluation" / name / "report.json") for name in ("before", "after")}
    facts = [entry["completions"] for entry in known.values()]
    kept = [["facts", *(f"{entry['facts_correct']} of {entry['facts']}" for entry in facts)]]
    if settings.core_data is not None:
        scores = [entry["core"] for entry in known.values()]
        kept.append(
            ["CORE subset", *(f"{entry['score']:.3f} ({entry['low']:.3f} to {entry['high']:.3f})" for entry in scores)]
        )
    tables.append(Table("What the pretrained model knows, with 95% intervals", ["", "before", "after"], kept))
    figures = {"losses": losses, "curves": curves, "seconds": round(seconds, 1), "known": kept}
    excess = {name: loss - losses["bayes"] for name, loss in losses.items()}
    write_report_page(folder, tables, figures, {"after_pretraining.png": partial(draw, curves, excess)})


def draw(curves: Mapping[str, list[dict[str, Any]]], excess: Mapping[str, float], path: Path) -> None:
    """Draw the excess over the optimum by symbols trained on, and the loss on held-out text."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    from hmm_datasets.report.plots import PAPER, STYLES, WIDTH, save_figure

    with rc_context(PAPER):
        figure = Figure(figsize=(WIDTH * 2, 2.6), layout="constrained")
        left, right = figure.subplots(1, 2)
        first_new = next((curve for curve in curves if curve != "pretrained"), "")
        labels = {"pretrained": "pretrained", first_new: "new, same configuration"}
        for name, rows in curves.items():
            color, marker = ("black", "o") if name == "pretrained" else ("#D55E00", "x")
            trained = [row for row in rows if row["symbols"] > 0]
            for axes, figure_of in ((left, "excess"), (right, "text")):
                axes.plot(
                    [row["symbols"] for row in trained],
                    [row[figure_of] for row in trained],
                    color=color,
                    marker=marker,
                    markersize=3,
                    label=labels.get(name),
                )
        for name, value in excess.items():
            if value > 0 and name in ("uniform", "process_bigram"):
                left.axhline(value, **STYLES[name], linewidth=0.8)
        before = next(row["text"] for row in curves["pretrained"] if row["symbols"] == 0)
        right.axhline(before, color="grey", linestyle=":", label="pretrained, before")
        left.set(xscale="log", yscale="log", xlabel="symbols trained on", ylabel="nats per symbol above optimal loss")
        right.set(xscale="log", xlabel="symbols trained on", ylabel="nats per token of held-out text")
        for axes in (left, right):
            axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=2)
        save_figure(figure, path)


if __name__ == "__main__":
    run(main)
