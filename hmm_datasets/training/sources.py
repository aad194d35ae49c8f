"""The training data of a run: the settings that choose it, its rows, its held-out rows, and its token counts.

The recipes read the rows, and the plan of a run counts them.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import MISSING, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import InputError
from ..runtime.setting_rules import Void, check_object
from ..runtime.settings import setting
from .model_configs import check_packed
from .pretrained import load_pretrained

if TYPE_CHECKING:
    from torch.utils.data import Dataset
    from transformers import PreTrainedTokenizerBase

    from ..hmm.process import Process


@dataclass
class DataSettings:
    """The training data: exactly one of `hmm` and `tokens`."""

    hmm: str | None = setting(
        None,
        "A process, such as mess3 or 'mess3(x=0.1)', or the folder or Hub name of an HMM, a family of them or "
        "another process.",
    )
    tokens: str | None = setting(None, "Folder that tokenize wrote, or one with the token streams train/ and test/.")
    tokenizer: str | None = setting(
        None, "Folder of the tokenizer that made the tokens; by default the one beside them."
    )
    length: int = setting(64, "Symbols per sequence (process), tokens per window (text).", least=1)
    packed: bool = setting(False, "Pack whole documents into windows, without attention across documents.")
    data_seed: int = setting(0, "Seed of the stream of sequences, or of the order of windows.")
    num_test_sequences: int = setting(256, "Maximum number of held-out sequences or windows.", least=1)

    alternatives = (("hmm", "tokens"),)
    voids = (
        Void("packed tokenizer", "with hmm", "symbols fill their rows and are their own tokens"),
        Void("epochs_ok", "with hmm", "its sequences never repeat"),
    )

    def __post_init__(self):
        if (self.hmm is None) == (self.tokens is None):
            raise InputError(
                f"hmm is {self.hmm!r} and tokens {self.tokens!r}; give --hmm, such as mess3 or the folder of a "
                "process, or --tokens, a folder that `hmm-datasets tokenize` wrote, and not both"
            )
        if self.tokens is not None:
            self._find_streams(Path(self.tokens))
        if self.tokens is not None and self.tokenizer is None:
            if Path(self.tokens).is_file():
                raise InputError(
                    f"tokens is {self.tokens}, a file; name the folder that `hmm-datasets tokenize {self.tokens}` "
                    "writes, and says where"
                )
            if not Path(self.tokens).is_dir():
                raise InputError(f"tokens is {self.tokens}: no such folder; `hmm-datasets tokenize FILE` writes one")
            raise InputError("tokens is set, but tokenizer is not; set it, since it is saved with the model")

    def _find_streams(self, folder: Path) -> None:
        """Find the streams of text and the tokenizer in a folder that `tokenize` wrote, or beside its streams."""
        if (folder / "text" / "train").is_dir() and not (folder / "train").is_dir():
            folder = folder / "text"
            self.tokens = str(folder)
        beside = folder.parent / "tokenizer"
        if self.tokenizer is None and beside.is_dir():
            self.tokenizer = str(beside)

    def load(self) -> "TrainingData":
        """Open the process or the streams."""
        return SequenceData(self) if self.hmm is not None else TokenData(self)


@dataclass
class MixtureSettings:
    """The model to midtrain, and the mixture to train it on."""

    model: str = setting(MISSING, "Folder, GGUF file or Hub name of the pretrained model.")
    streams: list[str] = setting(MISSING, "Folders, each with the token streams train/ and test/.")
    weights: list[float] = setting(MISSING, "Share of each stream in the mixture.")
    weigh_by: str = setting("examples", "Unit of the weights: examples (rows) or tokens.")
    length: int = setting(256, "Tokens per window.", least=1)
    packed_streams: list[str] = setting(
        [], "Those of the streams whose whole documents are packed, without attention across documents."
    )
    data_seed: int = setting(0, "Seed of the order in which windows are visited.")
    num_test_sequences: int = setting(256, "Maximum number of held-out windows per stream.", least=1)

    def __post_init__(self):
        check_object(self)
        if len(self.streams) != len(self.weights):
            raise InputError(f"{len(self.streams)} streams and {len(self.weights)} weights; expected one per stream")
        for folder in self.packed_streams:
            if folder not in self.streams:
                raise InputError(f"packed_streams: {folder} is none of the streams {', '.join(self.streams)}")

    def load(self) -> "TrainingData":
        """Open the streams."""
        return MixedData(self)


@dataclass
class ConversationSettings:
    """The model to fine-tune, and its conversations."""

    model: str = setting(MISSING, "Folder, GGUF file or Hub name of a model whose tokenizer has a chat template.")
    conversations: str = setting("instructions-sample", "A corpus of conversations: name, file or Hub data set.")
    chat_template: str | None = setting(
        None, "default, chatml, llama3, qwen2.5 or qwen3; without it, the tokenizer's own chat template."
    )
    max_conversations: int | None = setting(None, "Maximum number of conversations to train on.", least=1)
    num_test_sequences: int = setting(256, "Maximum number of held-out conversations.", least=1)
    test_fraction: float | None = setting(
        None, "Share held out by hash; by default a data set's own test split, else 0.1.", below=1
    )
    prompt: str = setting("What is the capital of France?", "A question that the model answers at the end.")
    max_new_tokens: int = setting(64, "Maximum number of tokens per answer.", least=1)
    num_questions: int = setting(0, "Number of held-out questions to answer before and after, counting exact matches.")

    voids = (Void("num_test_sequences num_questions", "if test_fraction is 0"),)


@dataclass
class PreferenceSettings:
    """The model to train, and the preferences."""

    model: str = setting(MISSING, "Folder, GGUF file or Hub name of a model whose tokenizer has a chat template.")
    preferences: str = setting(MISSING, "A corpus of preferences: file, folder or Hub data set.")
    max_preferences: int | None = setting(None, "Maximum number of pairs to train on.", least=1)
    num_test_sequences: int = setting(256, "Maximum number of held-out pairs.", least=1)
    test_fraction: float | None = setting(
        None, "Share held out by hash of the prompt; by default a data set's own test split, else 0.1.", below=1
    )

    voids = (Void("num_test_sequences", "if test_fraction is 0"),)


class TrainingData(ABC):
    """Rows to train on, and held-out rows.

    Attributes:
        row_length (`int`): `T`, tokens per row, including padding.
        rows_per_epoch (`int`, *optional*): rows before one is repeated; None if rows are never repeated.
        test_rows (`Dataset`): the held-out rows.
        vocab_size (`int`): `V`.
        tokenizer ([`~transformers.PreTrainedTokenizerBase`], *optional*): the tokenizer that made the tokens.
        source ([`~hmm_datasets.hmm.process.Process`], *optional*): the distribution of the rows, if it is known.
        packed (`bool`): whether rows have several documents, which attention must keep apart.
        identity (`dict`): what determines the rows and their order.
    """

    row_length: int
    rows_per_epoch: int | None
    test_rows: "Dataset"
    vocab_size: int
    tokenizer: "PreTrainedTokenizerBase | None" = None
    source: "Process | None" = None
    packed: bool = False
    identity: dict[str, Any]
    examples_per_row: float = 1.0
    """Average number of conversations in a row."""

    @abstractmethod
    def rows(self, num_rows: int) -> "Dataset":
        """A map-style data set of at least `num_rows` rows, in order."""

    @property
    def special_tokens(self) -> dict[str, int | None]:
        """Ids of the special tokens, for a model's configuration."""
        names = ("bos_token_id", "eos_token_id", "pad_token_id")
        return {} if self.tokenizer is None else {name: getattr(self.tokenizer, name) for name in names}

    @property
    def tokens_per_row(self) -> float:
        """Average number of tokens per row, without padding."""
        return self.rows(1).tokens_per_row

    def tokens_of(self, num_rows: int) -> int:
        """Number of tokens in the first `num_rows` rows, without padding."""
        return num_rows * self.row_length

    def corpora(self, num_rows: int) -> list[dict[str, Any]]:
        """The corpora in the first `num_rows` rows: `name`, `corpus`, `tokens`, `epochs` of each; none for an HMM."""
        return []


class SequenceData(TrainingData):
    """Sequences of a process, each after a beginning token."""

    rows_per_epoch = None

    def __init__(self, settings: DataSettings):
        from ..data.sequences import TEST_FIRST, HMMSequences
        from ..hmm.loading import load_source

        self._settings = settings
        self.source = load_source(settings.hmm)
        self.row_length = settings.length + 1
        self.test_rows = HMMSequences(
            self.source,
            settings.length,
            seed=settings.data_seed,
            first=TEST_FIRST,
            num_sequences=settings.num_test_sequences,
        )
        self.tokenizer, self.vocab_size = self.test_rows.tokenizer, self.test_rows.vocab_size
        self.identity = {
            "hmm": self.source.fingerprint(),
            "length": settings.length,
            "seed": settings.data_seed,
        }

    def rows(self, num_rows):
        from ..data.sequences import HMMSequences

        return HMMSequences(self.source, self._settings.length, seed=self._settings.data_seed).by_index()

    def tokens_of(self, num_rows):
        return self.rows(num_rows).tokens_of(num_rows)

    @property
    def special_tokens(self):
        return {"bos_token_id": self.test_rows.bos_token_id}


class TokenData(TrainingData):
    """Windows of a token stream, in another random order in every epoch."""

    def __init__(self, settings: DataSettings):
        from torch.utils.data import Subset
        from transformers import AutoTokenizer

        from ..data.windows import TokenWindows
        from ..text.stream import TokenStream

        self._settings = settings
        self.packed = settings.packed
        self.row_length = settings.length
        self.stream = TokenStream(f"{settings.tokens}/train")
        held_out = TokenWindows(TokenStream(f"{settings.tokens}/test"), settings.length)
        self.test_rows = Subset(held_out, range(min(len(held_out), settings.num_test_sequences)))
        self.tokenizer = load_pretrained(AutoTokenizer, settings.tokenizer)
        self.vocab_size = self.stream.index.vocab_size
        self.rows_per_epoch = self.rows(1).num_windows
        self.identity = {
            "tokens": self.stream.index.sha256,
            "length": settings.length,
            "seed": settings.data_seed,
        } | ({"packed": True} if settings.packed else {})

    def rows(self, num_rows):
        from ..data.packing import repeated_windows

        return repeated_windows(
            self.stream,
            self.row_length,
            num_rows,
            seed=self._settings.data_seed,
            packed=self._settings.packed,
        )

    def tokens_of(self, num_rows):
        return self.rows(num_rows).tokens_between(0, num_rows)

    def corpora(self, num_rows):
        return [_corpus(self._settings.tokens, self.stream, num_rows / self.rows_per_epoch)]


class MixedData(TrainingData):
    """Windows of several token streams, mixed in given shares."""

    def __init__(self, settings: MixtureSettings):
        from torch.utils.data import Subset
        from transformers import AutoConfig, AutoTokenizer

        from ..data.windows import TokenWindows
        from ..text.stream import TokenStream, tokenizer_hash
        from .step.held_out_loss import HeldOutParts

        self._settings = settings
        self.row_length = settings.length
        self.rows_per_epoch = None
        self.packed = bool(settings.packed_streams)
        if self.packed:
            check_packed(load_pretrained(AutoConfig, settings.model))
        self.tokenizer = load_pretrained(AutoTokenizer, settings.model)
        self.streams = [TokenStream(f"{folder}/train") for folder in settings.streams]
        for folder, stream in zip(settings.streams, self.streams, strict=True):
            if stream.index.tokenizer_hash != tokenizer_hash(self.tokenizer):
                raise InputError(f"{folder}: made with a different tokenizer than {settings.model}; tokenize it again")
        self.vocab_size = self.streams[0].index.vocab_size
        held_out = [TokenWindows(TokenStream(f"{folder}/test"), settings.length) for folder in settings.streams]
        first = [Subset(rows, range(min(len(rows), settings.num_test_sequences))) for rows in held_out]
        self.test_rows = HeldOutParts(dict(zip(stream_names(settings.streams), first, strict=True)))
        self.identity = {
            "tokens": [stream.index.sha256 for stream in self.streams],
            "counts": self.rows(1).counts,
            "length": settings.length,
            "seed": settings.data_seed,
        } | ({"packed": [folder in settings.packed_streams for folder in settings.streams]} if self.packed else {})

    def rows(self, num_rows):
        from ..data.interleaving import InterleavedRows
        from ..data.packing import repeated_windows

        settings = self._settings
        sources = [
            repeated_windows(
                *(stream, settings.length, num_rows),
                seed=settings.data_seed,
                packed=folder in settings.packed_streams,
            )
            for folder, stream in zip(settings.streams, self.streams, strict=True)
        ]
        return InterleavedRows(sources, settings.weights, by=settings.weigh_by, num_rows=num_rows)

    def tokens_of(self, num_rows):
        if num_rows == 0:
            return 0
        mixture = self.rows(num_rows)
        parts = zip(mixture.sources, mixture.realized(num_rows), strict=True)
        return sum(source.tokens_between(0, part["rows"]) for source, part in parts)

    def corpora(self, num_rows):
        parts = self.rows(num_rows).realized(num_rows)
        return [
            _corpus(folder, stream, part["epochs"]) | {"share": part["token_share"]}
            for folder, stream, part in zip(self._settings.streams, self.streams, parts, strict=True)
        ]


class _ShuffledData(TrainingData):
    """Rows of a data set, in another random order in every epoch.

    Args:
        rows (`datasets.Dataset`): the rows.
        lengths (`np.ndarray` of shape `(N,)`): number of tokens that each row is trained on.
        row_length (`int`): maximum number of tokens per sequence.
        tokenizer ([`~transformers.PreTrainedTokenizerBase`]): the tokenizer that made the tokens.
        seed (`int`): seed of the orders.
        test_rows (`datasets.Dataset`, *optional*): the held-out rows.
    """

    def __init__(self, rows, lengths, row_length: int, tokenizer, *, seed: int, test_rows=None):
        self._rows, self._lengths, self._seed = rows, lengths, seed
        self.row_length = row_length
        self.rows_per_epoch = len(rows)
        if "seq_lengths" in rows.column_names:
            self.examples_per_row = sum(map(len, rows["seq_lengths"])) / len(rows)
        self.test_rows = test_rows
        self.vocab_size = len(tokenizer)
        self.tokenizer = tokenizer

    def share_of_full_rows(self) -> float:
        """The share of rows with as many tokens as a row can have, most of which are cut."""
        return float((self._lengths >= self.row_length).mean())

    def rows(self, num_rows):
        from ..data.epochs import ShuffledEpochs

        return ShuffledEpochs(self._rows, self._seed, epochs=max(1, -(-num_rows // self.rows_per_epoch)))

    @property
    def tokens_per_row(self):
        return float(self._lengths.mean())

    def tokens_of(self, num_rows):
        from ..shuffle import epoch_order

        epochs, rest = divmod(num_rows, self.rows_per_epoch)
        indices = epoch_order(range(rest), self.rows_per_epoch, self._seed, epochs)
        return epochs * int(self._lengths.sum()) + int(self._lengths[indices].sum())


class ConversationData(_ShuffledData):
    """Tokenized conversations, in another random order in every epoch.

    Args:
        rows (`datasets.Dataset`): rows with `input_ids`, as TRL prepares them.
        tokenizer ([`~transformers.PreTrainedTokenizerBase`]): the tokenizer that made the tokens.
        max_length (`int`, *optional*): maximum number of tokens per row; None for the length of the longest row.
        seed (`int`): seed of the orders.
        test_rows (`datasets.Dataset`, *optional*): the held-out rows.
    """

    def __init__(self, rows, tokenizer, *, max_length: int | None, seed: int, test_rows=None):
        lengths = _lengths_of(rows, "input_ids")
        longest = int(lengths.max()) if max_length is None else max_length
        super().__init__(rows, lengths, longest, tokenizer, seed=seed, test_rows=test_rows)


class PreferenceData(_ShuffledData):
    """Tokenized preference pairs, in another random order in every epoch. A row is two sequences.

    Args:
        rows (`datasets.Dataset`): rows with `prompt_ids`, `chosen_ids` and `rejected_ids`, as TRL prepares them.
        tokenizer, max_length, seed, test_rows: see [`ConversationData`]. Longer sequences are cut to `max_length`.
    """

    def __init__(self, rows, tokenizer, *, max_length: int | None, seed: int, test_rows=None):
        import numpy as np

        prompts = _lengths_of(rows, "prompt_ids")
        pairs = np.stack([prompts + _lengths_of(rows, name) for name in ("chosen_ids", "rejected_ids")])
        pairs = pairs if max_length is None else np.minimum(pairs, max_length)
        super().__init__(rows, pairs.sum(0), int(pairs.max()), tokenizer, seed=seed, test_rows=test_rows)


def _lengths_of(rows, column: str):
    """The number of tokens in a column of every row."""
    import numpy as np
    import pyarrow.compute as pc

    tables = rows.select_columns([column]).with_format("arrow").iter(batch_size=1000)
    lengths = [pc.list_value_length(table[column]).to_numpy() for table in tables]
    return np.concatenate(lengths).astype(np.int64)


def stream_names(folders: Sequence[str]) -> list[str]:
    """Names of the streams for plots and logs: that of the folder, preceded by its parent's if two are the same.

    ```python
    >>> stream_names(["outputs/a/text", "outputs/b/text", "outputs/a/chat"])
    ['a_text', 'b_text', 'chat']

    ```
    """
    paths = [[part for part in Path(folder).parts if part not in ("/", "..")] for folder in folders]
    names = [parts[-1] for parts in paths]
    names = ["_".join(parts[-2:]) if names.count(name) > 1 else name for parts, name in zip(paths, names, strict=True)]
    return [
        name if name not in names[:index] else f"{name}_{names[:index].count(name) + 1}"
        for index, name in enumerate(names)
    ]


def _corpus(name: str, stream, epochs: float) -> dict[str, Any]:
    return {"name": name, "corpus": stream.index.corpus, "tokens": stream.num_tokens, "epochs": epochs}
