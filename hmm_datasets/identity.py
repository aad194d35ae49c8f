"""What fixes the result of a run: written beside it, compared when it would go on, and changed only where accepted.

An identity is a mapping of sections to mappings of names to values, such as `{"data": {"seed": 0}, "settings":
{"learning_rate": 1e-3}}`. Training runs, fits and token streams all compare theirs by [`check_identity`].
"""

import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from .errors import InputError
from .files import read_json, write_json

IDENTITY_NAME = "identity.json"

Identity = Mapping[str, Mapping[str, Any]]


def as_saved(identity: Identity) -> dict[str, dict[str, Any]]:
    """An identity as it will be read back: a tuple as a list, an unknown object as its text."""
    return json.loads(json.dumps(identity, default=str))


def write_identity(folder: Path, identity: Identity) -> None:
    """Write `identity.json`."""
    write_json(folder / IDENTITY_NAME, as_saved(identity))


def check_folder_identity(
    folder: Path,
    now: Identity,
    accepted: Collection[str] | None = (),
    fixed: Collection[str] = (),
    remedy: str = "choose another output_dir",
) -> None:
    """Compare what `identity.json` of a folder says with the identity of now; see [`check_identity`].

    A folder without the file is taken as it is.
    """
    path = folder / IDENTITY_NAME
    if path.exists():
        check_identity(path, read_json(path), now, accepted, fixed, remedy)


def check_identity(
    path: Path | str,
    before: Identity,
    now: Identity,
    accepted: Collection[str] | None = (),
    fixed: Collection[str] = (),
    remedy: str = "choose another output_dir",
) -> None:
    """Refuse to go on with what is another run's.

    Args:
        path (path): what to name in the error.
        before (mapping), now (mapping): identities; sections that either lacks are not compared.
        accepted (collection of `str`, *optional*): names such as `data.seed` that may differ; None where the program
            cannot go on with any change, so that the error does not offer it.
        fixed (collection of `str`, *optional*): names that may not differ, accepted or not.
        remedy (`str`, *optional*): what the error says to do.

    Raises:
        `InputError`: something else differs; all of it is named.

    ```python
    >>> check_identity("run", {"data": {"seed": 0}}, {"data": {"seed": 1}}, accepted=["data.seed"])

    ```
    """
    now = as_saved(now)
    changes = {
        f"{section}.{name}": f"was {before[section].get(name)!r} and is {now[section].get(name)!r}"
        for section in sorted(before.keys() & now.keys())
        for name in sorted(before[section].keys() | now[section].keys())
        if before[section].get(name) != now[section].get(name)
    }
    if lasting := [f"{name} {change}" for name, change in changes.items() if name in fixed]:
        raise InputError(
            f"{path}: of another run: {'; '.join(lasting)}, with which it cannot go on; set it back, or {remedy}"
        )
    changes = {name: change for name, change in changes.items() if name not in (accepted or ())}
    if changes:
        offer = "" if accepted is None else f", or go on all the same with --accept_changes {' '.join(changes)}"
        raise InputError(f"{path}: of another run: {'; '.join(map(' '.join, changes.items()))}; {remedy}{offer}")
