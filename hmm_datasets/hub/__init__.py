"""Sharing results on the Hugging Face Hub: everything is pushed in one commit, with cards that describe it."""

import importlib
from typing import TYPE_CHECKING, Any

from .cards import write_card as write_card
from .push import PushResult as PushResult
from .push import PushSettings as PushSettings
from .push import push_folder as push_folder

if TYPE_CHECKING:
    from .kinds.process import write_hmm_dataset as write_hmm_dataset
    from .kinds.push import push_path as push_path

# These import torch and datasets, which pushing a folder does not need.
_MODULE_OF = {"push_path": "kinds.push", "write_hmm_dataset": "kinds.process"}


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULE_OF[name]}"), name)
