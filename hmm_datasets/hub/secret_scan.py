"""A search of files for secrets, before they are pushed.

The rules are those of Kingfisher (https://github.com/mongodb/kingfisher, Apache-2.0): tokens and keys of some 490
issuers, each with the words, the entropy and the check sums that tell it from other text, private keys, and passwords
in URLs. It leaves out what has no issuer, such as a password after its name, and what looks like an example in
documentation. Beside it are searched the values of secrets of the environment, without Kingfisher only these.

Files are searched whole, with what is compressed in them (zip, tar, gzip, bzip2, xz, Zstandard, LZ4) and text of two
bytes per character (UTF-16). Columns of Parquet are compressed and are not read.
"""

import bz2
import contextlib
import functools
import gzip
import logging
import lzma
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kingfisher_sdk import Scanner

_logger = logging.getLogger(__name__)

# Rules want white space or a quote behind a token, not what ends it in a sentence, a list, a table or a pickle.
_ENDS_AS_SPACES = bytes(32 if byte in b",.)]}>|&" or byte > 127 else byte for byte in range(256))
_PIECE, _OVERLAP = 1 << 20, 1 << 12
_DEPTH = 4  # of archives in archives
_TAR_MAGIC = slice(257, 262)
_DAMAGED = (
    *(OSError, EOFError, ValueError, RuntimeError, zlib.error, lzma.LZMAError),
    *(zipfile.BadZipFile, tarfile.TarError),
)


_COMPRESSED = {
    b"\x1f\x8b": lambda file: gzip.GzipFile(fileobj=file, mode="rb"),  # whose own mode is no text in a gzip in a gzip
    b"BZh": bz2.BZ2File,
    b"\xfd7zXZ\0": lzma.LZMAFile,
    b"\x28\xb5\x2f\xfd": lambda file: _by_arrow("zstd", file),
    b"\x04\x22\x4d\x18": lambda file: _by_arrow("lz4", file),
}
"""How a compressed file begins, and what reads it."""


def find_secret(path: Path, secrets: Sequence[str] = ()) -> str | None:
    """What a file contains that is a secret by its form or is one of `secrets`, in words; `None` if there is nothing.

    It is read completely. What is compressed in it, also in archives in an archive, is read too, unless it is damaged
    or needs a password.

    Args:
        path (`Path`): the file.
        secrets (sequence of `str`): values to search for, for example from
            [`~hmm_datasets.runtime.credentials.known_secrets`].
    """
    with path.open("rb") as file:
        return _search_stream(file, [secret.encode() for secret in secrets], _DEPTH)


def _by_arrow(codec: str, file: IO[bytes]) -> Any:
    import pyarrow

    return pyarrow.CompressedInputStream(pyarrow.PythonFile(file, mode="r"), codec)


@functools.cache
def _scanner() -> "Scanner | None":
    try:
        from kingfisher_sdk import Scanner
    except ImportError:
        _logger.warning(
            "searched only for the secrets of this environment, not for other tokens, keys and logins; pip install "
            "'hmm-datasets[secrets]'"
        )
        return None
    return Scanner()


def _search_stream(file: IO[bytes], literals: Sequence[bytes], depth: int) -> str | None:
    overlap = max([_OVERLAP, *(2 * len(literal) for literal in literals)])
    before = b""
    while piece := file.read(_PIECE):
        data = before + piece
        # Of text in UTF-16, and UTF-32, nothing is left but its letters.
        if secret := _search(data, literals) or (b"\0" in data and _search(data.replace(b"\0", b""), literals)):
            return secret
        before = data[-overlap:]
    if depth > 0:
        with contextlib.suppress(*_DAMAGED):
            file.seek(0)
            for opening in _members(file):
                with contextlib.suppress(*_DAMAGED), opening() as member:
                    if secret := _search_stream(member, literals, depth - 1):
                        return secret
    return None


def _members(file: IO[bytes]) -> Iterator[Callable[[], Any]]:
    """What opens each file that is compressed or packed in this one."""
    head = file.read(512)
    file.seek(0)
    if decompress := next((function for magic, function in _COMPRESSED.items() if head.startswith(magic)), None):
        yield functools.partial(decompress, file)
    elif head[_TAR_MAGIC] == b"ustar":
        with tarfile.open(fileobj=file, mode="r:") as archive:
            yield from (functools.partial(archive.extractfile, info) for info in archive if info.isreg())
    elif zipfile.is_zipfile(file):
        with zipfile.ZipFile(file) as archive:
            yield from (functools.partial(archive.open, info) for info in archive.infolist())


def _search(data: bytes, literals: Sequence[bytes]) -> str | None:
    if any(literal in data for literal in literals):
        return "the value of a secret of this environment"
    scanner = _scanner()
    for piece in (data, data.translate(_ENDS_AS_SPACES)):
        for finding in scanner.scan(piece) if scanner else ():
            if finding.visible:
                return f"a match of the rule {finding.rule_id}"
    return None
