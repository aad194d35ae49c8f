"""The tasks of an evaluation: for each, whether it applies to a model and its targets, and what it measures."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from accelerate import Accelerator
from datasets import Dataset
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel, PreTrainedTokenizerBase

from ..compat.transformers_caches import generate
from ..data.sequences import TEST_FIRST, HMMSequences
from ..data.windows import StridedWindows
from ..display import format_duration
from ..errors import InputError
from ..hmm import causal_lm  # noqa: F401, so that a model can be an HMM
from ..hmm.process import Process
from ..hmm.tokenizer import check_symbols, reads_symbols
from ..runtime.run_records import read_history
from ..text.corpora.loading import load_corpus
from ..text.stream import TokenStream
from ..text.tokenizers.encoding import encode_texts
from ..training.models import load_pretrained, tokenizer_of
from .beliefs import probe_beliefs, row_of
from .chat.measures import measure_chat
from .completions import COMPLETION_TOKENS, FACTS, OPEN_PROMPTS, complete
from .core import score_core, tokens_to_read
from .optimum import evaluation_of, evaluations_of, learning_phases, measure_optimum
from .scoring import context_limit, score_labels
from .targets import (
    Documents,
    TrainedOn,
    checkpoints_of,
    held_out_part,
    open_target,
    progress_of,
    revisions_of,
    trained_on,
)
from .text import DocumentWindows, measure_text

if TYPE_CHECKING:
    from .evaluation import EvaluationSettings

_MAX_WINDOW = 1024

Result = dict[str, Any]
"""What a task measures: the part of `report.json` that has its name, and `items`. Empty on ranks but the main one."""


@dataclass(kw_only=True)
class Subject:
    """A model, and what it is measured against.

    Attributes:
        settings ([`~hmm_datasets.EvaluationSettings`]): what to measure, and how.
        model_type (`str`): of its configuration.
        tokenizer ([`~transformers.PreTrainedTokenizerBase`], *optional*): the one in its folder.
        source ([`~hmm_datasets.hmm.process.Process`], *optional*): the distribution among the targets.
        held_out ([`~hmm_datasets.TokenStream`] or [`~.targets.Documents`], *optional*): the text among them.
        known ([`~.targets.TrainedOn`]): what it was trained on.
        tasks (sequence of `str`): the tasks chosen, in the order of [`TASKS`].
        model ([`~transformers.PreTrainedModel`]): the model, once it is loaded.
    """

    settings: "EvaluationSettings"
    model_type: str
    tokenizer: PreTrainedTokenizerBase | None
    source: Process | None
    held_out: TokenStream | Documents | None
    known: TrainedOn
    tasks: Sequence[str] = ()
    model: PreTrainedModel = field(init=False)

    def load(self, accelerator: Accelerator) -> None:
        """Load the model onto the device of this rank."""
        self.model = load_pretrained(AutoModelForCausalLM, self.settings.model).to(accelerator.device).eval()

    @property
    def sizes(self) -> dict[str, int]:
        """The settings that most measurements take."""
        return {"batch_size": self.settings.batch_size, "seed": self.settings.seed}

    @property
    def has_template(self) -> bool:
        return getattr(self.tokenizer, "chat_template", None) is not None

    @property
    def writes_text(self) -> bool:
        return self.tokenizer is not None and not reads_symbols(self.tokenizer)

    @cached_property
    def windows(self) -> DocumentWindows | StridedWindows:
        """The windows of the held-out text, for the model that is loaded."""
        settings, held_out = self.settings, self.held_out
        window, stride = window_and_stride(settings, self.model)
        if isinstance(held_out, Documents):
            return DocumentWindows(held_out.texts, self.tokenizer, window, stride)
        return StridedWindows(held_out, window, stride, settings.by_document)

    @cached_property
    def conversations(self) -> Dataset:
        """The held-out conversations."""
        settings = self.settings
        part = held_out_part(settings.chat_data, settings.test_fraction, self.known)
        rows = load_corpus(settings.chat_data, kind="conversations", streaming=False, **part)
        return rows.select(range(min(len(rows), settings.chat_questions)))

    @property
    def core(self) -> dict[str, Any]:
        """Which questions of CORE are asked."""
        settings = self.settings
        return {
            "tasks": settings.core_tasks or None,
            "max_per_task": settings.core_max_per_task,
            "corrupted": not settings.quick,
        }

    @property
    def samples(self) -> int:
        """Sampled continuations of each prompt."""
        return 0 if self.settings.quick else 2

    def history(self) -> list[dict[str, Any]]:
        """The evaluations of its training that have divergences."""
        path = Path(self.settings.model) / "history.jsonl"
        return evaluations_of(read_history(path)) if path.exists() else []

    def rows(self, num_sequences: int) -> HMMSequences:
        """Held-out sequences, but not those of the evaluations during training."""
        settings = self.settings
        return HMMSequences(
            self.source,
            settings.length,
            seed=settings.data_seed,
            first=TEST_FIRST + (1 << 32),
            num_sequences=num_sequences,
            bos=settings.bos,
        )


class Workload(NamedTuple):
    """What a model reads in a task: tokens of whole rows, and passes of one more token of a batch of answers."""

    tokens: int
    passes: int = 0


@dataclass(frozen=True)
class Task:
    """A task.

    Attributes:
        applies (callable): whether a subject, whose model is not loaded yet, has what it needs.
        measure (callable): takes a subject with its model and the accelerator, and returns the result.
        needs (`str`): why it does not apply, and how to mend that.
        reads (callable, *optional*): takes a subject with its model, and returns the [`Workload`]; None if most of the
            time is not the model's.
    """

    applies: Callable[[Subject], bool]
    measure: Callable[[Subject, Accelerator], Result]
    needs: str
    reads: Callable[[Subject], Workload] | None = None


def open_subject(settings: "EvaluationSettings") -> Subject:
    """The subject of an evaluation and the tasks that are run on it; its model is not loaded yet.

    Raises:
        `InputError`: a target that is not found, more than one of a kind, or a task that does not apply.
    """
    model_type = load_pretrained(AutoConfig, settings.model).model_type  # first, since the rest may take long
    known = trained_on(settings.model)
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
    held_out = texts[0] if texts else None
    of_symbols = isinstance(held_out, Documents) and held_out.of_symbols
    tokenizer = tokenizer_of(settings.model, symbols=of_symbols)
    if of_symbols and tokenizer is not None and reads_symbols(tokenizer):
        for text in held_out.texts:
            check_symbols(tokenizer, text)
    subject = Subject(
        settings=settings,
        model_type=model_type,
        tokenizer=tokenizer,
        source=processes[0] if processes else None,
        held_out=held_out,
        known=known,
    )
    subject.tasks = _chosen(subject)
    return subject


def _chosen(subject: Subject) -> list[str]:
    """The tasks in the settings, or all that apply."""
    wanted, possible = subject.settings.tasks, [name for name, task in TASKS.items() if task.applies(subject)]
    for name in wanted:
        if name not in possible:
            raise InputError(f"task {name}: {TASKS[name].needs}")
    if not possible:
        raise InputError(f"{subject.settings.model}: {TASKS['optimum'].needs}, or text")
    return [name for name in possible if name in wanted or not wanted]


def _optimum(subject: Subject, accelerator: Accelerator) -> Result:
    return _measure_optimum(subject, subject.model, subject.settings.num_sequences, accelerator)


def _measure_optimum(subject: Subject, model: PreTrainedModel, num_sequences: int, accelerator: Accelerator) -> Result:
    rows, settings = subject.rows(num_sequences), subject.settings
    return measure_optimum(
        model, subject.source, rows, accelerator, batch_size=settings.batch_size, order=settings.order
    )


def _beliefs(subject: Subject, accelerator: Accelerator) -> Result:
    rows = subject.rows(subject.settings.num_sequences)
    return probe_beliefs(subject.model, subject.source, rows, accelerator, **subject.sizes)


def _training(subject: Subject, accelerator: Accelerator) -> Result:
    settings = subject.settings
    if settings.revisions:
        origin, models = "revisions", revisions_of(settings.model, settings.revisions)
    elif settings.checkpoints:
        origin, models = "checkpoints", list(map(str, checkpoints_of(Path(settings.model))))
    else:
        return {"from": "history"} | learning_phases(subject.history())
    rows = [_checkpoint(subject, model, accelerator) for model in models]
    return {"from": origin} | learning_phases(rows) if accelerator.is_main_process else {}


def _checkpoint(subject: Subject, name: str, accelerator: Accelerator) -> dict[str, Any]:
    settings, progress = subject.settings, progress_of(name)
    model = load_pretrained(AutoModelForCausalLM, name).to(accelerator.device).eval()
    measured = _measure_optimum(subject, model, settings.checkpoint_sequences, accelerator)
    row = evaluation_of(measured) if measured else {}
    if "beliefs" in subject.tasks:
        rows = subject.rows(settings.checkpoint_sequences)
        row |= row_of(probe_beliefs(model, subject.source, rows, accelerator, **subject.sizes, controls=False))
    return progress | row


def window_and_stride(settings: "EvaluationSettings", model: PreTrainedModel) -> tuple[int, int]:
    """Tokens per window of text, and how many of them are scored."""
    window = settings.window or min(context_limit(model) or _MAX_WINDOW, _MAX_WINDOW)
    return window, settings.stride or max(1, window // 2)


def _text(subject: Subject, accelerator: Accelerator) -> Result:
    held_out, most = subject.held_out, subject.settings.max_windows
    sha256 = held_out.sha256 if isinstance(held_out, Documents) else held_out.index.sha256
    found = measure_text(
        subject.model, subject.tokenizer, subject.windows, accelerator, max_windows=most, **subject.sizes
    )
    return found and found | {"sha256": sha256}


def _text_read(subject: Subject) -> Workload:
    windows, most = subject.windows, subject.settings.max_windows
    return Workload((windows.length - 1) * (len(windows) if most is None else min(most, len(windows))))


def _core(subject: Subject, accelerator: Accelerator) -> Result:
    settings = subject.settings
    return score_core(
        subject.model,
        subject.tokenizer,
        settings.core_data,
        accelerator,
        batch_size=settings.batch_size,
        baselines=settings.core_baselines,
        **subject.core,
    )


def _core_read(subject: Subject) -> Workload:
    return Workload(tokens_to_read(subject.tokenizer, subject.settings.core_data, **subject.core))


def _chat(subject: Subject, accelerator: Accelerator) -> Result:
    return measure_chat(
        subject.model,
        subject.tokenizer,
        subject.conversations,
        accelerator,
        max_new_tokens=subject.settings.chat_max_new_tokens,
        **subject.sizes,
    )


def _chat_read(subject: Subject) -> Workload:
    rows, settings = subject.conversations, subject.settings
    texts = [message["content"] for row in rows for message in row["messages"]]
    tokens = sum(map(len, encode_texts(subject.tokenizer, texts)))
    return Workload(2 * tokens, -(-len(rows) // settings.batch_size) * settings.chat_max_new_tokens)


def _completions(subject: Subject, accelerator: Accelerator) -> Result:
    if not accelerator.is_main_process:
        return {}
    return complete(subject.model, subject.tokenizer, seed=subject.settings.seed, samples=subject.samples)


def _completions_read(subject: Subject) -> Workload:
    texts = [*(prompt for prompt, _ in FACTS), *OPEN_PROMPTS]
    times = 1 + subject.samples
    return Workload(times * sum(map(len, encode_texts(subject.tokenizer, texts))), times * COMPLETION_TOKENS)


TASKS = {
    "optimum": Task(
        lambda subject: subject.source is not None,
        _optimum,
        "there is no distribution to measure it against; give a process with --targets",
    ),
    "beliefs": Task(
        lambda subject: getattr(subject.source, "belief_width", None) is not None and subject.model_type != "hmm",
        _beliefs,
        "it needs one HMM or another process with beliefs, and a model with hidden states; give the process with "
        "--targets, and a model that is not an HMM itself",
    ),
    "training": Task(
        lambda subject: bool(
            subject.history()
            or (subject.source is not None and (subject.settings.checkpoints or subject.settings.revisions))
        ),
        _training,
        "the model's folder has no history with divergences, and checkpoints is not set; set --checkpoints true or "
        "--revisions all, and give the distribution with --targets",
    ),
    "text": Task(
        lambda subject: subject.held_out is not None and subject.tokenizer is not None,
        _text,
        "no held-out text; give a token stream or a corpus with --targets, and a model with a tokenizer",
        _text_read,
    ),
    "core": Task(
        lambda subject: subject.settings.core_data is not None and subject.writes_text,
        _core,
        "no questions; give their folder with --core_data, and a model with a tokenizer",
        _core_read,
    ),
    "chat": Task(
        lambda subject: subject.settings.chat_data is not None and subject.has_template,
        _chat,
        "no conversations; give a corpus with --chat_data, and a model whose tokenizer has a chat template",
        _chat_read,
    ),
    "completions": Task(
        lambda subject: subject.writes_text, _completions, "the model has no tokenizer", _completions_read
    ),
}


def expected_time(subject: Subject, num_processes: int = 1) -> str:
    """How long the tasks will take, at the speed of a short trial; empty if none of them reads a known amount.

    The trial reads some rows, and generates a few tokens if a task has answers. Answers may end early, so the time
    of tasks that have them is the most that they take.
    """
    readings = {name: TASKS[name].reads(subject) for name in subject.tasks if TASKS[name].reads is not None}
    if not readings:
        return ""
    model, batch_size, per_pass = subject.model, subject.settings.batch_size, 0.0
    length = min(128, context_limit(model) or 128)
    prompts = torch.zeros(batch_size, length, dtype=torch.long, device=model.device)
    per_token = _seconds_per_token(model, prompts)
    if any(reading.passes for reading in readings.values()):
        prompts = prompts[: len(FACTS), : max(1, min(8, length - 4))]
        mask, limits = torch.ones_like(prompts), {"max_new_tokens": 4, "min_new_tokens": 4, "do_sample": False}
        per_pass = _timed(lambda: generate(model, input_ids=prompts, attention_mask=mask, **limits)) / 4
    seconds = {
        name: per_token * reading.tokens / num_processes + per_pass * reading.passes
        for name, reading in readings.items()
    }
    parts = ", ".join(
        f"{name} {'at most ' if readings[name].passes else ''}{format_duration(one)}" for name, one in seconds.items()
    )
    others = [name for name in subject.tasks if name not in readings]
    besides = f", and that of {', '.join(others)}" if others else ""
    return f"about {format_duration(sum(seconds.values()))}{besides}: {parts}"


def _seconds_per_token(model: PreTrainedModel, rows: torch.Tensor) -> float:
    """Of a batch of some of the rows: of all of them where less would leave a fast device idle."""
    count = min(4, len(rows))
    while True:
        read = partial(score_labels, model, rows[:count], input_ids=rows[:count], use_cache=False)
        seconds = _timed(read)
        if seconds > 0.2 or count == len(rows):
            return seconds / (count * rows.shape[1])
        count = min(4 * count, len(rows))


def _timed(work: Callable[[], Any]) -> float:
    """Seconds that the second run of some work takes."""
    with torch.inference_mode():
        for _ in range(2):
            began = time.monotonic()
            work()
        if torch.accelerator.is_available():
            torch.accelerator.synchronize()
    return time.monotonic() - began
