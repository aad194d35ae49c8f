"""What a language model predicts about the symbols of an HMM, whatever other tokens it has."""

from typing import TYPE_CHECKING

import torch
from jaxtyping import Float, Int
from torch import Tensor

from hmm_datasets.hmm.analysis.divergence import log_probabilities

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_ROWS = 2048  # of a forward pass


def symbol_log_probs(model: "PreTrainedModel", tokens: Int[Tensor, "N L"], num_symbols: int) -> Float[Tensor, "N L E"]:
    """A model's log-probabilities of the symbols at every position, float64; other tokens are left out.

    Args:
        model ([`~transformers.PreTrainedModel`]): a causal language model whose tokens are the symbols, then a
            beginning token, which is put before every row.
        tokens (`torch.Tensor` of shape `(N, L)`): symbols.
        num_symbols (`int`): `E`.
    """
    rows = torch.nn.functional.pad(tokens, (1, 0), value=num_symbols)
    parts = [log_probabilities(model(part).logits[:, :-1, :num_symbols]) for part in rows.split(_ROWS)]
    return torch.cat(parts)
