"""An evaluation: every measure that applies to a model, written into one folder.

The folder has `report.html` (self-contained), `plots/` (PNG and PDF), `items/TASK.jsonl` with the result of every
sequence, document or question, and `report.json` with results, versions, seeds, commit and hashes. `report.json` is
written last, so a folder that has one is complete. `hmm-datasets compare` computes paired intervals from `items/`.
"""

from dataclasses import MISSING, dataclass
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator

from ..errors import InputError
from ..files import write_digests, write_json, write_jsonl, written_together
from ..hmm.integers import integer
from ..hmm.names import process_of_run
from ..hub.download import model_file
from ..records import Count, as_record
from ..report.evaluation_tables import evaluation_text
from ..report.page import write_page
from ..runtime.once import one_command
from ..runtime.run_records import RunRecord, read_run_record
from ..runtime.settings import setting
from .context import open_context
from .provenance import data_hashes, provenance
from .tasks import TASKS, chosen_tasks

REPORT_NAME, PAGE_NAME, ITEMS_NAME, PLOTS_NAME = "report.json", "report.html", "items", "plots"


QUICK = {
    "num_sequences": 64,
    "checkpoint_sequences": 32,
    "max_windows": 8,
    "core_max_per_task": 12,  # ten others precede an item
    "chat_questions": 8,
    "chat_max_new_tokens": 32,
}
"""The settings of a quick evaluation, at most."""


@dataclass
class EvaluationSettings:
    """The model to evaluate, what to measure, and what to measure it against."""

    model: str = setting(MISSING, "Folder, GGUF file or Hub name of a causal language model.")
    targets: list[str] = setting(
        [],
        "A process, held-out text (token stream, corpus, file, Hub data set), or one of each; by "
        "default the process that the model's folder says it was trained on.",
    )
    tasks: list[str] = setting([], f"Some of {', '.join(TASKS)}; by default all that apply.")
    output_dir: str | None = setting(None, "Where the report goes; by default evaluation/ in the model's folder.")
    length: int | None = setting(None, "Symbols per held-out sequence; by default as in training, else 64.")
    num_sequences: int = setting(512, "Number of held-out sequences to measure on.")
    data_seed: int | None = setting(
        None, "Seed of the stream the model was trained on; held-out indices of it are used."
    )
    bos: bool = setting(True, "Whether rows begin with a beginning-of-sequence token.")
    order: int = setting(2, "Largest n of the n-gram baselines.")
    checkpoints: bool = setting(False, "Also measure every checkpoint in the model's folder.")
    revisions: list[str] = setting(
        [], "Also measure these revisions of the model's repository on the Hub; `all` for its branches step-N."
    )
    checkpoint_sequences: int = setting(128, "Number of held-out sequences per checkpoint.")
    window: int | None = setting(None, "Tokens per window of text; by default the context of the model, at most 1024.")
    stride: int | None = setting(
        None,
        "Tokens scored per window, the others being context; by default half a window. Windows do not overlap if it "
        "is that of window; the first token of each is then not scored.",
    )
    by_document: bool = setting(False, "Score each document of a token stream by itself, without context from others.")
    max_documents: int = setting(1000, "Maximum number of documents read from a corpus or a file.")
    max_windows: int | None = setting(None, "Maximum number of windows of text.")
    test_fraction: float | None = setting(
        None,
        "Share of the documents of a file or bundled sample that is held out, at most as in training; 1 "
        "for a file of which nothing was trained on. By default as training recorded it, else 0.1.",
    )
    core_data: str | None = setting(None, "Folder with the questions of CORE.")
    core_tasks: list[str] = setting([], "Tasks of CORE to run; by default all whose questions are in core_data.")
    core_max_per_task: int | None = setting(None, "Maximum number of questions per task of CORE.")
    core_baselines: str = setting("v1", "Version of the random baselines of CORE: v1 or v2.")
    chat_data: str | None = setting(None, "A corpus of conversations, whose test split is answered.")
    chat_questions: int = setting(256, "Maximum number of conversations of chat_data.")
    chat_max_new_tokens: int = setting(64, "Maximum number of tokens per answer.")
    quick: bool = setting(
        False,
        "A first look, with fewer sequences, windows and questions and without the control of CORE: about "
        "a minute for 135 million parameters on two cores.",
    )
    push: bool = setting(False, "Add the results to the model's repository on the Hub, in its card.")
    batch_size: int = setting(32, "Rows per rank in one forward pass.")
    seed: int = setting(0, "Seed of sampled text, of controls and of bootstraps.")

    reads_model = True
    """Its defaults are those of the model's run, so that it cannot be made before the model."""

    def __post_init__(self):
        for name in ("length", "num_sequences", "order", "checkpoint_sequences", "window", "stride", "max_documents",
                     "max_windows", "batch_size", "core_max_per_task", "chat_questions",
                     "chat_max_new_tokens"):  # fmt: skip
            value = getattr(self, name)
            if value is not None:
                setattr(self, name, integer(name, value, 1, 63))
        for name, most in QUICK.items() if self.quick else ():
            value = getattr(self, name)
            setattr(self, name, most if value is None else min(value, most))
        for task in self.tasks:
            if task not in TASKS:
                raise InputError(f"tasks has {task!r}; expected some of {', '.join(TASKS)}")
        folder = Path(self.model)
        if self.output_dir is None:
            self.output_dir = str(folder / "evaluation" if folder.is_dir() else f"evaluation-{folder.name}")
        record = model_file(self.model, "run.json")
        trained_on = RunRecord() if record is None else read_run_record(record)
        if self.revisions and folder.is_dir():
            raise InputError(
                f"revisions is set, but {self.model} is a folder; name a repository, or set --checkpoints"
            )
        if self.push and folder.exists():
            raise InputError(
                f"push is set, but {self.model} is on this machine; name its repository, or push the folder with "
                "hmm-datasets push"
            )
        if not self.targets and isinstance(trained_on.settings.get("hmm"), str):
            self.targets = [process_of_run(folder, trained_on.settings["hmm"])]
        data = as_record(trained_on.data, _Sequences, record or "run.json")
        if self.length is None:
            self.length = data.length
        if self.data_seed is None:
            self.data_seed = data.seed


@dataclass(frozen=True)
class _Sequences:
    """What the data of a run say about sequences that are drawn, as far as they do."""

    length: Count = 64
    seed: Count = 0


@one_command()
def evaluate_model(settings: EvaluationSettings) -> dict[str, Any]:
    """Evaluate a model, write the folder of the evaluation, and print its tables; under a launcher on all ranks.

    Args:
        settings ([`EvaluationSettings`]): what to measure.

    Returns:
        `dict`: the content of `report.json`; empty on ranks other than the main one.

    Raises:
        `InputError`: a name that is not found, or a task that does not apply.
    """
    accelerator = Accelerator(cpu=not torch.accelerator.is_available())
    context = open_context(settings)
    context.tasks = chosen_tasks(context)
    context.load(accelerator)
    results, items = {}, {}
    for name in context.tasks:
        results[name] = TASKS[name].measure(context, accelerator)
        rows = results[name].pop("items", None)
        if rows is not None:
            items[name] = rows
    if not accelerator.is_main_process:
        return {}
    report = provenance(settings, context.model) | {"hashes": data_hashes(results)} | results
    write_evaluation(report, items, settings.output_dir)
    return report


def write_evaluation(report: dict[str, Any], items: dict[str, list[dict]], folder: str | Path) -> None:
    """Write the folder of an evaluation and print its tables; an existing folder is replaced once all is written."""
    from ..report.evaluation_plots import draw_evaluation

    folder = Path(folder)
    with written_together(folder) as temporary:
        for name, rows in items.items():
            write_jsonl(temporary / ITEMS_NAME / f"{name}.jsonl", rows)
        (temporary / PLOTS_NAME).mkdir()
        plots = draw_evaluation(report, items, temporary / PLOTS_NAME)
        write_page(report, plots, temporary / PAGE_NAME)
        write_json(temporary / REPORT_NAME, report)
        write_digests(temporary, into=folder)
    print(evaluation_text(report))
    print(f"\n{folder}/: {REPORT_NAME}, {PAGE_NAME}, {PLOTS_NAME}/, {ITEMS_NAME}/")
