"""Panics of libraries in Rust (`tokenizers`, `fastokens`, `safetensors`), which are no `Exception`.

PyO3 raises them as `pyo3_runtime.PanicException`, a class of a module that cannot be imported. The library
`tokenizers` panics where its regular expressions give up (`retry-limit-in-match over`), because the pattern of a
tokenizer needs exponential time on a text. This can be removed once it raises an `Exception` there.
"""

import contextlib
import os
import sys
from collections.abc import Generator

from ..errors import InputError, first_line


@contextlib.contextmanager
def panics_as_errors(what: str, remedy: str) -> Generator[None]:
    """A context in which a panic becomes an [`InputError`] that begins with `what` and ends with `remedy`."""
    try:
        yield
    except BaseException as error:
        if type(error).__name__ != "PanicException":
            raise
        raise InputError(f"{what} ({first_line(error)}); {remedy}") from None


@contextlib.contextmanager
def silent_panics() -> Generator[None]:
    """A context in which nothing is written to stderr, where Rust reports a panic before it is raised."""
    sys.stderr.flush()
    kept, nothing = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nothing)
