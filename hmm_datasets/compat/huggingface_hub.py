"""huggingface_hub: errors of the HTTP client beneath it, and the digest of a file that it has hashed.

Checked against 2.4. Its client was requests, then httpx, then httpx2, within two major versions: the errors of a reply
are its own, `HfHubHTTPError`, while those of a connection come as the client raises them.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from huggingface_hub import CommitOperationAdd


def is_malformed(error: BaseException) -> bool:
    """Whether an error of the HTTP client says that a request is none, which no other try mends.

    It goes, as [`is_lost_connection`] and [`http_errors`] do, once huggingface_hub raises errors of its own for these.
    """
    import httpx2

    return isinstance(error, httpx2.UnsupportedProtocol | httpx2.LocalProtocolError)


def is_lost_connection(error: BaseException) -> bool:
    """Whether an error of the HTTP client says that a request or its reply did not arrive."""
    import httpx2

    return isinstance(error, httpx2.TransportError)


def http_errors() -> tuple[type[Exception], ...]:
    """All errors of the HTTP client."""
    import httpx2

    return httpx2.HTTPError, httpx2.InvalidURL


def sha256_of(operation: "CommitOperationAdd") -> str | None:
    """The SHA-256 of a file that is added by a commit, where huggingface_hub has read it all; else None.

    It spares reading a large file once more. It goes once `upload_info` is documented.
    """
    info = operation.upload_info
    return info.sha256.hex() if info.is_hashed else None
