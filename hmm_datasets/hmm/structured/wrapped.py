"""Processes that are made of one other process."""

from typing import Any, Self

import numpy as np

from ...errors import InputError
from ..process import Process


class WrappedProcess(Process):
    """A process that changes the sequences of another one, the first argument of its constructor."""

    def __init__(self, process: Process):
        if not isinstance(process, Process):
            raise InputError(f"process is a {type(process).__name__}; expected a process, such as a MarkovChain")
        self.process = process

    @property
    def has_exact_distribution(self) -> bool:
        """Whether the other process has one."""
        return self.process.has_exact_distribution

    def parts(self) -> tuple[Process, ...]:
        """The other process."""
        return (self.process,)

    @classmethod
    def from_parts(cls, settings: dict[str, Any], arrays: dict[str, np.ndarray], parts: tuple[Process, ...]) -> Self:
        """The process made of one part."""
        return cls(parts[0], **settings)
