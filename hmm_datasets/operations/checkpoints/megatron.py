"""Checkpoints of Megatron-DeepSpeed's GPT as a GPT-2 for `from_pretrained`.

A folder `global_step*` has a file `layer_LL-model_RR-model_states.pt` for each layer of the pipeline and each rank of
tensor parallelism: embeddings in the first, blocks from the third on, the final norm in the last. Ranks have rows of
the matrices whose output is split (queries, keys and values, the first of the MLP, the embeddings) and columns of
those whose input is; the rest is the same on all. Queries, keys and values are together for each head. Files are read
as data only, so the number of heads, which only pickled arguments have, must be in a `config.json`.
"""

import re
from collections import defaultdict
from pathlib import Path

import torch
from torch import Tensor
from transformers import CONFIG_NAME, GPT2Config, GPT2LMHeadModel

from ...errors import InputError
from ...files import atomic_folder, read_json, write_digests
from ...training.checkpoints.parts import MEGATRON

_ROWS = ("query_key_value.weight", "query_key_value.bias", "dense_h_to_4h.weight", "dense_h_to_4h.bias")
_COLUMNS = ("self_attention.dense.weight", "dense_4h_to_h.weight")
_BLOCK = {
    "input_layernorm": "ln_1",
    "self_attention.query_key_value": "attn.c_attn",
    "self_attention.dense": "attn.c_proj",
    "post_attention_layernorm": "ln_2",
    "mlp.dense_h_to_4h": "mlp.c_fc",
    "mlp.dense_4h_to_h": "mlp.c_proj",
}


def convert_megatron(folder: Path, target: Path) -> Path:
    """Write the model of a folder `global_step*` as one of transformers.

    Args:
        folder (`Path`): the folder, with a `config.json` that has at least `n_head`.
        target (`Path`): the folder of the model; it must not exist.

    Raises:
        `InputError`: there is no number of heads, a layer is missing, or it is no GPT with learned positions.
    """
    path = folder / CONFIG_NAME
    stated = read_json(path) if path.is_file() else {}
    heads = stated.get("n_head") if isinstance(stated, dict) else None
    if not isinstance(heads, int) or heads < 1:
        raise InputError(f'{path}: write the number of attention heads there, as in {{"n_head": 16}}')
    layers = _read_layers(folder)
    embeddings, *blocks, norm = [layers[number] for number in sorted(layers)]
    if "position_embeddings.weight" not in embeddings or not {"weight", "bias"} <= norm.keys():
        raise InputError(f"{folder}: is no GPT with learned positions and layer norms; only these can be converted")
    words, positions = embeddings["word_embeddings.weight"], embeddings["position_embeddings.weight"]
    weights = {"wte.weight": words, "wpe.weight": positions, "ln_f.weight": norm["weight"], "ln_f.bias": norm["bias"]}
    if words.shape[1] % heads != 0:
        raise InputError(f"{path}: n_head is {heads}, which does not divide the width {words.shape[1]}; correct it")
    for number, block in enumerate(blocks):
        if block.keys() != {f"{name}.{part}" for name in _BLOCK for part in ("weight", "bias")}:
            raise InputError(f"{folder}: block {number} has {', '.join(sorted(block))[:200]}; expected those of a GPT")
        weights |= {f"h.{number}.{name}": weight for name, weight in _of_block(block, heads).items()}
    sizes = {"vocab_size": len(words), "n_positions": len(positions), "n_embd": words.shape[1]}
    sizes |= {"n_layer": len(blocks), "n_head": heads, "n_inner": weights["h.0.mlp.c_fc.weight"].shape[1]}
    model = GPT2LMHeadModel(GPT2Config(**stated | sizes))
    model.transformer.load_state_dict({name: weight.float() for name, weight in weights.items()}, strict=True)
    with atomic_folder(target, replace=False) as temporary:
        model.save_pretrained(temporary)
        write_digests(temporary)
    return target


def _read_layers(folder: Path) -> dict[int, dict[str, Tensor]]:
    """The weights of each layer that has any, of all ranks together."""
    files: dict[int, list[Path]] = defaultdict(list)
    for path in sorted(folder.glob(MEGATRON)):
        files[int(re.findall(r"\d+", path.name)[0])].append(path)
    counts = {len(paths) for paths in files.values()}
    blocks = sorted(files)[1:-1]
    if len(counts) != 1 or not blocks or blocks != list(range(blocks[0], blocks[0] + len(blocks))):
        raise InputError(f"{folder}: files of some layers are missing; copy it again")
    layers = {}
    for number, paths in files.items():
        try:
            parts = [torch.load(path, map_location="cpu", weights_only=True, mmap=True) for path in paths]
        except Exception as error:
            raise InputError(
                f"{paths[0]}: cannot be read as tensors ({type(error).__name__}); copy it again"
            ) from None
        layers[number] = {name: _joined(name, [part[name] for part in parts]) for name in parts[0]}
    return layers


def _joined(name: str, parts: list[Tensor]) -> Tensor:
    if name == "word_embeddings.weight" or name.endswith(_ROWS):
        return torch.cat(parts)
    return torch.cat(parts, dim=1) if name.endswith(_COLUMNS) else parts[0]


def _of_block(block: dict[str, Tensor], heads: int) -> dict[str, Tensor]:
    """The weights of a block by GPT-2's names; GPT-2 multiplies by matrices from the right."""
    weights = {}
    for name, weight in block.items():
        module, part = name.rsplit(".", 1)
        if module.endswith("query_key_value"):
            by_head = weight.view(heads, 3, -1, *weight.shape[1:])
            weight = by_head.transpose(0, 1).reshape(weight.shape)
        weights[f"{_BLOCK[module]}.{part}"] = weight.T.contiguous() if weight.ndim == 2 else weight
    return weights
