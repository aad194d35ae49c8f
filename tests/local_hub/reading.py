"""Routes of the API that change nothing: who, which repositories, revisions, files and commits."""

import json
import re
from typing import cast
from urllib.parse import parse_qs, urlencode, urlsplit

from .handler import TOKEN, Handler, Reply, routes
from .repositories import Blob, Commit, Kind, Refusal, Repo, git_blob_oid

_PAGE = 50  # rows of a listing


def front_matter(text: str) -> dict:
    """The metadata at the beginning of a card.

    Raises:
        `Refusal`: it is not YAML, or not a mapping.
    """
    import yaml

    from hmm_datasets.files import parse_yaml

    block = re.match(r"\s*---\r?\n([\s\S]*?)\r?\n---", text)
    try:
        found = parse_yaml(block[1]) if block else {}
    except yaml.YAMLError as error:
        raise Refusal(400, "bad metadata", errors=[{"message": f"not YAML: {error}"}]) from None
    if not isinstance(found, dict | None):
        raise Refusal(400, "bad metadata", errors=[{"message": "the metadata is not a mapping"}])
    # Dates are not JSON.
    return json.loads(json.dumps(found or {}, default=str))


class Reading(Handler):
    """The routes of readers. Private repositories are found with the token only."""

    server_name = "hub"
    routes = routes("""
        GET    /                                        home
        GET    /api/whoami-v2                           whoami
        POST   /api/validate-yaml                       validate_yaml
        GET    /api/{kind}                              listing
        GET    {api}                                    info
        GET    {api}/revision/{rev}                     info
        GET    {api}/tree/{rev}                         tree
        GET    {api}/tree/{rev}/{path}                  tree
        POST   {api}/paths-info/{rev}                   paths_info
        GET    {api}/refs                               refs
        GET    {api}/commits/{rev}                      history
        GET    {api}/auth-check                         may_read
        GET    {api}/parquet                            parquet
        GET    {repo}/resolve/{rev}/{path}              resolve
    """)

    def authorize(self) -> None:
        """Refuse another token than the one of this server; without one, public repositories can be read."""
        self.known = self.headers.get("Authorization") == f"Bearer {TOKEN}"
        if self.has_token and not self.known:
            raise Refusal(401, "Invalid credentials in Authorization header")

    def repo(self, kind: str, name: str) -> Repo:
        """A repository that this client may read; `kind` may be as in an address, such as `"datasets/"`."""
        repo = self.hub.repositories.get(cast(Kind, kind.strip("/") or "models"), name)
        if repo is None or (repo.private and not self.known):
            raise Refusal(404, "Repository not found", "RepoNotFound")
        return repo

    def address(self, repo: Repo) -> str:
        """The address of a repository."""
        return f"{self.api_url}/{'' if repo.kind == 'models' else repo.kind + '/'}{repo.id}"

    def home(self) -> dict:
        """What somebody sees who opens the address of the server."""
        return {"hub": "local", "user": self.hub.user}

    def whoami(self) -> dict:
        """The account of the token."""
        if not self.known:
            raise Refusal(401, "Invalid username or password.")
        token = {"accessToken": {"displayName": "local", "role": "write"}}
        user = self.hub.user
        return {"type": "user", "id": user, "name": user, "fullname": user, "orgs": [], "auth": token}

    def validate_yaml(self) -> dict:
        """Check the metadata of a card."""
        metadata = front_matter(self.asked().get("content", ""))
        warnings = [] if metadata else [{"message": "empty or missing yaml metadata in repo card"}]
        return {"errors": [], "warnings": warnings}

    def listing(self, kind: str) -> Reply:
        """Repositories by author, words in their names and tags."""
        asked = parse_qs(urlsplit(self.path).query)
        author, words = self.query.get("author"), self.query.get("search", "").lower().split()
        rows = []
        for repo in self.hub.repositories.of(cast(Kind, kind)):
            if author not in (None, repo.id.split("/")[0]) or (repo.private and not self.known):
                continue
            row = self.described(repo, repo.commit("main"))
            if all(word in repo.id.lower() for word in words) and set(asked.get("filter", ())) <= set(row["tags"]):
                rows.append(row)
        return self._page(rows)

    def info(self, kind: str, name: str, revision: str = "main") -> dict:
        """What is known of a repository at a revision."""
        repo = self.repo(kind, name)
        return self.described(repo, repo.commit(revision))

    def described(self, repo: Repo, commit: Commit) -> dict:
        """A repository in the form of the real Hub; its tags are those of its card."""
        card = self._card(commit)
        tags = card.get("tags")
        siblings = [
            {"rfilename": path, "blobId": blob.oid, "size": blob.size, **blob.lfs("sha256")}
            for path, blob in commit.files.items()
        ]
        return {
            "id": repo.id, "author": repo.id.split("/")[0], "sha": commit.oid, "lastModified": commit.date,
            "createdAt": repo.history(commit.oid)[-1].date, "private": repo.private, "gated": False,
            "disabled": False, "downloads": 0, "likes": 0, "tags": tags if isinstance(tags, list) else [],
            "pipeline_tag": card.get("pipeline_tag"), "library_name": card.get("library_name"), "cardData": card,
            "siblings": siblings,
        }  # fmt: skip

    def _card(self, commit: Commit) -> dict:
        blob = commit.files.get("README.md")
        if blob is None or blob.sha256 is not None:
            return {}
        try:
            # Dates and the like become text, as on the real Hub.
            return json.loads(json.dumps(front_matter(self._text(blob)), default=str))
        except Refusal:
            return {}

    def _text(self, blob: Blob) -> str:
        return self.hub.repositories.contents.read(blob.oid).decode("utf-8", "replace")

    def tree(self, kind: str, name: str, revision: str, folder: str = "") -> Reply:
        """The files and folders in a folder."""
        commit = self.repo(kind, name).commit(revision)
        prefix = folder.strip("/") + "/" if folder.strip("/") else ""
        entries: dict[str, dict] = {}
        for path, blob in commit.files.items():
            if path.startswith(prefix):
                steps = path.removeprefix(prefix).split("/")
                for number in range(1, len(steps)):
                    parent = prefix + "/".join(steps[:number])
                    entries[parent] = self._folder_entry(parent)
                entries[path] = self._file_entry(commit, path, blob)
        if prefix and not entries:
            raise Refusal(404, f"{folder} does not exist on {revision}", "EntryNotFound")
        recursive = self.query.get("recursive", "false").lower() in ("true", "1")
        return self._page(
            [entries[path] for path in sorted(entries) if recursive or path.count("/") == prefix.count("/")]
        )

    def _page(self, rows: list[dict]) -> Reply:
        """The rows from the `cursor` of the query on, with a link to those that follow."""
        start = int(self.query.get("cursor", 0))
        page = min(_PAGE, int(self.query.get("limit", _PAGE)))
        status, content, headers = self._json(rows[start : start + page])
        if start + page < len(rows):
            query = urlencode({**self.query, "cursor": start + page})
            headers["Link"] = f'<{self.api_url}{urlsplit(self.path).path}?{query}>; rel="next"'
        return status, content, headers

    @staticmethod
    def _folder_entry(path: str) -> dict:
        return {"type": "directory", "oid": git_blob_oid(path.encode()), "size": 0, "path": path}

    @staticmethod
    def _file_entry(commit: Commit, path: str, blob: Blob) -> dict:
        last = {"id": commit.oid, "title": commit.title, "date": commit.date}
        return {"type": "file", "path": path, "oid": blob.oid, "size": blob.size, "lastCommit": last, **blob.lfs()}

    def paths_info(self, kind: str, name: str, revision: str) -> list:
        """The same for given paths; those that do not exist are left out."""
        commit = self.repo(kind, name).commit(revision)
        if "json" in self.headers.get("Content-Type", ""):
            paths = self.asked().get("paths", [])
        else:
            paths = parse_qs(self.body.decode()).get("paths", [])
        found = []
        for path in paths:
            if path in commit.files:
                found.append(self._file_entry(commit, path, commit.files[path]))
            elif any(file.startswith(path.rstrip("/") + "/") for file in commit.files):
                found.append(self._folder_entry(path.rstrip("/")))
        return found

    def refs(self, kind: str, name: str) -> dict:
        """Branches, tags and pull requests."""
        repo = self.repo(kind, name)

        def rows(prefix: str, start: str) -> list:
            found = ((ref.removeprefix(start), ref, oid) for ref, oid in repo.refs.items() if ref.startswith(prefix))
            return [{"name": short, "ref": ref, "targetCommit": oid} for short, ref, oid in found]

        return {
            "branches": rows("refs/heads/", "refs/heads/"), "tags": rows("refs/tags/", "refs/tags/"),
            "converts": [], "pullRequests": rows("refs/pr/", "refs/pr/") if "include_prs" in self.query else [],
        }  # fmt: skip

    def history(self, kind: str, name: str, revision: str) -> Reply:
        """The commits that led to a revision."""
        rows = [
            {"id": commit.oid, "title": commit.title, "message": commit.message, "date": commit.date,
             "authors": [{"user": self.hub.user}]}
            for commit in self.repo(kind, name).history(revision)
        ]  # fmt: skip
        return self._page(rows)

    def may_read(self, kind: str, name: str) -> dict:
        """Whether this client may read a repository."""
        self.repo(kind, name)
        return {}

    def parquet(self, kind: str, name: str) -> dict:
        """This server converts nothing to Parquet."""
        self.repo(kind, name)
        raise Refusal(404, "The local Hub makes no Parquet files of data sets", "EntryNotFound")

    def resolve(self, kind: str, name: str, revision: str, path: str) -> Reply:
        """A file, or the address of its content in storage."""
        commit = self.repo(kind, name).commit(revision)
        blob = commit.files.get(path)
        if blob is None:
            raise Refusal(404, "Entry not found", "EntryNotFound")
        headers = {"X-Repo-Commit": commit.oid, "ETag": f'"{blob.oid}"', "Accept-Ranges": "bytes"}
        if blob.sha256 is None:
            return 200, self.hub.repositories.contents.existing(blob.oid), headers
        linked = {"X-Linked-Size": str(blob.size), "X-Linked-ETag": f'"{blob.sha256}"'}
        return 302, b"", {**headers, **linked, "Location": self.signed(f"/objects/{blob.sha256}")}
