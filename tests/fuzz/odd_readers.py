"""Readers that do what the harness looks for, one each."""

import os
from pathlib import Path
from typing import Any, NoReturn

from fuzz.harness import Kind

from hmm_datasets.errors import InputError


def write(folder: Path) -> None:
    """Write the example of all kinds here."""
    (folder / "a.txt").write_text("0123456789")


def _if_damaged(act):
    def read(folder: Path) -> Any:
        return "whole" if (folder / "a.txt").read_text() == "0123456789" else act(folder)

    return read


def _refuse(folder: Path) -> NoReturn:
    raise InputError(f"{folder}: damaged")


def _turn(folder: Path) -> None:
    while True:
        pass


def _damage(folder: Path, draw) -> None:
    (folder / "a.txt").write_text(str(draw.random()))


READERS = {
    "refused": _refuse,
    "harmless": lambda folder: "whole",
    "traceback": lambda folder: {}["a"],
    "hang": _turn,
    "memory": lambda folder: bytearray(8 * 10**9),
    "different": lambda folder: (folder / "a.txt").read_text(),
    "dies": lambda folder: os.abort(),
    "as it is": lambda folder: (folder / "a.txt").read_text(),
}
KINDS = tuple(
    Kind(name, write, _if_damaged(act), act if name == "as it is" else None, _damage) for name, act in READERS.items()
)
