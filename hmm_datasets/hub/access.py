"""Access to the Hub: its address, whether it answers, and the token."""

import contextlib
import os
import shlex
import threading

from ..compat.huggingface_hub import http_errors
from ..errors import InputError
from .download import RepoType


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
    https://huggingface.co does not answer; where it does, and with HF_TOKEN set: hmm-datasets push outputs/mess3 me/mess3 --repo_type dataset

    ```
    """  # noqa: E501
    words = ["hmm-datasets", "push", os.fspath(folder), repo_id]
    if repo_type != "model":
        words += ["--repo_type", repo_type]
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
