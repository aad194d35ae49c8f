"""Access tokens and keys, recognized by their form, by the name before them, or from the environment.

Records mask them, and a push searches every file for them. The form of a token is the prefix used by its issuer,
followed by enough characters that words and random bytes do not match. Older keys of Weights & Biases are 40
hexadecimal digits, like a git commit; they are recognized by the name before them.

Files are searched whole, with what is compressed in them (zip, gzip, bzip2, xz) and text of two bytes per character
(UTF-16). The regular expressions alone would read some 10 MB/s. They are tried only where 16 characters follow each
other that a secret may have, which neither words nor numbers in binary do, so most files take a fiftieth of the time.
"""

import bz2
import gzip
import lzma
import os
import re
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

MASK = "<SECRET>"

MIN_SECRET_LENGTH = 8
"""Minimum length of the value of a secret variable. Shorter values may be words and are ignored."""

_NAME = (
    r"(?:hub|hf|auth|access|api|refresh)_?token|(?:api|access|private|secret)_?key|secret|password|passwd"
    r"|web_?hook(?:_?url)?"
)
_SECRET_NAME = re.compile(rf"(?:^|_)(?:{_NAME})$|^token$", re.IGNORECASE)
_SECRET_VARIABLE = re.compile(rf"(?:^|_)(?:{_NAME}|token)$", re.IGNORECASE)
_SHAPES = "|".join(
    (
        r"\bhf_[A-Za-z0-9]{20,}",
        r"\bapi_org_[A-Za-z0-9]{20,}",
        r"\bwandb_v1_[A-Za-z0-9_]{20,}",
        r"\bgh[oprsu]_[A-Za-z0-9]{30,}",
        r"\bgithub_pat_[A-Za-z0-9_]{30,}",
        r"\bsk-(?=[A-Za-z_-]*[0-9])[A-Za-z0-9_-]{32,}",
        r"\bAKIA[0-9A-Z]{16}\b",
        r"\bAIza[0-9A-Za-z_-]{35}",
        r"\bxox[abprs]-[0-9A-Za-z-]{20,}",
        r"-----BEGIN [A-Z ]*PRIVATE KEY-----",
        r"\bhooks\.slack\.com/services/[A-Za-z0-9/]{20,}",
        r"\bdiscord(?:app)?\.com/api/webhooks/[0-9]+/[A-Za-z0-9_-]{20,}",
    )
)
# A value after the name of a secret that looks random: 16 characters or more, with at least one digit.
_NAMED = re.compile(rf"(?i:(?:{_NAME}))[\"']?\s*[:= ]\s*[\"']?\Z".encode())
_NAME_ENDS = (b"token", b"key", b"secret", b"passw", b"hook")
_PRIVATE_KEY = b"PRIVATE KEY-----"
_RUN, _OF_RUNS = b"\1" * 16, bytes(chr(byte).isalnum() or byte in b"_.+/-" for byte in range(128)) + bytes(128)
_DIGIT, _BEFORE = re.compile(rb"[0-9]"), 64  # bytes before a value, in which its name is
_SHAPE, _SHAPE_ALONE = re.compile(_SHAPES.encode()), re.compile(_SHAPES)
# In the words of a command: the value after a name, whatever it looks like, and what logs in.
_IN_WORDS = (
    re.compile(rf"(?i)((?:^|[^a-z])(?:{_NAME}|token)[\"']?\s*[:=]\s*[\"']?)(?:bearer\s+)?[^\s\"'<]+"),
    re.compile(r"(?i)(\bauthorization:\s*(?:bearer|basic|token)?\s*)[^\s\"'<]+"),
    re.compile(r"(\w://)[^\s/@]+@"),
    re.compile(r"(?i)(https?://[^\s/]*\b(?:hooks?|webhooks?)\b[^\s/]*/)[^\s\"'<]+"),
)

_PIECE, _OVERLAP = 1 << 20, 1 << 10
_DEPTH = 3  # of archives in archives
_OPENED: dict[bytes, Callable[[IO[bytes]], IO[bytes]]] = {
    b"\x1f\x8b": lambda file: gzip.GzipFile(fileobj=file),
    b"BZh": bz2.BZ2File,
    b"\xfd7zXZ\0": lzma.LZMAFile,
}
_DAMAGED = (OSError, EOFError, zlib.error, lzma.LZMAError, zipfile.BadZipFile, NotImplementedError, RuntimeError)


def known_secrets(environment: Mapping[str, str] = os.environ) -> list[str]:
    """The values of environment variables whose names mean secrets, such as `HF_TOKEN`.

    ```python
    >>> known_secrets({"WANDB_API_KEY": "0123456789", "TOKENIZERS_PARALLELISM": "false"})
    ['0123456789']

    ```
    """
    found = {value for name, value in environment.items() if _SECRET_VARIABLE.search(name)}
    return sorted(value for value in found if len(value) >= MIN_SECRET_LENGTH)


def masked(value: Any, secrets: Sequence[str] | None = None) -> Any:
    """A copy of strings, lists and mappings with secrets masked, by key, by form and by the environment.

    ```python
    >>> masked({"hub_token": "mine", "run_name": "hf_abcdefghijklmnopqrstuvwxyz", "eos_token": "<|end|>"})
    {'hub_token': '<HUB_TOKEN>', 'run_name': '<SECRET>', 'eos_token': '<|end|>'}

    ```
    """
    secrets = known_secrets() if secrets is None else secrets
    if isinstance(value, str):
        for secret in secrets:
            value = value.replace(secret, MASK)
        return _SHAPE_ALONE.sub(MASK, value)
    if isinstance(value, Mapping):
        return {
            key: f"<{str(key).upper()}>" if part and _is_secret_name(str(key)) else masked(part, secrets)
            for key, part in value.items()
        }
    if isinstance(value, list | tuple):
        return [masked(part, secrets) for part in value]
    return value


def masked_arguments(arguments: Sequence[str]) -> list[str]:
    """The words of a command line with secrets masked: values of flags such as `--hub_token` and of variables such as
    `HF_TOKEN=`, also within a word, passwords in addresses, paths of web hooks, and those of [`masked`].

    ```python
    >>> masked_arguments(["--hub_token", "mine", "--hub-token=mine", "--seed", "1"])
    ['--hub_token', '<HUB_TOKEN>', '--hub-token=<HUB_TOKEN>', '--seed', '1']

    ```
    """
    found, secret = [], None
    for argument in arguments:
        flag, equals, _ = argument.partition("=")
        name = flag.lstrip("-").replace("-", "_") if flag.startswith("--") else None
        if name is not None and _is_secret_name(name):
            found.append(f"{flag}=<{name.upper()}>" if equals else flag)
            secret = None if equals else name
        elif secret is not None:
            found.append(f"<{secret.upper()}>")
            secret = None
        else:
            found.append(_masked_words(argument))
    return found


def _masked_words(text: str) -> str:
    for pattern in _IN_WORDS:
        text = pattern.sub(lambda match: f"{match[1]}{MASK}" + ("@" if match[0].endswith("@") else ""), text)
    return masked(text)


def holds_secret(path: Path, secrets: Sequence[str] = ()) -> bool:
    """Whether a file contains something with the form of a secret, or one of `secrets`.

    It is read completely. What is compressed in it, also in archives in an archive, is read too, unless it is damaged
    or needs a password. Columns of Parquet are compressed and are not read.

    Args:
        path (`Path`): the file.
        secrets (sequence of `str`): values to search for, for example from [`known_secrets`].
    """
    literals = [secret.encode() for secret in secrets]
    with path.open("rb") as file:
        return _stream_holds(file, literals, _DEPTH)


def _is_secret_name(name: str) -> bool:
    return _SECRET_NAME.search(name) is not None


def _stream_holds(file: IO[bytes], literals: Sequence[bytes], depth: int) -> bool:
    overlap = max([_OVERLAP, *(2 * len(literal) for literal in literals)])
    before, piece, is_zip = b"", file.read(_PIECE), False
    first = piece
    while piece:
        data = before + piece
        # Of text in UTF-16, and UTF-32, nothing is left but its letters.
        if _holds(data, literals) or (b"\0" in data and _holds(data.replace(b"\0", b""), literals)):
            return True
        is_zip = is_zip or (depth > 0 and b"PK\x05\x06" in data)
        before, piece = data[-overlap:], file.read(_PIECE)
    if depth == 0:
        return False
    opened = next((kind for magic, kind in _OPENED.items() if first.startswith(magic)), None)
    found = False
    if opened is not None:
        found = _member_holds(lambda: opened(_again(file)), literals, depth)
    return found or (is_zip and any(_member_holds(one, literals, depth) for one in _members(_again(file))))


def _again(file: IO[bytes]) -> IO[bytes]:
    """The file from its beginning; of one within an archive, which is small or nested, all of it in memory."""
    file.seek(0)
    return file


def _members(file: IO[bytes]) -> Iterator[Callable[[], IO[bytes]]]:
    try:
        archive = zipfile.ZipFile(file)
    except _DAMAGED:
        return
    for info in archive.infolist():
        if info.compress_type != zipfile.ZIP_STORED or _begins_as_archive(archive, info):
            yield lambda info=info: archive.open(info)


def _begins_as_archive(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> bool:
    """Whether a member that is stored as it is, and so was searched with the archive, has more in it."""
    try:
        with archive.open(info) as member:
            return member.read(6).startswith((b"PK", *_OPENED))
    except _DAMAGED:
        return False


def _member_holds(open_it: Callable[[], IO[bytes]], literals: Sequence[bytes], depth: int) -> bool:
    try:
        with open_it() as file:
            return _stream_holds(file, literals, depth - 1)
    except _DAMAGED:
        return False


def _holds(data: bytes, literals: Sequence[bytes]) -> bool:
    if any(literal in data for literal in literals) or (_PRIVATE_KEY in data and _SHAPE.search(data)):
        return True
    runs = data.translate(_OF_RUNS)
    at = runs.find(_RUN)
    while at >= 0:
        end = runs.find(b"\0", at)
        end = len(data) if end < 0 else end
        if _SHAPE.search(data, at, end):
            return True
        if _DIGIT.search(data, at, end):
            before = data[max(at - _BEFORE, 0) : at]
            small = before.lower()
            if any(name in small for name in _NAME_ENDS) and _NAMED.search(before):
                return True
        at = runs.find(_RUN, end)
    return False
