"""The files by which supervisors of a run on several hosts show each other that they run, beside its heartbeats."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ..errors import InputError
from ..records import Count, Finite, read_record
from .heartbeats import FOLDER_NAME, SUPERVISOR_PREFIX
from .process_identity import ProcessIdentity


@dataclass(frozen=True)
class SupervisorRecord:
    """What the file of a supervisor says; those of earlier versions do not say which process it is.

    Attributes:
        beat (`int`): number of its last sign of life.
        runs (`bool`), start (`int`): whether its command runs, and in which start of the run.
        host (`str`), process (`int`), machine (`str`), started (`float`): those of its
            [`~hmm_datasets.runtime.process_identity.ProcessIdentity`].
    """

    beat: Count
    runs: bool
    start: Count
    host: str = ""
    process: Count = 0
    machine: str = ""
    started: Finite = 0.0

    @property
    def identity(self) -> ProcessIdentity:
        """Which process it is."""
        return ProcessIdentity(self.host, self.process, self.machine, self.started)


def read_supervisors(folder: str | os.PathLike) -> Iterator[tuple[Path, SupervisorRecord]]:
    """The files of the supervisors of a run, whose folder this is, and what they say.

    A file that is being written or removed, or is not one of these, is left out.
    """
    for path in (Path(folder) / FOLDER_NAME).glob(f"{SUPERVISOR_PREFIX}*"):
        try:
            yield path, read_record(path, SupervisorRecord)
        except (OSError, InputError):
            continue
