"""Access to the Hub: its address, whether it answers, and the token.

Errors of the Hub: whether to retry after them, how to report them, and how long to wait.
"""

import contextlib
import email.utils
import json
import os
import random
import shlex
import threading
import time
from collections.abc import Mapping

from ..compat.huggingface_hub import http_errors, is_lost_connection, is_malformed, server_message
from ..errors import InputError, with_causes
from .download import RepoType

_MAX_PAUSE = 60.0  # seconds


def reachable(endpoint: str | None = None, timeout: float = 3.0) -> bool:
    """Whether a server answers at the address of the Hub.

    Args:
        endpoint (`str`, *optional*, defaults to `HF_ENDPOINT` or `"https://huggingface.co"`):
            Address of the Hub.
        timeout (`float`, *optional*, defaults to `3.0`):
            Total time to wait in seconds, including the name lookup.

    Returns:
        `bool`: True for any HTTP status below 500. False after an error or a timeout, and with `HF_HUB_OFFLINE=1`.

    Raises:
        [`InputError`]: `endpoint` is not an http address.

    Example:

    ```python
    >>> reachable("http://127.0.0.1:9", timeout=2.0)
    False

    ```
    """
    from huggingface_hub.utils import get_session

    url = endpoint_of(endpoint)
    statuses = []

    def ask() -> None:
        with contextlib.suppress(*http_errors(), OSError):
            statuses.append(get_session().head(url, timeout=timeout).status_code)

    # A thread, because no HTTP timeout covers the name lookup, which takes long if the resolver does not answer.
    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(timeout)
    return bool(statuses) and statuses[0] < 500


def how_to_push(
    folder: str | os.PathLike,
    repo_id: str = "USER/NAME",
    *,
    repo_type: RepoType = "model",
    private: bool = False,
    endpoint: str | None = None,
) -> str:
    """One line on how to push a folder later, for a machine that cannot reach the Hub.

    Args:
        folder (`str` or `os.PathLike`): The folder.
        repo_id (`str`, *optional*, defaults to `"USER/NAME"`): The repository.
        repo_type (`str`, *optional*, defaults to `"model"`): `"model"` or `"dataset"`.
        private (`bool`, *optional*, defaults to `False`): Whether to ask for a private repository.
        endpoint (`str`, *optional*): Address of the Hub that did not answer.

    Returns:
        `str`: One line.

    Example:

    ```python
    >>> print(how_to_push("outputs/mess3", "me/mess3", repo_type="dataset", endpoint="https://huggingface.co"))
    https://huggingface.co does not answer; where it does, and with HF_TOKEN set: hmm-datasets push outputs/mess3 me/mess3 --repo-type dataset

    ```
    """  # noqa: E501
    words = ["hmm-datasets", "push", os.fspath(folder), repo_id]
    if repo_type != "model":
        words += ["--repo-type", repo_type]
    if private:
        words.append("--private")
    return f"{endpoint_of(endpoint)} does not answer; where it does, and with HF_TOKEN set: {shlex.join(words)}"


def token_of(token: str | None) -> str:
    """The given token, or that of huggingface_hub.

    Raises:
        [`InputError`]: there is none.
    """

    from huggingface_hub import get_token

    token = token or get_token()
    if not token:
        raise InputError(
            "no token for the Hub: set HF_TOKEN to a token with write access, or run `hf auth login` "
            "(tokens are made at https://huggingface.co/settings/tokens)"
        )
    return token


def endpoint_of(endpoint: str | None) -> str:
    """The given address of the Hub, or that of huggingface_hub, without a slash at the end.

    Raises:
        [`InputError`]: it is not an http address.
    """
    from huggingface_hub import constants

    endpoint = (endpoint or constants.ENDPOINT).rstrip("/")
    if not endpoint.startswith(("http://", "https://")):
        raise InputError(f"endpoint is {endpoint!r}, expected an address such as https://huggingface.co")
    return endpoint


def is_temporary(error: Exception) -> bool:
    """Whether a retry may succeed: after errors of transport, overload, or a concurrent commit."""
    from huggingface_hub.errors import HfHubHTTPError, OfflineModeIsEnabled

    for cause in with_causes(error, implicit=False):
        if isinstance(cause, OfflineModeIsEnabled) or is_malformed(cause):
            return False
        if isinstance(cause, HfHubHTTPError):
            status = cause.response.status_code
            return status in (408, 409, 412, 429) or status >= 500
        # A JSON error means an HTML page of a gateway: the library parses some replies before it checks their status.
        if is_lost_connection(cause) or isinstance(cause, ConnectionError | TimeoutError | json.JSONDecodeError):
            return True
    return False


def reason_of(error: Exception) -> str:
    """The reason for an error that the Hub gives, or else the message of the error."""
    return server_message(error) or f"{type(error).__name__}: {error}"


def pause_before_retry(number: int, error: Exception) -> float:
    """Seconds before the next try: as the server asks, else 1, 2, 4, ..., shortened by a random factor.

    The random factor keeps colliding pushes from colliding again. It comes from the operating system, so that the
    user's seeded random numbers do not change.
    """
    for cause in with_causes(error, implicit=False):
        asked = _asked_pause(getattr(getattr(cause, "response", None), "headers", {}))
        if asked is not None:
            return min(max(asked, 0.0), _MAX_PAUSE)
    return min(2.0 ** (number - 1), _MAX_PAUSE) * random.SystemRandom().uniform(0.5, 1.0)


def _asked_pause(headers: Mapping[str, str]) -> float | None:
    """Seconds that a reply asks to wait, by `Retry-After` (a number or a date) or `ratelimit` (the next window)."""
    from huggingface_hub.utils import parse_ratelimit_headers

    asked = headers.get("Retry-After", "")
    if asked.isdigit():
        return float(asked)
    try:
        return email.utils.parsedate_to_datetime(asked).timestamp() - time.time()
    except ValueError:
        limit = parse_ratelimit_headers(headers)
        return None if limit is None or limit.remaining > 0 else float(limit.reset_in_seconds)
