"""Repositories and their contents: kept in memory for reading, and in a folder from which a new server goes on.

| path in the folder | what it is |
|---|---|
| `objects/NAME` | contents by SHA-256, or by their git object id where they are part of a commit; xorbs of Xet |
| `repositories/KIND/NAMESPACE/NAME/commits/ID.json` | one commit: title, date, parent, and the identity of each file |
| `repositories/KIND/NAMESPACE/NAME/repository.json` | visibility, and the commits of branches, tags, pull requests |

Everything is written under a temporary name, synced and renamed, and `repository.json` last. So whenever the server
is killed, a commit is in the folder as a whole or not at all.
"""

import contextlib
import hashlib
import json
import os
import re
import secrets
import shutil
import threading
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, BinaryIO, Literal

from hmm_datasets.files import read_json, write_json

Kind = Literal["models", "datasets"]
KINDS: tuple[Kind, ...] = ("models", "datasets")

_NAME = re.compile(r"[A-Za-z0-9_][\w.-]*/[A-Za-z0-9_][\w.-]*")
_OBJECT = re.compile(r"[0-9a-f]{40,64}(\.xorb|\.part\d+)?")


class Refusal(Exception):
    """An answer with an error status; `code` is the header by which clients tell one 404 from another."""

    def __init__(self, status: int, message: str, code: str | None = None, **body: Any):
        super().__init__(message)
        self.status, self.message, self.code, self.body = status, message, code, body


def git_blob_oid(content: bytes) -> str:
    """The object id that git gives to a file with this content."""
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


@dataclass(frozen=True)
class Blob:
    """A file's identity: its git object id, its size in bytes, and its SHA-256 if it lies in storage."""

    oid: str
    size: int
    sha256: str | None = None

    @staticmethod
    def of_lfs(sha256: str, size: int) -> "Blob":
        """The identity of a file in storage; its object id is that of the pointer to it."""
        return Blob(git_blob_oid(Blob._pointer(sha256, size)), size, sha256)

    @staticmethod
    def _pointer(sha256: str, size: int) -> bytes:
        return b"version https://git-lfs.github.com/spec/v1\noid sha256:%s\nsize %d\n" % (sha256.encode(), size)

    def lfs(self, hash_key: str = "oid") -> dict:
        """What listings say of a file in storage in addition."""
        if self.sha256 is None:
            return {}
        size = len(self._pointer(self.sha256, self.size))
        return {"lfs": {hash_key: self.sha256, "size": self.size, "pointerSize": size}}


@dataclass(frozen=True)
class Commit:
    """A commit, with the identities of all files after it."""

    oid: str
    title: str
    message: str
    date: str
    parent: str | None
    files: dict[str, Blob]


class Contents:
    """Contents by name in one folder."""

    def __init__(self, folder: Path):
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        for unfinished in folder.glob(".*"):
            unfinished.unlink()

    def path(self, name: str) -> Path:
        """The file of a content, whether it is there or not."""
        if not _OBJECT.fullmatch(name):
            raise Refusal(400, f"{name!r} is not the name of a content")
        return self._folder / name

    def has(self, name: str) -> bool:
        """Whether a content is there."""
        return self.path(name).is_file()

    def read(self, name: str) -> bytes:
        """A content that must be there."""
        return self.existing(name).read_bytes()

    def existing(self, name: str) -> Path:
        """The file of a content that must be there."""
        if not self.has(name):
            raise Refusal(404, f"no object {name}")
        return self.path(name)

    def put(self, name: str, content: bytes) -> None:
        """Store a content, unless it is there."""
        if not self.has(name):
            with self.writing() as (file, keep):
                file.write(content)
                keep(name)

    def remove(self, name: str) -> None:
        """Delete a content."""
        self.path(name).unlink(missing_ok=True)

    @contextlib.contextmanager
    def writing(self) -> Generator[tuple[BinaryIO, Callable[[str], None]]]:
        """A context that gives a new file, and a function that stores it under a name; else it is deleted."""
        temporary = self._folder / f".{secrets.token_hex(8)}"

        def keep(name: str) -> None:
            file.flush()
            os.fsync(file.fileno())
            temporary.replace(self.path(name))

        try:
            with temporary.open("wb") as file:
                yield file, keep
        finally:
            temporary.unlink(missing_ok=True)


@dataclass
class Repo:
    """A repository.

    Args:
        kind (`str`): `"models"` or `"datasets"`.
        id (`str`): namespace and name.
        folder (`Path`): where it is kept.
        private (`bool`): whether only its owner sees it.
        refs (mapping from `str` to `str`): commits of `refs/heads/...`, `refs/tags/...` and `refs/pr/...`.
        commits (mapping from `str` to `Commit`): all commits by object id.
    """

    kind: Kind
    id: str
    folder: Path
    private: bool = False
    refs: dict[str, str] = field(default_factory=dict)
    commits: dict[str, Commit] = field(default_factory=dict)

    @classmethod
    def load(cls, kind: Kind, name: str, folder: Path) -> "Repo":
        """Read a repository that a server has kept."""
        settings = read_json(folder / "repository.json")
        repo = cls(kind, name, folder, settings["private"], settings["refs"])
        for path in (folder / "commits").glob("*.json"):
            row = read_json(path)
            files = {name: Blob(*blob) for name, blob in row.pop("files").items()}
            repo.commits[path.stem] = Commit(path.stem, files=files, **row)
        return repo

    def ref(self, revision: str) -> str | None:
        """The full name of a branch, tag or pull request; `None` if there is none of this name."""
        names = (revision, f"refs/heads/{revision}", f"refs/tags/{revision}")
        return next((name for name in names if name in self.refs), None)

    def commit(self, revision: str) -> Commit:
        """The commit of a branch, tag, pull request or object id, which may be abbreviated."""
        ref = self.ref(revision)
        if ref is not None:
            return self.commits[self.refs[ref]]
        if len(revision) >= 7:
            found = [self.commits[oid] for oid in list(self.commits) if oid.startswith(revision)]
            if len(found) == 1:
                return found[0]
        raise Refusal(404, f"Invalid rev id: {revision}", "RevisionNotFound")

    def history(self, revision: str) -> list[Commit]:
        """The commits that led to a revision, newest first."""
        found = [self.commit(revision)]
        while (parent := found[-1].parent) is not None:
            found.append(self.commits[parent])
        return found

    def add_commit(
        self, ref: str, title: str, message: str, files: Mapping[str, Blob], parent: str | None = None
    ) -> Commit:
        """Make a commit, and then let a branch or pull request point to it."""
        rows = {path: [blob.oid, blob.size, blob.sha256] for path, blob in files.items()}
        date = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%f")[:-3] + "Z"
        row = {"title": title, "message": message, "date": date, "parent": parent, "files": rows}
        text = json.dumps([self.kind, self.id, secrets.token_hex(8), row])
        commit = Commit(hashlib.sha1(text.encode()).hexdigest(), title, message, date, parent, dict(files))
        write_json(self.folder / "commits" / f"{commit.oid}.json", row)
        self.commits[commit.oid] = commit
        self.change(refs={**self.refs, ref: commit.oid})
        return commit

    def change(self, *, refs: dict[str, str] | None = None, private: bool | None = None) -> None:
        """Change what a reader sees, at once: first on disk, then in memory."""
        refs = self.refs if refs is None else refs
        private = self.private if private is None else private
        write_json(self.folder / "repository.json", {"private": private, "refs": refs})
        self.refs, self.private = refs, private


class Repositories:
    """All repositories in a folder, and their contents. Whoever changes something holds the lock.

    Args:
        folder (`Path`): the folder, which may have repositories of an earlier server.
    """

    def __init__(self, folder: Path):
        self.contents = Contents(folder / "objects")
        self.lock = threading.RLock()
        self._folder = folder / "repositories"
        self._repos: dict[tuple[Kind, str], Repo] = {}
        for kind in KINDS:
            for path in sorted((self._folder / kind).glob("*/*/repository.json")):
                name = path.parent.relative_to(self._folder / kind).as_posix()
                self._repos[kind, name] = Repo.load(kind, name, path.parent)

    def get(self, kind: Kind, name: str) -> Repo | None:
        """A repository, if there is one of this name."""
        return self._repos.get((kind, name))

    def of(self, kind: Kind) -> list[Repo]:
        """The repositories of a kind, by name."""
        return [repo for (found, _), repo in sorted(self._repos.items()) if found == kind]

    def create(self, kind: Kind, name: str, private: bool, files: Mapping[str, bytes]) -> Repo:
        """Make a repository whose first commit has some small files."""
        repo = Repo(kind, name, self._place(kind, name), private)
        repo.add_commit("refs/heads/main", "initial commit", "", {path: self.store(c) for path, c in files.items()})
        self._repos[kind, name] = repo
        return repo

    def store(self, content: bytes) -> Blob:
        """Store a small file that is part of a commit."""
        blob = Blob(git_blob_oid(content), len(content))
        self.contents.put(blob.oid, content)
        return blob

    def delete(self, repo: Repo) -> None:
        """Delete a repository; contents, which others may share, stay."""
        (repo.folder / "repository.json").unlink()
        del self._repos[repo.kind, repo.id]
        shutil.rmtree(repo.folder)

    def move(self, repo: Repo, name: str) -> None:
        """Give a repository another name."""
        place = self._place(repo.kind, name)
        place.parent.mkdir(parents=True, exist_ok=True)
        repo.folder.replace(place)
        del self._repos[repo.kind, repo.id]
        repo.id, repo.folder = name, place
        self._repos[repo.kind, name] = repo

    def _place(self, kind: Kind, name: str) -> Path:
        if not _NAME.fullmatch(name):
            raise Refusal(400, f"{name!r} is not a name of a repository, expected NAMESPACE/NAME")
        return self._folder / kind / name
