"""Sequences of symbols that a language model draws as a policy."""

from typing import TYPE_CHECKING

import torch
from jaxtyping import Int
from torch import Tensor

from ..compat.transformers_caches import generate

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def draw_from_policy(
    model: "PreTrainedModel", num_sequences: int, length: int, num_symbols: int
) -> Int[Tensor, "N L"]:
    """Sequences of symbols, drawn at temperature 1 after a beginning token, which is the token after the symbols."""
    rows = torch.full((num_sequences, 1), num_symbols, device=model.device)
    drawn = generate(
        model,
        input_ids=rows,
        attention_mask=torch.ones_like(rows),
        do_sample=True,
        temperature=1.0,
        top_k=0,
        top_p=1.0,
        max_new_tokens=length,
        min_new_tokens=length,
        suppress_tokens=[num_symbols],
        pad_token_id=num_symbols,
    )
    return drawn[:, 1:]
