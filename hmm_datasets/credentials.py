"""Access tokens and keys, recognized by their form, by the name before them, or from the environment.

Records mask them, and a push searches every file for them. The form of a token is the prefix used by its issuer,
followed by enough characters that words and random bytes do not match. Older keys of Weights & Biases are 40
hexadecimal digits, like a git commit; they are recognized by the name before them. Text and small binary files are
read once; of weights only the header is read.
"""

import os
import re
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

MASK = "<SECRET>"

MIN_SECRET_LENGTH = 8
"""Minimum length of the value of a secret variable. Shorter values may be words and are ignored."""

_NAME = r"(?:hub|hf|auth|access|api|refresh)_?token|(?:api|access|private|secret)_?key|secret|password|passwd"
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
    )
)
# A value after the name of a secret that looks random: 16 characters or more, with at least one digit.
_NAMED = rf"(?i:(?:{_NAME}))[\"']?\s*[:= ]\s*[\"']?(?=[A-Za-z_.+/-]*[0-9])[A-Za-z0-9_.+/-]{{16,}}"
_BYTES = re.compile(f"{_SHAPES}|{_NAMED}".encode())
_SHAPE_ALONE = re.compile(_SHAPES)

_PIECE, _OVERLAP = 1 << 20, 1 << 10
_MAX_BINARY = 16 << 20  # bytes read of a binary file; larger files are weights and data


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
    """The words of a command line with secrets masked: values of flags such as `--hub_token`, and those of [`masked`].

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
            found.append(masked(argument))
    return found


def holds_secret(path: Path, secrets: Sequence[str] = ()) -> bool:
    """Whether a file contains something with the form of a secret, or one of `secrets`.

    Text is read completely. Of a safetensors file the header is read, of a zip archive (`torch.save`) the pickles, and
    of any other binary file the first 16 MiB.

    Args:
        path (`Path`): the file.
        secrets (sequence of `str`): values to search for, for example from [`known_secrets`].
    """
    literals = [re.escape(secret.encode()) for secret in secrets]
    pattern = re.compile(b"|".join([_BYTES.pattern, *literals])) if literals else _BYTES
    return any(pattern.search(piece) for piece in _pieces(path))


def _is_secret_name(name: str) -> bool:
    return _SECRET_NAME.search(name) is not None


def _pieces(path: Path) -> Iterator[bytes]:
    if path.suffix == ".safetensors":
        with path.open("rb") as file:
            yield file.read(min(int.from_bytes(file.read(8), "little"), _MAX_BINARY))
        return
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            for name in archive.namelist():
                if name.endswith(".pkl"):
                    yield archive.read(name)
        return
    with path.open("rb") as file:
        piece, read = file.read(_PIECE), 0
        limit = _MAX_BINARY if b"\0" in piece else None
        before = b""
        while piece and (limit is None or read < limit):
            yield before + piece
            before, read = piece[-_OVERLAP:], read + len(piece)
            piece = file.read(_PIECE)
