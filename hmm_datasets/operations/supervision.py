"""Starts a run again after faults: what ended it, whether to start again and when, and what is left out.

A supervisor starts the command of a run, watches its heartbeats, and writes one event per line into `events.jsonl`:
each start, each end with its reason and the rank and host at fault, each hang that it ends, and each decision. It
starts the command again after

- a killed process, a crash, a lost peer or host, a full disk, or a hang, which it ends by killing the ranks here;
- SIGTERM or SIGHUP that did not come through the supervisor;
- an error of a step, such as a loss that is not finite, unless the same step fails in the same way again;

and not after

- an error of the settings, that is one from before the first step, which would be the same every time;
- a request to stop: a signal to the supervisor, which passes it on, a file named `stop`, a time limit, or SIGUSR1;
- the end of the run;
- several failures in a row without a new checkpoint.

The delay before a start doubles with each failure without a new checkpoint in between (exponential back-off).

The supervisors of one run on several hosts start its commands together
([`~hmm_datasets.runtime.supervisors.SupervisorHeartbeat`]).
"""

import contextlib
import os
import shlex
import signal
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..display import format_duration
from ..errors import InputError
from ..runtime import environment
from ..runtime.children import Children, SignalHandler, exit_code, signals, wait_for
from ..runtime.credentials import masked_arguments
from ..runtime.events import append_event, read_events
from ..runtime.rank_heartbeats import (
    SHOW_STACKS,
    fatal_error_path,
    heartbeat_path,
    read_heartbeats,
)
from ..runtime.setting_rules import check_object
from ..runtime.settings import option
from ..runtime.supervisors import SupervisorHeartbeat
from ..training.checkpoints.inspection import list_steps
from .diagnosis import HANGING, Diagnosis, Limits, Observer
from .exits import ExitReason, classify_exit

_LOOK_EVERY = 1.0  # seconds
_END_WITHIN = 60.0  # seconds that a command is given to end, before it is killed
_LAUNCHER_WITHIN = 5.0  # seconds until a launcher has noticed that its processes have ended
_OTHERS_WITHIN = 6.0  # seconds until a rank on another host has recorded that it failed
_PASSED_ON = signals("SIGTERM", "SIGINT", "SIGHUP", "SIGUSR1")


@dataclass(frozen=True)
class SupervisionSettings:
    """When to start again, and when to give up.

    A hang must last for `patience` in addition to the limits of a phase.
    """

    max_failures: int = option(5, "N", "in a row without a new checkpoint, default 5", least=1)
    first_delay: float = option(5.0, "SECONDS", "before a start; doubles; default 5")
    max_delay: float = option(600.0, "SECONDS", "before a start, default 600")
    patience: float = option(60.0, "SECONDS", "that a hang must last to be ended, default 60")

    __post_init__ = check_object


class Supervisor:
    """Starts a command until its run is finished.

    Args:
        command (sequence of `str`): the command.
        folder (path): folder of the run.
        settings ([`SupervisionSettings`], *optional*): when to start again.
        limits ([`~hmm_datasets.operations.diagnosis.Limits`], *optional*): when a phase has taken too long.
    """

    def __init__(
        self,
        command: Sequence[str],
        folder: str | Path,
        settings: SupervisionSettings | None = None,
        limits: Limits | None = None,
    ):
        self.command, self.folder = list(command), Path(folder)
        self.settings = settings or SupervisionSettings()
        self._children = Children()
        self._asked: signal.Signals | None = None
        self._observer = Observer(self.folder, limits)
        self._heartbeat = SupervisorHeartbeat(folder, self._observer.limits.silent)
        self._environment = environment.with_start(os.environ)  # for time limits, which are those of the job
        self._unwritten: list[tuple[str, str, dict[str, Any]]] = []  # events that are not yet in the log

    def run(self) -> int:
        """Start the command, again after faults, until the run is finished or it makes no sense to continue.

        Returns:
            `int`: exit code of the last start; 128 plus its number for a signal.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        with SignalHandler(_PASSED_ON, self._on_signal), self._heartbeat:
            return self._run()

    def _run(self) -> int:
        failures, reached, last = 0, saved_progress(self.folder), None
        host = environment.host()
        start = 1 + sum(event["kind"] == "start" and event["host"] == host for event in read_events(self.folder))
        while True:
            if not self._heartbeat.begin(self._wait, self._others_go_on):
                return 128 + int(self._asked or signal.SIGTERM)
            self._event("start", f"start {start}: {shlex.join(masked_arguments(self.command))}"[:400], start=start)
            code, reason = self._attempt(start)
            places = {name: getattr(reason.blamed, name, None) for name in ("host", "rank", "step")}
            where = {name: value for name, value in places.items() if value is not None}
            self._event(reason.kind, reason.message, start=start, exit_code=code, **where)
            if not reason.retries or self._asked is not None:
                return exit_code(code)
            progress = saved_progress(self.folder)
            failures = 1 if progress > reached else failures + 1
            reached = max(reached, progress)
            failure = (reason.kind, where.get("step"), getattr(reason.blamed, "message", None))
            # A hardware fault goes away with another start, an error of the data or the model does not.
            is_same = reason.kind == "error" and failure == last
            last = failure
            if failures >= self.settings.max_failures or is_same:
                why = "the same error at the same step again" if is_same else f"{failures} failures in a row"
                self._event("give up", f"{why}, without a new checkpoint; last: {reason.message}")
                return exit_code(code) or 1
            delay = min(self.settings.first_delay * 2 ** (failures - 1), self.settings.max_delay)
            self._event("restart", f"starts again in {format_duration(delay)}", delay=delay)
            start += 1
            if not self._wait(delay):
                return 128 + int(self._asked or signal.SIGTERM)

    def _attempt(self, start: int) -> tuple[int, ExitReason]:
        """Start the command once, and wait for its end; a hang is ended."""
        for beat in read_heartbeats(self.folder):
            if beat.is_here and not beat.is_alive_here:  # of an earlier start, reported already
                for path_of in (heartbeat_path, fatal_error_path):
                    path_of(self.folder, beat.host, beat.process).unlink(missing_ok=True)
        try:
            child = self._children.start(self.command, env=self._environment | {environment.SUPERVISED: str(start)})
        except OSError as error:
            raise InputError(
                f"{self.command[0]}: cannot be started ({error.strerror}); give a command after --"
            ) from None
        hang_since, hang = None, None
        while (code := wait_for(child, _LOOK_EVERY)) is None:
            diagnosis = self._observer.look()
            if diagnosis is None:
                continue
            beats = [rank.beat for rank in diagnosis.ranks if rank.beat.is_here]
            if beats and not any(beat.is_alive_here for beat in beats):
                # A launcher waits up to five minutes for those of other hosts.
                code = self._end_child(child)
                break
            if diagnosis.state != HANGING or not beats:
                hang_since = None
                continue
            hang_since = hang_since or time.monotonic()
            if time.monotonic() - hang_since > self.settings.patience:
                hang = self._end_hang(diagnosis)
                code = self._end_child(child)
                break
        settled = self._settled()
        for beat in [rank.beat for rank in settled.ranks if rank.beat.is_here] if settled is not None else []:
            with contextlib.suppress(OSError):  # only a fatal signal such as SIGSEGV, or a hang, leaves stacks
                path = fatal_error_path(self.folder, beat.host, beat.process)
                text = path.read_text(encoding="utf-8", errors="replace")
                print(f"{beat.place}: {text}" if text else "", end="", flush=True)
        self._heartbeat.end()
        return code, hang or classify_exit(code, settled)

    def _others_go_on(self) -> bool:
        """Whether ranks on other hosts are in the middle of a start, or at its end."""
        others = (beat for beat in read_heartbeats(self.folder) if not beat.is_here)
        return any(beat.step is not None or beat.has_ended for beat in others)

    def _settled(self) -> Diagnosis | None:
        """What the processes of the run left, once those on this machine have ended as well."""
        deadline, soon = time.monotonic() + _END_WITHIN, time.monotonic() + _OTHERS_WITHIN
        while (diagnosis := self._observer.look()) is not None:
            alive = [rank.beat.process for rank in diagnosis.ranks if rank.beat.is_alive_here]
            # A rank on another host may not have recorded yet why it ended, or that it lost this one.
            waits = (
                diagnosis.blamed and all(rank.beat.follows for rank in diagnosis.blamed) and time.monotonic() < soon
            )
            if not alive and not waits:
                break
            if time.monotonic() > deadline:
                for process in alive:
                    os.kill(process, signal.SIGKILL)
            time.sleep(_LOOK_EVERY / 4)
        return diagnosis

    def _end_hang(self, diagnosis: Diagnosis) -> ExitReason:
        """Kill the processes of the run on this machine, once they have written their stacks."""
        alive = [rank.beat.process for rank in diagnosis.ranks if rank.beat.is_alive_here]
        for number in (SHOW_STACKS, signal.SIGKILL):
            for process in alive:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process, number)
            time.sleep(_LOOK_EVERY)
        blamed = diagnosis.blamed[0].beat if diagnosis.blamed else None
        return ExitReason("hang", f"{diagnosis.reason}; ended, its stacks are in the supervisor's log", True, blamed)

    def _end_child(self, child: subprocess.Popen) -> int:
        """The exit code of the command, whose processes have ended; it is ended if it does not end by itself."""
        for seconds, end in ((_LAUNCHER_WITHIN, child.terminate), (_END_WITHIN / 2, child.kill)):
            code = wait_for(child, seconds)
            if code is not None:
                return code
            end()
        return child.wait()

    def _wait(self, seconds: float) -> bool:
        """Wait; False if it was asked to stop meanwhile."""
        deadline = time.monotonic() + seconds
        while self._asked is None and time.monotonic() < deadline:
            time.sleep(min(_LOOK_EVERY, max(deadline - time.monotonic(), 0.0)))
        return self._asked is None

    def _on_signal(self, number: signal.Signals) -> None:
        """Pass a request to stop on, to the launcher or, if launchers do not understand it, to the ranks."""
        self._asked = number
        if number != signal.SIGUSR1:
            self._children.send(number)
            return
        for beat in read_heartbeats(self.folder):
            if beat.is_alive_here:
                os.kill(beat.process, number)

    def _event(self, kind: str, message: str, **fields: Any) -> None:
        print(f"supervise: {kind}: {message}", flush=True)
        self._unwritten.append((kind, message, {"time": time.time(), **fields}))
        with contextlib.suppress(InputError, OSError):  # a full disk: it is written with the next event
            while self._unwritten:
                kind, message, fields = self._unwritten[0]
                append_event(self.folder, kind, message, **fields)
                del self._unwritten[0]


def saved_progress(folder: str | Path) -> int:
    """How much of a run another start need not repeat: the step of its newest checkpoint, the epoch of that of a fit,
    summed over fits of several sizes, or the number of complete token shards; 0 if there is nothing."""
    folder = Path(folder)
    epochs = 0
    for fit in (folder / "fit", *folder.glob("states-*/fit")):
        names = [path.name.removeprefix("epoch-") for path in fit.glob("epoch-*")]
        epochs += max((int(name) for name in names if name.isdigit()), default=0)
    shards = sum(1 for _ in folder.rglob("*.ds"))
    return max([*list_steps(folder), epochs, shards])
