"""The state of a run from the heartbeats of its processes: does it run, and if not, which rank is at fault?

Ranks that wait for one another in a collective all wait. The one at fault is the one that is furthest behind: the
others are in a later step, or in a later part of the same step. A process that does not beat comes before that. It has
exited silently, is suspended, or is unreachable with its host.

A process on this machine is looked up. Of one on another machine only its file is known, so it counts as silent if
its file was not rewritten for several beats. Whether it was is decided by the number in the file and the watcher's own
monotonic clock, so clocks that differ between machines, or that change, do not matter.
"""

import math
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ..display import format_duration
from ..process_state import is_suspended
from ..runtime.heartbeat_file import SilenceClock
from ..runtime.heartbeat_writer import BEAT_EVERY
from ..runtime.rank_heartbeats import (
    FAILED,
    PHASES,
    STOPPED,
    Heartbeat,
    read_heartbeats,
)

RUNNING, STARTING, HANGING, DEAD = "running", "starting", "hanging", "dead"

_STARTING = PHASES[: PHASES.index("data")]
_PAUSES = ("saving", "evaluating", "finishing")
_LONGER = 10.0  # times the longest visit to a phase so far
_SLOWER = 1.5  # times the usual seconds of a rank for its own work
_OWN_WORK = ("data", "forward")  # phases in which a rank does not wait for others, unless weights are sharded


@dataclass(frozen=True)
class Limits:
    """When a phase has taken too long; in any case not before ten times the longest visit to it so far.

    The seconds in which a rank compiles, up to `start`, count neither for it nor for those that wait for it.

    Args:
        silent (`float`, *optional*, defaults to 30.0): seconds without a heartbeat after which a process on another
            machine counts as silent.
        step (`float`, *optional*, defaults to 300.0): seconds in one phase of a step.
        start (`float`, *optional*, defaults to 1800.0): seconds of imports, of the rendezvous of the ranks, or of
            compiling in a step.
        setup (`float`, *optional*, defaults to 7200.0): seconds to open data and model.
        pause (`float`, *optional*, defaults to 1800.0): seconds of saving, or of an evaluation.
    """

    silent: float = 30.0
    step: float = 300.0
    start: float = 1800.0
    setup: float = 7200.0
    pause: float = 1800.0

    @classmethod
    def hang_after(cls, seconds: float, **others: float) -> "Limits":
        """The limits where a phase of a step hangs after these seconds, and a save or an evaluation after six times
        as long; `others` are arguments."""
        return cls(step=seconds, pause=6 * seconds, **others)

    def of(self, beat: Heartbeat) -> float:
        """The limit for the phase that a process is in."""
        if beat.phase in _STARTING:
            return self.setup if beat.phase == "setup" else self.start
        if beat.phase == "working" and beat.longest == 0:
            return math.inf  # it is not known how long this usually takes
        return max(self.pause if beat.phase in _PAUSES else self.step, _LONGER * beat.longest)


@dataclass(frozen=True)
class Rank:
    """One rank of a run.

    Attributes:
        beat ([`~hmm_datasets.runtime.heartbeats.Heartbeat`]): its newest heartbeat.
        condition (`str`): `beating`, `suspended`, `gone` (it exited silently), `silent`, `stopped` or
            `failed`.
    """

    beat: Heartbeat
    condition: str

    @property
    def words(self) -> str:
        """What it does or what happened to it, in words."""
        beat = self.beat
        step = "" if beat.step is None else f" of step {beat.step:,}"
        where = f"in phase {beat.phase}{step}"
        if self.condition == "beating":
            compiling = f" (compiling: {format_duration(beat.compiling)})" if beat.compiling >= 1 else ""
            return f"{where} for {format_duration(beat.phase_seconds)}{compiling}"
        if self.condition == "suspended":
            ago = format_duration(beat.age)
            return (
                f"is suspended (as by SIGSTOP), {where}, no heartbeat for {ago}; continue: kill -CONT {beat.process}"
            )
        if self.condition == "gone":
            return f"exited silently, last heard {where}: killed, perhaps for lack of memory"
        if self.condition == "silent":
            return f"is silent for {format_duration(beat.age)}, {where}"
        if beat.follows:
            return f"ended because another process had ended, which has not reported why: {beat.message}"
        return f"{beat.phase}: {beat.message}"

    @property
    def own_seconds(self) -> float:
        """Seconds per step of its own work, in which it does not wait for other ranks."""
        return sum(self.beat.seconds.get(phase, 0.0) for phase in _OWN_WORK)


@dataclass(frozen=True)
class Diagnosis:
    """The state of a run, as far as heartbeats show it.

    Attributes:
        state (`str`): `running`, `starting`, `hanging`, `stopped` or `dead`.
        reason (`str`): why, naming ranks and hosts; empty if it runs.
        blamed (`tuple` of [`Rank`]): the ranks at fault for a state that is not `running`.
        ranks (`tuple` of [`Rank`]): all ranks that have reported.
        missing (`tuple[int, ...]`): ranks that have not.
        slow (`tuple` of [`Rank`]): ranks whose own work takes much longer than that of the others.
    """

    state: str
    reason: str
    blamed: tuple[Rank, ...]
    ranks: tuple[Rank, ...]
    missing: tuple[int, ...] = ()
    slow: tuple[Rank, ...] = ()

    @property
    def remark(self) -> str:
        """The slowest rank, in words; empty if none is slow."""
        if not self.slow:
            return ""
        usual = statistics.median_low(rank.own_seconds for rank in self.ranks)
        slowest = max(self.slow, key=lambda rank: rank.own_seconds)
        more = f", and {len(self.slow) - 1} more" if len(self.slow) > 1 else ""
        return (
            f"{slowest.beat.place} is slow: {slowest.own_seconds:.3g} s per step for its data and forward pass, "
            f"{usual:.3g} s elsewhere{more}"
        )


class Observer:
    """Looks at the heartbeats of a run again and again.

    Args:
        folder (path): folder of the run.
        limits ([`Limits`], *optional*): when a phase has taken too long.
    """

    def __init__(self, folder: str | Path, limits: Limits | None = None):
        self.folder = Path(folder)
        self.limits = limits or Limits()
        self._silence = SilenceClock()

    def look(self) -> Diagnosis | None:
        """The state of the run now; None if no process has left a heartbeat."""
        beats = [
            replace(beat, age=self._silence.seconds((beat.host, beat.process), beat.beat, at_first=beat.age))
            for beat in read_heartbeats(self.folder)
        ]
        return diagnose(beats, self.limits) if beats else None

    def look_twice(self) -> Diagnosis | None:
        """The same, but a process that seems silent or suspended is looked at again after two beats.

        Its file may be that of a machine whose clock differs, and the process may only be slowed down.
        """
        diagnosis = self.look()
        if diagnosis is not None and any(rank.condition in ("silent", "suspended") for rank in diagnosis.ranks):
            time.sleep(2 * BEAT_EVERY)
            return self.look()
        return diagnosis


def diagnose(beats: Sequence[Heartbeat], limits: Limits) -> Diagnosis:
    """The state of a run from the newest heartbeats of its ranks, of which there must be one or more."""
    ranks = tuple(Rank(beat, _condition(beat, limits)) for beat in beats)
    missing = tuple(sorted(set(range(beats[0].world_size)) - {beat.rank for beat in beats}))
    names = ", ".join(map(str, missing[:10])) + (", ..." if len(missing) > 10 else "")
    is_alive = any(rank.condition in ("beating", "suspended") for rank in ranks)

    def found(state: str, reason: str, blamed: tuple[Rank, ...] = (), slow: tuple[Rank, ...] = ()) -> Diagnosis:
        return Diagnosis(state, reason, blamed, ranks, missing, slow)

    failed = [rank for rank in ranks if rank.condition == FAILED and not rank.beat.follows]
    failed = tuple(sorted(failed, key=lambda rank: rank.beat.written)[:1])
    stopped = tuple(rank for rank in ranks if rank.condition == STOPPED)
    lost = tuple(rank for rank in ranks if rank.condition in ("gone", "suspended", "silent"))
    ended = failed or lost or tuple(rank for rank in ranks if rank.beat.follows)[:1]
    if not is_alive and stopped and not failed:
        return found(STOPPED, f"{stopped[0].beat.message}; the same command continues", stopped)
    if not is_alive:
        return found(DEAD, _sentence(ended, ranks), ended)
    if ended:
        waiting = "; other ranks have not ended yet" if failed else ""
        return found(HANGING, _sentence(ended, ranks) + waiting, ended)
    compiling = min(max(beat.compiling for beat in beats), limits.start)
    overdue = [rank for rank in ranks if rank.beat.phase_seconds > limits.of(rank.beat) + compiling]
    if missing and overdue:
        return found(HANGING, f"rank {names} has never reported; the others wait for it: {overdue[0].words}")
    if overdue:
        behind = min(map(_progress, ranks))
        blamed = tuple(rank for rank in ranks if _progress(rank) == behind)
        if len(blamed) == len(ranks) > 1:
            reason = f"all {len(ranks)} ranks are {overdue[0].words}: none is behind, so look at their network"
            return found(HANGING, reason, blamed)
        waiting = [f"; the others wait {rank.words}" for rank in ranks if rank not in blamed]
        return found(HANGING, _sentence(blamed, ranks) + "".join(waiting[:1]), blamed)
    starting = [rank for rank in ranks if rank.beat.phase in _STARTING]
    if missing or starting:
        first = (starting or ranks)[0]
        absent = f"; not yet reported: rank {names}" if missing else ""
        return found(STARTING, f"rank {first.beat.rank} is {first.words}{absent}")
    return found(RUNNING, "", (), _slow(ranks))


def _condition(beat: Heartbeat, limits: Limits) -> str:
    if beat.has_ended:
        return beat.phase
    if beat.is_here:
        if not beat.is_alive_here:
            return "gone"
        return "suspended" if is_suspended(beat.process) else "beating"
    return "silent" if beat.age > limits.silent else "beating"


def _progress(rank: Rank) -> tuple[int, int]:
    beat = rank.beat
    return (beat.step or 0, beat.visits)


def _sentence(blamed: Sequence[Rank], everyone: Sequence[Rank]) -> str:
    """What happened to the ranks at fault; a host all of whose ranks are silent is named as such."""
    hosts = dict.fromkeys(rank.beat.host for rank in blamed)
    for host in hosts:
        its = [rank for rank in everyone if rank.beat.host == host]
        if len(its) > 1 and all(rank.condition == "silent" for rank in its):
            return f"host {host} is lost or unreachable: all its {len(its)} ranks are silent; {its[0].words}"
    first = f"{blamed[0].beat.place} {blamed[0].words}"
    if len(blamed) == 1:
        return first
    return f"{first}; and {len(blamed) - 1} more on {', '.join(list(hosts)[:8])}"


def _slow(ranks: Sequence[Rank]) -> tuple[Rank, ...]:
    if len(ranks) < 2 or not all(rank.beat.seconds for rank in ranks):
        return ()
    usual = statistics.median_low(rank.own_seconds for rank in ranks)
    step = statistics.median(sum(rank.beat.seconds.values()) for rank in ranks)
    return tuple(rank for rank in ranks if rank.own_seconds > max(_SLOWER * usual, usual + 0.1 * step))
