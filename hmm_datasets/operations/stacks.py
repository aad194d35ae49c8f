"""The Python stacks of the processes of a run, which show where they wait.

A process that writes heartbeats is asked: its thread of heartbeats finds a file named `dump-stacks` in the folder of
heartbeats and writes the stacks of all threads beside its heartbeat, which works on every host.
"""

import time
from collections.abc import Sequence
from pathlib import Path

from ..runtime.heartbeat_writer import BEAT_EVERY
from ..runtime.rank_heartbeats import DUMP_STACKS, FOLDER_NAME, stacks_path
from .diagnosis import Rank


def read_stacks(folder: str | Path, ranks: Sequence[Rank]) -> dict[int, str]:
    """The stacks of some ranks, or why there are none, by rank.

    Args:
        folder (path): folder of the run; a file is written there for a few seconds.
        ranks (sequence of [`~hmm_datasets.operations.diagnosis.Rank`]): the ranks.
    """
    asked = {rank.beat.rank: rank.beat for rank in ranks if rank.condition == "beating"}
    stacks = {rank.beat.rank: _why_none(rank) for rank in ranks if rank.condition != "beating"}
    if not asked:
        return stacks
    wanted = Path(folder) / FOLDER_NAME / DUMP_STACKS
    try:
        before = {rank: _written(stacks_path(folder, beat.host, beat.process)) for rank, beat in asked.items()}
        wanted.touch()
    except OSError as error:
        return stacks | dict.fromkeys(asked, f"cannot be asked: {wanted} cannot be written ({error.strerror})")
    deadline = time.monotonic() + 3 * BEAT_EVERY
    try:
        while asked and time.monotonic() < deadline:
            time.sleep(0.2)
            for rank, beat in list(asked.items()):
                path = stacks_path(folder, beat.host, beat.process)
                if path.exists() and path.stat().st_mtime_ns != before[rank]:
                    stacks[rank] = path.read_text(encoding="utf-8")
                    del asked[rank]
    finally:
        wanted.unlink(missing_ok=True)
    # A process whose interpreter is blocked, by code that does not let other threads run, does not answer.
    return stacks | {rank.beat.rank: _why_none(rank) for rank in ranks if rank.beat.rank in asked}


def _written(path: Path) -> int | None:
    return path.stat().st_mtime_ns if path.exists() else None


def _why_none(rank: Rank) -> str:
    """Why a process gives no answer, and how to read it from outside."""
    if rank.condition not in ("beating", "suspended", "silent"):
        return "cannot be read: it has ended"
    return f"gave no answer; on {rank.beat.host}, try: py-spy dump --nonblocking --pid {rank.beat.process}"
