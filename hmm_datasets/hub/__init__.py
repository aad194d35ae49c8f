"""Sharing results on the Hugging Face Hub: everything is pushed in one commit, with cards that describe it."""

import importlib
from typing import TYPE_CHECKING, Any

from .cards import write_card
from .push import PushResult, PushSettings, push_folder

if TYPE_CHECKING:
    from .kinds.process import write_hmm_dataset
    from .kinds.push import push_path

__all__ = [
    "PushResult",
    "PushSettings",
    "push_folder",
    "push_path",
    "write_card",
    "write_hmm_dataset",
]

# These import torch and datasets, which pushing a folder does not need.
_MODULE_OF = {"push_path": "kinds.push", "write_hmm_dataset": "kinds.process"}


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULE_OF[name]}"), name)
