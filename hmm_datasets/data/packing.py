"""Windows of whole documents, packed best fit, with restarting positions and no attention between documents.

Documents longer than a window are cut into pieces of its length. Pieces are packed by best-fit decreasing: the longest
first, each into the fullest window that has enough space left (Ding et al., "Fewer Truncations Improve Language
Modeling", ICML 2024, arXiv:2404.10830). This is done in blocks of 131,072 documents, so that it takes constant memory.
With a segment tree over the space left, a piece takes `O(log length)`.

The assignment of pieces to windows is called the plan. It takes 16 bytes per piece and 8 per window, in one
memory-mapped file in the cache of Hugging Face (`HF_HOME`), not beside the tokens. A plan that is recomputed block by
block would need no file, but a shuffled reader needs another block for every row, and every rank and worker would keep
its own. The file is named after the stream and the length. It is written atomically, and again if it is deleted.

Windows of a token stream over as many epochs as a run needs.
"""

import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Int, Int64

from ..compilation import compiled
from ..errors import InputError
from ..files import atomic_file
from ..runtime.progress import progress_bar
from ..text.stream.reader import TokenStream
from .windows import IGNORED, TokenWindows, Windows, check_length

PLAN_VERSION = 1
"""Version of the plan. It must change when the same stream and length give another plan."""

_BLOCK = 1 << 17  # documents packed at a time


class PackedWindows(Windows):
    """A map-style data set of windows with documents packed best fit, and padding at their ends.

    A row has `input_ids`, `labels` and `position_ids`, int64 tensors of shape `(L,)`. Positions count from 0 in every
    piece of a document. The first label of a piece is -100, since the token before it is of another document. Padding
    is EOS with label -100 and position `L - 1`. No other token without a label has that position, so [`count_tokens`]
    distinguishes padding from documents of EOS alone. `num_padding` counts padding. An epoch contains every token of
    the stream once. Without a seed windows are in the order of their first documents.

    **Only `position_ids` separate documents.** transformers makes a block-diagonal mask from them (for sdpa, eager and
    flex attention) only if the model gets no `attention_mask` and `use_cache=False`. Otherwise each document silently
    attends to those before it in its row. So train with

    - `data_collator=transformers.default_data_collator`, which stacks these three columns and adds no mask. The
      default collator of a `Trainer` with a tokenizer adds a mask of ones;
    - `use_cache=False`, which is the default of `TrainingArguments`; outside a `Trainer` pass it to the model.

    FlashAttention reads `position_ids` only in batches of one row. For more rows pass it [`document_bounds`] too, as
    the trainers of this package do; with another trainer use one window per micro-batch.

    Args:
        stream ([`TokenStream`]):
            The tokens.
        length (`int`):
            Tokens per window, at least 2.
        seed (`int`, *optional*):
            Seed of the order; None keeps the order of the plan.
        epochs (`int`, *optional*, defaults to 1):
            Number of epochs.
        cache_dir (`str` or `os.PathLike`, *optional*):
            Folder of the plans; by default `hmm_datasets/packing` under `HF_HOME`.

    Attributes:
        num_windows (`int`): windows per epoch.
        num_pieces (`int`): number of documents and parts of cut documents.
        num_padding (`int`): padding tokens per epoch.
        fill_rate (`float`): share of the tokens of an epoch that are not padding.
        has_positions (`bool`): true, because rows have `position_ids`.

    Raises:
        `InputError`: `length` is below 2, `epochs` is below 1, or the plan cannot be written.
    """

    has_positions = True

    def __init__(
        self,
        stream: TokenStream,
        length: int,
        seed: int | None = None,
        epochs: int | None = None,
        cache_dir: str | os.PathLike | None = None,
    ):
        length = check_length(length)
        self.cache_dir = None if cache_dir is None else Path(cache_dir)
        self.plan = _cached_plan(stream, length, self.cache_dir)
        self._shard_ends = np.cumsum([shard.num_tokens for shard in stream.index.shards])
        super().__init__(stream, length, len(self.plan.first) - 1, seed, epochs)

    def __reduce__(self) -> tuple:
        # A worker maps the file of the plan again; pickling would copy the plan.
        return PackedWindows, (self.stream, self.length, self.seed, self.epochs, self.cache_dir)

    @property
    def num_pieces(self) -> int:
        return len(self.plan.starts)

    @property
    def num_padding(self) -> int:
        return self.num_windows * self.length - self.stream.num_tokens

    @property
    def fill_rate(self) -> float:
        return self.stream.num_tokens / (self.num_windows * self.length)

    @property
    def tokens_per_row(self) -> float:
        """Tokens per row that are not padding, on average."""
        return self.stream.num_tokens / self.num_windows

    def tokens_between(self, first: int, last: int) -> int:
        """The exact number of tokens in items `first` to `last - 1` that are not padding.

        The number for whole epochs is known. For the rest of an epoch every window is looked up in the plan.
        """
        return self._tokens_before(last) - self._tokens_before(first)

    def _tokens_before(self, index: int) -> int:
        epochs, rest = divmod(index, self.num_windows)
        first = epochs * self.num_windows
        total = epochs * self.stream.num_tokens
        for begin in range(first, first + rest, _BLOCK):
            windows = self.window_indices(range(begin, min(begin + _BLOCK, first + rest)))
            total += int(self.plan.pieces_of(windows)[2].sum())
        return total

    def _columns(self, windows):
        rows, starts, sizes, offsets = self.plan.pieces_of(windows)
        tokens = np.full((len(windows), self.length), self.stream.index.eos_id, dtype=np.int64)
        labels = np.full_like(tokens, IGNORED)
        positions = np.full_like(tokens, self.length - 1)  # of padding; pieces overwrite it with their positions
        shards = np.searchsorted(self._shard_ends, starts, side="right")
        for shard in np.unique(shards).tolist():
            begin, end = self._shard_ends[shard - 1] if shard else 0, self._shard_ends[shard]
            chosen = shards == shard  # a document, and so a piece, is within one shard
            _copy_pieces(
                self.stream.read(begin, end),
                starts[chosen] - begin,
                sizes[chosen],
                rows[chosen],
                offsets[chosen],
                tokens,
                labels,
                positions,
            )
        return {"input_ids": tokens, "labels": labels, "position_ids": positions}


def count_tokens(batch: Mapping[str, torch.Tensor]) -> torch.Tensor | int:
    """The number of tokens in a batch that are not padding. Rows have no attention mask; only windows of
    [`PackedWindows`] have padding.

    Args:
        batch (mapping of `str` to `torch.Tensor` of shape `(B, L)`): `input_ids`; for packed rows also `labels` and
            `position_ids`; and for those that TRL has joined to one row also `cu_seq_lens_q`, the bounds of documents.

    Returns:
        `torch.Tensor` or `int`: the number; an `int` if it is the same for every batch of this shape.

    ```python
    >>> row = {"input_ids": [[5, 6, 9, 9]], "labels": [[-100, 6, 9, -100]], "position_ids": [[0, 1, 2, 3]]}
    >>> int(count_tokens({name: torch.tensor(column) for name, column in row.items()}))
    3

    ```
    """
    tokens = batch["input_ids"]
    if "position_ids" not in batch:
        return tokens.numel()
    return tokens.numel() - is_padding(batch).sum()


def is_padding(batch: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """Which tokens of packed rows are padding, of shape `(B, L)`; the arguments are those of [`count_tokens`]."""
    if "cu_seq_lens_q" in batch:  # rows of different lengths, joined without padding
        return torch.zeros_like(batch["input_ids"], dtype=torch.bool)
    last = batch["position_ids"].shape[-1] - 1
    return (batch["labels"] == IGNORED) & (batch["position_ids"] == last)


def document_bounds(position_ids: Int[torch.Tensor, "B L"]) -> dict[str, torch.Tensor | int]:
    """The arguments of a model with which FlashAttention keeps the documents of several packed rows apart.

    They have the names of transformers' `FlashAttentionKwargs`. Padding belongs to the document before it.

    Args:
        position_ids (`torch.Tensor` of shape `(B, L)`): positions, from 0 in every document.

    Returns:
        `dict`: `cu_seq_lens_q` and `cu_seq_lens_k`, the bounds of documents in all `B L` tokens, int32; `max_length_q`
            and `max_length_k`, the maximum length of a document.

    ```python
    >>> document_bounds(torch.tensor([[0, 1, 2, 0], [0, 1, 3, 3]]))["cu_seq_lens_q"]
    tensor([0, 3, 4, 8], dtype=torch.int32)

    ```
    """
    begins = (position_ids == 0).flatten().nonzero().flatten()
    bounds = torch.nn.functional.pad(begins, (0, 1), value=position_ids.numel()).to(torch.int32)
    length = position_ids.shape[-1]
    return {"cu_seq_lens_q": bounds, "cu_seq_lens_k": bounds, "max_length_q": length, "max_length_k": length}


@compiled
def _copy_pieces(stream, starts, sizes, rows, offsets, tokens, labels, positions):
    for piece in range(len(starts)):
        row, begin, size = rows[piece], offsets[piece], sizes[piece]
        part = tokens[row, begin : begin + size]
        part[:] = stream[starts[piece] : starts[piece] + size]
        labels[row, begin + 1 : begin + size] = part[1:]  # the token before the first is of another document
        for position in range(size):
            positions[row, begin + position] = position


@dataclass(frozen=True, eq=False)
class _Plan:
    """Window `w` has pieces `first[w]` to `first[w + 1] - 1`; piece `p` is `lengths[p]` tokens from `starts[p]` on."""

    first: Int64[np.ndarray, "W_plus_1"]
    starts: Int64[np.ndarray, "P"]
    lengths: Int64[np.ndarray, "P"]

    def pieces_of(self, windows: Int[np.ndarray, "B"]) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Return for each piece of the windows its row in the batch, start in the stream, length, offset in the
        row."""
        first = self.first[windows]
        counts = self.first[windows + 1] - first
        before = np.cumsum(counts) - counts
        rows = np.repeat(np.arange(len(windows)), counts)
        pieces = np.arange(len(rows)) + (first - before)[rows]
        lengths = self.lengths[pieces]
        ends = np.cumsum(lengths)
        return rows, self.starts[pieces], lengths, ends - lengths - (ends - lengths)[before][rows]


def best_fit(lengths: Int[np.ndarray, "P"], capacity: int) -> Int64[np.ndarray, "P"]:
    """Pack pieces into windows by best-fit decreasing.

    Args:
        lengths (`np.ndarray` of shape `(P,)`): lengths of the pieces, from 1 to `capacity`.
        capacity (`int`): tokens per window.

    Returns:
        `np.ndarray` of shape `(P,)`: the window of each piece; windows are numbered in the order of their first
            pieces.

    ```python
    >>> best_fit(np.array([3, 6, 2, 5]), capacity=8).tolist()
    [0, 1, 1, 0]

    ```
    """
    lengths = np.asarray(lengths, dtype=np.int64)
    windows = _place(np.argsort(-lengths, kind="stable"), lengths, capacity)
    earliest = np.empty(windows.max(initial=-1) + 1, dtype=np.int64)
    earliest[windows[::-1]] = np.arange(len(windows))[::-1]  # reversed, so that the first piece is written last
    rank = np.empty_like(earliest)
    rank[np.argsort(earliest)] = np.arange(len(earliest))
    return rank[windows]


@compiled
def _place(order, lengths, capacity):
    """The window of each piece, numbered in the order of opening.

    `room` is a segment tree of maxima over the space left: leaf `r` is `r` if a window has `r` tokens left, else 0.
    """
    leaves = 1
    while leaves < capacity + 1:
        leaves *= 2
    room = np.zeros(2 * leaves, dtype=np.int64)
    # Linked lists of the windows with equal space left: the newest one for each space, and for each window the next.
    newest = np.full(capacity + 1, -1, dtype=np.int64)
    before = np.full(len(lengths), -1, dtype=np.int64)
    windows = np.empty(len(lengths), dtype=np.int64)
    opened = 0
    for piece in order:
        size = lengths[piece]
        left = capacity
        window = opened
        if room[1] >= size:
            node = 1
            while node < leaves:
                node = 2 * node if room[2 * node] >= size else 2 * node + 1
            left = room[node]
            window = newest[left]
            newest[left] = before[window]
            if newest[left] < 0:
                _set_leaf(room, leaves + left, 0)
        else:
            opened += 1
        windows[piece] = window
        left -= size
        if left > 0:
            before[window] = newest[left]
            if newest[left] < 0:
                _set_leaf(room, leaves + left, left)
            newest[left] = window
    return windows


@compiled
def _set_leaf(room, node, value):
    room[node] = value
    while node > 1:
        node //= 2
        room[node] = max(room[2 * node], room[2 * node + 1])


def _cached_plan(stream: TokenStream, length: int, cache_dir: Path | None) -> _Plan:
    if cache_dir is None:
        from huggingface_hub.constants import HF_HOME

        cache_dir = Path(HF_HOME) / "hmm_datasets" / "packing"
    path = cache_dir / f"{stream.index.sha256}-{length}-v{PLAN_VERSION}.plan"
    if not path.is_file():
        try:
            _write_plan(stream, length, path)
        except OSError as error:
            raise InputError(f"{path}: cannot be written ({error.strerror}); pass another cache_dir=") from None
    return _read_plan(path)


def _write_plan(stream: TokenStream, length: int, path: Path) -> None:
    """Write the numbers of windows and pieces, then `first`, `starts` and `lengths`, all as little-endian int64."""
    path.parent.mkdir(parents=True, exist_ok=True)
    windows = pieces = 0
    with ExitStack() as stack:
        parts = [stack.enter_context(tempfile.TemporaryFile(dir=path.parent)) for _ in range(3)]
        for counts, starts, lengths in _packed_blocks(stream, length):
            first = pieces + np.cumsum(counts) - counts
            for part, values in zip(parts, (first, starts, lengths), strict=True):
                part.write(values.astype("<i8").data)
            windows, pieces = windows + len(counts), pieces + len(starts)
        parts[0].write(np.array([pieces], dtype="<i8").data)
        file = stack.enter_context(stack.enter_context(atomic_file(path)).open("wb"))
        file.write(np.array([windows, pieces], dtype="<i8").data)
        for part in parts:
            part.seek(0)
            shutil.copyfileobj(part, file)


def _read_plan(path: Path) -> _Plan:
    values = np.memmap(path, dtype="<i8", mode="r")
    windows, pieces = values[:2].tolist()
    if len(values) != 3 + windows + 2 * pieces:
        raise InputError(f"{path}: {len(values)} numbers do not fit its {windows} windows; delete the file")
    # Plain arrays over the same pages, because slicing a memmap takes several times as long.
    first, starts, lengths = np.split(np.asarray(values[2:]), [windows + 1, windows + 1 + pieces])
    return _Plan(first, starts, lengths)


def _packed_blocks(stream: TokenStream, length: int) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Yield for each block the number of pieces per window, and starts and lengths of the pieces by window."""
    with progress_bar(stream.num_documents, " documents", desc="packing") as bar:
        for number in range(0, stream.num_documents, _BLOCK):
            documents = np.arange(number, min(number + _BLOCK, stream.num_documents))
            starts, lengths = _cut(*stream.bounds(documents), length)
            windows = best_fit(lengths, length)
            order = np.argsort(windows, kind="stable")
            yield np.bincount(windows), starts[order], lengths[order]
            bar.update(len(documents))


def _cut(starts: np.ndarray, stops: np.ndarray, length: int) -> tuple[np.ndarray, np.ndarray]:
    """Cut documents into pieces of at most `length` tokens."""
    counts = -(-(stops - starts) // length)
    document = np.repeat(np.arange(len(starts)), counts)
    number = np.arange(len(document)) - np.repeat(np.cumsum(counts) - counts, counts)
    begins = starts[document] + number * length
    return begins, np.minimum(length, stops[document] - begins)


def repeated_windows(
    stream: TokenStream, length: int, num_rows: int, *, seed: int = 0, packed: bool = False
) -> Windows:
    """Shuffled windows of a token stream, over as many epochs as are needed for `num_rows` rows.

    Args:
        stream ([`TokenStream`]): the tokens.
        length (`int`): tokens per window.
        num_rows (`int`): number of rows that will be read.
        seed (`int`, *optional*, defaults to 0): seed of the order, which differs from epoch to epoch.
        packed (`bool`, *optional*, defaults to `False`): return [`PackedWindows`] instead of [`TokenWindows`].
    """
    windows = (PackedWindows if packed else TokenWindows)(stream, length, seed=seed)
    windows.epochs = max(1, -(-num_rows // windows.num_windows))
    return windows
