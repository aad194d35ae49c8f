"""The settings of an evaluation, in a module that imports neither torch nor transformers."""

from dataclasses import MISSING, dataclass
from functools import partial
from pathlib import Path
from typing import ClassVar

from ..errors import InputError
from ..hmm.names import is_process_name, process_of_run
from ..hub.download import model_file
from ..records import Count, as_record
from ..runtime.run_records import RunRecord, read_run_record
from ..runtime.setting_rules import Get, NumberRange, Void, check_object
from ..runtime.settings import setting

TASK_NAMES = ("optimum", "beliefs", "training", "text", "core", "chat", "completions")
"""What can be measured, in the order in which it is."""
QUICK = {
    "num_sequences": 64,
    "checkpoint_sequences": 32,
    "core_max_per_task": 12,  # ten others precede an item
    "chat_questions": 8,
    "chat_max_new_tokens": 32,
}
"""The settings of a quick evaluation, at most."""
QUICK_WINDOWS = 8
"""The number of windows of text in a quick evaluation, at most."""


def _is_without(task: str, get: Get) -> bool:
    return bool(get("tasks")) and task not in get("tasks")


@dataclass
class EvaluationSettings:
    """The model to evaluate, what to measure, and what to measure it against."""

    model: str = setting(MISSING, "Folder, GGUF file or Hub name of a causal language model.")
    targets: list[str] = setting(
        [],
        "A process, held-out text (token stream, corpus, file, Hub data set), or one of each; by "
        "default the process that the model's folder says it was trained on.",
    )
    tasks: list[str] = setting([], f"Some of {', '.join(TASK_NAMES)}; by default all that apply.")
    metrics: list[str] = setting(
        [], "Further metrics for the task optimum, such as one that an installed distribution registers."
    )
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
    test_fraction: float | None = setting(
        None,
        "Share of the documents of a file or bundled sample that is held out, at most as in training; 1 "
        "for a file of which nothing was trained on. By default as training recorded it, else 0.1.",
    )
    core_data: str | None = setting(None, "Folder with the questions of CORE.")
    core_tasks: list[str] = setting([], "Tasks of CORE to run; by default all whose questions are in core_data.")
    core_max_per_task: int | None = setting(None, "Maximum number of questions per task of CORE.")
    chat_data: str | None = setting(None, "A corpus of conversations, whose test split is answered.")
    chat_questions: int = setting(256, "Maximum number of conversations of chat_data.")
    chat_max_new_tokens: int = setting(64, "Maximum number of tokens per answer.")
    quick: bool = setting(
        False,
        "A first look, with fewer sequences, windows and questions: about a minute for 135 million parameters on two "
        "cores.",
    )
    batch_size: int = setting(32, "Rows per rank in one forward pass.")
    seed: int = setting(0, "Seed of sampled text, of controls and of bootstraps.")

    number_ranges: ClassVar = {
        "length num_sequences order checkpoint_sequences window stride max_documents": NumberRange(1),
        "batch_size core_max_per_task chat_questions chat_max_new_tokens": NumberRange(1),
        "test_fraction": NumberRange(above=0, most=1),
    }
    voids = (
        Void("checkpoint_sequences", "without checkpoints or revisions"),
        Void("core_tasks core_max_per_task", "without core_data"),
        Void("chat_questions chat_max_new_tokens", "without chat_data"),
        Void("core_data", "if tasks are without core"),
        Void("chat_data", "if tasks are without chat"),
        Void("window stride by_document", "if tasks are without text"),
        Void("metrics order", "if tasks are without optimum"),
        Void("window stride by_document", "if targets are processes"),
    )
    void_facts: ClassVar = {f"tasks are without {task}": partial(_is_without, task) for task in TASK_NAMES} | {
        "targets are processes": lambda get: get("targets") and all(map(is_process_name, get("targets")))
    }

    reads_model = True
    """Its defaults are those of the model's run, so that it cannot be made before the model."""

    def __post_init__(self):
        check_object(self)
        for name, most in QUICK.items() if self.quick else ():
            value = getattr(self, name)
            setattr(self, name, most if value is None else min(value, most))
        for task in self.tasks:
            if task not in TASK_NAMES:
                raise InputError(f"tasks has {task!r}; expected some of {', '.join(TASK_NAMES)}")
        folder = Path(self.model)
        if self.output_dir is None:
            self.output_dir = str(folder / "evaluation" if folder.is_dir() else f"evaluation-{folder.name}")
        record = model_file(self.model, "run.json")
        trained_on = RunRecord() if record is None else read_run_record(record)
        if self.revisions and folder.is_dir():
            raise InputError(
                f"revisions is set, but {self.model} is a folder; name a repository, or set --checkpoints"
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
