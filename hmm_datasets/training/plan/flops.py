"""FLOPs per token of a decoder, for the forward and the backward pass.

The count is `6 N + 12 L A T` per token, for rows of `T` tokens and `L` layers with attention, whose heads have `A`
features together: their number times `head_dim`, which in many models is the width, but not in Qwen3 or Gemma 3. The
first term is 2 FLOPs for each weight in the forward pass and 4 in the backward pass. `N` counts the weights that
multiply a token: not the input and position embeddings, which are looked up, but a tied embedding, which is also the
output layer; and of the experts in a layer as many as a token is sent to. The second term is attention: the products
of queries with keys and of attention weights with values over all `T` positions of the row, without a discount for the
causal mask or for sliding windows. Where queries and values differ in size (multi-head latent attention), `A` is the
mean of the two. See Kaplan et al., "Scaling laws for neural language models", 2020, section 2.1, and Chowdhery et al.,
"PaLM", 2022, appendix B, which defines MFU by the same count.

Recomputed activations and padding do not count, since MFU is about the model's FLOPs and not the hardware's. If the
rows of a batch differ in length, the batch costs the sum of `6 N T + 12 L A T^2` over its sequences, with `T` the
tokens of each. Packed documents that `position_ids` keep apart are separate sequences, so a plan computed from the row
length is an upper bound for them.

Weights that are not trained, as beside a LoRA adapter, cost 4 FLOPs instead of 6: the backward pass needs no gradient
of them. (It still passes through all layers, so attention costs what it does otherwise.)

A model without attention, such as Mamba, has only the first term, and so have the layers of a hybrid without it. A
scan costs about 9 FLOPs per state and token, which is small compared with the matrices and left out.
"""

import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from torch.nn import Embedding

from ...compat.deepspeed import whole_shape
from ..parameters import parameter_size

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel

_ACTIVE_EXPERTS = ("num_experts_per_tok", "experts_per_token", "moe_topk", "moe_k", "top_k_experts")
"""Names under which configurations have the number of experts that a token is sent to."""

_ATTENTION = ("full_attention", "sliding_attention", "chunked_attention", "attention", "hybrid")
"""Kinds of layers with attention, as configurations call them; others are linear, recurrent or convolutions."""


def _multiplying(model: "PreTrainedModel") -> Iterator[tuple[int, bool]]:
    """For every parameter but embeddings how many of its weights multiply a token, and whether they are trained."""
    output = model.get_output_embeddings()
    looked_up = {id(module.weight) for module in model.modules() if isinstance(module, Embedding)}
    looked_up -= {id(output.weight) if output is not None else None}
    named = [(name, parameter) for name, parameter in model.named_parameters() if id(parameter) not in looked_up]
    # Experts are one tensor for all, or modules with a number each.
    numbered = {int(match[1]) for name, _ in named if (match := re.search(r"\bexperts\.(\d+)\.", name))}
    config = model.config.get_text_config()
    active = next((getattr(config, name) for name in _ACTIVE_EXPERTS if getattr(config, name, None)), None)
    for name, parameter in named:
        size = parameter_size(parameter)
        if active is not None and re.search(r"\bexperts\.", name):
            experts = len(numbered) or whole_shape(parameter)[0]
            size = size * min(active, experts) // experts
        yield size, parameter.requires_grad


def _attention_features(model: "PreTrainedModel") -> float:
    """`L A` of the module's docstring, summed over the layers with attention."""
    config = model.config.get_text_config()
    heads = getattr(config, "num_attention_heads", None)
    if heads is None:
        return 0
    size = getattr(config, "head_dim", None) or config.hidden_size // heads
    queries, values = (getattr(config, name, None) or size for name in ("qk_head_dim", "v_head_dim"))
    kinds = getattr(config, "layer_types", None) or getattr(config, "layers_block_type", None)
    layers = config.num_hidden_layers if kinds is None else sum(kind in _ATTENTION for kind in kinds)
    return layers * heads * (queries + values) / 2


def flops_per_token(model: "PreTrainedModel", length: int) -> int:
    """FLOPs of training on one token of a row of `length` tokens.

    Args:
        model ([`~transformers.PreTrainedModel`]): a decoder whose configuration has `num_hidden_layers` and
            `hidden_size`, or other names that transformers maps to these.
        length (`int`): `T`, tokens per row.
    """
    per_token, per_pair = unit_flops(model)
    return per_token + per_pair * length


def unit_flops(model: "PreTrainedModel") -> tuple[int, int]:
    """Training FLOPs per token without attention, and FLOPs of attention per pair of positions in a sequence.

    Args:
        model ([`~transformers.PreTrainedModel`]): as for [`flops_per_token`].
    """
    per_token = sum((6 if is_trained else 4) * size for size, is_trained in _multiplying(model))
    return per_token, round(12 * _attention_features(model))


def sequence_lengths(batch: Mapping[str, "torch.Tensor"]) -> tuple[int, int]:
    """The sum of the lengths of the sequences in a batch, and the sum of their squares.

    ```python
    >>> import torch
    >>> row = torch.zeros(1, 5, dtype=torch.int64)
    >>> sequence_lengths({"input_ids": row})
    (5, 25)
    >>> sequence_lengths({"input_ids": row, "attention_mask": torch.tensor([[1, 1, 1, 0, 0]])})
    (3, 9)
    >>> sequence_lengths({"input_ids": row, "position_ids": torch.tensor([[0, 1, 2, 0, 1]]), "labels": row})
    (5, 13)

    ```
    """
    if "attention_mask" in batch:
        lengths = batch["attention_mask"].sum(-1)
        return int(lengths.sum()), int((lengths**2).sum())
    rows, length = batch["input_ids"].shape
    if "position_ids" not in batch:
        return rows * length, rows * length**2
    from ...data.packing import is_padding

    padding = is_padding(batch)
    squares = 2 * batch["position_ids"] + 1  # the odd numbers up to 2 T - 1 add up to T squared
    return int((~padding).sum()), int(squares.masked_fill(padding, 0).sum())
