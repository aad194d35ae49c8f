"""One HTTP request to the local Hub: it is read, its route is found, and it is answered or refused."""

import contextlib
import hmac
import json
import re
import secrets
import shutil
import traceback
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import parse_qs, unquote, urlsplit

from hmm_datasets.errors import is_disk_full

from .faults import Fault, Testing
from .repositories import Refusal, Repositories

TOKEN = "hf_local_write_token"

_IS_JSON = {"Content-Type": "application/json"}
_SHAPES = {
    "{api}": r"/api/(models|datasets)/([^/]+/[^/]+)",
    "{kind}": "(models|datasets)",
    "{repo}": r"/(datasets/)?([^/]+/[^/]+?)",
    "{rev}": "([^/]+)",
    "{path}": "(.+)",
    "{sha}": "([0-9a-f]{64})",
    "{number}": r"(\d+)",
}

_LONGEST_LINE = 2**16

Route = tuple[str, re.Pattern[str], str]
Reply = tuple[int, bytes | Path, dict[str, str]]
"""Status, content or the file that has it, and headers."""


def routes(table: str) -> list[Route]:
    """The routes in a table with a method, a path with shapes such as `{rev}`, and the name of a Python method."""
    found = []
    for line in table.strip().splitlines():
        method, path, name = line.split()
        for shape, pattern in _SHAPES.items():
            path = path.replace(shape, pattern)
        found.append((method, re.compile(path), name))
    return found


def _size(text: str, base: int) -> int:
    if not re.fullmatch(r"[0-9a-f]{1,15}", text.strip().lower()):
        raise ValueError(f"{ascii(text)[:40]} is no size of a body")
    return int(text, base)


class Hub:
    """What the API and the storage share.

    Args:
        repositories (`Repositories`): the repositories.
        user (`str`): name of the account to which the token belongs.
        part_size (`int`): size in bytes above which a file is uploaded in parts.
        testing (`Testing`, *optional*): faults and a log, for tests.
    """

    def __init__(self, repositories: Repositories, user: str, part_size: int, testing: Testing | None = None):
        self.repositories, self.user, self.part_size, self.testing = repositories, user, part_size, testing
        self.storage_port = 0
        self._secret = secrets.token_bytes(16)
        self.xet_token = self.signature("access to Xet")
        # Clients keep what they know of a Xet storage by its address. Another server must have another one.
        self.xet_path = f"/xet/{self.signature('address of Xet')[:16]}"

    def signature(self, path: str) -> str:
        """The proof that this server has made an address."""
        return hmac.new(self._secret, path.encode(), "sha256").hexdigest()


class Handler(BaseHTTPRequestHandler):
    """One request to the API or the storage: a subclass has the routes, and says who may use them."""

    protocol_version = "HTTP/1.1"
    # Headers and body are written apart; without this, Nagle's algorithm delays each answer by 40 ms.
    disable_nagle_algorithm = True
    wbufsize = -1
    server_name: ClassVar[str]
    routes: ClassVar[list[Route]]
    hub: Hub

    def answer(self) -> None:
        """Read and answer this request, or do to it what a test has ordered."""
        parts = urlsplit(self.path)
        self.query = {key: values[-1] for key, values in parse_qs(parts.query).items()}
        self.noted: dict[str, Any] = {}  # what a route adds to the log
        client = self.headers.get("User-Agent", "")
        fault = self.hub.testing.fault(self.command, self.path, client) if self.hub.testing else None
        if fault is None or fault.action == "status" or fault.moment != "before":
            try:
                self.body = self._read_body(half=fault is not None and fault.moment == "half")
            except ValueError as error:
                self.close_connection = True  # where the next request begins is unknown
                self.body = b""
                return self._send(400, str(error).encode(), {})
        if fault is not None:
            self._log(fault=fault.action, moment=fault.moment)
            if fault.action == "status":
                return self._send(fault.status, fault.body.encode(), {**_IS_JSON, **fault.headers})
            if fault.moment != "reply":
                return self._hang_up(fault)
        try:
            self.authorize()
            status, content, headers = self._route(parts.path)
        except Refusal as refusal:
            headers = {"X-Error-Message": refusal.message}
            if refusal.code:
                headers["X-Error-Code"] = refusal.code
            status, content, headers = self._json({"error": refusal.message, **refusal.body}, refusal.status, headers)
        except Exception as error:
            if is_disk_full(error):
                # Not 507, after which clients would try again for minutes.
                status, content, headers = self._json({"error": f"the disk of the server is full: {error}"}, 413)
            else:
                traceback.print_exc()
                status, content, headers = self._json({"error": f"{type(error).__name__}: {error}"}, 500)
        self._log(status=status, **self.noted)
        if fault is not None:
            return self._hang_up(fault)
        self._send(status, content, headers)

    do_GET = do_HEAD = do_POST = do_PUT = do_DELETE = answer

    def authorize(self) -> None:
        """Refuse a request that is not allowed."""
        raise NotImplementedError

    @property
    def has_token(self) -> bool:
        """Whether a token of the API, or another one that this server has not given, came with this request."""
        given = self.headers.get("Authorization", "")
        foreign = given not in ("", f"Bearer {self.hub.xet_token}")
        return foreign or any(TOKEN in text for text in [*self.headers.values(), self.path])

    @property
    def api_url(self) -> str:
        """The address of the API, as the client knows it."""
        return f"http://{self.headers['Host']}"

    @property
    def storage_url(self) -> str:
        """The address of the storage; on one machine it has another name of the host than the API."""
        host = self.headers["Host"].rpartition(":")[0] or self.headers["Host"]
        host = {"127.0.0.1": "localhost", "localhost": "127.0.0.1"}.get(host, host)
        return f"http://{host}:{self.hub.storage_port}"

    def signed(self, path: str) -> str:
        """An address of the storage that carries its own permission, as a presigned one of S3 does."""
        return f"{self.storage_url}{path}?signature={self.hub.signature(path)}"

    def asked(self) -> dict[str, Any]:
        """The JSON object in the body; empty if there is no body."""
        try:
            found = json.loads(self.body or b"{}")
        except (ValueError, RecursionError):
            found = None
        if not isinstance(found, dict):
            raise Refusal(400, "the body is not a JSON object")
        return found

    def _hang_up(self, fault: Fault) -> None:
        fault.strike()
        self.close_connection = True

    def _route(self, path: str) -> Reply:
        method = "GET" if self.command == "HEAD" else self.command
        for wanted, pattern, name in self.routes:
            match = pattern.fullmatch(path) if wanted == method else None
            if match:
                # Quoted slashes are part of a name ("refs%2Fpr%2F1"): split first, unquote after.
                reply = getattr(self, name)(*[unquote(group) if group else "" for group in match.groups()])
                return reply if isinstance(reply, tuple) else self._json(reply)
        # Such as the address of a repository without a namespace, which this server does not have.
        is_reading = method == "GET" and re.search(r"^/api/(models|datasets)/|/resolve/", path)
        code = "RepoNotFound" if is_reading else None
        raise Refusal(404, f"no route for {self.command} {path}", code)

    @staticmethod
    def _json(value: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Reply:
        return status, json.dumps(value).encode(), {**_IS_JSON, **(headers or {})}

    def _read_body(self, half: bool = False) -> bytes:
        """The body, or half of it.

        Raises:
            `ConnectionError`: the client has gone before it had sent all of it.
            `ValueError`: its size is not a number.
        """
        if self.headers.get("Transfer-Encoding", "").lower() != "chunked":
            size = _size(self.headers.get("Content-Length", "0"), 10)
            return self._received(size // 2 if half else size)
        chunks = []
        while size := _size(self.rfile.readline(_LONGEST_LINE).split(b";")[0].decode("latin-1") or "0", 16):
            chunks.append(self._received(size // 2 if half else size))
            if half:
                break
            self.rfile.readline()
        else:
            self.rfile.readline()
        return b"".join(chunks)

    def _received(self, size: int) -> bytes:
        found = self.rfile.read(size)
        if len(found) < size:
            raise ConnectionError(f"{len(found)} of {size} bytes arrived")
        return found

    def _send(self, status: int, content: bytes | Path, headers: Mapping[str, str]) -> None:
        size = len(content) if isinstance(content, bytes) else content.stat().st_size
        first, end = 0, size
        span = re.fullmatch(r"bytes=(\d*)-(\d*)", self.headers.get("Range", "").strip())
        if status == 200 and span and any(span.groups()) and self.command in ("GET", "HEAD"):
            if span[1]:
                first, end = int(span[1]), min(int(span[2] or size) + 1, size)
            else:  # the last bytes
                first = max(0, size - int(span[2]))
            status = 206 if first < size else 416
            first, end = (first, max(first, end)) if status == 206 else (0, 0)
            described = f"bytes {first}-{end - 1}/{size}" if status == 206 else f"bytes */{size}"
            headers = {**headers, "Content-Range": described}
        self.send_response(status)
        for name, value in headers.items():
            # The name of a revision may have a line end in it, with a header of its own behind.
            self.send_header(name, re.sub(r"[^ -~]", "?", value))
        self.send_header("Content-Length", str(end - first))
        self.end_headers()
        if self.command == "HEAD":
            return
        if isinstance(content, bytes):
            self.wfile.write(content[first:end])
            return
        with content.open("rb") as file:
            file.seek(first)
            if end == size:
                shutil.copyfileobj(file, self.wfile, 2**20)
            else:
                while first < end and (piece := file.read(min(2**20, end - first))):
                    self.wfile.write(piece)
                    first += len(piece)

    def _log(self, **row: Any) -> None:
        if self.hub.testing:
            request = {"server": self.server_name, "method": self.command, "path": self.path, "token": self.has_token}
            self.hub.testing.log(**request, client=self.headers.get("User-Agent", ""), **row)

    def handle(self) -> None:
        """Answer requests until the connection ends; a client that was killed is no error of the server."""
        with contextlib.suppress(ConnectionError):
            super().handle()

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing of requests."""
