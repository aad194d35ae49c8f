"""NumPy's files from anyone: `.npy`, and archives of them in `.npz`.

The header of an array is a Python literal, and an archive is a zip file with members of any kind, so that a damaged
one raises the errors of three parsers. No pickle is read.
"""

import os
import zipfile
from pathlib import Path
from typing import Any, Literal

import numpy as np

from ..errors import InputError, first_line, path_errors
from .sizes import check_expansion

_HARMLESS_BYTES = 1 << 30  # tables of a large HMM, which are mostly zeros


def load_array(path: str | os.PathLike, mmap_mode: Literal["r"] | None = None) -> np.ndarray:
    """The array in a `.npy` file.

    Args:
        path (path): the file.
        mmap_mode (`str`, *optional*): `"r"` to map it into memory.

    Raises:
        `InputError`: there is no such file, or it is not a complete array of numbers.
    """
    array = _read(path, lambda: np.load(path, mmap_mode=mmap_mode, allow_pickle=False))
    if not isinstance(array, np.ndarray):
        raise InputError(f"{path}: an archive of arrays; expected one array, as numpy.save writes it")
    return array


def load_archive(path: str | os.PathLike) -> dict[str, np.ndarray]:
    """The arrays in a `.npz` file by their names.

    Raises:
        `InputError`: there is no such file, or it is not a complete archive of arrays of numbers.
    """

    def read() -> dict[str, np.ndarray]:
        with zipfile.ZipFile(path) as archive:
            size = sum(member.file_size for member in archive.infolist())
        check_expansion(path, Path(path).stat().st_size, size, _HARMLESS_BYTES)
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
        for name, array in arrays.items():
            if not isinstance(array, np.ndarray):  # a member that is no array is returned as bytes
                raise ValueError(f"the member {name!r} is no array")
        return arrays

    return _read(path, read)


def _read(path: str | os.PathLike, read: Any) -> Any:
    kind = Path(path).suffix or "NumPy"
    try:
        with path_errors(path):
            return read()
    except InputError:
        raise
    except FileNotFoundError:
        raise InputError(f"{path}: no such file") from None
    except Exception as error:  # of zipfile, zlib, ast, tokenize and NumPy; MemoryError is one of them
        reason = f"{type(error).__name__}: {first_line(error)}"
        raise InputError(f"{path}: not a complete {kind} file of numbers ({reason}); write or copy it again") from None
