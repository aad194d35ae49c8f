"""Alerts about a run: a command that is run when the state of a run needs somebody, and when it no longer does.

The last alert is kept in `.alerts.json` in the run's folder, so `hmm-datasets watch` can be started by cron every few
minutes: the same trouble is reported once, and again only after a quiet time. A state that changes is reported at
once, unless it is one that needs nobody. A command that fails is not run again for it. The command, which may contain
a password, is in no log.
"""

import contextlib
import json
import os
import re
import subprocess
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from ..errors import InputError
from ..files import write_json
from ..records import Finite, read_record
from ..runtime import environment
from ..runtime.events import append_event
from ..runtime.rank_heartbeats import STOPPED
from ..runtime.setting_rules import check_object
from ..runtime.settings import option
from .diagnosis import DEAD, HANGING
from .run_state import FINISHED, NOT_FINITE, RunState, format_state

ALERTS_NAME = ".alerts.json"

_COMMAND_SECONDS = 30.0  # until a command is ended
_UNPRINTABLE = re.compile(r"[^\x20-\x7e\xa0-\ud7ff\ue000-\U0010ffff]")

_unwritten: "dict[Path, LastAlert]" = {}  # the last alerts of this process, for a disk that cannot be written


@dataclass(frozen=True)
class AlertSettings:
    """What to run, and how often.

    The command is for the shell. It has the message on stdin, and in its environment `RUN`, `STATE`, `REASON`,
    `SUBJECT` (one line) and `EVENT`, which is JSON with the subject as `text` for web hooks.
    """

    command: str | None = option(None, "COMMAND", "run this if the run needs somebody, and when it ends")
    quiet: float = option(3600.0, "SECONDS", "before the same alert is repeated, default 3600")

    __post_init__ = check_object


@dataclass(frozen=True)
class LastAlert:
    """The last alert about a run: its state and time."""

    state: str | None = None
    time: Finite = 0.0


def alert(state: RunState, settings: AlertSettings, now: float | None = None) -> str | None:
    """Run the command if there is something to report.

    Trouble is reported when it begins, when it becomes another one, and again after the quiet time. Its end is
    reported once, and so is the end of the run.

    Args:
        state ([`~hmm_datasets.operations.run_state.RunState`]): the state of the run.
        settings ([`AlertSettings`]): the command.
        now (`float`, *optional*): time in seconds since 1970.

    Returns:
        `str`, *optional*: whether the alert was delivered, in one line; None if there was none.
    """
    now = time.time() if now is None else now
    last = _read_last(state.folder)
    word = state.trouble or state.state
    if state.trouble is not None:
        is_news = word != last.state or not 0 <= now - last.time < settings.quiet
    else:
        is_news = last.state in (HANGING, DEAD, NOT_FINITE) or (word in (FINISHED, STOPPED) and word != last.state)
    if not is_news:
        return None
    # Written first, so that nobody is alerted again and again by processes that are killed here.
    _write_last(state.folder, LastAlert(word, now))
    problem = _run(str(settings.command), state)
    result = "alert: delivered" if problem is None else f"alert: the command {problem}"
    with contextlib.suppress(InputError, OSError):
        append_event(state.folder, "alert", f"{state.state}; {result}")
    return result


def _read_last(folder: Path) -> LastAlert:
    with contextlib.suppress(InputError):
        return _unwritten.get(folder.absolute()) or read_record(folder / ALERTS_NAME, LastAlert)
    return LastAlert()


def _write_last(folder: Path, last: LastAlert) -> None:
    _unwritten[folder.absolute()] = last
    with contextlib.suppress(InputError, OSError):
        write_json(folder / ALERTS_NAME, asdict(last))
        del _unwritten[folder.absolute()]


def _run(command: str, state: RunState) -> str | None:
    """Run the command, and return what went wrong with it."""
    run = str(state.folder.absolute())
    subject = ": ".join(filter(None, [state.folder.absolute().name, state.trouble or state.state, state.reason]))
    subject = " ".join(_UNPRINTABLE.sub(" ", subject).split())
    event = {"text": subject, "run": run, "state": state.state, "reason": state.reason, "host": environment.host()}
    variables = {"RUN": run, "STATE": state.state, "REASON": state.reason.replace("\0", " "), "SUBJECT": subject}
    variables["EVENT"] = json.dumps(event)
    message = f"{subject}\n\n{format_state(state)}\n".encode(errors="replace")
    try:
        code = subprocess.run(
            command, shell=True, input=message, env=os.environ | variables, timeout=_COMMAND_SECONDS
        ).returncode
    except subprocess.TimeoutExpired:
        return f"took longer than {_COMMAND_SECONDS:.0f} s"
    except OSError as error:
        return f"could not be started ({error.strerror})"
    return None if code == 0 else f"ended with exit code {code}"
