"""Folders of tilted HMMs.

They are those of HMMs, with `rewards` in `model.safetensors`, and `beta` and `length` in `config.json`, whose
fingerprint is that of the tilted HMM.
"""

import os
from typing import TYPE_CHECKING

from ..errors import InputError
from .model import HMM
from .storage import (
    CONFIG_NAME,
    TABLES,
    WEIGHTS_NAME,
    check_fingerprint,
    errors_naming,
    made_of_tables,
    read_folder,
    write_folder,
)

if TYPE_CHECKING:
    from .tilted import TiltedHMM

REWARDS = "rewards"


def save_tilted(tilted: "TiltedHMM", folder: str | os.PathLike) -> None:
    """Write the folder, each file atomically."""
    settings = {
        "edge_emitting": tilted.hmm.edges is not None,
        "pair_rewards": tilted.rewards.ndim == 2,
        "beta": tilted.beta,
        "length": tilted.length,
        "fingerprint": tilted.fingerprint(),
    }
    write_folder(folder, "tilted_hmm", tilted.hmm, {**tilted.hmm.tables(), REWARDS: tilted.rewards}, settings)


def load_tilted(kind: "type[TiltedHMM]", name_or_path: str | os.PathLike, revision: str | None = None) -> "TiltedHMM":
    """Read a local folder or one on the Hub; see [`~hmm_datasets.hmm.tilted.TiltedHMM.from_pretrained`]."""
    fields = {"beta": float, "length": int}
    folder, config, tables = read_folder(name_or_path, "tilted_hmm", revision, "a tilted HMM", fields)
    path = folder / WEIGHTS_NAME
    if tables.keys() - TABLES != {REWARDS}:
        raise InputError(f"{path}: contains {', '.join(sorted(tables))}; expected the tables of an HMM, and {REWARDS}")
    rewards = tables.pop(REWARDS)
    hmm = made_of_tables(HMM, path, tables, config.get("vocabulary"))
    with errors_naming(folder / CONFIG_NAME):
        tilted = kind(hmm, rewards, config["beta"], config["length"])
        fingerprint = tilted.fingerprint()
    check_fingerprint(folder, fingerprint, config)
    return tilted
