"""The storage of the local Hub: contents by SHA-256, uploaded by Git LFS or Xet and downloaded by plain HTTP."""

import hashlib
import hmac
import shutil
from urllib.parse import urlsplit

from .handler import Handler, Reply, routes
from .repositories import Refusal
from .xet import store_files, xorb_name


class Storage(Handler):
    """Signed addresses for Git LFS and downloads, and one for Xet with a token of its own."""

    server_name = "storage"
    routes = routes("""
        PUT  /upload/{sha}                          upload
        PUT  /upload/{sha}/{number}                 upload_part
        POST /complete/{sha}                        complete
        GET  /objects/{sha}                         download
        GET  /xet/{rev}/v1/chunks/{rev}/{sha}       find_chunk
        POST /xet/{rev}/v1/xorbs/{rev}/{sha}        upload_xorb
        POST /xet/{rev}/v1/shards                   upload_shard
    """)

    def authorize(self) -> None:
        """Refuse a token of the API, and an address that was not made by this server."""
        if self.has_token:
            raise Refusal(400, "storage was sent a token")
        path = urlsplit(self.path).path
        if path.startswith("/xet/"):
            if not path.startswith(f"{self.hub.xet_path}/") or "Authorization" not in self.headers:
                raise Refusal(401, "no access to Xet")
        elif not hmac.compare_digest(self.query.get("signature", ""), self.hub.signature(path)):
            raise Refusal(403, "bad signature")

    def upload(self, sha256: str) -> dict:
        """Store a file."""
        if hashlib.sha256(self.body).hexdigest() != sha256:
            raise Refusal(400, "content does not match its sha256")
        self.hub.repositories.contents.put(sha256, self.body)
        return {}

    def upload_part(self, sha256: str, number: str) -> Reply:
        """Store a part of a file."""
        self.hub.repositories.contents.put(f"{sha256}.part{int(number)}", self.body)
        return 200, b"", {"ETag": f'"{hashlib.md5(self.body).hexdigest()}"'}

    def complete(self, sha256: str) -> dict:
        """Put the parts of a file together."""
        contents = self.hub.repositories.contents
        if contents.has(sha256):  # the reply to an earlier request was lost
            return {}
        names = [f"{sha256}.part{int(part['partNumber'])}" for part in self.asked()["parts"]]
        with contents.writing() as (file, keep):
            for name in names:
                with contents.existing(name).open("rb") as part:
                    shutil.copyfileobj(part, file)
            file.flush()
            with open(file.name, "rb") as whole:
                found = hashlib.file_digest(whole, "sha256").hexdigest()
            if found == sha256:
                keep(sha256)
        for name in names:
            contents.remove(name)
        if found != sha256:
            raise Refusal(400, "the parts do not match the sha256 of the file")
        return {}

    def download(self, sha256: str) -> Reply:
        """A file."""
        path = self.hub.repositories.contents.existing(sha256)
        return 200, path, {"ETag": f'"{sha256}"', "Accept-Ranges": "bytes"}

    def find_chunk(self, *_: str) -> dict:
        """Chunks of other clients are not looked for; this is how clients are told to send theirs."""
        raise Refusal(404, "unknown chunk")

    def upload_xorb(self, storage: str, prefix: str, identifier: str) -> dict:
        """Store a xorb."""
        contents, name = self.hub.repositories.contents, xorb_name(identifier)
        is_new = not contents.has(name)
        contents.put(name, self.body)
        return {"was_inserted": is_new}

    def upload_shard(self, storage: str) -> dict:
        """Store the files that a shard describes."""
        store_files(self.hub.repositories.contents, self.body)
        return {"result": 1}
