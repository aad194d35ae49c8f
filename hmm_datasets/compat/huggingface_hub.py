"""huggingface_hub: errors and patience of the HTTP client that it uses, the digest of a hashed file, and Xet.

Checked against 2.4. Within two major versions the HTTP client was requests, then httpx, then httpx2. Errors in a reply
are of its own class `HfHubHTTPError`, but errors of the connection are those of the client.
"""

import contextlib
import re
from collections.abc import Generator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from huggingface_hub import CommitOperationAdd


def is_malformed(error: BaseException) -> bool:
    """Whether an error of the HTTP client means a malformed request, after which a retry is useless.

    This, [`is_lost_connection`] and [`http_errors`] can be removed once huggingface_hub has its own classes for these
    errors.
    """
    import httpx2

    return isinstance(error, httpx2.UnsupportedProtocol | httpx2.LocalProtocolError)


def is_lost_connection(error: BaseException) -> bool:
    """Whether an error of the HTTP client means that a request or its reply did not arrive."""
    import httpx2

    return isinstance(error, httpx2.TransportError)


def is_timeout(error: BaseException) -> bool:
    """Whether an error of the HTTP client means that a server took a connection or a request and did not answer."""
    import httpx2

    return isinstance(error, httpx2.TimeoutException)


@contextlib.contextmanager
def patience(seconds: float) -> Generator[None]:
    """A context in which no request of this process waits longer than this without a byte sent or received.

    huggingface_hub makes its client with `timeout=None`, and passes `timeout=None` for some requests, so a server that
    accepts connections and never answers is waited for without end. This can be removed once it has a setting for the
    timeout of requests that are no downloads.
    """
    from huggingface_hub.utils import get_session

    def limit(request) -> None:
        given = request.extensions.get("timeout") or {}
        names = ("connect", "read", "write", "pool")
        request.extensions["timeout"] = {name: given.get(name) or seconds for name in names}

    client = get_session()
    before = client.event_hooks
    client.event_hooks = {**before, "request": [*before.get("request", []), limit]}
    try:
        yield
    finally:
        client.event_hooks = before


def http_errors() -> tuple[type[Exception], ...]:
    """The base classes of all errors of the HTTP client."""
    import httpx2

    return httpx2.HTTPError, httpx2.InvalidURL


def sha256_of(operation: "CommitOperationAdd") -> str | None:
    """The SHA-256 of a file that a commit adds, if huggingface_hub has hashed it; else None.

    So a large file need not be read again. This can be removed once `upload_info` is documented.
    """
    info = operation.upload_info
    return info.sha256.hex() if info.is_hashed else None


def lacks_xet(error: BaseException) -> bool:
    """Whether an error of an upload by Xet means that the server has no Xet.

    huggingface_hub uses Xet wherever hf_xet is installed, without asking the server, and hf_xet has no class for the
    status of the reply. This and [`without_xet`] can be removed once it goes back to Git LFS by itself.
    """
    return re.search(r"\((?:400|404|405|410|501)\b.*/xet-write-token/", str(error)) is not None


@contextlib.contextmanager
def without_xet() -> Generator[None]:
    """A context in which files are uploaded by Git LFS, as with `HF_HUB_DISABLE_XET=1`."""
    from huggingface_hub import constants

    before, constants.HF_HUB_DISABLE_XET = constants.HF_HUB_DISABLE_XET, True
    try:
        yield
    finally:
        constants.HF_HUB_DISABLE_XET = before
