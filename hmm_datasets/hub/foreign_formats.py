"""Files of other libraries, given as a model or as data: what they are, and what reads or converts them.

They are recognized by the names of files; none is opened.
"""

import os
from collections.abc import Callable
from fnmatch import fnmatch
from pathlib import Path

from ..errors import InputError

ForeignFormat = tuple[str, str]
"""A format of another library: what it is, and what to do with it."""
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
_DATA: dict[str, ForeignFormat] = {
    "*.mds*": (
        "a data set of MosaicML Streaming (MDS)",
        f"read it with the package mosaicml-streaming (streaming.StreamingDataset), and {_TO_TOKENS}, or its texts as "
        "JSON Lines",
    ),
    "chunk-*.bin": (
        "a data set of LitData",
        f"read it with the package litdata (litdata.StreamingDataset), and {_TO_TOKENS}",
    ),
    "*.idx": (
        "an indexed data set of Megatron-LM (.bin and .idx)",
        f"read it with megatron.core.datasets.indexed_dataset.IndexedDataset, and {_TO_TOKENS}",
    ),
    "*.bin": (
        "tokens of nanoGPT, modded-nanoGPT or llm.c (uint16, without an index)",
        "read them with numpy.fromfile(..., dtype='<u2'), with offset=1024 if the file begins with 256 integers as "
        f"that of llm.c, cut them at EOS, and {_TO_TOKENS}",
    ),
}
"""Formats of tokens or rows by the names of their files; the first that fits is right."""


def foreign_weights(name: str | os.PathLike) -> ForeignFormat | None:
    """What a file or folder of weights is that transformers does not load; None for anything else."""
    names = _names(Path(name))
    is_model = {"config.json", "adapter_config.json"} & {*names} or any(fnmatch(file, "*.gguf") for file in names)
    return None if is_model else _first(_WEIGHTS, names)


def foreign_data(name: str | os.PathLike) -> ForeignFormat | None:
    """What a file or folder of tokens or rows of another library is; None for anything else."""
    return _first(_DATA, _names(Path(name)))


def _names(path: Path) -> list[str]:
    """The names of the files in a folder, or that of a file."""
    try:
        return sorted(entry.name for entry in path.iterdir()) if path.is_dir() else [path.name] * path.is_file()
    except OSError:
        return []


def _first(forms: dict[str, ForeignFormat], names: list[str]) -> ForeignFormat | None:
    return next((form for pattern, form in forms.items() if any(fnmatch(name, pattern) for name in names)), None)


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
