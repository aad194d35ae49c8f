"""Alerts about a run: an e-mail, a message to a web hook, or a command, when its state needs somebody, and when it no
longer does.

The last alert is kept in `.alerts.json` in the run's folder, so `hmm-datasets watch` can be started by cron every few
minutes: the same trouble is reported once, and again only after a quiet time. A state that changes is reported at
once, unless it is one that needs nobody. What could not be delivered is tried again, at most five times and after 10,
20, 40 and 80 seconds or more. Nothing that a server answers, or that is in the name of a run, ends the watching.
Addresses and commands, which may have secrets in them, are in no log.
"""

import contextlib
import email.message
import json
import os
import re
import smtplib
import socket
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..errors import InputError
from ..files import read_json, write_json
from ..records import Count, Finite, as_record
from ..runtime.credentials import Secret, masked, reveal
from ..runtime.events import append_event
from ..runtime.settings import option
from ..runtime.time_limit import within
from .run_state import FINISHED, RunState, format_state

ALERTS_NAME = ".alerts.json"

_PATIENCE = 30.0  # seconds for a mail server, a web hook or a command
_TRIES, _FIRST_WAIT = 5, 10.0  # seconds until the second try; each later one waits twice as long

_kept: dict[Path, dict[str, Any]] = {}  # the last alerts of this process, for a disk that cannot be written


@dataclass(frozen=True)
class AlertSettings:
    """Whom to tell, and how often.

    The JSON for the webhook has the message as `text`, which Slack, Mattermost and Discord (with `/slack` at the end
    of its URL) understand, and `run`, `state`, `reason`, `host`. The command is for the shell, and has `RUN`, `STATE`
    and `REASON` in its environment.
    """

    email: str | None = option(None, "ADDRESS", "write there if the run needs somebody, and when it ends")
    smtp: str = option("localhost", "HOST[:PORT]", "mail server, default localhost")
    webhook: str | None = option(None, "URL", "post there, as JSON with a text")
    command: str | None = option(None, "COMMAND", "run this, with the message on stdin")
    quiet: float = option(3600.0, "SECONDS", "before the same alert is sent again, default 3600")

    def __post_init__(self):
        if self.email is not None and "@" not in self.email:
            raise InputError(f"--email {self.email}; expected an address such as name@example.org")
        if self.webhook is not None and not _is_address(self.webhook):
            raise InputError("--webhook: expected a URL such as https://HOST/PATH; what was given may be a secret")
        if self.webhook is not None:
            object.__setattr__(self, "webhook", Secret(self.webhook, "webhook"))
        if not self.quiet >= 0:
            raise InputError(f"--quiet {self.quiet}; expected 0 seconds or more")

    @property
    def anyone(self) -> bool:
        """Whether there is anyone to tell."""
        return any((self.email, self.webhook, self.command))


def alert(state: RunState, settings: AlertSettings, now: float | None = None) -> list[str]:
    """Tell whom the settings name, if there is something to tell.

    Trouble is reported when it begins, when it becomes another one, and again after the quiet time. Its end is
    reported once, and so is the end of the run.

    Args:
        state ([`~hmm_datasets.operations.run_state.RunState`]): the state of the run.
        settings ([`AlertSettings`]): whom to tell.
        now (`float`, *optional*): time in seconds since 1970.

    Returns:
        `list[str]`: a line for each that was delivered, or that could not be; empty if there was none.
    """
    now = time.time() if now is None else now
    last = _last(state.folder)
    if _is_news(state, last["state"], now - last["time"], settings.quiet):
        wanted = [name for name in _CHANNELS if getattr(settings, name) is not None]
        last = {"state": _trouble(state), "time": now, "undelivered": wanted, "tries": 0}
    elif not last["undelivered"] or 0 <= now - last["tried"] < _FIRST_WAIT * 2 ** (last["tries"] - 1):
        return []
    tries = last["tries"] + 1
    lines, failed = [], []
    # Written first, so that nobody is alerted again and again by processes that are killed here.
    _keep(state.folder, last | {"tries": tries, "tried": now})
    for name in last["undelivered"]:
        target = reveal(getattr(settings, name))
        problem = None if target is None else _within_patience(lambda name=name: _CHANNELS[name](state, settings))
        if problem is None:
            lines.append(f"{name}: delivered")
            continue
        failed.append(name)
        for secret in (target, urllib.parse.urlsplit(target).path if name == "webhook" else ""):
            problem = problem.replace(secret, name) if len(secret) > 1 else problem
        lines.append(f"{name}: try {tries} of {_TRIES}, {_printable(masked(problem))}")
    _keep(state.folder, last | {"undelivered": failed if tries < _TRIES else [], "tries": tries, "tried": now})
    if lines:
        with contextlib.suppress(InputError, OSError):
            append_event(state.folder, "alert", f"{state.state}; {'; '.join(lines)}")
    return lines


def is_pending(folder: Path) -> bool:
    """Whether a delivery of the last alert about a run will be tried again."""
    return bool(_last(folder)["undelivered"])


def _last(folder: Path) -> dict[str, Any]:
    """The last alert: its `state` and `time`, and which of its deliveries are `undelivered` after how many `tries`."""
    found = _kept.get(folder.absolute(), {})
    with contextlib.suppress(InputError):
        found = read_json(folder / ALERTS_NAME)
    try:
        last = as_record(found, _Alert, ALERTS_NAME)
    except InputError:
        return {"state": None, "time": 0.0, "undelivered": [], "tries": 0, "tried": 0.0}
    return {
        "state": last.state,
        "time": last.time,
        "undelivered": [name for name in last.undelivered if name in _CHANNELS],
        "tries": min(max(last.tries, 1), _TRIES),
        "tried": last.time if last.tried is None else last.tried,
    }


@dataclass(frozen=True)
class _Alert:
    """What is kept of the last alert."""

    state: str
    time: Finite
    undelivered: list[str] = field(default_factory=list)
    tries: Count = 1
    tried: Finite | None = None


def _keep(folder: Path, last: dict[str, Any]) -> None:
    _kept[folder.absolute()] = last
    with contextlib.suppress(InputError, OSError):
        write_json(folder / ALERTS_NAME, last)
        del _kept[folder.absolute()]


def _within_patience(deliver: Callable[[], str | None]) -> str | None:
    """What went wrong with a delivery, which is given up after some time, whatever it waits for."""
    done = within(1.5 * _PATIENCE, deliver)
    if done.error is not None:  # whatever a server answers must not end the watching
        return f"not delivered ({type(done.error).__name__}: {done.error})"
    return done.value if done.hangs_in is None else f"took longer than {1.5 * _PATIENCE:.0f} s"


def _printable(text: str) -> str:
    """Text in one line, without characters that mean something to a terminal, a header or a log."""
    return " ".join(re.sub(r"[^\x20-\x7e\xa0-\ud7ff\ue000-\U0010ffff]", " ", text).split())


def _is_address(url: str) -> bool:
    try:
        parts = urllib.parse.urlsplit(url)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        parts.hostname.encode("idna")
    except (ValueError, AttributeError):
        return False
    return usable and re.search(r"[^\x21-\x7e]", url) is None


def _trouble(state: RunState) -> str:
    """What is wrong, in a word: the same trouble gives the same word even if its description changes."""
    if state.progress is not None and state.progress.not_finite and state.ok is False and state.state not in _TROUBLE:
        return "loss is not finite"
    return state.state


_TROUBLE = ("hanging", "dead", "stalled")


def _is_news(state: RunState, before: str | None, seconds: float, quiet: float) -> bool:
    trouble = _trouble(state)
    if not state.ok:
        return trouble != before or not 0 <= seconds < quiet
    was_in_trouble = before is not None and before in (*_TROUBLE, "loss is not finite")
    return was_in_trouble or (state.state in (FINISHED, "stopped") and state.state != before)


def _subject(state: RunState) -> str:
    name = state.folder.absolute().name
    return _printable(f"{name}: {_trouble(state)}" + (f": {state.reason}" if state.reason else ""))


def _text(state: RunState) -> str:
    """The message below the subject."""
    return f"{_printable(str(state.folder.absolute()))}\n\n{format_state(state)}\n".encode(errors="replace").decode()


def _mail(state: RunState, settings: AlertSettings) -> str | None:
    message = email.message.EmailMessage()
    message["Subject"] = _subject(state)[:200]
    message["From"] = f"hmm-datasets@{socket.getfqdn()}"
    message["To"] = settings.email
    message.set_content(_text(state))
    host, _, port = settings.smtp.partition(":")
    try:
        with smtplib.SMTP(host, int(port or 25), timeout=_PATIENCE) as server:
            server.send_message(message)
    except (OSError, smtplib.SMTPException, ValueError) as error:
        return f"not sent by {settings.smtp} ({error}); name a mail server with --smtp HOST:PORT"
    return None


class _StaysHere(urllib.request.HTTPRedirectHandler):
    """A redirected POST would become a GET without the message, which is no delivery."""

    def redirect_request(self, *_: Any) -> None:
        return None


def _post(state: RunState, settings: AlertSettings) -> str | None:
    content = {
        "text": _subject(state),
        "run": str(state.folder.absolute()),
        "state": state.state,
        "reason": state.reason,
        "host": socket.gethostname(),
    }
    url = str(reveal(settings.webhook))
    request = urllib.request.Request(
        url, json.dumps(content).encode(), {"Content-Type": "application/json"}, method="POST"
    )
    try:
        with urllib.request.build_opener(_StaysHere).open(request, timeout=_PATIENCE):
            return None
    except (urllib.error.URLError, OSError) as error:
        return f"not delivered ({error})"


def _run(state: RunState, settings: AlertSettings) -> str | None:
    found = {"RUN": str(state.folder.absolute()), "STATE": state.state, "REASON": state.reason}
    variables = {name: value.replace("\0", " ") for name, value in found.items()}
    text = f"{_subject(state)}\n\n{_text(state)}".encode()
    try:
        result = subprocess.run(
            str(settings.command), shell=True, input=text, env=os.environ | variables, timeout=_PATIENCE
        )
    except subprocess.TimeoutExpired:
        return f"took longer than {_PATIENCE:.0f} s"
    return None if result.returncode == 0 else f"ended with exit code {result.returncode}"


_CHANNELS: dict[str, Callable[[RunState, AlertSettings], str | None]] = {
    "email": _mail,
    "webhook": _post,
    "command": _run,
}
