"""FLOPs per token of a decoder, for the forward and the backward pass.

The count is `6 N + 12 L D T` per token, for `L` layers of width `D` and rows of `T` tokens. The first term is 2 FLOPs
for each weight in the forward pass and 4 in the backward pass. `N` counts the weights without the input embedding,
which is looked up; a tied embedding is also the output layer and counts. The second term is attention: the products of
queries with keys and of attention weights with values over all `T` positions of the row, without a discount for the
causal mask. See Kaplan et al., "Scaling laws for neural language models", 2020, section 2.1, and Chowdhery et al.,
"PaLM", 2022, appendix B, which defines MFU by the same count.

Recomputed activations and padding do not count, since MFU is about the model's FLOPs and not the hardware's. If the
rows of a batch differ in length, the batch costs the sum of `6 N T + 12 L D T^2` over its sequences, with `T` the
tokens of each. Packed documents that `position_ids` keep apart are separate sequences, so a plan computed from the row
length is an upper bound for them.

Weights that are not trained, as beside a LoRA adapter, cost 4 FLOPs instead of 6: the backward pass needs no gradient
of them. (It still passes through all layers, so attention costs what it does otherwise.)

A model without attention, such as Mamba, has only the first term. Its scan costs about 9 FLOPs per state and token,
which is small compared with the matrices and left out. In a hybrid every layer is counted as if it had attention.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from ..models import count_parameters, parameter_size

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel


def matrix_parameters(model: "PreTrainedModel") -> int:
    """Number of weights that multiply every token: all but the input embedding, unless it is also the output layer."""
    output = model.get_output_embeddings()
    return count_parameters(model)["body"] + (0 if output is None else parameter_size(output.weight))


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
    config = model.config.get_text_config()
    has_attention = getattr(config, "num_attention_heads", None) is not None
    per_pair = 12 * config.num_hidden_layers * config.hidden_size if has_attention else 0
    return 6 * matrix_parameters(model) - 2 * _frozen(model), per_pair


def _frozen(model: "PreTrainedModel") -> int:
    """Number of weights among the [`matrix_parameters`] that are not trained."""
    embedding, output = model.get_input_embeddings(), model.get_output_embeddings()
    looked_up = {id(embedding.weight)} - {id(output.weight) if output is not None else None}
    return sum(
        parameter_size(weight)
        for weight in model.parameters()
        if not weight.requires_grad and id(weight) not in looked_up
    )


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
    from ...data.packing import count_tokens, is_padding

    squares = 2 * batch["position_ids"] + 1  # the odd numbers up to 2 T - 1 add up to T squared
    return int(count_tokens(batch)), int(squares.masked_fill(is_padding(batch), 0).sum())
