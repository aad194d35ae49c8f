"""Sharing results on the Hugging Face Hub: folders are pushed in one commit, with cards that describe them."""

from .cards import write_card
from .push import (
    PushResult,
    how_to_push,
    push_folder,
    reachable,
)

__all__ = ["PushResult", "how_to_push", "push_folder", "reachable", "write_card"]
