"""Saving and loading the folder of an HMM: `model.safetensors` has the tables, `config.json` describes them.

`transformers.AutoModelForCausalLM` loads the same folder, with `trust_remote_code=True` or once
`hmm_datasets.hmm.causal_lm` is imported.
"""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..digests import write_digests
from ..errors import InputError
from ..files import atomic_file, read_json, write_json
from ..hub_download import download
from .format import (
    AUTO_MAP,
    FORMAT_VERSION,
    LOADER_NAME,
    write_loader,
)

if TYPE_CHECKING:
    from .model import HMM

CONFIG_NAME = "config.json"
WEIGHTS_NAME = "model.safetensors"
FILES = (WEIGHTS_NAME, LOADER_NAME, CONFIG_NAME)
"""The files in the folder of an HMM, whose digests are written beside them."""


def save(hmm: "HMM", folder: str | os.PathLike) -> None:
    """Write the folder, each file atomically."""
    from safetensors.numpy import save_file

    folder = Path(folder)
    with atomic_file(folder / WEIGHTS_NAME) as temporary:
        save_file({k: np.ascontiguousarray(v) for k, v in hmm.tables().items()}, temporary, {"format": "pt"})
    write_loader(folder)
    write_json(
        folder / CONFIG_NAME,
        {
            "model_type": "hmm",
            "architectures": ["HMMForCausalLM"],
            "auto_map": AUTO_MAP,
            "format_version": FORMAT_VERSION,
            "num_states": hmm.num_states,
            "num_symbols": hmm.num_symbols,
            "edge_emitting": hmm.edges is not None,
            "fingerprint": hmm.fingerprint(),
            "vocabulary": None if hmm.vocabulary is None else list(hmm.vocabulary),
        },
    )
    write_digests(folder, FILES)


def load(kind: "type[HMM]", name_or_path: str | os.PathLike, revision: str | None = None) -> "HMM":
    """Read a local folder or one on the Hub; see [`~hmm_datasets.hmm.model.HMM.from_pretrained`]."""
    folder = Path(name_or_path)
    if not folder.is_dir():
        folder = download(str(name_or_path), [CONFIG_NAME, WEIGHTS_NAME], revision=revision, expected="an HMM")
    path = folder / CONFIG_NAME
    config = read_json(path)
    if not isinstance(config, dict):
        raise InputError(f"{path}: contains a {type(config).__name__}; expected the settings of an HMM")
    if config.get("model_type") != "hmm" or config.get("format_version") != FORMAT_VERSION:
        raise InputError(
            f"{path}: model_type {config.get('model_type')!r}, format_version "
            f"{config.get('format_version')!r}; expected 'hmm' and {FORMAT_VERSION}"
        )
    hmm = load_tables(kind, folder / WEIGHTS_NAME, config.get("vocabulary"))
    if hmm.fingerprint() != config.get("fingerprint"):
        raise InputError(
            f"{folder / WEIGHTS_NAME}: tables have fingerprint {hmm.fingerprint()}, {CONFIG_NAME} expects "
            f"{config.get('fingerprint')}; the two files belong to different HMMs, copy both again"
        )
    return hmm


def load_tables(kind: "type[HMM]", path: str | os.PathLike, vocabulary: Any = None) -> "HMM":
    """Read the tables alone; see [`~hmm_datasets.hmm.model.HMM.from_safetensors`]."""
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    try:
        tables = load_file(path)
    except FileNotFoundError:
        raise InputError(f"{path}: no such file") from None
    except SafetensorError as error:
        raise InputError(f"{path}: not a complete safetensors file ({error})") from None
    unknown = sorted(tables.keys() - {"start", "transition", "emission", "edges"})
    if unknown:
        raise InputError(f"{path}: contains {unknown[0]!r}; expected only the tables of an HMM")
    try:
        return kind(**tables, vocabulary=vocabulary)
    except InputError as error:
        raise InputError(f"{path}: {error}") from None
