"""How much arithmetic a token costs a decoder, forward and backward.

`6 N + 12 L D T` FLOPs a token: 2 for each weight that multiplies it and twice that again for the backward pass, `N`
being the weights without the input embedding, which is looked up (tied, it is the output layer and counts); and for
attention the two products of queries with keys and of weights with values over all `T` places of the row, without a
discount for the causal mask (Kaplan et al., "Scaling laws for neural language models", 2020, section 2.1; Chowdhery et
al., "PaLM", 2022, appendix B, which also defines MFU so). Recomputed activations count nothing: MFU is of the model's
FLOPs, not the hardware's.
"""

from typing import TYPE_CHECKING

from .models import count_parameters, parameter_size

if TYPE_CHECKING:
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
        length (`int`): `T`, tokens a row.
    """
    config = model.config.get_text_config()
    attention = 12 * config.num_hidden_layers * config.hidden_size * length
    return 6 * matrix_parameters(model) + attention
