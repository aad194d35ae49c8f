"""What comes of a push when something fails on the way: `python tests/hub/fault_table.py` prints it as a table.

A repository has the files of one run, and a second run is pushed to it, with one fault. Whatever the fault is, every
revision that a reader sees must have the files of one of the two runs, and pushing again must complete the second
without sending again what had arrived.
"""

import base64
import functools
import hashlib
import json
import random
import re
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hub_processes import ForkedPushes, LocalHub

WHERE = {
    "creating the repository": ("POST", "/api/repos/create"),
    "reading the head": ("GET", "/api/models/{repo}$"),
    "asking how to upload": ("POST", "{repo}/preupload/"),
    "asking where to upload": ("POST", "{repo}.git/info/lfs/objects/batch"),
    "uploading a file": ("PUT", r"/upload/{small}\?"),
    "uploading a part": ("PUT", "/upload/{large}/2"),
    "joining the parts": ("POST", "/complete/{large}"),
    "verifying the upload": ("POST", "{repo}.git/info/lfs/objects/verify"),
    "asking for access to Xet": ("GET", "{repo}/xet-write-token/"),
    "uploading by Xet": ("POST", "/v1/xorbs/"),
    "describing files to Xet": ("POST", "/v1/shards"),
    "checking the card": ("POST", "/api/validate-yaml"),
    "committing": ("POST", "{repo}/commit/"),
    "listing the result": ("GET", "{repo}/tree/"),
}
IN_STORAGE = ("uploading a file", "uploading a part", "joining the parts")
BY_LIBRARY = ("uploading a part", "joining the parts", "verifying the upload", "describing files to Xet")
"""Requests that huggingface_hub repeats by itself as it does others."""
BY_XET = ("asking for access to Xet", "uploading by Xet", "describing files to Xet")
MOMENTS = {
    "before": "before anything arrives",
    "half": "after half of the data",
    "data": "after the data",
    "reply": "when all is done, before the reply",
}


@dataclass(frozen=True)
class Row:
    """A fault and what is expected of a push.

    Args:
        fault (`str`): what happens.
        where (`str`): at which request, a key of `WHERE`.
        order (`dict`): the arguments of the server's `Fault`.
        error (`str`, *optional*): a part of the error with which the push ends; by default it succeeds.
        completed (`bool`, *optional*): whether the repository has the new run afterwards; by default if there is
            neither an error nor a kill.
        is_new (`bool`, *optional*): whether the repository does not exist before.
        may_send_again (`bool`, *optional*): whether pushing again may send what had arrived; Xet may if it was
            killed before it had noted that.
        seconds (`float`, *optional*): the least time between the refused request and its repetition.
    """

    fault: str
    where: str
    order: dict[str, Any]
    error: str = ""
    completed: bool | None = None
    is_new: bool = False
    may_send_again: bool = False
    seconds: float = 0.0

    @property
    def is_kill(self) -> bool:
        """Whether the pusher is killed."""
        return self.order.get("action") == "kill"

    @property
    def completes(self) -> bool:
        """Whether the repository has the new run after the faulty push."""
        return self.completed if self.completed is not None else not (self.error or self.is_kill)

    def __str__(self) -> str:
        return f"{self.fault}, {self.where}"


def _status(number: int, where: str, **options: Any) -> Row:
    order = {name: options.pop(name) for name in ("times", "headers", "body") if name in options} | {"status": number}
    times = ", every time" if order.get("times", 1) > 1 else ""
    return Row(f"{options.pop('fault', number)}{times}", where, order, **options)


def _drop(moment: str, where: str, **options: Any) -> Row:
    return Row(f"hang up {MOMENTS[moment]}", where, {"action": "drop", "moment": moment}, **options)


def _kills() -> Iterator[Row]:
    moments = {
        "creating the repository": ("reply",),
        "asking how to upload": ("reply",),
        "asking where to upload": ("before",),
        "uploading a file": ("before", "half", "data", "reply"),
        "uploading a part": ("half",),
        "joining the parts": ("before", "reply"),
        "verifying the upload": ("before",),
        "checking the card": ("before",),
        "committing": ("before", "half", "data", "reply"),
        "listing the result": ("before",),
        "asking for access to Xet": ("before",),
        "uploading by Xet": ("half",),
        "describing files to Xet": ("before", "reply"),
    }
    for where, found in moments.items():
        for moment in found:
            done = where == "listing the result" or (where, moment) == ("committing", "reply")
            order = {"action": "kill", "moment": moment}
            again = where == "describing files to Xet"
            yield Row(f"kill -9 {MOMENTS[moment]}", where, order, completed=done, may_send_again=again)
    yield Row(
        f"kill -9 {MOMENTS['reply']}", "creating the repository", {"action": "kill", "moment": "reply"}, is_new=True
    )


_NO_TENSORS = (2).to_bytes(8, "little") + b"{}"
PART_SIZE = 2**16
NO_WRITING = "401 ordered fault; set HF_TOKEN to a token with write access"
NOT_YOURS = "403 ordered fault; use a token that may write to {repo}"
IT_IS_GONE = "404 ordered fault; if it was deleted or renamed in the meantime, push again"
NO_PAUSE = {"Retry-After": "0"}
ROWS = (
    *(_status(503, where) for where in WHERE if where not in BY_LIBRARY),
    _status(500, "creating the repository", is_new=True),
    _status(502, "checking the card", fault="502 with a page of HTML", body="<html>bad gateway</html>"),
    _status(503, "committing", times=99, headers=NO_PAUSE, error="could not commit for {repo} in 6 tries, last: 503"),
    _status(429, "committing", fault="429 with Retry-After: 2", headers={"Retry-After": "2"}, seconds=2.0),
    _status(429, "asking how to upload", fault="429 with Retry-After: 1", headers={"Retry-After": "1"}, seconds=1.0),
    _status(
        429,
        "committing",
        fault="429 with ratelimit: t=2",
        headers={"ratelimit": '"api";r=0;t=2', "ratelimit-policy": '"fixed window";"api";q=500;w=300'},
        seconds=2.0,
    ),
    _drop("before", "creating the repository"),
    _drop("before", "uploading a file"),
    _drop("before", "committing"),
    _drop("half", "uploading by Xet"),
    _drop("half", "committing"),
    _drop("data", "committing"),
    _drop("reply", "creating the repository", is_new=True),
    _drop("reply", "uploading a file"),
    _drop("reply", "joining the parts"),
    _drop("reply", "verifying the upload"),
    _drop("reply", "describing files to Xet"),
    _drop("reply", "committing"),
    _drop("reply", "listing the result"),
    _status(
        401,
        "creating the repository",
        is_new=True,
        error=NO_WRITING,
    ),
    _status(401, "committing", error=NO_WRITING),
    _status(403, "creating the repository", is_new=True, error=NOT_YOURS),
    _status(403, "uploading a file", error=NOT_YOURS),
    _status(403, "committing", error=NOT_YOURS),
    _status(404, "asking how to upload", error=IT_IS_GONE),
    _status(404, "asking for access to Xet", error="has no Xet; set HF_HUB_DISABLE_XET=1"),
    _status(404, "committing", error=IT_IS_GONE),
    _status(409, "creating the repository", times=0, fault="409, as it exists"),
    _status(409, "committing"),
    _status(412, "committing"),
    *_kills(),
)


@dataclass
class Outcome:
    """What came of a row."""

    result: dict[str, Any]
    visible: dict[str, str] = field(default_factory=dict)
    titles: list[str] = field(default_factory=list)
    again: dict[str, Any] = field(default_factory=dict)
    visible_again: dict[str, str] = field(default_factory=dict)
    titles_again: list[str] = field(default_factory=list)
    sent_at_first: list[str] = field(default_factory=list)
    sent_twice: list[str] = field(default_factory=list)
    pause: float = 0.0
    struck: int = 0

    @property
    def summary(self) -> tuple[str, str, str]:
        """The first push, the repository after it, and the second push, in words."""
        first = f"error: {self.result['error']}" if "error" in self.result else "completes"
        first = "killed" if self.result["status"] == -9 else first
        state = "complete" if self.visible.get("main") == "after" else "as before"
        if not set(self.visible.values()) <= {"before", "after"}:
            state = "half updated"
        again = "completes" if self.visible_again.get("main") == "after" and "error" not in self.again else "fails"
        return first, state, f"{again}, {len(self.sent_twice) or 'nothing'} sent twice"


class Case:
    """A row with its repository and the folders that are pushed to it."""

    def __init__(self, row: Row, number: int, folder: Path):
        self.row, self.repo, self.folder = row, f"tester/fault-{number:03}", folder / f"run-{number}"
        self.folder.mkdir()
        chance = random.Random(number)
        self.new = {
            "README.md": b"---\nlicense: mit\n---\n# The second run\n",
            "config.json": json.dumps({"run": 2, "case": number}).encode(),
            "large.safetensors": _NO_TENSORS + chance.randbytes(150_000),
            "small.safetensors": _NO_TENSORS + chance.randbytes(5_000),
        }
        self.old = {"config.json": b'{"run": 1}', "small.safetensors": b"of the first run", "README.md": b"# First\n"}
        for name, content in self.new.items():
            (self.folder / name).write_bytes(content)

    def order(self, *faults: dict) -> dict:
        """A push of the second run."""
        xet = self.row.where in BY_XET
        return {"folder": str(self.folder), "repo_id": self.repo, "xet": xet, "faults": faults}

    def fault(self) -> dict:
        """The fault, at this case's repository and files."""
        method, path = WHERE[self.row.where]
        digests = {name: _sha256(self.new[f"{name}.safetensors"]) for name in ("small", "large")}
        options = {"client": ""} if self.row.where in IN_STORAGE else {}  # these requests do not name their client
        return {"method": method, "path": path.format(repo=self.repo, **digests), **options, **self.row.order}

    def commit_old(self, hub: LocalHub) -> None:
        """Make the repository, with the first run in it."""
        files = (
            {"content": base64.b64encode(c).decode(), "path": n, "encoding": "base64"} for n, c in self.old.items()
        )
        lines = [{"key": "header", "value": {"summary": "first run"}}, *({"key": "file", "value": f} for f in files)]
        hub.post("/api/repos/create", {"name": self.repo.split("/")[1], "organization": "tester"})
        hub.post(f"/api/models/{self.repo}/commit/main", *lines)

    def visible(self, hub: LocalHub) -> dict[str, str]:
        """What a reader sees: `"before"`, `"after"` or something else for every branch, tag, request and commit."""
        if not any(row["id"] == self.repo for row in hub.get(f"/api/models?search={self.repo.split('/')[1]}")):
            return {}
        refs = hub.get(f"/api/models/{self.repo}/refs?include_prs=1")
        names = [row["name"] for rows in refs.values() for row in rows]
        oids = [row["id"] for row in hub.get(f"/api/models/{self.repo}/commits/main")]
        return {name: self._state(hub, name) for name in [*names, *oids]}

    def _state(self, hub: LocalHub, revision: str) -> str:
        rows = hub.get(f"/api/models/{self.repo}/tree/{revision}?recursive=true")
        found = {row["path"]: row.get("lfs", row)["oid"] for row in rows if row["path"] != ".gitattributes"}
        for state, files in (("before", {}), ("before", self.old), ("after", {**self.old, **self.new})):
            if found == {
                name: self._oid(content, name in found and len(found[name]) == 64) for name, content in files.items()
            }:
                return state
        return json.dumps(found)

    def has(self, upload: tuple[str, str]) -> bool:
        """Whether something that arrived in storage is of this case."""
        name, client = upload
        return name in map(_sha256, self.new.values()) or f"origin/{self.repo}" in client

    def is_meant(self, request: dict) -> bool:
        """Whether a request is one at which the fault of this case is ordered."""
        fault = self.fault()
        is_ours = self.row.where in IN_STORAGE or f"origin/{self.repo}" in request["client"]
        return is_ours and request["method"] == fault["method"] and bool(re.search(fault["path"], request["path"]))

    def pause(self, requests: list[dict]) -> float:
        """Seconds from the refused request to its repetition; 0 if there was none."""
        times = [row["time"] for row in requests if self.is_meant(row)]
        return times[1] - times[0] if len(times) > 1 else 0.0

    @staticmethod
    def _oid(content: bytes, in_storage: bool) -> str:
        if in_storage:
            return _sha256(content)
        return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


@functools.cache
def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def run_table(hub: LocalHub, folder: Path, rows: tuple[Row, ...] = ROWS) -> list[Outcome]:
    """Push with each fault, look at the repository, push again without it, and look again."""
    cases = [Case(row, number, folder) for number, row in enumerate(rows)]
    for case in cases:
        if not case.row.is_new:
            case.commit_old(hub)
    with ForkedPushes(hub, folder / "home") as pushes:
        outcomes = [Outcome(result) for result in pushes([case.order(case.fault()) for case in cases])]
        _look(hub, cases, outcomes, "")
        hub.clear_faults()
        before = len(hub.requests())
        for outcome, again in zip(outcomes, pushes([case.order() for case in cases]), strict=True):
            outcome.again = again
        _look(hub, cases, outcomes, "_again")
    requests = hub.requests()
    for case, outcome in zip(cases, outcomes, strict=True):
        outcome.sent_at_first = [upload[0] for upload in uploads(requests[:before]) if case.has(upload)]
        again = [upload[0] for upload in uploads(requests[before:]) if case.has(upload)]
        outcome.sent_twice = [name for name in again if name in outcome.sent_at_first]
        outcome.pause = case.pause(requests[:before])
        outcome.struck = len([row for row in requests[:before] if "fault" in row and case.is_meant(row)])
    return outcomes


def _look(hub: LocalHub, cases: list[Case], outcomes: list[Outcome], when: str) -> None:
    for case, outcome in zip(cases, outcomes, strict=True):
        visible = case.visible(hub)
        setattr(outcome, f"visible{when}", visible)
        setattr(outcome, f"titles{when}", hub.titles(case.repo) if visible else [])


def uploads(requests: list[dict]) -> Iterator[tuple[str, str]]:
    """The files that arrived in storage whole, by SHA-256 or by the hash of a xorb, and who sent them."""
    for row in requests:
        path = row["path"].partition("?")[0]
        is_file = re.search("^/upload/[0-9a-f]+$|^/complete/|/xorbs/", path)
        if is_file and row.get("status") == 200:
            yield path.rpartition("/")[2], row["client"]


def markdown(outcomes: list[Outcome]) -> str:
    """The table of all rows."""
    lines = ["| fault | while | the push | the repository then | pushing again |", "|---|---|---|---|---|"]
    for row, outcome in zip(ROWS, outcomes, strict=True):
        lines.append(f"| {row.fault} | {row.where} | {' | '.join(outcome.summary)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        hub = LocalHub(Path(scratch, "hub"), "--part-size", str(PART_SIZE))
        try:
            print(markdown(run_table(hub, Path(scratch))))
        finally:
            hub.stop()
