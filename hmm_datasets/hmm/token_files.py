"""Sequences of symbols in files of users: arrays of NumPy, padded or in one column, lines of integers, and JSON lists.

- `.npy`: integers of shape `(N, L)`, or with lengths one column `(sum(lengths), 1)` as hmmlearn has it.
- `.npz`: the arrays `tokens` and, for sequences that end early or stand in one column, `lengths`.
- `.txt`, `.csv`, `.tsv`: a sequence on each line, of any length. Symbols stand between commas, semicolons or tabs, of
  which a line has one kind, or else between spaces.
- `.jsonl`, `.ndjson`: a list of integers on each line, or an object with one as `tokens` or `input_ids`; `.json`: a
  list of these.

All but arrays may be compressed, as `.gz` or `.zst`. A symbol that was not observed is -1. In arrays it may be NaN, in
JSON null, and in text NA, NaN or None, as pandas writes them, or an empty cell beside a comma, also at the end of a
line: the likelihood is that of the shorter line. Where symbols are missing, pandas writes the others as `1.0`, which
is an integer then, and only then.

A text is taken for integers if at least half of what stands on its first lines are numbers. What is no integer in it,
such as a header, is named with its line.
"""

import contextlib
import re
import sys
from array import array
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Int

from ..array_input import is_missing
from ..errors import InputError
from ..foreign.arrays import load_archive, load_array
from ..foreign.json import parse_json
from ..foreign.text_files import lines_of_text, opened_text, suffixes_of
from ..runtime import environment
from .arrays import (
    MISSING,
    are_uneven,
    checked_column,
    counts_in_rows,
    in_similar_lengths,
    is_column,
    rows_from,
    rows_of_column,
    tokens_with_gaps,
)

_LINE_SUFFIXES, _JSON_SUFFIXES = (".txt", ".csv", ".tsv"), (".jsonl", ".ndjson", ".json")
_COLUMNS = {"tokens", "input_ids"}
_MOST_DIGITS = 18
_DIGITS, _INTEGER = re.compile(r"[0-9 ]+"), re.compile(rf"[+-]?[0-9]{{1,{_MOST_DIGITS}}}")
_MISSING_WORDS = {"", "NA", "N/A", "n/a", "<NA>", "#N/A", "NaN", "nan", "-nan", "None", "null", "NULL"}
_LOOKED_AT = 100  # lines that distinguish a text of integers from a corpus of words
_PIECE = 1 << 16  # characters of a line that are cut into symbols together


class TokenRows(NamedTuple):
    """Sequences as padded rows, or if those would take more than twice the memory, in one column.

    Attributes:
        tokens (`np.ndarray` of shape `(N, L)` or `(M, 1)`): a row for each sequence, 0 beyond its end; or all of them,
            one after the other, where `lengths` sum to `M`. Missing tokens are -1.
        lengths (`np.ndarray` of shape `(N,)`, *optional*): number of tokens in each; None if all rows are full.
    """

    tokens: Int[np.ndarray, "N L"]
    lengths: Int[np.ndarray, "N"] | None = None

    @classmethod
    def of_column(cls, column: Int[np.ndarray, "M"], lengths: Int[np.ndarray, "N"]) -> "TokenRows":
        """The sequences in a column."""
        return cls(column.reshape(-1, 1), lengths) if are_uneven(lengths) else cls(*rows_of_column(column, lengths))

    @property
    def is_column(self) -> bool:
        """Whether the sequences are in one column."""
        return self.lengths is not None and is_column(self.tokens, self.lengths)

    @property
    def shape(self) -> tuple[int, int]:
        """The number of sequences, and of tokens in the longest."""
        return (len(self.ends), int(self.ends.max())) if self.is_column else self.tokens.shape

    @property
    def ends(self) -> Int[np.ndarray, "N"]:
        """Number of tokens in each sequence, missing ones too."""
        return np.full(*self.tokens.shape) if self.lengths is None else np.asarray(self.lengths)

    @property
    def num_tokens(self) -> int:
        """Number of observed tokens."""
        return int(self.row_counts.sum())

    @property
    def row_counts(self) -> Int[np.ndarray, "N"]:
        """Number of observed tokens in each row; an unsigned type has none that are missing, and is not read."""
        if self.tokens.dtype.kind == "u":
            return self.ends
        if not self.is_column:
            return np.count_nonzero(self.observed, axis=1)
        return self.ends - counts_in_rows(~self.observed.ravel(), self.ends)

    @property
    def observed(self) -> Bool[np.ndarray, "N L"]:
        """Where in `tokens` there is one, neither padding nor missing (-1)."""
        present = np.asarray(self.tokens) >= 0
        if self.lengths is None or self.is_column:
            return present
        return present & (np.arange(self.tokens.shape[1]) < self.lengths[:, None])

    @property
    def marked(self) -> Int[np.ndarray, "N L"]:
        """The padded rows with -1 where there is no token, in a type that has it."""
        return np.where(self.observed, np.asarray(self.tokens).astype(np.int64), MISSING)

    def part(self, rows: Any) -> "TokenRows":
        """Some rows, by a slice or their numbers."""
        if not self.is_column:
            return TokenRows(self.tokens[rows], None if self.lengths is None else self.lengths[rows])
        ends, lengths = np.cumsum(self.ends)[rows], self.ends[rows]
        pieces = [self.tokens[end - length : end, 0] for end, length in zip(ends, lengths, strict=True)]
        return TokenRows.of_column(np.concatenate([self.tokens[:0, 0], *pieces]), lengths)

    def parts(self, entries: int, width: int = 1) -> Iterator[tuple[Any, "TokenRows"]]:
        """The numbers of some sequences, and these as padded rows of at most `entries` tokens, or one sequence.

        Each counts as `width` tokens at least. Those of a column come in the order of their lengths.
        """
        if not self.is_column:
            size = max(1, entries // max(*self.tokens.shape[1:], width))
            slices = (slice(first, first + size) for first in range(0, len(self.tokens), size))
            yield from ((rows, self.part(rows)) for rows in slices)
            return
        column, starts = self.tokens.ravel(), np.cumsum(self.ends) - self.ends
        for rows in in_similar_lengths(self.ends, entries, width):
            ends = self.ends[rows]
            yield rows, TokenRows(rows_from(column, starts[rows], ends), None if (ends == ends[0]).all() else ends)

    def distinct(self, others: "TokenRows | None" = None) -> "TokenRows":
        """The sequences that are none of others, each once, in their order."""
        seen = set() if others is None else set(others._contents())
        first = {content: row for row, content in reversed(list(enumerate(self._contents()))) if content not in seen}
        return self.part(sorted(first.values()))

    def _contents(self) -> list[bytes]:
        contents = [b""] * self.shape[0]
        for rows, part in self.parts(1 << 20):
            numbers = np.arange(len(contents))[rows]
            for number, row, end in zip(numbers, np.asarray(part.tokens).astype("i8"), part.ends, strict=True):
                contents[number] = row[:end].tobytes()
        return contents


def is_token_file(path: str | Path) -> bool:
    """Whether a file has sequences of integers, by its name, and by its first lines if that may be text."""
    path = Path(path)
    suffix, compression = suffixes_of(path)
    if suffix in (".npy", ".npz"):
        return not compression
    if suffix not in (*_LINE_SUFFIXES, *_JSON_SUFFIXES) or not path.is_file():
        return False
    if suffix in _JSON_SUFFIXES:
        with contextlib.suppress(InputError):  # a corpus, whose reader names what is wrong
            return _are_numbers(next(_json_rows(path), ("", []))[1][:_LOOKED_AT], _of_value)
        return False
    with opened_text(path) as file:
        lines = [line.strip("\n ") for line in islice(file, _LOOKED_AT)]
    return _are_numbers([word for line in lines for word in next(_words(line))], _of_word)


def read_token_rows(path: str | Path, lengths: str | Path | None = None) -> TokenRows:
    """The sequences in a file. How many tokens are missing in a text is printed on stderr.

    Args:
        path (path): a file of one of the forms above.
        lengths (path, *optional*): a `.npy` file with the number of tokens of each sequence in a `.npy` file.

    Raises:
        `InputError`: there is no such file, it is of another form, or lengths do not fit; the message names the line.
    """
    path = Path(path)
    suffix = path.suffix.lower()
    if lengths is not None and suffix != ".npy":
        raise InputError(f"{lengths}: lengths belong to a .npy file, but tokens are in {path}; leave them out")
    if suffix == ".npz":
        return _of_archive(path)
    if suffix == ".npy":
        tokens = load_array(path, mmap_mode="r" if lengths is None else None)
        return _with_lengths(path, tokens, None if lengths is None else load_array(lengths))
    return _of_text(path)


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
    try:
        one = path.suffix.lower() == ".npz"  # without lengths a column of .npy is that of an array (N, 1)
        if tokens.shape[1:] in ((), (1,)) and (one if lengths is None else len(lengths) != len(tokens)):
            return TokenRows.of_column(*checked_column(tokens, lengths))
        if tokens.ndim == 2 and tokens.dtype.kind == "f" and np.isnan(tokens).any():
            tokens = tokens_with_gaps(tokens, None, lengths).tokens.numpy()
    except InputError as error:
        raise InputError(f"{path}: {error}") from None
    if (
        tokens.ndim != 2
        or tokens.dtype.kind not in "iu"
        or tokens.size == 0
        or (lengths is not None and lengths.shape != tokens.shape[:1])
    ):
        shapes = f"{tokens.dtype} of shape {tokens.shape}" + ("" if lengths is None else f", lengths {lengths.shape}")
        raise InputError(
            f"{path}: {shapes}; expected integers of shape (N, L), N and L at least 1, and lengths (N,), or one column"
        )
    return TokenRows(tokens, lengths)


def _of_text(path: Path) -> TokenRows:
    """The sequences in the lines of a text, or in lists of JSON."""
    is_json = suffixes_of(path)[0] in _JSON_SUFFIXES
    symbols, lengths, missing, at_ends, whole = array("q"), array("q"), 0, 0, ""
    for where, parts in _json_rows(path) if is_json else _text_rows(path):
        before, values = len(symbols), []
        for part in [parts] if is_json else parts:
            values = _numbers(part, where, _of_value if is_json else _of_word)
            missing += values.count(None)
            whole = whole or next((f"{where}: {value}" for value in values if isinstance(value, float)), "")
            symbols.extend(MISSING if value is None else int(value) for value in values)
        at_ends += values[-1:] == [None]
        lengths.append(len(symbols) - before)
    if not symbols:
        raise InputError(f"{path}: has no symbol; expected a sequence of integers on each line")
    if whole and not missing:
        raise InputError(
            f"{whole} is a float, and no symbol of the file is missing, which would explain it; write integers, as "
            "numpy.savetxt does with fmt='%d', and pandas after .astype(int)"
        )
    column, sizes = np.frombuffer(symbols, np.int64), np.frombuffer(lengths, np.int64)
    if not is_json:
        _refuse_labels(path, column, sizes)
    if missing and environment.rank() == 0:
        ends = f", {at_ends:,} of them at the end of a line" if at_ends else ""
        print(f"{path}: missing symbols, which are summed over: {missing:,}{ends}", file=sys.stderr)
    column = column.astype(np.result_type(*map(np.min_scalar_type, (column.min(), column.max(), MISSING))))
    return _packed(column, sizes)


def _refuse_labels(path: Path, column: Int[np.ndarray, "M"], lengths: Int[np.ndarray, "N"]) -> None:
    """Refuse a table with the numbers of columns or rows that pandas writes, which are no symbols."""
    if (lengths != lengths[0]).any() or min(len(lengths), lengths[0]) < 3:
        return
    table = column.reshape(len(lengths), -1)
    (rows, columns), top, side = table.shape, table[0], table[:, 0]
    both = np.array_equal(top[1:], np.arange(columns - 1)) and np.array_equal(side[1:], np.arange(rows - 1))
    wrong = ["line and column"] if both and top[0] == MISSING else []
    for name, numbers, others in (("line", top, table[1:]), ("column", side, table[:, 1:])):
        if min(rows, columns) > 3 and np.array_equal(numbers, np.arange(len(numbers))) and others.max() < numbers[-1]:
            wrong.append(name)
    if wrong:
        raise InputError(
            f"{path}: its first {wrong[0]} is 0, 1, 2, ..., as pandas numbers a table; write it with index=False, "
            "header=False"
        )


def _text_rows(path: Path) -> Iterator[tuple[str, Iterator[list[str]]]]:
    with opened_text(path) as file:
        for number, line in enumerate(lines_of_text(path, file), 1):
            if line.strip("\r\n "):
                yield f"{path}, line {number}", _words(line.strip("\r\n "))


def _words(line: str) -> Iterator[list[str]]:
    """What stands between separators, some thousands at a time, since a line may be as long as its file."""
    mark = next((mark for mark in ",;\t" if mark in line), None)
    separator, start = re.compile(mark or r"\s"), 0
    while (end := separator.search(line, start + _PIECE)) is not None:
        yield line[start : end.start()].split(mark)
        start = end.end()
    yield line[start:].split(mark)


def _json_rows(path: Path) -> Iterator[tuple[str, list[Any]]]:
    with opened_text(path) as file:
        if suffixes_of(path)[0] == ".json":
            table = parse_json(file.read(), path, as_file=True)
            rows = (
                (f"{path}: row {number}", row) for number, row in enumerate(table if isinstance(table, list) else [])
            )
        else:
            lines = ((f"{path}, line {number}", line) for number, line in enumerate(file, 1) if line.strip())
            rows = ((where, parse_json(line, where)) for where, line in lines)
        for where, row in rows:
            named = isinstance(row, dict) and len(row) == 1 and not row.keys() - _COLUMNS
            tokens = next(iter(row.values())) if named else row
            if not isinstance(tokens, list):
                raise InputError(
                    f"{where}: {str(row)[:40]!r} is no sequence; expected a list of integers, or an object with one "
                    "as tokens or input_ids, and nothing else"
                )
            yield where, tokens


def _numbers(part: list[Any], where: str, read: Callable[[Any], int | float | None]) -> list[int | float | None]:
    """The integers of a part of a sequence, whole floats, and None where one is missing."""
    if read is _of_word and max(map(len, part), default=0) <= _MOST_DIGITS and _DIGITS.fullmatch("".join(part)):
        with contextlib.suppress(ValueError):  # at an empty cell
            return list(map(int, part))
    values = []
    for value in part:
        try:
            values.append(read(value))
        except ValueError:
            raise InputError(
                f"{where}: {str(value).strip()[:40]!r} is no symbol; expected a sequence of integers on each line, "
                "without a header, where NA, or nothing between two commas, is a symbol that is missing"
            ) from None
    return values


def _of_word(word: str) -> int | float | None:
    word = word.strip(' \t"')
    if word in _MISSING_WORDS:
        return None
    if _INTEGER.fullmatch(word):
        return int(word)
    if "_" in word or not word.isascii():
        raise ValueError
    return _of_value(float(word))


def _of_value(value: Any) -> int | float | None:
    if is_missing(value):
        return None
    largest = {int: 1 << 63, float: 1 << 53}.get(type(value))  # from which a float may have been rounded
    if largest is None or not -largest < value < largest or value != int(value):
        raise ValueError
    return value


def _are_numbers(values: Iterable[Any], read: Callable[[Any], int | float | None]) -> bool:
    """Whether at least half of the values that are not missing are numbers, and any."""
    numbers, others = 0, 0
    for value in values:
        try:
            numbers += read(value) is not None
        except ValueError:
            others += 1
    return numbers > 0 and numbers >= others


def _packed(column: Int[np.ndarray, "M"], lengths: Int[np.ndarray, "N"]) -> TokenRows:
    equal = (lengths == lengths[0]).all()
    return TokenRows(column.reshape(len(lengths), lengths[0])) if equal else TokenRows.of_column(column, lengths)
