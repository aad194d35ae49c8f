"""Sequences of symbols in files of users: arrays of NumPy, padded or in one column, and lines of integers.

- `.npy`: integers of shape `(N, L)`, or with lengths one column `(sum(lengths), 1)` as hmmlearn has it.
- `.npz`: the arrays `tokens` and, for sequences that end early or stand in one column, `lengths`.
- `.txt`, `.csv`, `.tsv`: a sequence of integers on each line, of any length, between spaces, commas or semicolons.

A text is read as integers only if all of its first lines are integers, so that a corpus of words is none by mistake.
"""

import re
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Int

from ..errors import InputError, path_errors
from ..foreign.arrays import load_archive, load_array
from .arrays import read_tokens, rows_of_column

_LINE_SUFFIXES = (".txt", ".csv", ".tsv")
_SEPARATOR = re.compile(r"[\s,;]+")
_INTEGERS = re.compile(r"[\s,;]*[+-]?\d+(?:[\s,;]+[+-]?\d+)*[\s,;]*")
_LOOKED_AT = 100  # lines that distinguish a text of integers from a corpus of words


class TokenRows(NamedTuple):
    """Tokens (N, L), 0 beyond the end of a row, and the number of tokens in each row; None if all are full."""

    tokens: Int[np.ndarray, "N L"]
    lengths: Int[np.ndarray, "N"] | None = None

    @property
    def num_tokens(self) -> int:
        """Number of observed tokens."""
        return int(self.row_counts.sum())

    @property
    def row_counts(self) -> Int[np.ndarray, "N"]:
        """Number of observed tokens in each row; an unsigned type has none that are missing, and is not read."""
        if self.tokens.dtype.kind == "u":
            return np.full(len(self.tokens), self.tokens.shape[1]) if self.lengths is None else self.lengths
        return np.count_nonzero(self.observed, axis=1)

    @property
    def observed(self) -> Bool[np.ndarray, "N L"]:
        """Where there is a token, neither padding nor missing (-1)."""
        present = np.asarray(self.tokens) >= 0
        return present if self.lengths is None else present & (np.arange(self.tokens.shape[1]) < self.lengths[:, None])

    def part(self, rows: Any) -> "TokenRows":
        """Some rows, by a slice or their numbers."""
        return TokenRows(self.tokens[rows], None if self.lengths is None else self.lengths[rows])


def is_token_file(path: str | Path) -> bool:
    """Whether a file has sequences of integers, by its name, and for a text by its first lines."""
    path = Path(path)
    if path.suffix in (".npy", ".npz"):
        return True
    if path.suffix not in _LINE_SUFFIXES or not path.is_file():
        return False
    with path_errors(path), path.open(encoding="utf-8-sig", errors="replace") as file:
        lines = [line for line in islice(file, _LOOKED_AT) if line.strip()]
    return bool(lines) and all(_INTEGERS.fullmatch(line) for line in lines)


def read_token_rows(path: str | Path, lengths: str | Path | None = None) -> TokenRows:
    """The sequences in a file.

    Args:
        path (path): a file of one of the forms above.
        lengths (path, *optional*): a `.npy` file with the number of tokens of each sequence in a `.npy` file.

    Raises:
        `InputError`: there is no such file, it is of another form, or lengths do not fit; the message names the line.
    """
    path = Path(path)
    if lengths is not None and path.suffix != ".npy":
        raise InputError(f"{lengths}: lengths belong to a .npy file, but tokens are in {path}; leave them out")
    if path.suffix == ".npz":
        return _of_archive(path)
    if path.suffix == ".npy":
        if lengths is None:
            return TokenRows(read_tokens(path))
        return _with_lengths(path, load_array(path), load_array(lengths))
    return _of_lines(path)


def _of_archive(path: Path) -> TokenRows:
    try:
        arrays = load_archive(path)
    except InputError as error:
        if "Object arrays" not in str(error):
            raise
        raise InputError(
            f"{path}: has an array of objects, such as a list of rows of unequal lengths; write "
            "numpy.savez(file, tokens=numpy.concatenate(rows), lengths=list(map(len, rows)))"
        ) from None
    if "tokens" not in arrays or arrays.keys() - {"tokens", "lengths"}:
        raise InputError(f"{path}: has the arrays {', '.join(sorted(arrays))}; expected tokens, and lengths if needed")
    return _with_lengths(path, arrays["tokens"], arrays.get("lengths"))


def _with_lengths(path: Path, tokens: np.ndarray, lengths: np.ndarray | None) -> TokenRows:
    is_column = tokens.ndim == 1 or tokens.shape[1:] == (1,)
    try:
        if is_column and (lengths is None or len(lengths) != len(tokens)):
            return TokenRows(*rows_of_column(tokens, lengths))
    except InputError as error:
        raise InputError(f"{path}: {error}") from None
    if (
        tokens.ndim != 2
        or tokens.dtype.kind not in "iu"
        or (lengths is not None and lengths.shape != tokens.shape[:1])
    ):
        shapes = f"{tokens.dtype} of shape {tokens.shape}" + ("" if lengths is None else f", lengths {lengths.shape}")
        raise InputError(f"{path}: {shapes}; expected integers of shape (N, L) and lengths (N,), or one column")
    return TokenRows(tokens, lengths)


def _of_lines(path: Path) -> TokenRows:
    rows = []
    with path_errors(path), path.open(encoding="utf-8-sig", errors="replace") as file:
        for number, line in enumerate(file, 1):
            words = [word for word in _SEPARATOR.split(line) if word]
            if not words:
                continue
            try:
                rows.append(np.array([int(word) for word in words], np.int64))
            except (ValueError, OverflowError):
                wrong = next(word for word in words if not _INTEGERS.fullmatch(word) or len(word) > 18)
                raise InputError(
                    f"{path}, line {number}: {wrong[:40]!r} is no symbol; expected a sequence of integers on each line"
                ) from None
    if not rows:
        raise InputError(f"{path}: has no line; expected a sequence of integers on each")
    return _padded(rows)


def read_named_rows(text: str, vocabulary: Sequence[str]) -> TokenRows | None:
    """The sequences in a text whose lines consist of names of symbols with spaces between; None if it is another.

    ```python
    >>> read_named_rows("sun rain\\nrain", ("rain", "sun"))
    TokenRows(tokens=array([[1, 0],
           [0, 0]]), lengths=array([2, 1]))

    ```
    """
    symbol_of = {name: symbol for symbol, name in enumerate(vocabulary)}
    rows = [words for line in text.splitlines() if (words := line.split())]
    if not rows or any(word not in symbol_of for words in rows for word in words):
        return None
    return _padded([np.array([symbol_of[word] for word in words]) for words in rows])


def _padded(rows: Sequence[Int[np.ndarray, "L"]]) -> TokenRows:
    tokens, lengths = rows_of_column(np.concatenate(rows), list(map(len, rows)))
    return TokenRows(tokens, None if (lengths == lengths[0]).all() else lengths)
