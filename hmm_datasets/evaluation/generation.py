"""Generation of what follows rows of tokens, in one batch that is padded on the left."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ..compat.transformers_caches import generate
from .continuations import padded_rows

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


def generate_rows(
    model: "PreTrainedModel",
    tokenizer: "PreTrainedTokenizerBase",
    rows: Sequence[list[int]],
    *,
    stop: int | list[int] | None,
    max_new_tokens: int,
    temperature: float = 0.0,
) -> list[list[int]]:
    """The tokens that a model writes after each row, with the token that ends them, and padding after it.

    Args:
        model ([`~transformers.PreTrainedModel`]), tokenizer ([`~transformers.PreTrainedTokenizerBase`]): the model.
        rows (sequence of lists of `int`): rows of tokens that leave room in the model's context.
        stop (`int` or `list` of `int`, *optional*): tokens to stop at; if there are none, those of the model's
            generation configuration.
        max_new_tokens (`int`): maximum number of new tokens per row.
        temperature (`float`, *optional*, defaults to 0.0): temperature of sampling; 0 for greedy decoding.
    """
    tokens, mask = padded_rows(rows, model.device, left=True)
    padding = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else tokenizer.eos_token_id
    how: dict[str, Any] = {"max_new_tokens": max_new_tokens, "pad_token_id": padding, "do_sample": temperature > 0}
    if temperature > 0:
        how |= {"temperature": temperature, "top_k": 0, "top_p": 1.0}
    if stop is not None and stop != []:
        how["eos_token_id"] = stop
    return generate(model, input_ids=tokens, attention_mask=mask, **how)[:, tokens.shape[1] :].tolist()
