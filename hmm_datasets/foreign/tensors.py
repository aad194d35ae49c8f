"""Safetensors files from anyone (https://github.com/huggingface/safetensors#format).

The library believes a header only if it describes the file: every tensor has the bytes of its type and shape, one
follows the other, and the last ends with the file. Nothing of the size that a damaged header states is allocated.
"""

import os
from pathlib import Path

from safetensors import SafetensorError, safe_open

from ..errors import InputError, first_line, path_errors, printable


def tensor_names(path: str | os.PathLike) -> tuple[list[str], int]:
    """The names of the tensors in a safetensors file, and the bytes of all of them together.

    Raises:
        `InputError`: there is no such file; it is truncated or too long; or its header is not that of such a file.
    """
    path = Path(path)
    try:
        with path_errors(path), path.open("rb") as file:
            header, size = int.from_bytes(file.read(8), "little"), path.stat().st_size
        with safe_open(path, "np") as tensors:
            return list(tensors.keys()), size - 8 - header
    except FileNotFoundError:
        raise InputError(f"{path}: no such file") from None
    except SafetensorError as error:
        raise InputError(printable(f"{path}: not a whole safetensors file ({first_line(error)[:300]})")) from None
