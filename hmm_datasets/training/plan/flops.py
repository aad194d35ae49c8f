"""How much arithmetic a token costs a decoder, forward and backward.

`6 N + 12 L D T` FLOPs per token: 2 for each weight that multiplies it and twice that again for the backward pass, `N`
being the weights without the input embedding, which is looked up (tied, it is the output layer and counts); and for
attention the two products of queries with keys and of weights with values over all `T` places of the row, without a
discount for the causal mask (Kaplan et al., "Scaling laws for neural language models", 2020, section 2.1; Chowdhery et
al., "PaLM", 2022, appendix B, which also defines MFU so). Recomputed activations count nothing: MFU is of the model's
FLOPs, not the hardware's. So does padding, though it costs the hardware what tokens do. A batch whose rows differ in
length costs the sum over its sequences, `6 N T + 12 L D T^2` of each, `T` its tokens; documents packed in one row are
sequences of their own where `position_ids` keep them apart, so that a plan by the row's length is an upper bound.

A model without attention, such as Mamba, has the first term alone: its scan over the row, some 9 FLOPs for each of its
states and tokens, is small beside the matrices and left out. In a hybrid every layer is taken to have attention.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from ..models import count_parameters, parameter_size

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel


def matrix_parameters(model: "PreTrainedModel") -> int:
    """Weights that multiply every token: all but the input embedding, unless that is the output layer too."""
    output = model.get_output_embeddings()
    return count_parameters(model)["body"] + (0 if output is None else parameter_size(output.weight))


def flops_per_token(model: "PreTrainedModel", length: int) -> int:
    """FLOPs of training on one token of a row of `length`.

    Args:
        model ([`~transformers.PreTrainedModel`]): a decoder whose configuration has `num_hidden_layers` and
            `hidden_size`, or names for them that transformers knows.
        length (`int`): `T`, tokens per row.
    """
    of_token, of_pair = unit_flops(model)
    return of_token + of_pair * length


def unit_flops(model: "PreTrainedModel") -> tuple[int, int]:
    """FLOPs of training on a token, attention apart, and those of attention for each pair of places in a sequence.

    Args:
        model ([`~transformers.PreTrainedModel`]): as for [`flops_per_token`].
    """
    config = model.config.get_text_config()
    has_attention = getattr(config, "num_attention_heads", None) is not None
    of_pair = 12 * config.num_hidden_layers * config.hidden_size if has_attention else 0
    return 6 * matrix_parameters(model), of_pair


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
    from ...data.packing import IGNORED, count_tokens

    positions = batch["position_ids"]
    # The odd numbers up to 2 T - 1 add up to T squared. Padding stands at the last position of the row, unlabelled.
    squares = 2 * positions + 1
    padding = (batch["labels"] == IGNORED) & (positions == length - 1)
    return int(count_tokens(batch)), int(squares.masked_fill(padding, 0).sum())
