"""The state of a run, from its history, its heartbeats, its events and the batch system."""

import contextlib
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from statistics import mean
from typing import Any

from ..display import format_duration
from ..errors import InputError
from ..report.tables import text_table
from ..runtime.events import read_events, seconds_since
from ..runtime.rank_heartbeats import STOPPED
from ..runtime.run_records import FINISHING_NAME
from ..runtime.supervisors import read_supervisors
from .diagnosis import DEAD, HANGING, STARTING, Diagnosis, Limits, Observer, Rank
from .progress import HISTORY_NAME, RunStatus, read_status, status_rows, two_columns
from .slurm import waiting_job

FINISHED, WAITING = "finished", "waiting in the queue"

_SUPERVISION = (
    *("start", "restart", "give up", "finished", "stopped", "settings", "killed", "lost", "error", "disk full"),
    *("hang", "unknown"),
)
_EVENTS = 3  # the latest that are shown
_MAX_HOSTS = 16  # that are shown
_HOST_PHASES = ("data", "forward", "backward", "optimizer")
_HOST_HEADER = (
    *("host", "ranks", "step", "tokens/s", "data s", "fwd s", "bwd s", "opt s"),
    *("memory", "/dev/shm", "beat", "phase"),
)
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
        return "loss is not finite" if self.progress is not None and self.progress.not_finite else None


class RunObserver:
    """Looks at a run again and again.

    Args:
        path (path): folder of the run, or its `history.jsonl`.
        limits ([`~hmm_datasets.operations.diagnosis.Limits`], *optional*): when a phase has taken too long.

    Raises:
        `InputError`: there is no such folder or file.
    """

    def __init__(self, path: str | Path, limits: Limits | None = None):
        path = Path(path)
        if not path.exists():
            raise InputError(f"{path}: no such file or folder; give the output_dir of a run")
        self.folder = path if path.is_dir() else path.parent
        self._observer = Observer(self.folder, limits)

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
        before = "" if diagnosis is None else f"; before: {diagnosis.reason}"
        waiting = None if diagnosis is None else waiting_job(diagnosis.ranks[0].beat.job)
        if waiting is not None:
            return WAITING, waiting + before
        last = next((event for event in reversed(events) if event["kind"] in _SUPERVISION), None)
        if last is not None and last["kind"] in ("start", "restart") and _is_supervised(self.folder):
            return STARTING, f"supervised: {last['message']}{before}"
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


def _is_supervised(folder: Path) -> bool:
    """Whether a supervisor of a run is alive, on this machine or, by the time of its file, on another."""
    for path, supervisor in read_supervisors(folder):
        with contextlib.suppress(OSError):  # it has just been removed
            is_recent = seconds_since(path.stat().st_mtime) < _SUPERVISOR_SILENT
            if supervisor.is_alive_here if supervisor.is_here else is_recent:
                return True
    return False


def format_state(state: RunState) -> str:
    """A state as a table of two columns (state, remark, progress, the latest events) and one of hosts."""
    rows = [("state", state.state + (f": {state.reason}" if state.reason else ""))]
    if state.diagnosis is not None and state.diagnosis.remark:
        rows.append(("remark", state.diagnosis.remark))
    if state.progress is not None:
        rows += status_rows(state.progress)
    rows += [("event", event_line(event)) for event in state.events[-_EVENTS:]]
    return two_columns(rows) + ("" if state.diagnosis is None else f"\n\n{_host_table(state.diagnosis)}")


def _host_table(diagnosis: Diagnosis) -> str:
    """A row per host: its ranks, where they are, their rate, seconds per step, and its memory."""
    hosts = [list(its) for _, its in groupby(diagnosis.ranks, key=lambda rank: rank.beat.host)]
    suspects = (*diagnosis.blamed, *diagnosis.slow)
    hosts.sort(key=lambda its: not any(rank in suspects for rank in its))  # those with a rank at fault come first
    rows = [[*_host_cells(its), _phases([rank for rank in its if rank in suspects] or its)] for its in hosts]
    more = f"\nand {len(hosts) - _MAX_HOSTS} more hosts" if len(hosts) > _MAX_HOSTS else ""
    return text_table(_HOST_HEADER, rows[:_MAX_HOSTS], left=(0, len(_HOST_HEADER) - 1)) + more


def _host_cells(its: Sequence[Rank]) -> list[str]:
    beats = [rank.beat for rank in its]
    first, last, memory = beats[0].rank, beats[-1].rank, [beat.memory for beat in beats if beat.memory is not None]
    return [
        beats[0].host,
        str(first) if first == last else f"{first}-{last}",
        _cell(min, ",", (beat.step for beat in beats)),
        _cell(sum, ",.0f", (beat.tokens_per_second for beat in beats)),
        *(_cell(mean, ".3g", (beat.seconds.get(phase) for beat in beats)) for phase in _HOST_PHASES),
        _cell(max, ".0%", (one.used / max(one.total, 1) for one in memory)),
        _cell(max, ".0%", (one.shared_used / max(one.shared_total, 1) for one in memory)),
        format_duration(max(beat.age for beat in beats)),
    ]


def _cell(reduce: Callable[[list], float], form: str, values: Iterable[float | None]) -> str:
    known = [value for value in values if value is not None]
    return format(reduce(known), form) if known else ""


def _phases(its: Sequence[Rank]) -> str:
    if its[0].condition != "beating":
        return f"rank {its[0].beat.rank} {its[0].condition}"
    return ", ".join(dict.fromkeys(rank.beat.phase for rank in its))


def event_line(event: dict[str, Any]) -> str:
    """An event in one line: age, kind, place, message."""
    place = f"rank {event['rank']} on {event['host']}" if "rank" in event else event["host"]
    step = f" at step {event['step']:,}" if "step" in event else ""
    ago = format_duration(seconds_since(event["time"]))
    where = f", {place}" if place and place not in event["message"] else ""
    return f"{ago} ago, {event['kind']}{step}{where}: {event['message']}"
