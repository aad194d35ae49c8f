"""Files of other libraries, given as a model or as data: what they are, and what reads or converts them.

They are recognized by their names, and by the first bytes of a file; none is opened as a pickle.
"""

import os
import struct
from collections.abc import Callable
from fnmatch import fnmatch
from pathlib import Path

from ..errors import InputError
from ..foreign.json import parse_json

ForeignFormat = tuple[str, str]
"""A format of another library: what it is, and what to do with it."""
_MEGATRON, _LLM_C = b"MMIDIDX\x00\x00", struct.pack("<i", 20240520)  # of .idx, and of .bin
_MOST_BYTES = 1 << 24  # of an index that is looked into
_TO_TOKENS = "write the tokens of each document with hmm_datasets.text.stream.write_tokens"
_TO_FOLDER = "convert it to a folder with config.json and safetensors files"
_STATE_DICT = (
    "a file of torch.save, such as nanoGPT's ckpt.pt, without the config.json that says what model it is",
    "make the model of transformers in Python, load the state dict into it, and write it with save_pretrained",
)
_WEIGHTS: dict[str, ForeignFormat] = {
    "lit_model.pth": ("a checkpoint of LitGPT", f"{_TO_FOLDER} with `litgpt convert_from_litgpt`"),
    "consolidated*.pth": (
        "a checkpoint in Meta's format of Llama",
        f"{_TO_FOLDER} with transformers' convert_llama_weights_to_hf.py, or take the repository with -hf",
    ),
    "latest_checkpointed_iteration.txt": ("a checkpoint of Megatron-LM", f"{_TO_FOLDER} with Megatron Bridge"),
    "*.nemo": ("a checkpoint of NeMo", f"{_TO_FOLDER} with Megatron Bridge"),
    "*.distcp": ("a checkpoint of torch.distributed", "name the folder that has it, with config.json"),
    "*.h5": ("weights of TensorFlow or Keras", f"{_TO_FOLDER} with transformers 4 (from_tf=True)"),
    "*.msgpack": ("weights of Flax", f"{_TO_FOLDER} with transformers 4 (from_flax=True)"),
    **dict.fromkeys(("*.pt", "*.pth", "*.ckpt", "pytorch_model*.bin"), _STATE_DICT),
    "*.safetensors": (
        "a file of weights without the config.json that says what model it is",
        "name the folder of the model, and copy its config.json there",
    ),
}
"""Formats of weights by the names of their files; the first that fits is right."""
_MDS = (
    "a data set of MosaicML Streaming (MDS)",
    f"read it with the package mosaicml-streaming (streaming.StreamingDataset), and {_TO_TOKENS}, or its texts as "
    "JSON Lines",
)
_LITDATA = (
    "a data set of LitData",
    f"read it with the package litdata (litdata.StreamingDataset), and {_TO_TOKENS}",
)
_QUANTIZED_NAMES = {
    **dict.fromkeys((".quant_state.", ".absmax", ".SCB"), "bitsandbytes"),
    **dict.fromkeys((".qzeros", ".qweight"), "GPTQ or AWQ"),
    ".weight_packed": "compressed-tensors",
    "_weight_qdata": "torchao",
    ".W_q": "HQQ",
}
"""What quantizes weights, by parts of the names of their tensors."""


def foreign_weights(name: str | os.PathLike) -> ForeignFormat | None:
    """What a file or folder of weights is that transformers does not load; None for anything else."""
    path = Path(name)
    try:
        names = sorted(entry.name for entry in path.iterdir()) if path.is_dir() else [path.name] * path.is_file()
    except OSError:
        return None
    if {"config.json", "adapter_config.json"} & {*names} or any(fnmatch(file, "*.gguf") for file in names):
        return None
    return next((form for pattern, form in _WEIGHTS.items() if any(fnmatch(file, pattern) for file in names)), None)


def foreign_data(name: str | os.PathLike) -> ForeignFormat | None:
    """What a file or folder of tokens or rows of another library is; None for anything else."""
    path = Path(name)
    try:
        if path.is_file():
            return _foreign_tokens(path)
        names = {entry.name for entry in path.iterdir()} if path.is_dir() else set()
    except OSError:
        return None
    if "index.json" in names and (form := _indexed(path / "index.json")) is not None:
        return form
    if any(fnmatch(file, "*.mds*") for file in names):
        return _MDS
    files = [path / file for file in sorted(names) if file.endswith((".idx", ".bin"))]
    return next(filter(None, map(_foreign_tokens, files)), None)


def _indexed(path: Path) -> ForeignFormat | None:
    try:
        content = parse_json(path.read_bytes(), path) if path.stat().st_size <= _MOST_BYTES else None
    except (InputError, OSError):
        return None
    if not isinstance(content, dict):
        return None
    if "chunks" in content and "config" in content:
        return _LITDATA
    shards = content.get("shards")
    is_mds = isinstance(shards, list) and any(isinstance(shard, dict) and "raw_data" in shard for shard in shards)
    return _MDS if is_mds else None


def _foreign_tokens(path: Path) -> ForeignFormat | None:
    """What a file of tokens is, by its first bytes and the files beside it."""
    beside = path.with_suffix(".idx")
    if path.suffix not in (".bin", ".idx"):
        return None
    if _begins_with(beside, _MEGATRON):
        return (
            "an indexed data set of Megatron-LM (.bin and .idx)",
            f"read it with megatron.core.datasets.indexed_dataset.IndexedDataset, and {_TO_TOKENS}",
        )
    if _begins_with(path, _LLM_C):
        return (
            "tokens of llm.c or modded-nanoGPT (a header of 256 integers, then uint16)",
            f"read them with numpy.fromfile(..., dtype='<u2', offset=1024), cut them at EOS, and {_TO_TOKENS}",
        )
    if path.name in ("train.bin", "val.bin") and not beside.exists():
        return (
            "tokens of nanoGPT (uint16, without an index)",
            f"read them with numpy.fromfile(..., dtype='<u2'), cut them at EOS, and {_TO_TOKENS}",
        )
    return None


def _begins_with(path: Path, magic: bytes) -> bool:
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(len(magic)) == magic


def refuse_foreign(name: str | os.PathLike, recognize: Callable[[Path], ForeignFormat | None], expected: str) -> None:
    """Raise [`InputError`] if a file or folder, or the folder that it would be in, has the format of another library.

    Args:
        name (path): what was given.
        recognize (callable): [`foreign_weights`] or [`foreign_data`].
        expected (`str`): what was expected instead.
    """
    path = Path(name)
    place = path if os.path.exists(path) else path.parent
    if str(place) != "." and (form := recognize(place)) is not None:
        raise InputError(f"{place}: is {form[0]}; expected {expected}; {form[1]}")


def quantized(config: object) -> str | None:
    """How the weights of a model are quantized, from the content of its `config.json`, and what to do.

    Returns:
        `str`, *optional*: the end of an error; None if they are not.
    """
    settings = config.get("quantization_config") if isinstance(config, dict) else None
    if not isinstance(settings, dict):
        return None
    return (
        f"its weights are quantized ({str(settings.get('quant_method', 'bitsandbytes'))[:40]}); install the package "
        "that reads them, take the model as it was before, or dequantize it where it can be read "
        "(model.dequantize(), then save_pretrained)"
    )


def quantized_by_names(names: list[str]) -> str | None:
    """What quantized weights whose tensors have such names; None if nothing did."""
    return next((what for part, what in _QUANTIZED_NAMES.items() for name in names if part in name), None)
