"""The state of the local Hub: repositories, commits, contents, requested faults, and the log of requests."""

import hashlib
import hmac
import json
import re
import secrets
import threading
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

USER = "tester"
ORGANIZATION = "lab"
TOKEN = "hf_local_write_token"
PAGE = 50
LFS_SUFFIXES = (".safetensors", ".bin", ".parquet", ".arrow", ".npy", ".pt", ".zip")
LFS_SIZE = 10 * 2**20


def git_blob_oid(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


class Refusal(Exception):
    """An answer with an error status; `code` is the header by which clients tell one 404 from another."""

    def __init__(self, status: int, message: str, code: str | None = None, **body: Any):
        super().__init__(message)
        self.status, self.message, self.code, self.body = status, message, code, body


@dataclass(frozen=True)
class Blob:
    """A file's identity: its git oid, its size in bytes, and its sha256 where it lies in LFS storage."""

    oid: str
    size: int
    sha256: str | None = None

    @staticmethod
    def of_lfs(sha256: str, size: int) -> "Blob":
        return Blob(git_blob_oid(Blob.pointer(sha256, size)), size, sha256)

    @staticmethod
    def pointer(sha256: str, size: int) -> bytes:
        return b"version https://git-lfs.github.com/spec/v1\noid sha256:%s\nsize %d\n" % (sha256.encode(), size)

    def lfs(self, hash_key: str) -> dict:
        if self.sha256 is None:
            return {}
        size = len(self.pointer(self.sha256, self.size))
        return {"lfs": {hash_key: self.sha256, "size": self.size, "pointerSize": size}}


@dataclass(frozen=True)
class Commit:
    oid: str
    title: str
    message: str
    date: str
    files: dict[str, Blob]
    parent: "Commit | None"


@dataclass
class Repo:
    kind: str
    id: str
    private: bool
    branches: dict[str, Commit] = field(default_factory=dict)
    tags: dict[str, Commit] = field(default_factory=dict)
    commits: dict[str, Commit] = field(default_factory=dict)

    def commit(self, revision: str) -> Commit:
        found = self.branches.get(revision) or self.tags.get(revision) or self.commits.get(revision)
        if found is None:
            raise Refusal(404, f"Invalid rev id: {revision}", "RevisionNotFound")
        return found

    def add_commit(self, branch: str, title: str, message: str, files: dict[str, Blob]) -> Commit:
        parent = self.branches.get(branch)
        text = json.dumps([self.kind, self.id, len(self.commits), title, {k: asdict(v) for k, v in files.items()}])
        oid = hashlib.sha1(text.encode()).hexdigest()
        date = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.000Z")
        self.commits[oid] = self.branches[branch] = Commit(oid, title, message, date, files, parent)
        return self.branches[branch]


@dataclass
class Fault:
    method: str
    path: str
    action: str = "status"
    status: int = 503
    times: int = 1
    body: str = '{"error": "ordered fault"}'
    headers: dict[str, str] = field(default_factory=dict)


class Hub:
    """What both servers share: repositories, contents, faults, and the log."""

    def __init__(self, root: Path, part_size: int):
        self.root, self.part_size = root, part_size
        self.objects = root / "objects"
        self.objects.mkdir(parents=True, exist_ok=True)
        self.repos: dict[tuple[str, str], Repo] = {}
        self.faults: list[Fault] = []
        self.lock = threading.RLock()
        self.secret = secrets.token_bytes(16)
        self.api_url = self.storage_url = ""

    def put(self, name: str, content: bytes) -> None:
        temporary = self.objects / f"{name}.{secrets.token_hex(4)}"
        temporary.write_bytes(content)
        temporary.replace(self.objects / name)

    def get(self, name: str) -> bytes:
        try:
            return (self.objects / name).read_bytes()
        except FileNotFoundError:
            raise Refusal(404, f"no object {name}") from None

    def has(self, sha256: str) -> bool:
        return (self.objects / sha256).exists()

    def signed(self, path: str) -> str:
        """A storage address that carries its own permission, as a presigned S3 address does."""
        return f"{self.storage_url}{path}?signature={self.signature(path)}"

    def signature(self, path: str) -> str:
        return hmac.new(self.secret, path.encode(), "sha256").hexdigest()

    def fault(self, method: str, path: str) -> Fault | None:
        with self.lock:
            for fault in self.faults:
                if fault.times > 0 and fault.method == method and re.search(fault.path, path):
                    fault.times -= 1
                    return fault
        return None

    def log(self, **row: Any) -> None:
        with self.lock, (self.root / "requests.jsonl").open("a") as file:
            file.write(json.dumps(row) + "\n")
