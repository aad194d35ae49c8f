"""The two tracks of the benchmark, because models read sequences in two ways.

- `ids`: the model's tokens are the symbols, after a beginning token, as in models trained with this package. Every
  symbol is scored.
- `text`: any causal language model with a tokenizer reads `A B B A`. The log-probability of a symbol is the sum over
  the tokens of its text, so models with different tokenizers compare. The first symbol is context and is not scored,
  because it is predicted from nothing but the format. The model knows nothing of the process.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Float64

from ...errors import InputError
from ...text.tokenizers.encoding import encode_texts
from ..continuations import Row, common_prefix, score_rows
from ..model_limits import beginning_token, context_limit
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
    held_out: HeldOut,
    model: "PreTrainedModel",
    tokenizer: "PreTrainedTokenizerBase | None",
    names: Sequence[str],
    separator: str,
) -> SymbolTokens | None:
    """How a model reads the symbols; None if its tokenizer joins them or writes them as different numbers of tokens.

    Raises:
        `InputError`: without a tokenizer, the model has too few tokens or no beginning token.
    """
    needed = held_out.hmm.num_symbols
    if tokenizer is not None:
        try:
            return SymbolTokens.of(tokenizer, names[:needed], separator)
        except InputError:
            return None
    bos = model.config.bos_token_id
    if model.config.vocab_size <= needed:
        raise InputError(
            f"the model has {model.config.vocab_size} tokens, but {held_out.name} has {needed} symbols and a "
            "beginning token; choose the processes that the model knows with --process"
        )
    if bos is None or bos < needed:
        raise InputError(
            f"the model's bos_token_id is {bos}; expected the id of its beginning token, {needed} or more for "
            f"{held_out.name}; set it in config.json, or choose the processes that the model knows with --process"
        )
    return SymbolTokens.ids(bos, needed)


def _text_rows(
    held_out: HeldOut, tokenizer: "PreTrainedTokenizerBase", names: Sequence[str], separator: str
) -> list[Row]:
    """Rows whose scored tokens are those after the first symbol, for any tokenizer."""
    beginning, _ = beginning_token(tokenizer)
    before = [] if beginning is None else [beginning]
    texts, starts = held_out.texts(names, separator), [names[row[0]] for row in held_out.tokens]
    rows = []
    for whole, start in zip(encode_texts(tokenizer, texts), encode_texts(tokenizer, starts), strict=True):
        # Where a tokenizer joins the first symbol with what follows, the joint token is scored.
        context = common_prefix([whole, start])
        rows.append(Row([*before, *whole], max(1, len(before) + context)))
    return rows


def optimal_nats(held_out: HeldOut, track: str) -> Float[np.ndarray, "N"]:
    """The loss of the exact HMM on the scored symbols of each sequence, in nats per symbol."""
    return -held_out.log_probs[:, first_scored(track) :].mean(axis=1)


class Predictions(NamedTuple):
    """What a model predicts of the held-out sequences of a process.

    Attributes:
        nats (`np.ndarray` of shape `(N,)`): the loss on the scored symbols of each sequence, in nats per symbol.
        log_probs (`torch.Tensor` of shape `(N, S, E)`, *optional*): of every symbol at each scored position.
    """

    nats: Float[np.ndarray, "N"]
    log_probs: Float64[torch.Tensor, "N S E"] | None


def predictions_of(
    held_out: HeldOut,
    model: "PreTrainedModel",
    tokenizer: "PreTrainedTokenizerBase | None",
    accelerator: "Accelerator",
    *,
    names: Sequence[str] = LETTERS,
    separator: str = " ",
    batch_size: int,
    progress: Callable[[int], Any] = lambda done: None,
) -> Predictions:
    """Read the held-out sequences of a process, as symbols without a tokenizer (track `ids`), else as text.

    Raises:
        `InputError`: the model cannot read them.
    """
    symbols = symbol_tokens(held_out, model, tokenizer, names, separator)
    if symbols is not None:
        log_probs = symbol_predictions(
            model, symbols, held_out.tokens, accelerator, batch_size=batch_size, progress=progress
        )
        scored = torch.from_numpy(held_out.tokens[:, symbols.scored_from :].astype(np.int64))
        return Predictions(-log_probs.gather(-1, scored[..., None])[..., 0].mean(1).numpy(), log_probs)
    rows = _text_rows(held_out, tokenizer, names, separator)
    limit, longest = context_limit(model), max(len(row.tokens) for row in rows)
    if limit is not None and longest - 1 > limit:
        raise InputError(
            f"the model reads at most {limit} tokens, but a sequence of {held_out.name} has {longest}; the benchmark "
            f"needs a model for sequences of {LENGTH} symbols"
        )
    nats = score_rows(model, [[row] for row in rows], accelerator, batch_size=batch_size, progress=progress).nats
    return Predictions(nats.numpy() / (LENGTH - first_scored("text")), None)
