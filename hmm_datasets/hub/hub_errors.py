"""Errors of the Hub: whether to retry after them, how to report them, and how long to wait."""

import email.utils
import json
import random
import time
from collections.abc import Mapping

from ..compat.huggingface_hub import http_client, server_message
from ..errors import with_causes

_MAX_PAUSE = 60.0  # seconds


def is_temporary(error: Exception) -> bool:
    """Whether a retry may succeed: after errors of transport, overload, or a concurrent commit."""
    from huggingface_hub.errors import HfHubHTTPError, OfflineModeIsEnabled

    client = http_client()
    for cause in with_causes(error, implicit=False):
        if isinstance(cause, OfflineModeIsEnabled | client.UnsupportedProtocol | client.LocalProtocolError):
            return False
        if isinstance(cause, HfHubHTTPError):
            status = cause.response.status_code
            return status in (408, 409, 412, 429) or status >= 500
        # A JSON error means an HTML page of a gateway: the library parses some replies before it checks their status.
        if isinstance(cause, client.TransportError | ConnectionError | TimeoutError | json.JSONDecodeError):
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
