"""An evaluation: every measure that applies to a model, written into one folder.

The folder has `report.html` (self-contained), `plots/` (PNG and PDF), `items/TASK.jsonl` with the result of every
sequence, document or question, and `report.json` with results, versions, seeds, commit and hashes. `report.json` is
written last, so a folder that has one is complete. `hmm-datasets compare` computes paired intervals from `items/`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from ..data.windows import StridedWindows
from ..errors import InputError
from ..files import read_json, read_log, write_digests, write_json, write_jsonl, written_together
from ..hmm.integers import integer
from ..hmm.names import SAVED_NAME
from ..hmm.process import Process
from ..hmm.tokenizer import check_symbols, reads_symbols
from ..hub.download import model_file
from ..report.evaluation_tables import evaluation_text
from ..report.page import write_page
from ..text.corpora.loading import load_corpus
from ..training.models import load_pretrained, tokenizer_of
from .beliefs import probe_beliefs, row_of
from .chat.measures import measure_chat
from .chat_core.score import CHAT_CORE_TASKS, DEFAULT_TASKS, check_tasks, load_tasks, measure_chat_core
from .completions import complete
from .core import score_core
from .scoring import context_limit
from .targets import (
    Documents,
    checkpoints_of,
    data_hashes,
    held_out_part,
    open_target,
    progress_of,
    provenance,
    revisions_of,
    trained_on,
)
from .text import DocumentWindows, measure_text

if TYPE_CHECKING:
    from accelerate import Accelerator
    from lm_eval.api.task import Task
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from ..data.sequences import HMMSequences
    from ..text.stream import TokenStream

REPORT_NAME, PAGE_NAME, ITEMS_NAME, PLOTS_NAME = "report.json", "report.html", "items", "plots"

_MAX_WINDOW = 1024

TASKS = ("optimum", "beliefs", "training", "text", "core", "chat", "chat_core", "completions")
ON_REQUEST = ("chat_core",)
"""Tasks that run only if they are named, since they download their questions."""

_WHY_NOT = {
    "optimum": "there is no distribution to measure it against; give a process with --targets",
    "beliefs": "it needs one HMM or another process with beliefs, and a model with hidden "
    "states; give the process with --targets, and a model that is not an HMM itself",
    "training": "the model's folder has no history with divergences, and checkpoints is not set; set --checkpoints "
    "true or --revisions all, and give the distribution with --targets",
    "text": "no held-out text; give a token stream or a corpus with --targets, and a model with a tokenizer",
    "core": "no questions; give their folder with --core_data, and a model with a tokenizer",
    "chat": "no conversations; give a corpus with --chat_data, and a model whose tokenizer has a chat template",
    "chat_core": "the model's tokenizer has no chat template; name a chat model",
    "completions": "the model has no tokenizer",
}


@dataclass
class EvaluationSettings:
    """The model to evaluate, what to measure, and what to measure it against."""

    model: str = field(metadata={"help": "Folder or Hub name of a causal language model."})
    targets: list[str] = field(
        default_factory=list,
        metadata={
            "help": "A process, held-out text (token stream, corpus, file, Hub data set), or one of each; by "
            "default the process that the model's folder says it was trained on."
        },
    )
    tasks: list[str] = field(
        default_factory=list,
        metadata={"help": f"Some of {', '.join(TASKS)}; by default all that apply, but for chat_core."},
    )
    output_dir: str | None = field(
        default=None, metadata={"help": "Where the report goes; by default evaluation/ in the model's folder."}
    )
    length: int | None = field(
        default=None, metadata={"help": "Symbols per held-out sequence; by default as in training, else 64."}
    )
    num_sequences: int = field(default=512, metadata={"help": "Number of held-out sequences to measure on."})
    stream_seed: int | None = field(
        default=None,
        metadata={"help": "Seed of the stream the model was trained on; held-out indices of it are used."},
    )
    bos: bool = field(default=True, metadata={"help": "Whether rows begin with a beginning-of-sequence token."})
    order: int = field(default=2, metadata={"help": "Largest n of the n-gram baselines."})
    checkpoints: bool = field(default=False, metadata={"help": "Also measure every checkpoint in the model's folder."})
    revisions: list[str] = field(
        default_factory=list,
        metadata={
            "help": "Also measure these revisions of the model's repository on the Hub; `all` for its branches step-N."
        },
    )
    checkpoint_sequences: int = field(default=128, metadata={"help": "Number of held-out sequences per checkpoint."})
    window: int | None = field(
        default=None,
        metadata={"help": "Tokens per window of text; by default the context of the model, at most 1024."},
    )
    stride: int | None = field(
        default=None,
        metadata={"help": "Tokens scored per window, the others being context; by default half a window."},
    )
    by_document: bool = field(
        default=False,
        metadata={"help": "Score each document of a token stream by itself, without context from others."},
    )
    max_documents: int = field(
        default=1000, metadata={"help": "Maximum number of documents read from a corpus or a file."}
    )
    test_fraction: float | None = field(
        default=None,
        metadata={
            "help": "Share of the documents of a file or bundled sample that is held out, at most as in training; 1 "
            "for a file of which nothing was trained on. By default as training recorded it, else 0.1."
        },
    )
    core_data: str | None = field(default=None, metadata={"help": "Folder with the questions of CORE."})
    core_tasks: list[str] = field(
        default_factory=list,
        metadata={"help": "Tasks of CORE to run; by default all whose questions are in core_data."},
    )
    core_max_per_task: int | None = field(
        default=None, metadata={"help": "Maximum number of questions per task of CORE."}
    )
    core_baselines: str = field(default="v1", metadata={"help": "Version of the random baselines of CORE: v1 or v2."})
    chat_data: str | None = field(
        default=None, metadata={"help": "A corpus of conversations, whose test split is answered."}
    )
    chat_questions: int = field(default=256, metadata={"help": "Maximum number of conversations of chat_data."})
    chat_max_new_tokens: int = field(default=64, metadata={"help": "Maximum number of tokens per answer."})
    chat_core_tasks: list[str] = field(
        default_factory=lambda: list(DEFAULT_TASKS),
        metadata={"help": f"Tasks of ChatCORE to run, some of {', '.join(CHAT_CORE_TASKS)}."},
    )
    chat_core_max_per_task: int | None = field(
        default=None, metadata={"help": "Maximum number of questions per task of ChatCORE."}
    )
    chat_core_run_code: bool = field(
        default=False, metadata={"help": "Allow humaneval, which runs Python that the model writes, in bubblewrap."}
    )
    push: bool = field(
        default=False, metadata={"help": "Add the results to the model's repository on the Hub, in its card."}
    )
    batch_size: int = field(default=32, metadata={"help": "Rows per rank in one forward pass."})
    seed: int = field(default=0, metadata={"help": "Seed of sampled text, of controls and of bootstraps."})

    reads_model = True
    """Its defaults are those of the model's run, so that it cannot be made before the model."""

    def __post_init__(self):
        for name in ("length", "num_sequences", "order", "checkpoint_sequences", "window", "stride", "max_documents",
                     "batch_size", "core_max_per_task", "chat_questions", "chat_max_new_tokens",
                     "chat_core_max_per_task"):  # fmt: skip
            value = getattr(self, name)
            if value is not None:
                setattr(self, name, integer(name, value, 1, 63))
        for task in self.tasks:
            if task not in TASKS:
                raise InputError(f"tasks has {task!r}; expected some of {', '.join(TASKS)}")
        check_tasks(self.chat_core_tasks, self.chat_core_run_code)
        folder = Path(self.model)
        if self.output_dir is None:
            self.output_dir = str(folder / "evaluation" if folder.is_dir() else f"evaluation-{folder.name}")
        record = model_file(self.model, "run.json")
        trained_on = {"data": {}, "settings": {}} if record is None else read_json(record)
        if self.revisions and folder.is_dir():
            raise InputError(
                f"revisions is set, but {self.model} is a folder; name a repository, or set --checkpoints"
            )
        if self.push and folder.is_dir():
            raise InputError(
                f"push is set, but {self.model} is a folder; name its repository, or push the folder with "
                "hmm-datasets push"
            )
        if not self.targets and trained_on["settings"].get("hmm"):
            saved = folder / SAVED_NAME  # of a process that the run named
            self.targets = [str(saved) if saved.is_dir() else trained_on["settings"]["hmm"]]
        if self.length is None:
            self.length = trained_on["data"].get("length", 64)
        if self.stream_seed is None:
            self.stream_seed = trained_on["data"].get("seed", 0)


def evaluate_model(settings: EvaluationSettings) -> dict[str, Any]:
    """Evaluate a model, write the folder of the evaluation, and print its tables; under a launcher on all ranks.

    Args:
        settings ([`EvaluationSettings`]): what to measure.

    Returns:
        `dict`: the content of `report.json`; empty on ranks other than the main one.

    Raises:
        `InputError`: a name that is not found, or a task that does not apply.
    """
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=not torch.accelerator.is_available())
    subject = _Subject(settings)
    tasks = subject.tasks()
    if "chat_core" in tasks and accelerator.is_main_process:
        # Before any work is done, so that what is missing shows at once.
        subject.questions = load_tasks(settings.chat_core_tasks)
    subject.model = load_pretrained(AutoModelForCausalLM, settings.model).to(accelerator.device).eval()
    found, items = {}, {}
    for name in tasks:
        found[name] = getattr(subject, name)(accelerator)
        rows = found[name].pop("items", None)
        if rows is not None:
            items[name] = rows
    if not accelerator.is_main_process:
        return {}
    report = provenance(settings, subject.model) | {"hashes": data_hashes(found)} | found
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


class _Subject:
    """A model, its targets, and a method for each task."""

    model: "PreTrainedModel"
    questions: "dict[str, Task]"
    chosen: Sequence[str] = ()

    def __init__(self, settings: EvaluationSettings):
        from ..hmm import causal_lm  # noqa: F401, so that `settings.model` can be an HMM

        self.settings = settings
        self.model_type: str = load_pretrained(AutoConfig, settings.model).model_type
        self.known = known = trained_on(settings.model)
        targets = [
            open_target(name, settings.max_documents, test_fraction=settings.test_fraction, known=known)
            for name in settings.targets
        ]
        processes = [target for target in targets if isinstance(target, Process)]
        texts = [target for target in targets if not isinstance(target, Process)]
        if len(processes) > 1 or len(texts) > 1:
            raise InputError(
                f"targets has {len(processes)} processes and {len(texts)} texts; expected at most one of each"
            )
        self.source: Process | None = processes[0] if processes else None
        self.held_out: TokenStream | Documents | None = texts[0] if texts else None
        words = isinstance(self.held_out, Documents) and self.held_out.of_symbols
        self.tokenizer: PreTrainedTokenizerBase | None = tokenizer_of(settings.model, symbols=words)
        self.reads_symbols = self.tokenizer is not None and reads_symbols(self.tokenizer)
        if self.reads_symbols:
            for text in self.held_out.texts:
                check_symbols(self.tokenizer, text)

    def tasks(self) -> list[str]:
        """The tasks in the settings, or all that apply, in the order of `TASKS`."""
        has_beliefs = self.source is not None and self.source.belief_width is not None
        has_text = self.tokenizer is not None and not self.reads_symbols
        possible = {
            "optimum": self.source is not None,
            "beliefs": has_beliefs and self.model_type != "hmm",
            "training": bool(self._history())
            or (bool(self.settings.checkpoints or self.settings.revisions) and self.source is not None),
            "text": self.held_out is not None and self.tokenizer is not None,
            "core": self.settings.core_data is not None and has_text,
            "chat": self.settings.chat_data is not None and getattr(self.tokenizer, "chat_template", None) is not None,
            "chat_core": getattr(self.tokenizer, "chat_template", None) is not None,
            "completions": has_text,
        }
        for task in self.settings.tasks:
            if not possible[task]:
                raise InputError(f"task {task}: {_WHY_NOT[task]}")
        wanted = self.settings.tasks or [task for task in TASKS if task not in ON_REQUEST]
        chosen = [task for task in TASKS if possible[task] and task in wanted]
        if not chosen:
            raise InputError(f"{self.settings.model}: {_WHY_NOT['optimum']}, or text")
        self.chosen = chosen
        return chosen

    def optimum(self, accelerator: "Accelerator") -> dict[str, Any]:
        return self._measure_optimum(self.model, self.settings.num_sequences, accelerator)

    def beliefs(self, accelerator: "Accelerator") -> dict[str, Any]:
        rows, settings = self._rows(self.settings.num_sequences), self.settings
        return probe_beliefs(
            self.model, self.source, rows, accelerator, batch_size=settings.batch_size, seed=settings.seed
        )

    def training(self, accelerator: "Accelerator") -> dict[str, Any]:
        from .optimum import learning_phases

        settings = self.settings
        if settings.revisions:
            source, models = "revisions", revisions_of(settings.model, settings.revisions)
        elif settings.checkpoints:
            source, models = "checkpoints", list(map(str, checkpoints_of(Path(settings.model))))
        else:
            return {"from": "history"} | learning_phases(self._history())
        rows = [self._checkpoint(model, accelerator) for model in models]
        return {"from": source} | learning_phases(rows) if accelerator.is_main_process else {}

    def text(self, accelerator: "Accelerator") -> dict[str, Any]:
        settings = self.settings
        window = settings.window or min(context_limit(self.model) or _MAX_WINDOW, _MAX_WINDOW)
        stride = settings.stride or max(1, window // 2)
        if isinstance(self.held_out, Documents):
            windows = DocumentWindows(self.held_out.texts, self.tokenizer, window, stride)
            sha256 = self.held_out.sha256
        else:
            windows = StridedWindows(self.held_out, window, stride, settings.by_document)
            sha256 = self.held_out.index.sha256
        found = measure_text(
            self.model,
            self.tokenizer,
            windows,
            accelerator,
            batch_size=settings.batch_size,
            seed=settings.seed,
        )
        return found and found | {"sha256": sha256}

    def core(self, accelerator: "Accelerator") -> dict[str, Any]:
        settings = self.settings
        return score_core(
            self.model,
            self.tokenizer,
            settings.core_data,
            accelerator,
            tasks=settings.core_tasks or None,
            max_per_task=settings.core_max_per_task,
            batch_size=settings.batch_size,
            baselines=settings.core_baselines,
        )

    def chat(self, accelerator: "Accelerator") -> dict[str, Any]:
        settings = self.settings
        part = held_out_part(settings.chat_data, settings.test_fraction, self.known)
        rows = load_corpus(settings.chat_data, kind="conversations", streaming=False, **part)
        return measure_chat(
            self.model,
            self.tokenizer,
            rows.select(range(min(len(rows), settings.chat_questions))),
            accelerator,
            max_new_tokens=settings.chat_max_new_tokens,
            batch_size=settings.batch_size,
            seed=settings.seed,
        )

    def chat_core(self, accelerator: "Accelerator") -> dict[str, Any]:
        if not accelerator.is_main_process:
            return {}
        settings = self.settings
        return measure_chat_core(
            *(self.model, self.tokenizer, self.questions),
            max_per_task=settings.chat_core_max_per_task,
            batch_size=settings.batch_size,
            seed=settings.seed,
        )

    def completions(self, accelerator: "Accelerator") -> dict[str, Any]:
        if not accelerator.is_main_process:
            return {}
        return complete(self.model, self.tokenizer, seed=self.settings.seed)

    def _measure_optimum(
        self, model: "PreTrainedModel", num_sequences: int, accelerator: "Accelerator"
    ) -> dict[str, Any]:
        from .optimum import measure_optimum

        rows, settings = self._rows(num_sequences), self.settings
        return measure_optimum(
            model, self.source, rows, accelerator, batch_size=settings.batch_size, order=settings.order
        )

    def _rows(self, num_sequences: int) -> "HMMSequences":
        from ..data.sequences import TEST_FIRST, HMMSequences

        settings = self.settings
        # Not the held-out sequences that were used for evaluations during training.
        return HMMSequences(
            self.source,
            settings.length,
            seed=settings.stream_seed,
            first=TEST_FIRST + (1 << 32),
            num_sequences=num_sequences,
            bos=settings.bos,
        )

    def _history(self) -> list[dict[str, Any]]:
        from .optimum import evaluations_of

        path = Path(self.settings.model) / "history.jsonl"
        return evaluations_of(read_log(path)) if path.exists() else []

    def _checkpoint(self, name: str, accelerator: "Accelerator") -> dict[str, Any]:
        from .optimum import evaluation_of

        settings, progress = self.settings, progress_of(name)
        model = load_pretrained(AutoModelForCausalLM, name).to(accelerator.device).eval()
        measured = self._measure_optimum(model, settings.checkpoint_sequences, accelerator)
        row = evaluation_of(measured) if measured else {}
        if "beliefs" in self.chosen:
            rows = self._rows(settings.checkpoint_sequences)
            sizes = {"batch_size": settings.batch_size, "seed": settings.seed}
            row |= row_of(probe_beliefs(model, self.source, rows, accelerator, **sizes, controls=False))
        return progress | row
