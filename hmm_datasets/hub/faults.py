"""Which errors of the Hub pass if one tries again, what they say, and how long to wait."""

import json
import random
from collections.abc import Iterator

from ..compat.huggingface_hub import is_lost_connection, is_malformed

_LONGEST_PAUSE = 60.0


def causes_of(error: BaseException | None) -> Iterator[BaseException]:
    """An error and those that it was raised from."""
    while error is not None:
        yield error
        error = error.__cause__


def passes(error: Exception) -> bool:
    """Whether an error may be gone on the next try: transport, overload, or a commit made by someone else."""
    from huggingface_hub.errors import HfHubHTTPError, OfflineModeIsEnabled

    for cause in causes_of(error):
        if isinstance(cause, OfflineModeIsEnabled) or is_malformed(cause):
            return False
        if isinstance(cause, HfHubHTTPError):
            status = cause.response.status_code
            return status in (408, 409, 412, 429) or status >= 500
        # A JSON error is a gateway's page of HTML: the library reads some replies before it looks at their status.
        if is_lost_connection(cause) or isinstance(cause, ConnectionError | TimeoutError | json.JSONDecodeError):
            return True
    return False


def reason_of(error: Exception) -> str:
    """What the Hub says of an error, or its own words."""
    from huggingface_hub.errors import HfHubHTTPError

    for cause in causes_of(error):
        if isinstance(cause, HfHubHTTPError):
            return f"{cause.response.status_code} {cause.server_message or cause.response.reason_phrase}"
    return f"{type(error).__name__}: {error}"


def pause_before_retry(number: int, error: Exception) -> float:
    """Seconds before the next try: what the server asked for, else 1, 2, 4, ... shortened by chance.

    Chance keeps pushes that collided from colliding again. It is the system's, so that the user's seeded stream of
    random numbers is left alone.
    """
    for cause in causes_of(error):
        asked = getattr(getattr(cause, "response", None), "headers", {}).get("Retry-After", "")
        if asked.isdigit():
            return min(float(asked), _LONGEST_PAUSE)
    return min(2.0 ** (number - 1), _LONGEST_PAUSE) * random.SystemRandom().uniform(0.5, 1.0)
