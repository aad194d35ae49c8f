"""Why a start of a run ended, from the exit code of its command and what its processes left, and which host failed."""

import signal
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from ..errors import DiskFull, InputError
from ..runtime import environment
from ..runtime.events import read_events
from ..runtime.rank_heartbeats import FAILED, LOST_LAUNCHER, STOPPED, Heartbeat
from .diagnosis import Diagnosis

_HOST_FAILURES = 2  # after which a host is left out
_EXTERNAL_SIGNALS = ("SIGTERM", "SIGHUP")  # unless the supervisor was asked too
_SIGNALS = {int(number) for number in signal.Signals}


@dataclass(frozen=True)
class ExitReason:
    """Why a start of a run ended.

    Attributes:
        kind (`str`): `finished`, `stopped`, `settings`, `killed`, `lost` (another process, unknown which), `error`,
            `disk full`, `hang` or `unknown`.
        message (`str`): why, in one sentence.
        retries (`bool`): whether to start again.
        blamed ([`~hmm_datasets.runtime.rank_heartbeats.Heartbeat`], *optional*): the rank at fault.
    """

    kind: str
    message: str
    retries: bool
    blamed: Heartbeat | None = None


def classify_exit(code: int, diagnosis: Diagnosis | None) -> ExitReason:
    """Why a command ended, from its exit code and what its processes left.

    Args:
        code (`int`): exit code; negative for a signal, as `subprocess` gives it.
        diagnosis ([`~hmm_datasets.operations.diagnosis.Diagnosis`], *optional*): the diagnosis from its heartbeats.
    """
    if diagnosis is not None and diagnosis.state == STOPPED:
        reasons = [rank.beat.message for rank in diagnosis.ranks if rank.condition == STOPPED]
        reason = next((reason for reason in reasons if reason in _EXTERNAL_SIGNALS), reasons[0])
        return ExitReason("stopped", f"stopped with a checkpoint ({reason})", reason in _EXTERNAL_SIGNALS)
    if code == 0:
        return ExitReason("finished", "finished", False)
    blamed = diagnosis.blamed[0] if diagnosis is not None and diagnosis.blamed else None
    if blamed is None and code == 2:
        return ExitReason(
            "settings", "the command was refused before any process had reported; see its error above", False
        )
    if blamed is None:
        return ExitReason(
            "unknown", f"the command ended with {_exit_code(code)} before any process had reported", True
        )
    beat, message = blamed.beat, f"{blamed.beat.place} {blamed.words}"
    if beat.error == LOST_LAUNCHER or (beat.follows and code < 0):
        message = f"the command on {environment.host()} ended with {_exit_code(code)}, and so did its processes"
        return ExitReason("killed", message, True)
    if beat.follows:
        return ExitReason("lost", message, True, beat)
    if beat.phase != FAILED:
        return ExitReason("killed", f"{message} ({_exit_code(code)} of the command)", True, beat)
    if beat.error == DiskFull.__name__:
        return ExitReason("disk full", message, True, beat)
    if beat.error == InputError.__name__ and beat.step is None:
        return ExitReason("settings", message, False, beat)
    return ExitReason("error", message, True, beat)


def _exit_code(code: int) -> str:
    if code >= 0:
        return f"exit code {code}" + (f" ({signal.Signals(code - 128).name})" if code - 128 in _SIGNALS else "")
    return f"signal {signal.Signals(-code).name}" if -code in _SIGNALS else f"signal {-code}"


def faulty_hosts(folder: str | Path) -> list[str]:
    """Hosts at fault for two failures of a run or more, the worst first."""
    kinds = ("killed", "error", "hang")
    blamed = Counter(event["host"] for event in read_events(folder) if event["kind"] in kinds and "rank" in event)
    return [host for host, count in blamed.most_common() if count >= _HOST_FAILURES]
