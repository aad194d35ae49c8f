"""Files of `torch.save`, read and written a few tensors at a time, so that memory never holds the whole file.

Reading maps the file into memory, and maps it anew after every 64 MB, which gives the pages back. Writing follows
torch's documentation of `skip_data`: first the structure with empty space for the tensors, which are then copied into
the mapped file. The checksums in the archive are those of the empty space; `torch.load` does not look at them.
"""

import mmap
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from ...errors import InputError, first_line

_AT_ONCE = 64_000_000  # bytes


class SavedTensors:
    """The content of a file of `torch.save`, of which only a few tensors are in memory.

    Args:
        path (`Path`): the file; it is read as data, without running code.
        writable (`bool`, *optional*, defaults to `False`): whether what is written into the tensors goes to the file.
    """

    def __init__(self, path: Path, *, writable: bool = False):
        self._path = path
        self._options = mmap.MAP_SHARED if writable else mmap.MAP_PRIVATE
        self._content: Any = None
        self._used = 0

    def content(self, about_to_use: int = 0) -> Any:
        """What was saved. Keep no tensor of an earlier call.

        Args:
            about_to_use (`int`, *optional*): bytes of the tensors that will be used.

        Raises:
            `InputError`: the file cannot be read as data.
        """
        self._used += about_to_use
        if self._content is None or self._used > _AT_ONCE:
            self._content, self._used = None, about_to_use
            try:
                with torch.serialization.set_default_mmap_options(self._options):
                    self._content = torch.load(self._path, map_location="cpu", mmap=True, weights_only=True)
            except (pickle.UnpicklingError, RuntimeError, OSError) as error:
                reason = first_line(error)
                raise InputError(f"{self._path}: cannot be read as data ({reason}); take another checkpoint") from None
        return self._content


def save_tensors(path: Path, skeleton: Any, fill: Callable[[SavedTensors], None]) -> None:
    """Write a file for `torch.load`.

    Args:
        path (`Path`): the file.
        skeleton: what to save, with tensors from `torch.empty` whose values do not matter; they take no memory.
        fill (callable): writes the values into the tensors of the [`SavedTensors`] that it is given.
    """
    with torch.serialization.skip_data():
        torch.save(skeleton, path)
    fill(SavedTensors(path, writable=True))
