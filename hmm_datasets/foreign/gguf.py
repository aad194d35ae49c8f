"""Headers of GGUF files from anyone (https://github.com/ggml-org/ggml/blob/master/docs/gguf.md).

Nothing is read beyond the end of the file, or made by a count before the file was seen to have so much.
"""

import math
import mmap
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from ..errors import InputError, path_errors, printable

_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9
_VERSIONS = (2, 3)  # version 1 counts in 32 bits
_MOST_DIMENSIONS = 4


class Header(NamedTuple):
    """What stands before the weights of a file.

    Attributes:
        fields (`dict`): values by name; of an array of strings only the length.
        tensors (`list` of `str`): names of the tensors.
        size (`int`): bytes that a whole file has.
    """

    fields: dict[str, Any]
    tensors: list[str]
    size: int


def gguf_header(path: Path, blocks: Mapping[int, tuple[int, int]]) -> Header:
    """The header of a GGUF file.

    Args:
        path (`Path`): the file.
        blocks (mapping): of each type of tensor, the number of elements in a block and its bytes.

    Raises:
        `InputError`: there is no such file, or it does not begin as a whole GGUF file does.
    """
    try:
        with path_errors(path):
            size = path.stat().st_size
            if size == 0:
                raise _Malformed("is empty")
            with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
                return _Reader(content, size).header(blocks)
    except _Malformed as error:
        raise InputError(
            printable(
                f"{path}: expected a GGUF file, found {size:,} bytes that do not begin as one ({error}); copy it again"
            )
        ) from None
    except FileNotFoundError:
        raise InputError(f"{path}: no such file") from None


class _Malformed(Exception):
    """What is wrong with a header."""


class _Reader:
    def __init__(self, content: mmap.mmap, size: int):
        self._content, self._size, self._place = content, size, 0

    def header(self, blocks: Mapping[int, tuple[int, int]]) -> Header:
        if self._take(4) != b"GGUF":
            raise _Malformed("no GGUF at the beginning")
        version, num_tensors, num_fields = self._number("I"), self._number("Q"), self._number("Q")
        if version not in _VERSIONS:
            raise _Malformed(f"version {version}, expected {' or '.join(map(str, _VERSIONS))}")
        fields = {}
        for _ in range(num_fields):
            name = self._text()
            fields[name] = self._value(self._number("I"), name)
        alignment = fields.get("general.alignment", 32)
        if type(alignment) is not int or alignment < 1:
            raise _Malformed(f"general.alignment is {alignment!r:.40}, expected a number above 0")
        tensors = [self._tensor(blocks) for _ in range(num_tensors)]
        start = -(-self._place // alignment) * alignment
        size = start + max(end for _, end in tensors) if tensors else self._place
        return Header(fields, [name for name, _ in tensors], size)

    def _tensor(self, blocks: Mapping[int, tuple[int, int]]) -> tuple[str, int]:
        """The name of a tensor, and its end in the part of the file that has the weights."""
        name, dimensions = self._text(), self._number("I")
        if dimensions > _MOST_DIMENSIONS:
            raise _Malformed(f"{name[:80]!r} has {dimensions} dimensions")
        elements = math.prod(self._number("Q") for _ in range(dimensions))
        kind, offset = self._number("I"), self._number("Q")
        if kind not in blocks:
            raise _Malformed(f"{name[:80]!r} is of the unknown type {kind}")
        length, size = blocks[kind]
        return name, offset + elements // length * size

    def _value(self, kind: int, name: str) -> Any:
        if kind in _SCALARS:
            return self._number(_SCALARS[kind])
        if kind == _STRING:
            return self._text()
        if kind != _ARRAY:
            raise _Malformed(f"{name[:80]!r} is of the unknown type {kind}")
        inner, count = self._number("I"), self._number("Q")
        if inner in _SCALARS:
            content = self._take(count * struct.calcsize(f"<{_SCALARS[inner]}"))
            return list(struct.unpack(f"<{count}{_SCALARS[inner]}", content))
        if inner != _STRING:
            raise _Malformed(f"{name[:80]!r} is an array of the type {inner}")
        place, length_at = self._place, struct.Struct("<Q").unpack_from
        for _ in range(count):  # of which a vocabulary has hundreds of thousands
            if place > self._size - 8:
                raise _Malformed("it ends within its header")
            place += 8 + length_at(self._content, place)[0]
        self._skip(place - self._place)
        return count

    def _text(self) -> str:
        try:
            return self._take(self._number("Q")).decode("utf-8")
        except UnicodeDecodeError:
            raise _Malformed("a name or text that is not UTF-8") from None

    def _number(self, form: str) -> Any:
        return struct.unpack(f"<{form}", self._take(struct.calcsize(f"<{form}")))[0]

    def _take(self, count: int) -> bytes:
        begin = self._place
        self._skip(count)
        return self._content[begin : self._place]

    def _skip(self, count: int) -> None:
        if count > self._size - self._place:
            raise _Malformed("it ends within its header")
        self._place += count
