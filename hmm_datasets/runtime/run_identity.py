"""The identity of a run: everything that decides its result. It is saved beside the run and compared on resuming.

An identity is a mapping of sections to mappings of names to values, such as `{"data": {"seed": 0}, "settings":
{"learning_rate": 1e-3}}`. Training runs, fits and token streams are compared by [`check_identity`], and may differ
only in what the user accepts.
"""

import json
import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from ..errors import InputError, shortened
from ..files import write_json
from ..records import read_record
from .credentials import masked

IDENTITY_NAME = "identity.json"
_SHA256 = re.compile("[0-9a-f]{64}")

Identity = Mapping[str, Mapping[str, Any]]


def as_saved(identity: Identity) -> dict[str, dict[str, Any]]:
    """An identity in the form in which it will be read from JSON: tuples as lists, unknown objects as text.

    Secrets, such as a password in the address of a corpus, are masked, whatever the environment has.
    """
    return masked(json.loads(json.dumps(identity, default=str)), secrets=())


def write_identity(folder: Path, identity: Identity) -> None:
    """Write `identity.json`."""
    write_json(folder / IDENTITY_NAME, as_saved(identity))


def read_identity(folder: Path) -> dict[str, dict[str, Any]]:
    """The identity in a folder; empty if it has none.

    Raises:
        `InputError`: `identity.json` is not JSON, or not sections of names with values.
    """
    path = folder / IDENTITY_NAME
    return read_record(path, dict[str, dict[str, Any]]) if path.exists() else {}


def check_folder_identity(
    folder: Path,
    now: Identity,
    accepted: Collection[str] | None = (),
    remedy: str = "choose another output_dir",
    made: Collection[str] | None = None,
) -> None:
    """Compare `identity.json` of a folder with the current identity; see [`check_identity`].

    A folder without the file passes.

    Args:
        folder (`Path`), now (mapping), accepted (collection of `str`, *optional*), remedy (`str`, *optional*): see
            [`check_identity`].
        made (collection of `str`, *optional*): patterns of what is made with this identity. A folder that has nothing
            of it passes too: the program failed before it had made anything.
    """
    if made is not None and not any(path for pattern in made for path in folder.glob(pattern)):
        return
    check_identity(folder / IDENTITY_NAME, read_identity(folder), now, accepted, remedy=remedy)


def check_identity(
    path: Path | str,
    before: Identity,
    now: Identity,
    accepted: Collection[str] | None = (),
    fixed: Collection[str] = (),
    remedy: str = "choose another output_dir",
) -> None:
    """Raise an error if the saved identity differs from the current one.

    Args:
        path (path): file or folder to name in the error.
        before (mapping), now (mapping): saved and current identity; sections that are missing in one are not compared.
        accepted (collection of `str`, *optional*): names such as `data.seed` that may differ; None if the program
            cannot accept changes, so that the error does not offer it.
        fixed (collection of `str`, *optional*): names that may not differ, even if accepted.
        remedy (`str`, *optional*): advice for the error.

    Raises:
        `InputError`: other names differ; the message gives all of them.

    ```python
    >>> check_identity("run", {"data": {"seed": 0}}, {"data": {"seed": 1}}, accepted=["data.seed"])

    ```
    """
    now = as_saved(now)
    changes = {
        f"{section}.{name}"[:300]: _change(before[section].get(name), now[section].get(name))
        for section in sorted(before.keys() & now.keys())
        for name in sorted(before[section].keys() | now[section].keys())
        if before[section].get(name) != now[section].get(name)
    }
    if lasting := [f"{name} {change}" for name, change in changes.items() if name in fixed]:
        raise InputError(
            f"{path}: of another run: {'; '.join(lasting)}; this cannot be accepted, set it back, or {remedy}"
        )
    changes = {name: change for name, change in changes.items() if name not in (accepted or ())}
    if changes:
        offer = "" if accepted is None else f", or accept the changes with --allow_changed {' '.join(changes)}"
        raise InputError(f"{path}: of another run: {'; '.join(map(' '.join, changes.items()))}; {remedy}{offer}")


def _change(before: Any, now: Any) -> str:
    """How a value has changed, in words; of digests, which nobody reads, the beginnings."""
    if all(isinstance(value, str) and _SHA256.fullmatch(value) for value in (before, now)):
        return f"has changed (SHA-256 {before[:12]}... to {now[:12]}...)"
    return f"was {shortened(repr(before), 300)} and is {shortened(repr(now), 300)}"
