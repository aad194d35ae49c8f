"""The state of a run, from its history, its heartbeats, its events and the batch system."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ..display import format_bytes, format_duration
from ..errors import InputError
from ..runtime.events import read_events, seconds_since
from ..runtime.host_memory import HostMemory
from ..runtime.rank_heartbeats import STOPPED
from ..runtime.run_records import FINISHING_NAME
from ..runtime.supervisors import read_supervisors
from .diagnosis import DEAD, HANGING, STARTING, Diagnosis, Limits, Observer
from .progress import HISTORY_NAME, RunStatus, read_status, status_rows, two_columns
from .slurm import waiting_job

FINISHED, WAITING = "finished", "waiting in the queue"

NOT_FINITE = "loss is not finite"

_SUPERVISION = (
    *("start", "restart", "give up", "finished", "stopped", "settings", "killed", "lost", "error", "disk full"),
    *("hang", "unknown"),
)
_EVENTS = 3  # the latest that are shown
_HOSTS = 3  # whose memory is shown
_UNTIL_REPORTED = 120.0  # seconds from a start to the first heartbeat
_SUPERVISOR_SILENT = 30.0  # seconds; it writes every second


@dataclass(frozen=True)
class RunState:
    """The state of a run.

    Attributes:
        folder (`Path`): folder of the run.
        state (`str`): `waiting in the queue`, `starting`, `running`, `hanging`, `stopped` (on request), `finished` or
            `dead`.
        reason (`str`): why, naming ranks and hosts; may be empty.
        progress ([`~hmm_datasets.operations.progress.RunStatus`], *optional*): from the history, if it has a row.
        diagnosis ([`~hmm_datasets.operations.diagnosis.Diagnosis`], *optional*): from the heartbeats, if any.
        events (`tuple` of `dict`): the events of the run, oldest first.
    """

    folder: Path
    state: str
    reason: str
    progress: RunStatus | None
    diagnosis: Diagnosis | None
    events: tuple[dict[str, Any], ...]

    @property
    def trouble(self) -> str | None:
        """What is wrong, in the same words as long as it is; None if nobody has to do anything."""
        if self.state in (HANGING, DEAD):
            return self.state
        return NOT_FINITE if self.progress is not None and self.progress.not_finite else None


class RunObserver:
    """Looks at a run again and again.

    Args:
        path (path): folder of the run, or its `history.jsonl`.
        limits ([`~hmm_datasets.operations.diagnosis.Limits`], *optional*): when a phase has taken too long.
        job (`str`, *optional*): the job of the batch system; by default the one in the heartbeats.

    Raises:
        `InputError`: there is no such folder or file.
    """

    def __init__(self, path: str | Path, limits: Limits | None = None, job: str | None = None):
        path = Path(path)
        if not path.exists():
            raise InputError(f"{path}: no such file or folder; give the output_dir of a run")
        self.folder = path if path.is_dir() else path.parent
        self._observer = Observer(self.folder, limits)
        self._job = job

    def look(self, *, twice: bool = False) -> RunState:
        """The state of the run now.

        Args:
            twice (`bool`, *optional*, defaults to `False`): before a process is called silent, wait to see whether it
                writes, because the clocks of two machines may differ.
        """
        diagnosis = self._observer.look_twice() if twice else self._observer.look()
        progress = None
        if (self.folder / HISTORY_NAME).exists():
            try:
                progress = read_status(self.folder)
            except InputError:
                if diagnosis is None:
                    raise
        events = tuple(read_events(self.folder))
        if progress is not None:
            progress = replace(progress, not_finite=(*progress.not_finite, *_not_logged(progress, events)))
        state, reason = self._state(diagnosis, progress, events)
        return RunState(self.folder, state, reason, progress, diagnosis, events)

    def _state(
        self, diagnosis: Diagnosis | None, progress: RunStatus | None, events: Sequence[dict[str, Any]]
    ) -> tuple[str, str]:
        is_summarized = (self.folder / "summary.json").exists() and not (self.folder / FINISHING_NAME).exists()
        is_finished = is_summarized and (progress is None or progress.finished)
        if diagnosis is not None and diagnosis.state not in (DEAD, STOPPED):
            return diagnosis.state, diagnosis.reason
        if is_finished or (diagnosis is None and progress is not None and progress.finished):
            return FINISHED, ""
        job = self._job
        if job is None and diagnosis is not None:
            job = diagnosis.ranks[0].beat.job
        waiting = waiting_job(job)
        if waiting is not None:
            return WAITING, f"{waiting}; before: {diagnosis.reason}" if diagnosis is not None else waiting
        supervised = _started_again(self.folder, events, diagnosis)
        if supervised is not None:
            return STARTING, supervised
        if diagnosis is not None:
            return diagnosis.state, diagnosis.reason
        if progress is None:
            return DEAD, "neither heartbeats nor a history: nothing has started here, or it failed at once"
        return DEAD, f"no process has a heartbeat here; no row for {format_duration(progress.seconds_silent)}"


def _not_logged(progress: RunStatus, events: Sequence[dict[str, Any]]) -> Iterator[tuple[int, float, str | None]]:
    """The steps after the last row of the history that ended the run, since their loss was NaN or infinite."""
    for event in events:
        if event["kind"] == "nan" and event.get("step", 0) > progress.step:
            loss = event.get("highest", {}).get("loss")
            yield event["step"], loss if isinstance(loss, float) else math.nan, event["host"]


def _supervised_now(folder: Path) -> bool | None:
    """Whether a supervisor of a run is alive; None if none has left its file."""
    alive = None
    for path, supervisor in read_supervisors(folder):
        try:
            is_recent = seconds_since(path.stat().st_mtime) < _SUPERVISOR_SILENT
        except OSError:
            continue  # it has just been removed
        alive = bool(alive) or (supervisor.is_alive_here if supervisor.is_here else is_recent)
    return alive


def _has_reported(diagnosis: Diagnosis, last: dict[str, Any]) -> bool:
    """Whether a process of the start that an event announces has reported; by the number of its start if it has it."""
    if "reported" in last:
        return max(rank.beat.start for rank in diagnosis.ranks) > last["reported"]
    return max(rank.beat.time for rank in diagnosis.ranks) > last["time"] + last.get("delay", 0.0)


def _started_again(folder: Path, events: Sequence[dict[str, Any]], diagnosis: Diagnosis | None) -> str | None:
    """What a supervisor is about to do, if it is; processes report a few seconds after they were started."""
    last = next((event for event in reversed(events) if event["kind"] in _SUPERVISION), None)
    if last is None or last["kind"] not in ("start", "restart"):
        return None
    if diagnosis is not None and _has_reported(diagnosis, last):
        return None
    is_supervised = _supervised_now(folder)
    is_recent = seconds_since(last["time"] + last.get("delay", 0.0)) < _UNTIL_REPORTED
    if is_supervised is False or (is_supervised is None and not is_recent):
        return None
    before = f"; before: {diagnosis.reason}" if diagnosis is not None else ""
    return f"supervised: {last['message']}{before}"


def state_rows(state: RunState) -> list[tuple[str, str]]:
    """A state as names and values: state, remark, progress, and the latest events."""
    rows = [("state", state.state + (f": {state.reason}" if state.reason else ""))]
    if state.diagnosis is not None and state.diagnosis.remark:
        rows.append(("remark", state.diagnosis.remark))
    if state.progress is not None:
        rows += status_rows(state.progress)
    if state.diagnosis is not None:
        rows += _memory_rows(state.diagnosis)
    return rows + [("event", event_line(event)) for event in state.events[-_EVENTS:]]


def _memory_rows(diagnosis: Diagnosis) -> list[tuple[str, str]]:
    """Memory in use on the hosts that use the largest share of theirs."""
    hosts = {rank.beat.host: memory for rank in diagnosis.ranks if (memory := rank.beat.memory) is not None}
    fullest = sorted(hosts.items(), key=lambda item: -_fullness(item[1]))[:_HOSTS]
    return [
        (
            "memory",
            f"{host}: {format_bytes(memory.used)} of {format_bytes(memory.total)}, /dev/shm "
            f"{format_bytes(memory.shared_used)} of {format_bytes(memory.shared_total)}",
        )
        for host, memory in fullest
    ]


def _fullness(memory: HostMemory) -> float:
    return max(memory.used / max(memory.total, 1), memory.shared_used / max(memory.shared_total, 1))


def format_state(state: RunState) -> str:
    """A state as a table of two columns."""
    return two_columns(state_rows(state))


def event_line(event: dict[str, Any]) -> str:
    """An event in one line: age, kind, place, message."""
    place = f"rank {event['rank']} on {event['host']}" if "rank" in event else event["host"]
    step = f" at step {event['step']:,}" if "step" in event else ""
    ago = format_duration(seconds_since(event["time"]))
    where = f", {place}" if place and place not in event["message"] else ""
    return f"{ago} ago, {event['kind']}{step}{where}: {event['message']}"
