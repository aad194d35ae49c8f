"""A search of files for secrets, before they are pushed.

The rules are those of Kingfisher (https://github.com/mongodb/kingfisher, Apache-2.0): tokens and keys of some 490
issuers, each with the words, the entropy and the check sums that tell it from other text. It leaves out what has no
issuer, and what looks like an example in documentation. Beside it stand what this package masks in records
(`runtime.credentials`), values after the name of a secret, passwords in URLs, and values of the environment.

Files are searched whole, with what is compressed in them (zip, tar, gzip, bzip2, xz, Zstandard, LZ4) and text of two
bytes per character (UTF-16). Regular expressions of Python would read some 10 MB/s, so they are tried only where 16
characters follow each other that a secret may have, which neither words nor numbers in binary do, or where the name of
a password or the beginning of a URL is. Columns of Parquet are compressed and are not read.
"""

import bz2
import functools
import gzip
import itertools
import lzma
import re
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from ..runtime.credentials import LOGIN_IN_URL, SECRET_FORMS, SECRET_NAMES

if TYPE_CHECKING:
    from kingfisher_sdk import Scanner

# What stands before a value that looks random: 16 characters or more, with at least one digit.
_NAMED = re.compile(
    rf"(?i:(?:{SECRET_NAMES}|bearer|authorization[\"']?\s*[:=]\s*[\"']?(?:basic|token)|"
    rf"\"username\":\s*\"[^\"]{{1,32}}\",\s*\"key\"|[?&]sig))[\"']?\s*(?:[:= ]|=>)\s*[\"'(]{{0,2}}\Z".encode()
)
_NAME_ENDS = (b"token", b"key", b"secret", b"pass", b"pwd", b"hook", b"bearer", b"basic", b"sig=")
_PRIVATE_KEY = b"PRIVATE KEY"
_RUN, _OF_RUNS = b"\1" * 16, bytes(chr(byte).isalnum() or byte in b"_.+/-~" for byte in range(128)) + bytes(128)
_DIGIT, _BEFORE = re.compile(rb"[0-9]"), 64  # bytes before a value, in which its name is
_FORM = re.compile(SECRET_FORMS.encode())
_LOGIN = re.compile(LOGIN_IN_URL.encode(), re.IGNORECASE)
# A password may be shorter than other secrets: a word with a digit that is neither a call nor a placeholder.
_PASSWORD = re.compile(
    rb"(?i)(?:passw(?:or)?d|passphrase|pwd)[\"']?\s*(?:[:=]|=>)\s*[\"']?"
    rb"(?=[^\s\"',;]*[0-9])(?=[^\s\"',;]*[a-z])[^\s\"'`,;<>(){}\[\]$%]{8,}(?=[\s\"',;]|\Z)"
)
_PASSWORD_NAMES = (b"passw", b"passphrase", b"pwd")

# Rules want white space or a quote behind a token, not what ends it in a sentence or a table.
_ENDS_AS_SPACES = bytes.maketrans(b",.)]}>|&", b"        ")
_Open = Callable[[], Any]  # opens a member of an archive, a file of bytes

_PIECE, _OVERLAP = 1 << 20, 1 << 12
_DEPTH = 4  # of archives in archives
_TAR_MAGIC = slice(257, 262)
_COMPRESSED = {
    b"\x1f\x8b": "gzip",
    b"BZh": "bz2",
    b"\xfd7zXZ\0": "xz",
    b"\x28\xb5\x2f\xfd": "zstd",
    b"\x04\x22\x4d\x18": "lz4",
}
"""How a compressed file begins, and its format."""


_DAMAGED = (
    *(OSError, EOFError, ValueError, zlib.error, lzma.LZMAError, zipfile.BadZipFile, tarfile.TarError),
    *(NotImplementedError, RuntimeError),
)


def _decompress(kind: str, file: IO[bytes]) -> Any:  # no type is common to these but what they do
    if kind == "gzip":
        return gzip.GzipFile(fileobj=file, mode="rb")  # whose own mode is no text in a gzip in a gzip
    if kind in ("bz2", "xz"):
        return (bz2.BZ2File if kind == "bz2" else lzma.LZMAFile)(file)
    import pyarrow

    return pyarrow.CompressedInputStream(pyarrow.PythonFile(file, mode="r"), kind)


def find_secret(path: Path, secrets: Sequence[str] = ()) -> str | None:
    """What a file contains that is a secret by its form or is one of `secrets`, in words; `None` if there is nothing.

    It is read completely. What is compressed in it, also in archives in an archive, is read too, unless it is damaged
    or needs a password.

    Args:
        path (`Path`): the file.
        secrets (sequence of `str`): values to search for, for example from
            [`~hmm_datasets.runtime.credentials.known_secrets`].
    """
    literals = [secret.encode() for secret in secrets]
    with path.open("rb") as file:
        return _search_stream(file, literals, _DEPTH)


@functools.cache
def _scanner() -> "Scanner":
    from kingfisher_sdk import Scanner

    return Scanner()


def _search_stream(file: IO[bytes], literals: Sequence[bytes], depth: int) -> str | None:
    overlap = max([_OVERLAP, *(2 * len(literal) for literal in literals)])
    before, piece, is_zip = b"", file.read(_PIECE), False
    first = piece
    while piece:
        data = before + piece
        # Of text in UTF-16, and UTF-32, nothing is left but its letters.
        if secret := _search(data, literals) or (b"\0" in data and _search(data.replace(b"\0", b""), literals)):
            return secret
        is_zip = is_zip or (depth > 0 and b"PK\x05\x06" in data)
        before, piece = data[-overlap:], file.read(_PIECE)
    if depth == 0:
        return None
    kind = next((kind for magic, kind in _COMPRESSED.items() if first.startswith(magic)), None)
    members = [] if kind is None else [lambda: _decompress(kind, _again(file))]
    inner = _tar_members if first[_TAR_MAGIC] == b"ustar" else _members if is_zip else None
    searched = itertools.chain(members, () if inner is None else inner(_again(file)))
    return next(filter(None, (_search_member(member, literals, depth) for member in searched)), None)


def _again(file: IO[bytes]) -> IO[bytes]:
    """The file from its beginning; of one within an archive, which is small or nested, all of it in memory."""
    file.seek(0)
    return file


def _members(file: IO[bytes]) -> Iterator[_Open]:
    try:
        archive = zipfile.ZipFile(file)
    except _DAMAGED:
        return
    for info in archive.infolist():
        if info.compress_type != zipfile.ZIP_STORED or _begins_as_archive(lambda info=info: archive.open(info)):
            yield lambda info=info: archive.open(info)


def _tar_members(file: IO[bytes]) -> Iterator[_Open]:
    """The members that have more in them; all were searched with the archive, in which they are as they are."""
    try:
        with tarfile.open(fileobj=file, mode="r:") as archive:
            for info in archive:
                if info.isreg() and _begins_as_archive(lambda info=info: archive.extractfile(info)):
                    yield lambda info=info: archive.extractfile(info)
    except _DAMAGED:
        return


def _begins_as_archive(open_it: _Open) -> bool:
    try:
        with open_it() as member:
            head = member.read(512)
    except _DAMAGED:
        return False
    return head.startswith((b"PK", *_COMPRESSED)) or head[_TAR_MAGIC] == b"ustar"


def _search_member(open_it: _Open, literals: Sequence[bytes], depth: int) -> str | None:
    try:
        with open_it() as file:
            return _search_stream(file, literals, depth - 1)
    except _DAMAGED:
        return None


def _search(data: bytes, literals: Sequence[bytes]) -> str | None:
    if any(literal in data for literal in literals):
        return "the value of a secret of this environment"
    return found_by_form(data) or found_by_rules(data)


def found_by_rules(data: bytes) -> str | None:
    """The rule of Kingfisher that recognizes something in a piece of a file, if one does."""
    for piece in (data, data.translate(_ENDS_AS_SPACES)):
        for finding in _scanner().scan(piece):
            if finding.visible:
                return f"a match of the rule {finding.rule_id}"
    return None


def found_by_form(data: bytes) -> str | None:
    """What a piece of a file has that records mask: a form, a value after the name of a secret, or a login."""
    small = data.lower()
    if _PRIVATE_KEY in data and _FORM.search(data):
        return "a private key"
    if b"://" in data and _LOGIN.search(data):
        return "a password in a URL"
    if any(name in small for name in _PASSWORD_NAMES) and _PASSWORD.search(data):
        return "a password after its name"
    return _named_or_formed(data, small)


def _named_or_formed(data: bytes, small: bytes) -> str | None:
    """Whether a run of 16 characters has the form of a token, or a name before it."""
    runs = data.translate(_OF_RUNS)
    at = runs.find(_RUN)
    while at >= 0:
        end = runs.find(b"\0", at)
        end = len(data) if end < 0 else end
        # A bot of Telegram has a number and a colon before it.
        if match := _FORM.search(data, max(at - 12, 0), end):
            return f"a token that begins with {match[0][:4].decode()}"
        if _DIGIT.search(data, at, end):
            before = slice(max(at - _BEFORE, 0), at)
            if any(name in small[before] for name in _NAME_ENDS) and (match := _NAMED.search(data[before])):
                name = match[0].decode(errors="replace").strip("\"' :=>(")
                return f"a value after {name.splitlines()[-1]}"
        at = runs.find(_RUN, end)
    return None
