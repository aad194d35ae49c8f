"""A Hub on this machine: enough of the Hub's HTTP API for huggingface_hub's real client to push and pull.

Repositories of models and data sets with commits, branches and tags; small files inside the commit, large ones
by Git LFS. It serves two addresses, as the real one does: the API on 127.0.0.1, and storage on localhost, to
which a client must never send its token (such a request is logged and refused). Repositories live in memory;
contents and `requests.jsonl`, one line a request, lie in the root folder. Xet is not spoken: clients need
HF_HUB_DISABLE_XET=1. Only the standard library is used, and PyYAML to check the front matter of cards.

Faults are ordered by `POST /faults` with a JSON object: `method` and `path` (a regular expression) select
requests, `action` is "status" (answer `status` with `body` and `headers` instead), "drop" (hang up before anything
is done) or "drop_reply" (do it, then hang up), `times` how often.

    python tests/hub/local_hub.py --port 0 --root DIR
"""

import argparse
import base64
import json
import math
import re
import sys
import threading
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from local_http import Handler, Storage, routes
from local_repos import (
    LFS_SIZE,
    LFS_SUFFIXES,
    ORGANIZATION,
    PAGE,
    TOKEN,
    USER,
    Blob,
    Commit,
    Fault,
    Hub,
    Refusal,
    Repo,
    git_blob_oid,
)


class Api(Handler):
    """The Hub's own address: who, which repositories, which files, which commits."""

    server_name = "hub"
    routes = routes("""
        GET    /                                        home
        POST   /faults                                  order_fault
        GET    /api/whoami-v2                           whoami
        POST   /api/validate-yaml                       validate_yaml
        POST   /api/repos/create                        create
        GET    {api}                                    info
        GET    {api}/revision/{rev}                     info
        GET    {api}/tree/{rev}                         tree
        GET    {api}/tree/{rev}/{path}                  tree
        POST   {api}/paths-info/{rev}                   paths_info
        GET    {api}/refs                               refs
        GET    {api}/commits/{rev}                      history
        POST   {api}/branch/{rev}                       create_branch
        POST   {api}/tag/{rev}                          create_tag
        POST   {api}/preupload/{rev}                    preupload
        POST   {api}/commit/{rev}                       commit
        POST   {repo}\\.git/info/lfs/objects/batch      lfs_batch
        POST   {repo}\\.git/info/lfs/objects/verify     lfs_verify
        GET    {repo}/resolve/{rev}/{path}              resolve
    """)

    def authorize(self, authorization: bool) -> None:
        self.known = self.headers.get("Authorization") == f"Bearer {TOKEN}"
        if authorization and not self.known:
            raise Refusal(401, "Invalid credentials in Authorization header")

    def repo(self, kind: str, name: str, *, write: bool = False) -> Repo:
        repo = self.hub.repos.get((kind.strip("/") or "models", name))
        if repo is None or (repo.private and not self.known):
            raise Refusal(404, "Repository not found", "RepoNotFound")
        if write:
            self.may_write(name.split("/")[0])
        return repo

    def may_write(self, namespace: str) -> None:
        if not self.known:
            raise Refusal(401, "Invalid username or password.")
        if namespace not in (USER, ORGANIZATION):
            raise Refusal(403, f'You don\'t have the rights to write under the namespace "{namespace}"')

    def home(self) -> dict:
        return {"hub": "local"}

    def order_fault(self) -> dict:
        self.hub.faults.append(Fault(**json.loads(self.body)))
        return {}

    def whoami(self) -> dict:
        if not self.known:
            raise Refusal(401, "Invalid username or password.")
        return {"type": "user", "name": USER, "fullname": USER, "orgs": [{"name": ORGANIZATION}], "auth": {}}

    def validate_yaml(self) -> dict:
        import yaml

        block = re.match(r"\s*---\r?\n([\s\S]*?)\r?\n---", json.loads(self.body)["content"])
        try:
            metadata = yaml.safe_load(block[1]) if block else {}
        except yaml.YAMLError as error:
            raise Refusal(400, "bad metadata", errors=[{"message": f"not YAML: {error}"}]) from None
        warnings = [] if metadata else [{"message": "empty or missing yaml metadata in repo card"}]
        return {"errors": [], "warnings": warnings}

    def create(self) -> dict:
        asked = json.loads(self.body)
        namespace = asked.get("organization") or USER
        self.may_write(namespace)
        kind, name = asked.get("type", "model") + "s", f"{namespace}/{asked['name']}"
        url = f"{self.hub.api_url}/{'' if kind == 'models' else kind + '/'}{name}"
        with self.hub.lock:
            if (kind, name) in self.hub.repos:
                raise Refusal(409, f"You already created this {kind[:-1]} repo", url=url)
            repo = self.hub.repos[kind, name] = Repo(kind, name, asked.get("visibility") == "private")
            repo.add_commit("main", "initial commit", "", {".gitattributes": self.store(b"*.bin filter=lfs\n")})
        return {"url": url, "name": name, "id": name}

    def store(self, content: bytes) -> Blob:
        blob = Blob(git_blob_oid(content), len(content))
        self.hub.put(blob.oid, content)
        return blob

    def info(self, kind: str, name: str, revision: str = "main") -> dict:
        repo = self.repo(kind, name)
        commit = repo.commit(revision)
        siblings = [{"rfilename": path, "blobId": blob.oid, "size": blob.size} for path, blob in commit.files.items()]
        return {
            "id": name, "author": name.split("/")[0], "sha": commit.oid, "lastModified": commit.date,
            "private": repo.private, "gated": False, "disabled": False, "downloads": 0, "likes": 0, "tags": [],
            "siblings": siblings,
        }  # fmt: skip

    def tree(self, kind: str, name: str, revision: str, folder: str = "") -> tuple[int, bytes, dict]:
        commit = self.repo(kind, name).commit(revision)
        prefix = folder.strip("/") + "/" if folder else ""
        entries: dict[str, dict] = {}
        for path, blob in commit.files.items():
            if not path.startswith(prefix):
                continue
            steps = path.removeprefix(prefix).split("/")
            for depth in range(1, len(steps)):
                parent = prefix + "/".join(steps[:depth])
                entries[parent] = {
                    "type": "directory",
                    "oid": git_blob_oid(parent.encode()),
                    "size": 0,
                    "path": parent,
                }
            entries[path] = self.entry(commit, path, blob)
        if prefix and not entries:
            raise Refusal(404, f"{folder} does not exist on {revision}", "EntryNotFound")
        recursive = self.query.get("recursive", "false").lower() == "true"
        names = sorted(path for path in entries if recursive or "/" not in path.removeprefix(prefix))
        start = int(self.query.get("cursor", 0))
        headers = {"Content-Type": "application/json"}
        if start + PAGE < len(names):
            here = urlsplit(self.path).path
            flags = f"recursive={str(recursive).lower()}&cursor={start + PAGE}"
            headers["Link"] = f'<{self.hub.api_url}{here}?{flags}>; rel="next"'
        return 200, json.dumps([entries[path] for path in names[start : start + PAGE]]).encode(), headers

    def entry(self, commit: Commit, path: str, blob: Blob) -> dict:
        last = {"id": commit.oid, "title": commit.title, "date": commit.date}
        return {
            "type": "file",
            "path": path,
            "oid": blob.oid,
            "size": blob.size,
            "lastCommit": last,
            **blob.lfs("oid"),
        }

    def paths_info(self, kind: str, name: str, revision: str) -> list:
        commit = self.repo(kind, name).commit(revision)
        found = []
        for path in parse_qs(self.body.decode()).get("paths", []):
            if path in commit.files:
                found.append(self.entry(commit, path, commit.files[path]))
            elif any(file.startswith(path + "/") for file in commit.files):
                found.append({"type": "directory", "path": path, "oid": git_blob_oid(path.encode()), "size": 0})
        return found

    def refs(self, kind: str, name: str) -> dict:
        repo = self.repo(kind, name)

        def rows(prefix: str, named: dict[str, Commit]) -> list:
            return [{"name": n, "ref": f"refs/{prefix}/{n}", "targetCommit": c.oid} for n, c in named.items()]

        return {"branches": rows("heads", repo.branches), "tags": rows("tags", repo.tags),
                "converts": [], "pullRequests": []}  # fmt: skip

    def history(self, kind: str, name: str, revision: str) -> list:
        commit, rows = self.repo(kind, name).commit(revision), []
        while commit is not None:
            rows.append({"id": commit.oid, "title": commit.title, "message": commit.message, "date": commit.date,
                         "authors": [{"user": USER}]})  # fmt: skip
            commit = commit.parent
        return rows

    def create_branch(self, kind: str, name: str, branch: str) -> dict:
        repo = self.repo(kind, name, write=True)
        with self.hub.lock:
            if branch in repo.branches:
                raise Refusal(409, f"Reference already exists: {branch}")
            repo.branches[branch] = repo.commit(json.loads(self.body or b"{}").get("startingPoint", "main"))
        return {}

    def create_tag(self, kind: str, name: str, revision: str) -> dict:
        repo, tag = self.repo(kind, name, write=True), json.loads(self.body)["tag"]
        with self.hub.lock:
            if tag in repo.tags:
                raise Refusal(409, f"Tag reference exists already: {tag}")
            repo.tags[tag] = repo.commit(revision)
        return {}

    def preupload(self, kind: str, name: str, revision: str) -> dict:
        present = self.repo(kind, name, write=True).commit(revision).files
        files = []
        for file in json.loads(self.body)["files"]:
            lfs = file["path"].endswith(LFS_SUFFIXES) or file["size"] >= LFS_SIZE
            blob = present.get(file["path"])
            oid = blob and (blob.sha256 or blob.oid)
            mode = "lfs" if lfs else "regular"
            files.append({"path": file["path"], "uploadMode": mode, "shouldIgnore": False, "oid": oid})
        return {"files": files}

    def lfs_batch(self, kind: str, name: str) -> dict:
        self.repo(kind, name, write=True)
        objects = []
        for asked in json.loads(self.body)["objects"]:
            sha256, size = asked["oid"], asked["size"]
            row = {"oid": sha256, "size": size}
            if not self.hub.has(sha256):
                upload: dict[str, Any] = {"href": self.hub.signed(f"/upload/{sha256}")}
                if size > self.hub.part_size:
                    count = math.ceil(size / self.hub.part_size)
                    parts = {str(n): self.hub.signed(f"/upload/{sha256}/{n}") for n in range(1, count + 1)}
                    header = {"chunk_size": str(self.hub.part_size), **parts}
                    upload = {"href": self.hub.signed(f"/complete/{sha256}"), "header": header}
                verify = {"href": f"{self.hub.api_url}/{kind}{name}.git/info/lfs/objects/verify"}
                row["actions"] = {"upload": upload, "verify": verify}
            objects.append(row)
        return {"transfer": "basic", "objects": objects}

    def lfs_verify(self, kind: str, name: str) -> dict:
        self.repo(kind, name, write=True)
        asked = json.loads(self.body)
        if not self.hub.has(asked["oid"]) or len(self.hub.get(asked["oid"])) != asked["size"]:
            raise Refusal(404, f"LFS object {asked['oid']} is missing or of another size")
        return {}

    def commit(self, kind: str, name: str, branch: str) -> dict:
        repo = self.repo(kind, name, write=True)
        lines = [json.loads(line) for line in self.body.splitlines()]
        header = lines[0]["value"]
        self.noted = {"parent": header.get("parentCommit")}
        with self.hub.lock:
            head = repo.branches.get(branch)
            if head is None:
                raise Refusal(404, f"Invalid rev id: {branch}", "RevisionNotFound")
            if header.get("parentCommit") not in (None, head.oid):
                raise Refusal(412, "A commit has happened since. Please refresh and try again.")
            files = dict(head.files)
            for line in lines[1:]:
                self.apply(files, line["key"], line["value"])
            commit = repo.add_commit(branch, header["summary"], header.get("description", ""), files)
        url = f"{self.hub.api_url}/{'' if kind == 'models' else kind + '/'}{name}/commit/{commit.oid}"
        return {"success": True, "commitOid": commit.oid, "commitUrl": url, "hookOutput": ""}

    def apply(self, files: dict[str, Blob], key: str, value: dict) -> None:
        path = value["path"]
        if key == "file":
            files[path] = self.store(base64.b64decode(value["content"]))
        elif key == "lfsFile":
            if not self.hub.has(value["oid"]):
                raise Refusal(400, f"LFS pointer of {path} points to a file that does not exist")
            files[path] = Blob.of_lfs(value["oid"], len(self.hub.get(value["oid"])))
        elif key in ("deletedFile", "deletedFolder"):
            gone = [f for f in files if f == path or (key == "deletedFolder" and f.startswith(path.rstrip("/") + "/"))]
            if not gone:
                raise Refusal(404, "A file with this name doesn't exist", "EntryNotFound")
            for file in gone:
                del files[file]
        else:
            raise Refusal(400, f"unknown operation {key}")

    def resolve(self, kind: str, name: str, revision: str, path: str) -> tuple[int, bytes, dict]:
        commit = self.repo(kind, name).commit(revision)
        blob = commit.files.get(path)
        if blob is None:
            raise Refusal(404, "Entry not found", "EntryNotFound")
        headers = {"X-Repo-Commit": commit.oid, "ETag": f'"{blob.oid}"', "Accept-Ranges": "bytes"}
        if blob.sha256 is None:
            return 200, self.hub.get(blob.oid), headers
        linked = {"X-Linked-Size": str(blob.size), "X-Linked-ETag": f'"{blob.sha256}"'}
        return 302, b"", {**headers, **linked, "Location": self.hub.signed(f"/objects/{blob.sha256}")}


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--port", type=int, default=0, help="port of the API; 0 takes a free one")
    parser.add_argument("--root", type=Path, required=True, help="folder for contents and the log of requests")
    parser.add_argument("--part-size", type=int, default=8 * 2**20, help="bytes above which uploads go in parts")
    parser.add_argument("--stop-with-stdin", action="store_true", help="end when standard input is closed")
    settings = parser.parse_args()
    hub = Hub(settings.root, settings.part_size)
    api = Server(("127.0.0.1", settings.port), type("LocalApi", (Api,), {"hub": hub}))
    storage = Server(("127.0.0.1", 0), type("LocalStorage", (Storage,), {"hub": hub}))
    hub.api_url = f"http://127.0.0.1:{api.server_address[1]}"
    hub.storage_url = f"http://localhost:{storage.server_address[1]}"
    for server in (api, storage):
        threading.Thread(target=server.serve_forever, daemon=True).start()
    print(f"HF_ENDPOINT={hub.api_url}", flush=True)
    print(f"HF_TOKEN={TOKEN}", flush=True)
    if settings.stop_with_stdin:
        sys.stdin.read()
    else:
        threading.Event().wait()


if __name__ == "__main__":
    main()
