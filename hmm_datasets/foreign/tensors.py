"""Headers of safetensors files from anyone (https://github.com/huggingface/safetensors#format).

Eight bytes have the length of a JSON object, which has the type, shape and place of each tensor. A header is believed
only if it describes the file: every tensor has the bytes of its type and shape, one follows the other, and the last
ends with the file. Nothing of the size that a damaged header states is allocated.
"""

import math
import os
import struct
from pathlib import Path
from typing import Annotated, NamedTuple

import msgspec

from ..errors import InputError, path_errors, printable
from ..records import as_record
from .json import parse_json

_MAX_HEADER_BYTES = 100_000_000  # the limit that the format sets
_BITS = {
    **{"F4": 4, "F6_E2M3": 6, "F6_E3M2": 6},
    **dict.fromkeys(("BOOL", "U8", "I8", "F8_E5M2", "F8_E4M3", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ"), 8),
    **dict.fromkeys(("U16", "I16", "F16", "BF16"), 16),
    **dict.fromkeys(("U32", "I32", "F32"), 32),
    **dict.fromkeys(("U64", "I64", "F64", "C64"), 64),
}
"""Bits of an element of each type of the format."""

_Size = Annotated[int, msgspec.Meta(ge=0, le=(1 << 53))]


class StoredTensor(NamedTuple):
    """A tensor in a file: type, shape, and where its bytes begin and end in the file."""

    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int


class _Entry(msgspec.Struct):
    dtype: str
    shape: list[_Size]
    data_offsets: tuple[_Size, _Size]


def safetensors_header(path: str | os.PathLike) -> dict[str, StoredTensor]:
    """The tensors of a safetensors file by name, in the order in which they are stored.

    Raises:
        `InputError`: there is no such file; it is truncated or too long; or its header is not that of such a file.
    """
    path = Path(path)
    try:
        with path_errors(path), path.open("rb") as file:
            length = os.fstat(file.fileno()).st_size
            prefix = file.read(8)
            header_length = struct.unpack("<Q", prefix)[0] if len(prefix) == 8 else -1
            if not 0 < header_length <= min(length - 8, _MAX_HEADER_BYTES):
                raise InputError(f"{path}: {length} bytes, too few for its header; the file is truncated")
            content = file.read(header_length)
    except FileNotFoundError:
        raise InputError(f"{path}: no such file") from None
    tensors = _parsed(path, content)
    where = 8 + header_length
    for name, tensor in tensors.items():
        bits = _BITS.get(tensor.dtype)
        size = None if bits is None else -(-math.prod(tensor.shape) * bits // 8)
        if tensor.begin != where or size not in (None, tensor.end - tensor.begin):
            raise _no_header(path, f"{name[:100]!r} is {tensor.dtype[:20]} of shape {list(tensor.shape)[:9]}")
        where = tensor.end
    if length != where:
        raise InputError(f"{path}: {length} bytes, {where} expected from its header; the file is damaged")
    return tensors


def _parsed(path: Path, content: bytes) -> dict[str, StoredTensor]:
    try:
        header = parse_json(content, path)
        if isinstance(header, dict):
            header.pop("__metadata__", None)
        entries = as_record(header, dict[str, _Entry], path)
    except InputError as error:
        raise _no_header(path, str(error).removeprefix(f"{path}: ")) from None
    start = 8 + len(content)
    tensors = {
        name: StoredTensor(entry.dtype, tuple(entry.shape), *(start + place for place in entry.data_offsets))
        for name, entry in entries.items()
    }
    return dict(sorted(tensors.items(), key=lambda item: (item[1].begin, item[1].end)))


def _no_header(path: Path, reason: str) -> InputError:
    return InputError(printable(f"{path}: the header is not that of a safetensors file ({reason[:300]})"))
