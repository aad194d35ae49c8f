"""Starting and ending the local Hub: two servers, for the API and for the storage, and a folder for what they keep."""

import contextlib
import os
import signal
import socket
import tempfile
import threading
from collections.abc import Generator
from http.server import ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit

from hmm_datasets.errors import InputError
from hmm_datasets.runtime.lock import exclusive_lock

from .faults import Testing
from .handler import TOKEN, Handler, Hub
from .repositories import Repositories
from .storage import Storage
from .writing import Api

DEFAULT_HOST, DEFAULT_PORT, DEFAULT_USER = "127.0.0.1", 8080, "USER"
PART_SIZE = 8 * 2**20
_EVERYWHERE = ("0.0.0.0", "")


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64


@contextlib.contextmanager
def local_server(
    host: str = DEFAULT_HOST,
    port: int = DEFAULT_PORT,
    folder: str | os.PathLike | None = None,
    *,
    user: str = DEFAULT_USER,
    part_size: int = PART_SIZE,
    testing: bool = False,
) -> Generator[tuple[str, Path]]:
    """A context in which the local Hub runs, in threads of this process.

    Args:
        host (`str`, *optional*, defaults to `"127.0.0.1"`): address or name to listen at. Whoever reaches it can use
            the Hub, because its token is no secret.
        port (`int`, *optional*, defaults to 8080): port of the API; 0 takes a free one, as the storage always does.
        folder (path, *optional*): where repositories are kept; by default in a temporary folder that is removed.
        user (`str`, *optional*, defaults to `"USER"`): name of the account, and so the namespace of repositories.
        part_size (`int`, *optional*): size in bytes above which Git LFS uploads a file in parts.
        testing (`bool`, *optional*, defaults to `False`): accept orders of faults, and log requests to
            `requests.jsonl` in the folder.

    Yields:
        the address, for `HF_ENDPOINT`, and the folder.

    Raises:
        `InputError`: the port is taken, or another server uses the folder.
    """
    with contextlib.ExitStack() as stack:
        if folder is None:
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="hmm-datasets-hub-"))
        folder = Path(folder).absolute()
        stack.enter_context(exclusive_lock(folder))
        log = Testing(folder / "requests.jsonl") if testing else None
        hub = Hub(Repositories(folder), user, part_size, log)
        api, storage = (_listening(host, number, handler, hub) for number, handler in ((port, Api), (0, Storage)))
        hub.storage_port = storage.server_address[1]
        for server in (api, storage):
            threading.Thread(target=server.serve_forever, args=(0.1,), daemon=True).start()
            stack.callback(server.server_close)
            stack.callback(server.shutdown)
        shown = socket.gethostname() if host in _EVERYWHERE else host
        yield f"http://{shown}:{api.server_address[1]}", folder


def _listening(host: str, port: int, handler: type[Handler], hub: Hub) -> _Server:
    try:
        return _Server((host, port), type(handler.__name__, (handler,), {"hub": hub}))
    except (OSError, OverflowError) as error:
        raise InputError(
            f"port {port} of {host} cannot be listened at ({error}); choose another one with --port, "
            "or --port 0 for any that is free"
        ) from None


def instructions(endpoint: str, folder: Path, user: str, kept: bool) -> str:
    """What a user of the server has to know, with a line to paste into a shell."""
    variables = f"HF_ENDPOINT={endpoint} HF_TOKEN={TOKEN}"
    if any(name.lower() in ("http_proxy", "https_proxy", "all_proxy") for name in os.environ):
        hosts = dict.fromkeys([urlsplit(endpoint).hostname or "", "127.0.0.1", "localhost"])
        variables += f" NO_PROXY={','.join(hosts)}"
    place = f"{folder}, and are kept" if kept else f"{folder}, which is removed at the end; --folder DIR keeps them"
    return f"""\
A Hub for models and data sets runs at {endpoint}
Repositories are in {place}.

In the shell in which you push and load, run:

    export {variables}

The account is {user}. For example: hmm-datasets push FOLDER {user}/NAME
Ctrl+C ends the server."""


def run_until_stopped(
    host: str, port: int, folder: Path | None, *, user: str, until: threading.Event | None = None, **options
) -> None:
    """Run the local Hub, after printing how to use it, until `until` is set or a signal ends this process.

    Raises:
        `InputError`: the port is taken, or another server uses the folder.
    """
    stopped = until or threading.Event()
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: stopped.set())
    with (
        local_server(host, port, folder, user=user, **options) as (endpoint, place),
        contextlib.suppress(KeyboardInterrupt),
    ):
        print(instructions(endpoint, place, user, kept=folder is not None), flush=True)
        stopped.wait()
