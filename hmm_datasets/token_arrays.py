"""Reading sequences from a `.npy` file, for the command line."""

from pathlib import Path
from typing import TYPE_CHECKING

from .errors import InputError

if TYPE_CHECKING:
    import numpy as np


def read_tokens(path: str | Path) -> "np.ndarray":
    """The memory-mapped array in a file: integers of shape `(N, L)`.

    Raises:
        `InputError`: there is no such file, it is not an array, or its type or shape is another.
    """
    import numpy as np

    try:
        tokens = np.load(path, mmap_mode="r", allow_pickle=False)
    except FileNotFoundError:
        raise InputError(f"{path}: no such file") from None
    except (ValueError, OSError, EOFError) as error:
        raise InputError(f"{path}: not a complete .npy file of numbers ({error})") from None
    if getattr(tokens, "ndim", 0) != 2 or tokens.dtype.kind not in "iu" or tokens.size == 0:
        found = f"{tokens.dtype} of shape {tokens.shape}" if hasattr(tokens, "dtype") else "an archive of arrays"
        raise InputError(f"{path}: {found}; expected integers of shape (N, L), N and L at least 1")
    return tokens
