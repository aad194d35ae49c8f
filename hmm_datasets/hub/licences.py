"""The licence in the front matter of a card: `license`, and for the licence `other` its name and address."""

from collections.abc import Mapping
from pathlib import Path

from .cards import CARD_NAME

LICENCE_KEYS = ("license", "license_name", "license_link")


def stated_licence(card: Path) -> dict[str, str]:
    """What a card states, by the names of `LICENCE_KEYS`; empty if it states none, or cannot be read."""
    from huggingface_hub import metadata_load
    from yaml import YAMLError

    try:
        stated = metadata_load(card) or {}
    except (OSError, ValueError, YAMLError):  # of other programs
        return {}
    return {name: str(stated[name]) for name in LICENCE_KEYS if stated.get(name)}


def with_licence(card: str, licence: Mapping[str, str]) -> str:
    """The text of a card that states this licence and no other; a card of nothing else if the text is empty."""
    from huggingface_hub import RepoCard

    loaded = RepoCard(card or "---\n{}\n---\n")
    for name in LICENCE_KEYS:
        loaded.data.pop(name, None)
    for name, text in licence.items():
        loaded.data[name] = text
    return str(loaded)


def write_licence(folder: Path, licence: Mapping[str, str]) -> None:
    """Write a card that states a licence, and nothing else, into the folder of a model, unless there is none."""
    if licence:
        (folder / CARD_NAME).write_text(with_licence("", licence), encoding="utf-8")
