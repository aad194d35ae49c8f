"""The two tracks of the benchmark, because models read sequences in two ways.

- `ids`: the model's tokens are the symbols, after a beginning token, as in models trained with this package. Every
  symbol is scored.
- `text`: any causal language model with a tokenizer reads `A B B A`. The log-probability of a symbol is the sum over
  the tokens of its text, so models with different tokenizers compare. The first symbol is context and is not scored,
  because it is predicted from nothing but the format. The model knows nothing of the process.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Float64

from ...errors import InputError
from ...text.tokenizers.encoding import encode_texts
from ..continuations import Row, common_prefix, score_rows
from ..model_limits import beginning_token, check_context
from .held_out import LENGTH, HeldOut
from .processes import LETTERS
from .symbols import SymbolTokens, symbol_predictions

if TYPE_CHECKING:
    from accelerate import Accelerator
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


def first_scored(track: str) -> int:
    """Position of the first symbol that a track scores."""
    return 0 if track == "ids" else 1


def symbol_tokens(
    held_out: HeldOut, model: "PreTrainedModel", tokenizer: "PreTrainedTokenizerBase | None"
) -> SymbolTokens | None:
    """How a model reads the symbols; None if its tokenizer joins them or writes them as different numbers of tokens.

    Raises:
        `InputError`: without a tokenizer, the model has too few tokens or no beginning token.
    """
    needed = held_out.hmm.num_symbols
    if tokenizer is not None:
        try:
            return SymbolTokens.of(tokenizer, LETTERS[:needed])
        except InputError:
            return None
    bos, size = model.config.bos_token_id, model.config.vocab_size
    if bos is None or not needed <= bos < size:
        raise InputError(
            f"the model has {size} tokens, and its bos_token_id is {bos}; expected {needed} symbols of "
            f"{held_out.name} and after them a beginning token; set it in config.json, or choose the processes that "
            "the model knows with --process"
        )
    return SymbolTokens.ids(bos, needed)


def _text_rows(held_out: HeldOut, tokenizer: "PreTrainedTokenizerBase") -> list[Row]:
    """Rows whose scored tokens are those after the first symbol, for any tokenizer."""
    beginning, _ = beginning_token(tokenizer)
    before = [] if beginning is None else [beginning]
    texts, starts = held_out.texts(), [LETTERS[row[0]] for row in held_out.tokens]
    rows = []
    for whole, start in zip(encode_texts(tokenizer, texts), encode_texts(tokenizer, starts), strict=True):
        # Where a tokenizer joins the first symbol with what follows, the joint token is scored.
        context = common_prefix([whole, start])
        rows.append(Row([*before, *whole], max(1, len(before) + context)))
    return rows


class Predictions(NamedTuple):
    """What a model predicts of the held-out sequences of a process.

    Attributes:
        nats (`np.ndarray` of shape `(N, S)`): the loss of each scored symbol, in nats; or of shape `(N, 1)`, the mean
            over the symbols of each sequence, where only that is known.
        log_probs (`torch.Tensor` of shape `(N, S, E)`, *optional*): of every symbol at each scored position.
    """

    nats: Float[np.ndarray, "N S"]
    log_probs: Float64[torch.Tensor, "N S E"] | None


def predictions_of(
    held_out: HeldOut,
    model: "PreTrainedModel",
    tokenizer: "PreTrainedTokenizerBase | None",
    accelerator: "Accelerator",
    *,
    batch_size: int,
    progress: Callable[[int], Any] = lambda done: None,
) -> Predictions:
    """Read the held-out sequences of a process, as symbols without a tokenizer (track `ids`), else as text.

    Raises:
        `InputError`: the model cannot read them.
    """
    symbols = symbol_tokens(held_out, model, tokenizer)
    if symbols is not None:
        log_probs = symbol_predictions(
            model, symbols, held_out.tokens, accelerator, batch_size=batch_size, progress=progress
        )
        scored = torch.from_numpy(held_out.tokens[:, symbols.scored_from :].astype(np.int64))
        return Predictions(-log_probs.gather(-1, scored[..., None])[..., 0].numpy(), log_probs)
    rows = _text_rows(held_out, tokenizer)
    check_context(model, max(len(row.tokens) for row in rows), f"{LENGTH} symbols of {held_out.name}")
    nats = score_rows(model, [[row] for row in rows], accelerator, batch_size=batch_size, progress=progress).nats
    return Predictions(nats.numpy()[:, None] / (LENGTH - first_scored("text")), None)
