"""Request handling of the two servers of the local Hub, and the simpler of them: storage."""

import hashlib
import hmac
import json
import re
from http.server import BaseHTTPRequestHandler
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from local_repos import TOKEN, Hub, Refusal


def routes(table: str) -> list[tuple[str, re.Pattern, str]]:
    shapes = {
        "{api}": r"/api/(models|datasets)/([^/]+/[^/]+)",
        "{repo}": r"/(datasets/)?([^/]+/[^/]+?)",
        "{rev}": "([^/]+)",
        "{path}": "(.+)",
        "{sha}": "([0-9a-f]{64})",
    }
    found = []
    for line in table.strip().splitlines():
        method, path, name = line.split()
        for shape, pattern in shapes.items():
            path = path.replace(shape, pattern)
        found.append((method, re.compile(path), name))
    return found


class Handler(BaseHTTPRequestHandler):
    """One request: read it whole, look for a fault, find its route, answer."""

    protocol_version = "HTTP/1.1"
    # Headers and body are written apart; without this, Nagle's algorithm delays each answer by 40 ms.
    disable_nagle_algorithm = True
    wbufsize = -1
    server_name = ""
    hub: Hub
    routes: list[tuple[str, re.Pattern, str]]

    def answer(self) -> None:
        self.body = self._read_body()
        self.noted: dict[str, Any] = {}  # what a route adds to the log
        parts = urlsplit(self.path)
        self.query = {key: values[-1] for key, values in parse_qs(parts.query).items()}
        authorization = "Authorization" in self.headers or any(TOKEN in v for v in [*self.headers.values(), self.path])
        row = {"server": self.server_name, "method": self.command, "path": self.path, "token": authorization}
        fault = self.hub.fault(self.command, self.path)
        if fault is not None:
            self.hub.log(**row, fault=fault.action)
            if fault.action == "status":
                headers = {"Content-Type": "application/json", **fault.headers}
                return self._send(fault.status, fault.body.encode(), headers)
            if fault.action == "drop":
                return self._hang_up()
        try:
            self.authorize(authorization)
            status, content, headers = self._route(parts.path)
        except Refusal as refusal:
            headers = {"Content-Type": "application/json", "X-Error-Message": refusal.message}
            if refusal.code:
                headers["X-Error-Code"] = refusal.code
            status, content = refusal.status, json.dumps({"error": refusal.message, **refusal.body}).encode()
        self.hub.log(**row, status=status, **self.noted)
        if fault is not None:
            return self._hang_up()
        self._send(status, content, headers)

    do_GET = do_HEAD = do_POST = do_PUT = do_DELETE = answer

    def authorize(self, authorization: bool) -> None:
        raise NotImplementedError

    def _route(self, path: str) -> tuple[int, bytes, dict]:
        method = "GET" if self.command == "HEAD" else self.command
        for wanted, pattern, name in self.routes:
            match = pattern.fullmatch(path) if wanted == method else None
            if match:
                # Quoted slashes are part of a name ("refs%2Fpr%2F1"): split first, unquote after.
                reply = getattr(self, name)(*[unquote(group) if group else "" for group in match.groups()])
                if isinstance(reply, tuple):
                    return reply
                return 200, json.dumps(reply).encode(), {"Content-Type": "application/json"}
        raise Refusal(404, f"no route for {self.command} {path}")

    def _read_body(self) -> bytes:
        if self.headers.get("Transfer-Encoding", "").lower() != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length", 0)))
        chunks = []
        while size := int(self.rfile.readline().split(b";")[0], 16):
            chunks.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(chunks)

    def _send(self, status: int, content: bytes, headers: dict) -> None:
        span = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        if status == 200 and span and self.command in ("GET", "HEAD"):
            first, last = int(span[1]), min(int(span[2] or len(content)), len(content) - 1)
            headers = {**headers, "Content-Range": f"bytes {first}-{last}/{len(content)}"}
            status, content = (206, content[first : last + 1]) if first < len(content) else (416, b"")
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def _hang_up(self) -> None:
        self.close_connection = True

    def log_message(self, *args: Any) -> None:
        """Silent: requests are in `requests.jsonl`."""


class Storage(Handler):
    """Contents by sha256, behind signed addresses."""

    server_name = "storage"
    routes = routes("""
        PUT  /upload/{sha}           upload
        PUT  /upload/{sha}/{rev}     upload_part
        POST /complete/{sha}         complete
        GET  /objects/{sha}          download
    """)

    def authorize(self, authorization: bool) -> None:
        if authorization:
            raise Refusal(400, "storage was sent a token")
        path = urlsplit(self.path).path
        if not hmac.compare_digest(self.query.get("signature", ""), self.hub.signature(path)):
            raise Refusal(403, "bad signature")

    def upload(self, sha256: str) -> dict:
        if hashlib.sha256(self.body).hexdigest() != sha256:
            raise Refusal(400, "content does not match its sha256")
        self.hub.put(sha256, self.body)
        return {}

    def upload_part(self, sha256: str, part: str) -> tuple[int, bytes, dict]:
        self.hub.put(f"{sha256}.part{int(part)}", self.body)
        return 200, b"", {"ETag": f'"{hashlib.md5(self.body).hexdigest()}"'}

    def complete(self, sha256: str) -> dict:
        names = [f"{sha256}.part{part['partNumber']}" for part in json.loads(self.body)["parts"]]
        self.body = b"".join(self.hub.get(name) for name in names)
        return self.upload(sha256)

    def download(self, sha256: str) -> tuple[int, bytes, dict]:
        return 200, self.hub.get(sha256), {"ETag": f'"{sha256}"', "Accept-Ranges": "bytes"}
