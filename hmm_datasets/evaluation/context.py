"""What an evaluation has at hand: the model, its settings, and what it is measured against."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from accelerate import Accelerator
from datasets import Dataset
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel, PreTrainedTokenizerBase

from ..data.sequences import TEST_FIRST, HMMSequences
from ..data.windows import StridedWindows
from ..errors import InputError
from ..hmm.process import Process
from ..hmm.tokenizer import check_symbols, reads_symbols
from ..runtime.run_records import read_history
from ..text.corpora.loading import load_corpus
from ..text.stream import TokenStream
from ..training.pretrained import load_pretrained, tokenizer_of
from .document_windows import DocumentWindows
from .learning_phases import evaluations_of
from .model_limits import context_limit
from .settings import EvaluationSettings
from .targets import Documents, held_out_part, open_target
from .trained_on import TrainedOn, trained_on

_MAX_WINDOW = 1024


@dataclass(kw_only=True)
class EvaluationContext:
    """A model, and what it is measured against.

    Attributes:
        settings ([`~hmm_datasets.EvaluationSettings`]): what to measure, and how.
        model_type (`str`): of its configuration.
        tokenizer ([`~transformers.PreTrainedTokenizerBase`], *optional*): the one in its folder.
        source ([`~hmm_datasets.hmm.process.Process`], *optional*): the distribution among the targets.
        held_out ([`~hmm_datasets.TokenStream`] or [`~.targets.Documents`], *optional*): the text among them.
        known ([`~.trained_on.TrainedOn`]): what it was trained on.
        tasks (sequence of `str`): the tasks chosen, in the order of [`~hmm_datasets.evaluation.tasks.TASKS`].
        model ([`~transformers.PreTrainedModel`]): the model, once it is loaded.
    """

    settings: EvaluationSettings
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


def open_context(settings: EvaluationSettings) -> EvaluationContext:
    """The tokenizer and the targets of an evaluation; its model is not loaded yet, and its tasks are not chosen.

    Raises:
        `InputError`: a target that is not found, or more than one process or text.
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
    if of_symbols and tokenizer is not None:
        for text in held_out.texts:
            check_symbols(tokenizer, text)
    return EvaluationContext(
        settings=settings,
        model_type=model_type,
        tokenizer=tokenizer,
        source=processes[0] if processes else None,
        held_out=held_out,
        known=known,
    )


def window_and_stride(settings: EvaluationSettings, model: PreTrainedModel) -> tuple[int, int]:
    """Tokens per window of text, and how many of them are scored."""
    window = settings.window or min(context_limit(model) or _MAX_WINDOW, _MAX_WINDOW)
    return window, settings.stride or max(1, window // 2)
