"""huggingface_hub: errors and patience of the HTTP client that it uses, and servers without Xet.

Checked against 1.31 to 2.4. The HTTP client is httpx, from 2.0 on httpx2, and both are `huggingface_hub.utils.httpx`.
Errors in a reply are of its own class `HfHubHTTPError`, but errors of the connection are those of the client.
"""

import contextlib
import re
import threading
import time
import traceback
from collections.abc import Callable, Generator
from typing import Any

from ..errors import with_causes

_SILENT_FOR = 300.0  # seconds after which a server that did not answer is asked again
_NOTICE_AFTER = 5.0  # seconds
_silent: dict[str, float] = {}  # when a server, by its host, was found not to answer
_PARSERS = ("hf_api", "file_download", "_snapshot_download", "utils._http", "utils._pagination", "hf_file_system")


def http_client() -> Any:
    """The module of the HTTP client, with its classes of errors.

    This can be removed once huggingface_hub has classes of its own for these errors.
    """
    from huggingface_hub.utils import httpx

    return httpx


@contextlib.contextmanager
def patience(seconds: float) -> Generator[None]:
    """A context in which no request of this process waits longer than this without a byte sent or received.

    huggingface_hub makes its client with `timeout=None`, and passes `timeout=None` for some requests, so a server that
    accepts connections and never answers is waited for without end. This can be removed once it has a setting for the
    timeout of requests that are no downloads.
    """
    from huggingface_hub.utils import get_session

    def limit(request) -> None:
        timeout = request.extensions.get("timeout") or {}
        names = ("connect", "read", "write", "pool")
        request.extensions["timeout"] = {name: timeout.get(name) or seconds for name in names}

    client = get_session()
    before = client.event_hooks
    client.event_hooks = {**before, "request": [*before.get("request", []), limit]}
    try:
        yield
    finally:
        client.event_hooks = before


def is_silent(host: str) -> bool:
    """Whether a server, named by its host and port as in an address, was found not to answer a short time ago."""
    return time.monotonic() - _silent.get(host, -_SILENT_FOR) < _SILENT_FOR


@contextlib.contextmanager
def answered_within(seconds: float, notice: Callable[[str], None]) -> Generator[None]:
    """A context for reading, in which a server that does not answer is waited for once.

    huggingface_hub tries some requests five times, and some without end. Here all requests to a server end once one
    of them had no reply for `seconds`, in the way in which they end without a network: what was downloaded before is
    used, and what was not is an error that names the server.

    Args:
        seconds (`float`): longest time until a server begins to answer, and between parts of what it sends.
        notice (callable): takes the line that says what is waited for; called after five seconds of waiting.

    Raises:
        `ConnectionError`: the connection was lost, or the answer is none of a Hub, such as the page of a proxy.
    """
    from huggingface_hub import constants
    from huggingface_hub.errors import OfflineModeIsEnabled
    from huggingface_hub.utils import get_session

    began: dict[str, float] = {}  # of the first request to a server since its last reply
    timers: dict[str, threading.Timer] = {}

    def ask(request) -> None:
        host, now = request.url.netloc.decode(), time.monotonic()
        if now - began.get(host, now) >= seconds:
            _silent[host] = now
        if is_silent(host):
            raise OfflineModeIsEnabled(f"{host} did not answer within {seconds:.0f} s")
        if host not in began:
            began[host] = now
            timer = threading.Timer(_NOTICE_AFTER, notice, [f"waiting for {host} to answer, {seconds:.0f} s at most"])
            timer.daemon = True
            timers[host] = timer
            timer.start()

    def answer(response) -> None:
        host = response.request.url.netloc.decode()
        began.pop(host, None)
        if host in timers:
            timers.pop(host).cancel()

    client = get_session()
    with patience(seconds):
        before = client.event_hooks
        client.event_hooks = {
            "request": [*before.get("request", []), ask],
            "response": [*before.get("response", []), answer],
        }
        try:
            yield
        except Exception as error:
            if not _is_of_answer(error):
                raise
            reason = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
            raise ConnectionError(
                f"the answer of {constants.ENDPOINT} is not one of a Hub ({reason}); check HF_ENDPOINT and the proxy"
            ) from error
        finally:
            client.event_hooks = before
            for host, since in began.items():
                timers[host].cancel()
                if time.monotonic() - since >= seconds:
                    _silent[host] = time.monotonic()


def _is_of_answer(error: BaseException) -> bool:
    """Whether an error was raised where huggingface_hub reads an answer, which it takes for that of a Hub.

    It looks for fields of answers without checking that they are objects: a page of HTML, `null` or a list raise
    `JSONDecodeError`, `TypeError`, `KeyError` and others. This can be removed once it raises an error of its own.
    """
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError

    if isinstance(error, HfHubHTTPError | HFValidationError):
        return False
    if isinstance(error, OSError | http_client().HTTPError | http_client().InvalidURL):
        return not isinstance(error, OSError)
    modules = {frame.f_globals.get("__name__", "") for frame, _ in traceback.walk_tb(error.__traceback__)}
    return any(f"huggingface_hub.{name}" in modules for name in _PARSERS)


def server_message(error: BaseException) -> str | None:
    """What the Hub says in an answer of an error, with its status; None if the error has no such answer."""
    from huggingface_hub.errors import HfHubHTTPError

    for cause in with_causes(error):
        if isinstance(cause, HfHubHTTPError):
            return f"{cause.response.status_code} {cause.server_message or cause.response.reason_phrase}"
    return None


def lacks_xet(error: BaseException) -> bool:
    """Whether an error of an upload by Xet means that the server has no Xet.

    huggingface_hub uses Xet wherever hf_xet is installed, without asking the server, and hf_xet has no class for the
    status of the reply. This can be removed once it goes back to Git LFS by itself.
    """
    return re.search(r"\((?:400|404|405|410|501)\b.*/xet-write-token/", str(error)) is not None
