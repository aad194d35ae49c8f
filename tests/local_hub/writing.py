"""Routes of the API that change repositories, or prepare an upload."""

import base64
import json
import math
import time
from typing import Any

from .faults import Fault
from .handler import Reply, routes
from .reading import Reading
from .repositories import KINDS, Blob, Commit, Kind, Refusal, Repo

# Files with these endings, or of this size in bytes, are uploaded to storage.
_LFS_SUFFIXES = (".safetensors", ".bin", ".parquet", ".arrow", ".npy", ".npz", ".pt", ".zip", ".gz")
_LFS_SIZE = 10 * 2**20
_ATTRIBUTES = "".join(f"*{suffix} filter=lfs diff=lfs merge=lfs -text\n" for suffix in _LFS_SUFFIXES)
_XET_SECONDS = 3600


class Api(Reading):
    """All routes of the API. Only the user of the server writes, and only in the user's own namespace."""

    routes = Reading.routes + routes("""
        POST   /faults                                  order_fault
        DELETE /faults                                  clear_faults
        POST   /api/repos/create                        create
        DELETE /api/repos/delete                        delete
        POST   /api/repos/move                          move
        PUT    {api}/settings                           settings
        GET    {api}/auth-check/write                   writable
        POST   {api}/branch/{rev}                       create_branch
        DELETE {api}/branch/{rev}                       delete_branch
        POST   {api}/tag/{rev}                          create_tag
        DELETE {api}/tag/{rev}                          delete_tag
        POST   {api}/super-squash/{rev}                 squash
        POST   {api}/preupload/{rev}                    preupload
        GET    {api}/xet-write-token/{rev}              xet_token
        POST   {api}/commit/{rev}                       commit
        POST   {api}/discussions/{number}/merge         merge
        POST   {repo}\\.git/info/lfs/objects/batch      lfs_batch
        POST   {repo}\\.git/info/lfs/objects/verify     lfs_verify
    """)

    def writable(self, kind: str, name: str) -> Repo:
        """A repository that this client may change."""
        repo = self.repo(kind, name)
        self._may_write(name.split("/")[0])
        return repo

    def _may_write(self, namespace: str) -> None:
        if not self.known:
            raise Refusal(401, "Invalid username or password.")
        if namespace != self.hub.user:
            raise Refusal(
                403, f'You don\'t have the rights to write under the namespace "{namespace}"; yours is {self.hub.user}'
            )

    def order_fault(self) -> dict:
        """Order a fault, if this server is for tests."""
        if self.hub.testing is None:
            raise Refusal(404, "faults can be ordered with --testing only")
        self.hub.testing.order(Fault(**self.asked()))
        return {}

    def clear_faults(self) -> dict:
        """Forget all faults that were ordered."""
        if self.hub.testing is not None:
            self.hub.testing.clear()
        return {}

    def create(self) -> dict:
        """Make a repository."""
        asked = self.asked()
        kind, name = self._asked_repo(asked)
        with self.hub.repositories.lock:
            repo = self.hub.repositories.get(kind, name)
            if repo is not None:
                url = self.address(repo)
                raise Refusal(409, f"You already created this {kind[:-1]} repo", url=url, name=name, id=name)
            private = asked.get("visibility") == "private" or asked.get("private") is True
            files = {".gitattributes": _ATTRIBUTES.encode()}
            repo = self.hub.repositories.create(kind, name, private, files)
        return {"url": self.address(repo), "name": name, "id": name}

    def _asked_repo(self, asked: dict[str, Any]) -> tuple[Kind, str]:
        """The kind and name in a request to create or delete a repository."""
        kind = f"{asked.get('type') or 'model'}s"
        if kind not in KINDS:
            raise Refusal(400, f"The local Hub has repositories of models and data sets, not of {kind}")
        namespace = asked.get("organization") or self.hub.user
        self._may_write(namespace)
        return kind, f"{namespace}/{asked.get('name', '')}"

    def delete(self) -> dict:
        """Delete a repository."""
        with self.hub.repositories.lock:
            self.hub.repositories.delete(self.writable(*self._asked_repo(self.asked())))
        return {}

    def move(self) -> dict:
        """Rename a repository. The old name is free then; it does not lead to the new one."""
        asked = self.asked()
        kind, name = f"{asked.get('type') or 'model'}s", asked["toRepo"]
        with self.hub.repositories.lock:
            repo = self.writable(kind, asked["fromRepo"])
            self._may_write(name.split("/")[0])
            if self.hub.repositories.get(repo.kind, name) is not None:
                raise Refusal(409, f"{name} already exists")
            self.hub.repositories.move(repo, name)
        return {"url": self.address(repo)}

    def settings(self, kind: str, name: str) -> dict:
        """Make a repository private or public."""
        asked = self.asked()
        with self.hub.repositories.lock:
            repo = self.writable(kind, name)
            if "visibility" in asked or "private" in asked:
                repo.change(private=asked.get("visibility") == "private" or asked.get("private") is True)
        return {"private": repo.private}

    def create_branch(self, kind: str, name: str, branch: str) -> dict:
        """Let a new branch point to a commit."""
        return self._create_ref(kind, name, "refs/heads/", branch, self.asked().get("startingPoint") or "main")

    def create_tag(self, kind: str, name: str, revision: str) -> dict:
        """Let a new tag point to a commit."""
        return self._create_ref(kind, name, "refs/tags/", self.asked()["tag"], revision)

    def _create_ref(self, kind: str, name: str, prefix: str, short: str, revision: str) -> dict:
        with self.hub.repositories.lock:
            repo = self.writable(kind, name)
            ref = prefix + short.removeprefix(prefix)
            if ref in repo.refs:
                raise Refusal(409, f"Reference already exists: {ref}")
            repo.change(refs={**repo.refs, ref: repo.commit(revision).oid})
        return {}

    def delete_branch(self, kind: str, name: str, branch: str) -> dict:
        """Delete a branch; its commits can still be read by their ids."""
        if branch.removeprefix("refs/heads/") == "main":
            raise Refusal(400, "The branch main cannot be deleted")
        return self._delete_ref(kind, name, "refs/heads/", branch)

    def delete_tag(self, kind: str, name: str, tag: str) -> dict:
        """Delete a tag."""
        return self._delete_ref(kind, name, "refs/tags/", tag)

    def _delete_ref(self, kind: str, name: str, prefix: str, short: str) -> dict:
        with self.hub.repositories.lock:
            repo = self.writable(kind, name)
            ref = prefix + short.removeprefix(prefix)
            if ref not in repo.refs:
                raise Refusal(404, f"Reference does not exist: {ref}", "RevisionNotFound")
            repo.change(refs={other: oid for other, oid in repo.refs.items() if other != ref})
        return {}

    def squash(self, kind: str, name: str, branch: str) -> dict:
        """Replace the commits of a branch with one."""
        with self.hub.repositories.lock:
            repo = self.writable(kind, name)
            ref, head = self._head(repo, branch)
            repo.add_commit(ref, self.asked().get("message", "squashed"), "", head.files)
        return {}

    def _head(self, repo: Repo, branch: str) -> tuple[str, Commit]:
        """A branch or pull request that can be written to, and its newest commit."""
        ref = repo.ref(branch)
        if ref is None or ref.startswith("refs/tags/"):
            raise Refusal(404, f"Invalid rev id: {branch}", "RevisionNotFound")
        return ref, repo.commit(ref)

    def preupload(self, kind: str, name: str, revision: str) -> dict:
        """How each file is to be uploaded: within the commit, or to storage."""
        present = self.writable(kind, name).commit(revision).files
        files = []
        for file in self.asked()["files"]:
            lfs = file["path"].endswith(_LFS_SUFFIXES) or file["size"] >= _LFS_SIZE
            blob = present.get(file["path"])
            oid = blob and (blob.sha256 or blob.oid)
            mode = "lfs" if lfs else "regular"
            files.append({"path": file["path"], "uploadMode": mode, "shouldIgnore": False, "oid": oid})
        return {"files": files}

    def xet_token(self, kind: str, name: str, revision: str) -> Reply:
        """Address of the storage for Xet, and the token for it."""
        self.writable(kind, name)
        url, token = f"{self.storage_url}{self.hub.xet_path}", self.hub.xet_token
        ends = int(time.time()) + _XET_SECONDS
        headers = {"X-Xet-Cas-Url": url, "X-Xet-Access-Token": token, "X-Xet-Token-Expiration": str(ends)}
        return self._json({"casUrl": url, "accessToken": token, "exp": ends}, headers=headers)

    def lfs_batch(self, kind: str, name: str) -> dict:
        """Where to upload files by Git LFS; those that are there need none."""
        repo = self.writable(kind, name)
        objects = []
        for asked in self.asked()["objects"]:
            sha256, size = asked["oid"], asked["size"]
            row = {"oid": sha256, "size": size}
            if not self.hub.repositories.contents.has(sha256):
                upload: dict[str, Any] = {"href": self.signed(f"/upload/{sha256}")}
                if size > self.hub.part_size:
                    count = math.ceil(size / self.hub.part_size)
                    parts = {str(n): self.signed(f"/upload/{sha256}/{n}") for n in range(1, count + 1)}
                    header = {"chunk_size": str(self.hub.part_size), **parts}
                    upload = {"href": self.signed(f"/complete/{sha256}"), "header": header}
                verify = {"href": f"{self.address(repo)}.git/info/lfs/objects/verify"}
                row["actions"] = {"upload": upload, "verify": verify}
            objects.append(row)
        return {"transfer": "basic", "objects": objects}

    def lfs_verify(self, kind: str, name: str) -> dict:
        """Whether a file has arrived in storage."""
        self.writable(kind, name)
        asked, contents = self.asked(), self.hub.repositories.contents
        if not contents.has(asked["oid"]) or contents.path(asked["oid"]).stat().st_size != asked["size"]:
            raise Refusal(404, f"LFS object {asked['oid']} is missing or of another size")
        return {}

    def commit(self, kind: str, name: str, branch: str) -> dict:
        """Make a commit on a branch, or on a new pull request for it."""
        try:
            header, *lines = [json.loads(line) for line in self.body.splitlines()]
        except ValueError:
            raise Refusal(400, "the body is not lines of JSON") from None
        header = header["value"]
        self.noted = {"parent": header.get("parentCommit")}
        with self.hub.repositories.lock:
            repo = self.writable(kind, name)
            ref, head = self._head(repo, branch)
            if header.get("parentCommit") not in (None, head.oid):
                raise Refusal(412, "A commit has happened since. Please refresh and try again.")
            files = dict(head.files)
            for line in lines:
                self._apply(files, line["key"], line["value"])
            reply: dict[str, Any] = {"success": True, "hookOutput": ""}
            if "create_pr" in self.query:
                number = 1 + sum(other.startswith("refs/pr/") for other in repo.refs)
                ref = f"refs/pr/{number}"
                reply["pullRequestUrl"] = f"{self.address(repo)}/discussions/{number}"
            commit = repo.add_commit(ref, header["summary"], header.get("description", ""), files, head.oid)
        return {**reply, "commitOid": commit.oid, "commitUrl": f"{self.address(repo)}/commit/{commit.oid}"}

    def _apply(self, files: dict[str, Blob], key: str, value: dict) -> None:
        """Apply one line of a commit to the files of a repository."""
        path, contents = value["path"], self.hub.repositories.contents
        if key == "file":
            files[path] = self.hub.repositories.store(base64.b64decode(value["content"]))
        elif key == "lfsFile":
            if not contents.has(value["oid"]):
                raise Refusal(400, f"LFS pointer of {path} points to a file that does not exist")
            files[path] = Blob.of_lfs(value["oid"], contents.path(value["oid"]).stat().st_size)
        elif key in ("deletedFile", "deletedFolder"):
            gone = [f for f in files if f == path or (key == "deletedFolder" and f.startswith(path.rstrip("/") + "/"))]
            if not gone:
                raise Refusal(404, "A file with this name doesn't exist", "EntryNotFound")
            for file in gone:
                del files[file]
        else:
            raise Refusal(400, f"unknown operation {key}")

    def merge(self, kind: str, name: str, number: str) -> dict:
        """Let main have what a pull request changes, if main has not changed since."""
        with self.hub.repositories.lock:
            repo = self.writable(kind, name)
            ref, head = self._head(repo, f"refs/pr/{number}")
            if repo.refs["refs/heads/main"] not in [commit.oid for commit in repo.history(ref)]:
                raise Refusal(409, "main has changed since the pull request was made")
            repo.change(refs={**repo.refs, "refs/heads/main": head.oid})
        return {}
