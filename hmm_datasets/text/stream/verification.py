"""Verification of the files of a token stream: their SHA-256 must be that in `index.json`.

Opening a stream of up to 256 MB compares its files, which takes half a second or less. Those of a larger stream are
compared by `hmm-datasets verify`, and when it is opened only their sizes. Of several processes on a machine only the
first one compares (`LOCAL_RANK` 0); loader workers do not.
"""

from collections.abc import Iterator
from pathlib import Path

from ...errors import InputError
from ...files import file_digest
from ...runtime import environment
from .index import INDEX_NAME, TokenIndex

AT_ONCE = 256 * 10**6
"""Maximum size in bytes of a stream whose files are compared when it is opened."""


def check_if_small(folder: Path, index: TokenIndex) -> None:
    """Raise [`InputError`] if a file of a stream of up to 256 MB differs, in the first process of this machine."""
    if environment.local_rank() == 0 and sum((folder / name).stat().st_size for name in index.digests) <= AT_ONCE:
        for problem in differing_files(folder, index.digests):
            raise InputError(problem)


def differing_files(folder: Path, digests: dict[str, str]) -> Iterator[str]:
    """Yield an error message for each file of a folder whose SHA-256 differs from the expected one."""
    for name, expected in digests.items():
        digest = file_digest(folder / name)
        if digest != expected:
            yield (
                f"{folder / name}: SHA-256 is {digest}, but {INDEX_NAME} says {expected}; "
                "the file changed since it was written, copy or write it again"
            )
