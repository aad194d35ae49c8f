"""What a language model predicts about the next symbol of a sequence: `A B B A` as text, or symbols as token ids.

At every position the distribution over all symbols is needed, from one forward pass. So a tokenizer has to write
every symbol as the same tokens but for a last one that is its own: ` A` as one token, or a space and a letter. The
prediction is read where that last token is predicted.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from jaxtyping import Float, Float64, Int
from torch import Tensor

from ...errors import InputError
from ...hmm.analysis.divergence import log_probabilities
from ...hmm.tokenizer import reads_symbols
from ...text.tokenizers.encoding import encode_texts
from ..continuations import common_prefix
from ..model_limits import beginning_token, check_context
from ..model_outputs import OneProcess
from ..rank_batches import share_rows

if TYPE_CHECKING:
    from accelerate import Accelerator
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

_LOGIT_BYTES = 1 << 28


@dataclass(frozen=True)
class SymbolTokens:
    """How a model reads symbols.

    Attributes:
        beginning (`tuple` of `int`): tokens before the first symbol.
        first (`tuple` of `tuple` of `int`): tokens of each symbol at the beginning of a text, all of one length.
        before (`tuple` of `int`): tokens that begin every later symbol, such as a space; often none.
        last (`tuple` of `int`): the last token of each later symbol.
        scored_from (`int`): the first symbol that is scored: 1 for text, whose first word may be written differently.
    """

    beginning: tuple[int, ...]
    first: tuple[tuple[int, ...], ...]
    before: tuple[int, ...]
    last: tuple[int, ...]
    scored_from: int = 1

    @classmethod
    def ids(cls, bos: int, num_symbols: int) -> "SymbolTokens":
        """Symbols as token ids, after a beginning token."""
        symbols = tuple(range(num_symbols))
        return cls((bos,), tuple((symbol,) for symbol in symbols), (), symbols, scored_from=0)

    @classmethod
    def of(cls, tokenizer: "PreTrainedTokenizerBase", names: Sequence[str], separator: str = " ") -> "SymbolTokens":
        """How a tokenizer writes symbols of these names; one of an HMM reads its own symbols, whatever their names.

        Raises:
            `InputError`: it writes them as different numbers of tokens, or joins them.
        """
        if reads_symbols(tokenizer):
            return replace(cls.ids(tokenizer.bos_token_id, len(names)), scored_from=1)
        alone = encode_texts(tokenizer, list(names))
        pairs = encode_texts(tokenizer, [f"{names[0]}{separator}{name}" for name in names])
        rows = [row[len(alone[0]) :] for row in pairs]
        shared = common_prefix(rows)
        beginning, _ = beginning_token(tokenizer)
        symbol_tokens = cls(
            () if beginning is None else (beginning,),
            tuple(map(tuple, alone)),
            tuple(rows[0][:shared]),
            tuple(row[-1] for row in rows if row),
        )
        order = [*range(len(names)), *range(len(names))[::-1]]
        whole = [*symbol_tokens.beginning, *encode_texts(tokenizer, [separator.join(names[x] for x in order)])[0]]
        same = {len(row) for row in rows} == {shared + 1} and len({len(row) for row in alone}) == 1
        if not same or symbol_tokens.written(np.array([order]))[0].tolist() != whole:
            raise InputError(
                f"{tokenizer.name_or_path or 'the tokenizer'} does not write each of {' '.join(names)} as the same "
                "tokens and one of its own; choose other symbols"
            )
        return symbol_tokens

    def written(self, tokens: Int[np.ndarray, "B T"]) -> Int[np.ndarray, "B L"]:
        """The rows of tokens of sequences of symbols."""
        before = [*self.before]
        rows = [
            [*self.beginning, *self.first[row[0]], *(part for x in row[1:] for part in (*before, self.last[x]))]
            for row in tokens.tolist()
        ]
        return np.array(rows, dtype=np.int64)

    def places(self, length: int) -> Int[np.ndarray, "S"]:
        """Where the scored symbols of a row are predicted: the indices of the tokens before their own."""
        start, step = len(self.beginning) + len(self.first[0]), len(self.before) + 1
        return start + step * np.arange(self.scored_from, length) - 2


def symbol_predictions(
    model: "PreTrainedModel",
    symbols: SymbolTokens,
    tokens: Int[np.ndarray, "N T"],
    accelerator: "Accelerator | None" = None,
    *,
    batch_size: int = 1,
    progress: Callable[[int], Any] = lambda done: None,
) -> Float64[Tensor, "N S E"]:
    """The log-probability of every symbol at each scored position, given the symbols before it.

    These are probabilities over the whole vocabulary of the model, so they do not sum to 1; `log_softmax` of them is
    the distribution normalized over the symbols.

    Args:
        model ([`~transformers.PreTrainedModel`]): a causal language model in eval mode, on the device of the
            accelerator.
        symbols ([`SymbolTokens`]): how it reads symbols.
        tokens (`np.ndarray` of shape `(N, T)`): sequences of symbols.
        accelerator ([`~accelerate.Accelerator`], *optional*): divides the sequences among ranks; without it this
            process reads all of them.
        batch_size (`int`, *optional*, defaults to 1): sequences of a forward pass at most; fewer where their logits
            would take more than 256 MB.
        progress (callable, *optional*): called with the number of sequences that were just done.

    Returns:
        `torch.Tensor` of shape `(N, S, E)`: on the CPU of every rank; `S` is `T`, or `T - 1` where the first symbol is
        not scored.

    Raises:
        `InputError`: the rows are longer than the model's context.
    """
    rows = torch.from_numpy(symbols.written(tokens))
    check_context(model, rows.shape[1], f"sequences of {tokens.shape[1]} symbols")
    places = torch.from_numpy(symbols.places(tokens.shape[1])).to(model.device)
    accelerator, log_probs = accelerator or OneProcess(model), []
    size = rows_per_pass(rows.shape[1], model.config.get_text_config().vocab_size, batch_size)
    for part in rows.split(size * accelerator.num_processes):
        mine = share_rows(part[:, :-1], accelerator).to(model.device)
        with torch.no_grad():
            logits = model(input_ids=mine, use_cache=False).logits
            # Row by row, since in float64 the logits of a batch take twice the memory.
            scores = torch.stack([_log_probs(row, symbols, places) for row in logits])
        log_probs.append(accelerator.gather(scores)[: len(part)].cpu())
        progress(len(part))
    return torch.cat(log_probs)


def rows_per_pass(length: int, vocab_size: int, batch_size: int) -> int:
    """Sequences of a forward pass: `batch_size`, or as many as have 256 MB of logits, and at least one."""
    return max(1, min(batch_size, _LOGIT_BYTES // (4 * length * vocab_size)))


def _log_probs(logits: Float[Tensor, "L V"], symbols: SymbolTokens, places: Int[Tensor, "S"]) -> Float[Tensor, "S E"]:
    last_tokens, logs = torch.tensor(symbols.last, device=logits.device), log_probabilities(logits)
    of_symbols = logs[places][:, last_tokens]
    for back, token in enumerate(reversed(symbols.before), start=1):
        of_symbols = of_symbols + logs[places - back, token][:, None]
    return of_symbols
