"""Token streams on the Hub: each shard is downloaded when it is first read, and kept in huggingface_hub's cache.

The address is pinned to one commit when the stream is opened, so a stream does not change under a reader. Every
process compares a shard with the SHA-256 in the index before it first reads it. A download that breaks off continues
where it stopped.
"""

import threading
from pathlib import Path

from ...errors import InputError
from ...files import file_digest
from ...hub.download import Repository, download_file
from .index import INDEX_NAME, TokenIndex, read_index

_DEFAULT_SPLIT = "train"


class RemoteFiles:
    """The files of one token stream on the Hub.

    Args:
        address (`str`): `hf://datasets/USER/NAME`, with an optional `@REVISION`, and the folder of the stream in the
            repository after it. Without such a folder the stream is the one at the top, or else `train`.

    Attributes:
        address (`str`): the same with the folder and the commit.
        index ([`TokenIndex`]): the index of the stream.
        folder (`Path`): folder of the files in the cache.

    Raises:
        `InputError`: there is no such repository or no token stream in it, or the Hub refuses or cannot be reached.
    """

    def __init__(self, address: str):
        repository, path = _find_index(Repository.parse(address))
        self.folder = path.parent
        self._repository = repository.at(repository.commit_of(path))
        self.address = str(self._repository)
        self.index: TokenIndex = read_index(self.folder, check_files=False)
        self._digests = self.index.digests
        self._verified: set[str] = set()
        self._lock = threading.Lock()

    def fetch(self, name: str) -> Path:
        """Download a file of the stream unless the cache has it, and compare it with the index.

        Raises:
            `InputError`: the Hub refuses or cannot be reached, or its file is not the one that the index describes.
        """
        with self._lock:
            path = download_file(self._repository / name)
            if name in self._verified:
                return path
            if file_digest(path) != self._digests[name]:  # damaged on this disk, or wrong on the Hub
                path = download_file(self._repository / name, again=True)
                digest = file_digest(path)
                if digest != self._digests[name]:
                    raise InputError(
                        f"{self._repository / name}: SHA-256 is {digest}, but {INDEX_NAME} says "
                        f"{self._digests[name]}; the repository is damaged, push the stream to it again"
                    )
            self._verified.add(name)
            return path


def _find_index(repository: Repository) -> tuple[Repository, Path]:
    """The folder of a stream and its index: the given folder, or at the top of a repository also `train`."""
    try:
        return repository, download_file(repository / INDEX_NAME)
    except InputError:
        if repository.path:
            raise
    repository = repository / _DEFAULT_SPLIT
    return repository, download_file(repository / INDEX_NAME)
