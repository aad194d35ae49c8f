"""Token streams on the Hub: each shard is downloaded when it is first read, and kept in huggingface_hub's cache.

The address is pinned to one commit when the stream is opened, so a stream does not change under a reader. A download
that breaks off continues where it stopped.
"""

from ...errors import InputError
from ...hub.download import Repository, download_file
from .index import INDEX_NAME

_DEFAULT_SPLIT = "train"


def remote_stream(address: str) -> Repository:
    """The folder of a token stream on the Hub, at the commit that its address means now.

    Args:
        address (`str`): `hf://datasets/USER/NAME`, with an optional `@REVISION`, and the folder of the stream in the
            repository after it. Without such a folder the stream is the one at the top, or else `train`.

    Raises:
        `InputError`: there is no such repository or no token stream in it, or the Hub refuses or cannot be reached.
    """
    repository = Repository.parse(address)
    try:
        path = download_file(repository / INDEX_NAME)
    except InputError:
        if repository.path:
            raise
        repository = repository / _DEFAULT_SPLIT
        path = download_file(repository / INDEX_NAME)
    return repository.at(repository.commit_of(path))
