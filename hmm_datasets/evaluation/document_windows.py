"""Overlapping windows of single texts, for any tokenizer."""

import copy
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from ..data.windows import check_length
from ..errors import InputError
from ..text.corpora.local_files import check_text
from ..text.tokenizers.text_sizes import LostText, sized_texts
from .continuations import Row
from .model_limits import beginning_token

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


_TEXTS = 1024  # texts encoded in one call


class DocumentWindows:
    """Overlapping windows of single texts: like [`~hmm_datasets.data.windows.StridedWindows`], but for any tokenizer.

    Each text is preceded by the tokenizer's BOS, or else its EOS; if there is neither, the first token of a text is
    only context. A window has the `length` tokens before its end, and scores those that no earlier window scored: the
    first window scores all but the beginning token, every other window `stride` tokens, and the last one the rest. So
    each token is scored once, given at least `length - stride` tokens before it, or all there are. A model reads at
    most `length - 1` tokens at once. With a stride of `length` windows do not overlap, and the first token of each,
    which has no context, is not scored.

    With `length = M + 1` and `stride = M` this gives the rolling log-likelihood of lm-evaluation-harness for a model
    of at most `M` tokens, provided that the harness encodes without adding tokens.

    Bytes and characters are those of the text, in UTF-8, that the scored tokens stand for (see
    [`~hmm_datasets.text.tokenizers.text_sizes`]). If the first token is only context, they do not include its own.

    Args:
        texts (sequence of `str`):
            The documents. A document without tokens contributes nothing.
        tokenizer ([`~transformers.PreTrainedTokenizerBase`]):
            A tokenizer of any kind.
        length (`int`):
            Tokens per window, at least 2.
        stride (`int`):
            Tokens from the end of a window to that of the next, from 1 to `length`.

    Attributes:
        rows (list of lists of `Row`): for each document its windows, each with the first token that it scores.
        tokens (`np.ndarray` of shape `(D,)`), bytes (`np.ndarray` of shape `(D,)`), characters (`np.ndarray` of shape
            `(D,)`): numbers of scored tokens, bytes and characters of each document.
        lost ([`~hmm_datasets.text.tokenizers.text_sizes.LostText`]): what of the texts the tokenizer loses.

    Raises:
        `InputError`: a text that is not a string, a length below 2, a stride outside `[1, length]`, or nothing to
            score.

    ```python
    >>> from hmm_datasets.text.tokenizers.bpe import train_bpe
    >>> tokenizer = train_bpe(["low lower lowest"] * 9, 265, show_progress=False)
    >>> windows = DocumentWindows(["lower", "ab"], tokenizer, 3, 1)
    >>> [len(rows) for rows in windows.rows], windows.tokens.tolist(), windows.bytes.tolist()
    ([2, 1], [3, 2], [5, 2])

    ```
    """

    def __init__(self, texts: Sequence[str], tokenizer: "PreTrainedTokenizerBase", length: int, stride: int):
        check_length(length)
        if not 1 <= stride <= length:
            raise InputError(f"stride={stride}: expected 1 to {length}, the window, so that no token is left out")
        self.length, self.stride = length, stride
        beginning, _ = beginning_token(tokenizer)
        self.rows: list[list[Row]] = []
        self.lost = LostText()
        self._sizes: list[tuple[np.ndarray, np.ndarray]] = []
        for first in range(0, len(texts), _TEXTS):
            chunk = [check_text(text, f"text {first + k}") for k, text in enumerate(texts[first : first + _TEXTS])]
            for ids, num_bytes, characters in sized_texts(tokenizer, chunk, self.lost):
                if beginning is not None:
                    ids = [beginning, *ids]
                else:
                    num_bytes, characters = num_bytes[1:], characters[1:]
                self.rows.append(list(_strided(ids, length, stride)))
                if stride == length:  # what begins a further whole window is not scored
                    first = np.arange(length, len(ids) - length + 1, length) - 1
                    num_bytes, characters = np.delete(num_bytes, first), np.delete(characters, first)
                self._sizes.append((num_bytes, characters))
        self._count()
        if self.tokens.sum() == 0:
            raise InputError(f"no token to score in {len(self.rows)} texts; pass longer ones")

    def _count(self) -> None:
        """Count the tokens, bytes and characters of each document; windows are cut off at the end alone."""
        counts = [sum(len(row.tokens) - row.first for row in rows) for rows in self.rows]
        self.tokens = np.array(counts, np.int64)
        parts = [[sizes[:count].sum() for sizes in both] for both, count in zip(self._sizes, counts, strict=True)]
        self.bytes, self.characters = np.array(parts, np.int64).reshape(-1, 2).T

    def __len__(self) -> int:
        return sum(map(len, self.rows))

    def first(self, count: int) -> "DocumentWindows":
        """The first windows; of a document that is cut only the tokens that are scored count."""
        windows, room = copy.copy(self), count
        windows.rows = []
        for rows in self.rows:
            if room <= 0:
                break
            windows.rows.append(rows[:room])
            room -= len(rows)
        windows._sizes = self._sizes[: len(windows.rows)]
        windows._count()
        return windows


def _strided(tokens: list[int], length: int, stride: int) -> Iterator[Row]:
    """The windows of one text, each with the first token that it scores."""
    begin, end, scored = 0, min(length, len(tokens)), 1
    while scored < end:
        yield Row(tokens[begin:end], max(scored - begin, 1))
        scored, end = end, min(end + stride, len(tokens))
        begin = max(0, end - length)
