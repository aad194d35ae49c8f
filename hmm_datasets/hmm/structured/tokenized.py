"""The tokens into which a tokenizer cuts the sequences of an HMM, with their exact distribution.

A predictor of tokens is right to give every cut but the canonical one the probability zero. Of a state `s` of the HMM
and a context `c` of tokens ([`~hmm_datasets.hmm.structured.symbol_tokenizer.Contexts`]), let `stays[c, s]` be the
probability that the symbols to come are cut where the last token ends. For long texts it is the limit of a sum over
the next token `v`, which leads to context `c'`:

    stays[c, s] = sum over v, s' of T[v][s, s'] stays[c', s'],    T[v][s, s'] = P(the symbols of v, then s' | s)

With the belief of the HMM after the symbols so far, token `v` comes next with probability

    sum over s, s' of belief[s] T[v][s, s'] stays[c', s']  /  sum over s of belief[s] stays[c, s]

The denominator is what canonical cuts lose: the likelihood of symbols under the HMM sums over all ways in which the
text may continue after them, also within a token, and that of tokens is smaller by this factor. (The other way round,
from a model of tokens to the distribution of characters: Phan et al., arXiv 2410.09303.)
"""

from collections.abc import Mapping
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import torch
from jaxtyping import Float, Int

from ...errors import InputError
from ..analysis.entropy import EntropyRate
from ..analysis.stationary import eliminate
from ..arrays import as_given, normalized, rows_from, token_array
from ..inference import forward_filter
from ..kernels.cuts import draw_cuts
from ..model import HMM
from ..process import Rows
from .symbol_tokenizer import SymbolTokenizer, train_symbol_bpe
from .wrapped import WrappedProcess

_EXACT, _MOST_STEPS = 1e-14, 20_000


class TokenizedProcess(WrappedProcess):
    """The tokens of the sequences of an HMM, each from its beginning.

    A row of `L` tokens is the beginning of the cut of an endless sequence. What a window that begins within one loses
    is measured by `window_losses`.

    Args:
        process ([`HMM`]): the symbols.
        tokenizer ([`SymbolTokenizer`], or the arguments of its constructor): what cuts them.

    Attributes:
        tokenizer ([`SymbolTokenizer`]): what cuts the symbols into `V` tokens.

    Raises:
        `InputError`: the process is no HMM, or the tokenizer has pieces of other symbols; when distributions are asked
            for, cuts depend on symbols to come without limit.

    ```python
    >>> from hmm_datasets import processes
    >>> pairs = TokenizedProcess(processes.coin(0.5), train_symbol_bpe([[0, 0, 1, 0, 0]] * 9, 2, 3))
    >>> pairs.next_token_probs([[0]])[0].round(3).tolist()  # after a 0 alone comes no other, as 0 0 is a token
    [[0.25, 0.5, 0.25], [0.0, 1.0, 0.0]]

    ```
    """

    stored_name: ClassVar[str] = "tokenized"
    is_stationary = True
    process: HMM

    def __init__(self, process: HMM, tokenizer: SymbolTokenizer | Mapping[str, Any]):
        super().__init__(process)
        if not isinstance(process, HMM):
            raise InputError(f"process is {process!r}; expected an HMM, such as its to_hmm()")
        self.tokenizer = SymbolTokenizer(**tokenizer) if isinstance(tokenizer, Mapping) else tokenizer
        pieces, symbols = self.tokenizer.pieces, set(range(process.num_symbols))
        wrong = [f"the piece {piece}" for piece in pieces if not piece or not symbols.issuperset(piece)]
        wrong += [f"no piece ({symbol},)" for symbol in symbols if (symbol,) not in self.tokenizer.token_of]
        if wrong:
            raise InputError(f"the tokenizer has {wrong[0]}; expected symbols of {process!r}, and each of them alone")
        names = process.vocabulary
        self.vocabulary = names and tuple(" ".join(names[symbol] for symbol in piece) for piece in pieces)

    @property
    def num_symbols(self) -> int:
        """`V`, the number of tokens."""
        return len(self.tokenizer.pieces)

    def settings(self) -> dict[str, Any]:
        """`tokenizer`: the kind of its model, its pieces, and its merges or scores."""
        return {"tokenizer": self.tokenizer.settings()}

    def describe(self) -> str:
        return f"{self.num_symbols:,} tokens ({self.tokenizer.kind}) of {self.process.describe()}"

    def _draw(self, seed: np.uint64, first: np.uint64, step: np.uint64, out: Rows) -> None:
        (count, wanted), longest = out.shape, int(self.tokenizer.sizes.max())
        length, left = int(1.1 * self.mean_length * wanted) + 8 * longest, np.arange(count if wanted > 0 else 0)
        tables, numbers = (*self.tokenizer.trie, self.tokenizer.contexts.following, longest), np.empty(count, np.int64)
        while len(left) > 0:
            rows = self.process.sample(count, length, int(seed), int(first), step=int(step), num_threads=1)[left]
            tokens = np.zeros((len(left), wanted), out.dtype)
            draw_cuts(rows, *tables, tokens, numbers)
            out[left] = tokens
            left, length = left[numbers[: len(left)] < wanted], 2 * length

    def next_token_probs(self, tokens: Int[Any, "B T"]) -> Float[Any, "B T+1 V"]:
        """The Bayes-optimal distribution of token `t` given the tokens before it, for `t = 0 .. T`.

        Zeros after tokens that the process cannot emit, as those of no canonical cut. Memory is for the beliefs of the
        HMM after every symbol, and for a number for each token and context.

        Args:
            tokens (array of shape `(B, T)`): tokens. The result for a tensor is a tensor, else a NumPy array.
        """
        values = token_array(tokens, self.num_symbols)
        contexts = self._contexts_after(values)
        reached = self.tokenizer.contexts.following[contexts]
        arrived = self._filtered(values, contexts)[0] @ self._arrived.T
        return normalized(np.take_along_axis(arrived, np.maximum(reached, 0), 2) * (reached >= 0))

    def log_likelihood(self, tokens: Int[Any, "B T"]) -> Float[Any, "B"]:
        """Log-likelihood (nats) of each row of tokens; -inf if the process cannot emit it.

        That of its symbols, with the probability of all the ways to cut them, is `process.log_likelihood`.

        Args:
            tokens (array of shape `(B, T)`): tokens. The result for a tensor is a tensor, else a NumPy array.
        """
        values = token_array(tokens, self.num_symbols)
        return as_given(tokens, self._filtered(values, self._contexts_after(values))[1][:, -1])

    def window_losses(self, tokens: Int[Any, "N W"]) -> Float[np.ndarray, "N W"]:
        """The loss of the best predictor at each token of windows that begin within a sequence, in nats.

        The predictor knows the process and that a token begins where the window does, but nothing before it: the
        first token is that at a random place among all tokens of a long sequence.

        Args:
            tokens (array of shape `(N, W)`): windows, such as parts of rows of `sample`.
        """
        values = token_array(tokens, self.num_symbols)
        if values.size == 0:
            return np.empty(values.shape)
        shares = self._begins.sum(1)
        # What stands before the window leaves one context after its first token, or several of a unigram model.
        rows, begun = np.nonzero((self.tokenizer.contexts.token == values[:, :1]) & (shares > 0))
        contexts = np.insert(self._contexts_after(values[rows, 1:], begun), 0, 0, axis=1)
        _, logs = self._filtered(values[rows], contexts, self._begins[begun] / shares[begun, None])
        likelihood = np.full(values.shape, -np.inf)
        np.logaddexp.at(likelihood, rows, logs[:, 1:] + np.log(shares[begun, None]))
        with np.errstate(invalid="ignore"):
            return np.nan_to_num(-np.diff(likelihood, prepend=0), nan=np.inf, posinf=np.inf)

    @cached_property
    def frequencies(self) -> Float[np.ndarray, "V"]:
        """The share of each token among the tokens of a long sequence."""
        shares = (self._begins * self._arrived)[1:].sum(1)
        return np.bincount(self.tokenizer.contexts.token[1:], shares, self.num_symbols)

    @cached_property
    def mean_length(self) -> float:
        """Symbols per token of a long sequence."""
        return float(self.frequencies @ self.tokenizer.sizes)

    def entropy_rate(self, **sample: Any) -> EntropyRate:
        """The entropy rate in nats per token: that of the symbols, times their number in a token.

        It is estimated as that of any process where the HMM has several parts between which it does not move.
        """
        shares, lasts = eliminate(self.process.start, self.process.transition)
        if (shares[lasts] > 0).sum() > 1:
            return super().entropy_rate(**sample)
        return EntropyRate(*(self.mean_length * value for value in self.process.entropy_rate(**sample)))

    @cached_property
    def _stays(self) -> Float[np.ndarray, "C_plus_1 H"]:
        """The probability that the symbols to come are cut here; zeros in the last row."""
        token, sizes = self.tokenizer.contexts.token, self.tokenizer.sizes
        shape, still, back = (len(token), self.process.num_states), 0, self.process.parameters().backward_step
        # As if the text ended after 0, 1, ... more symbols; a table follows from as many before as a piece is long.
        tables = [np.zeros(shape)] * int(sizes.max()) + [np.ones(shape)]
        for _ in range(_MOST_STEPS):
            arrived = self._through(np.array(tables)[-sizes[token], np.arange(len(token))], back, -1)
            tables = [*tables[1:], self._leads_to @ arrived]
            still = still + 1 if np.abs(tables[-1] - tables[-2]).max() < _EXACT else 0
            if still >= sizes.max():
                return np.vstack([tables[-1], np.zeros(shape[1])])
        raise InputError(f"cuts depend on more than {_MOST_STEPS:,} symbols to come; expected BPE, or other pieces")

    @cached_property
    def _arrived(self) -> Float[np.ndarray, "C H"]:
        """The probability that the symbols of a context's last token come, and that the text is cut after them."""
        return self._through(self._stays[:-1], self.process.parameters().backward_step, -1)

    @cached_property
    def _begins(self) -> Float[np.ndarray, "C H"]:
        """How often, per token, one begins that leads to this context, and in this state, before it is seen."""
        begun, onward = np.zeros_like(self._arrived), self.process.parameters().forward_step
        begun[0] = self.process.start
        for _ in range(_MOST_STEPS):
            ready = self._leads_to.T @ begun
            # The average with the step before forgets the period of a chain.
            moved = (begun + self._through(ready, onward, 1)) / 2
            moved /= (moved * self._stays[:-1]).sum()
            if np.abs(moved - begun).max() < _EXACT:
                return ready
            begun = moved
        raise InputError(f"no shares of tokens settle in {_MOST_STEPS:,} of them; expected an HMM that mixes faster")

    @cached_property
    def _leads_to(self) -> Float[np.ndarray, "C C"]:
        """1 where a token leads from a context to another one, else 0."""
        following = self.tokenizer.contexts.following[:-1]
        leads = np.zeros((len(following), len(following) + 1))
        np.put_along_axis(leads, following, 1, axis=1)
        return leads[:, :-1]

    def _through(self, rows: Float[np.ndarray, "C H"], step: Any, direction: int) -> Float[np.ndarray, "C H"]:
        """`rows @ T[v]` for the last token `v` of each context, by the HMM's step; back, with -1, `T[v] @ rows`."""
        result = torch.from_numpy(rows).clone()
        symbols = self.tokenizer.table[self.tokenizer.contexts.token]
        for place in range(symbols.shape[1])[::direction]:
            has = np.flatnonzero(symbols[:, place] >= 0)
            result[has] = step(result[has], torch.from_numpy(symbols[has, place]))
        return result.numpy()

    def _contexts_after(self, tokens: Int[np.ndarray, "B T"], begun: Any = 0) -> Int[np.ndarray, "B T+1"]:
        contexts = np.empty((len(tokens), tokens.shape[1] + 1), np.int64)
        contexts[:, 0] = begun
        for t, column in enumerate(tokens.T):
            contexts[:, t + 1] = self.tokenizer.contexts.following[contexts[:, t], column]
        return contexts

    def _filtered(
        self, tokens: Int[np.ndarray, "B T"], contexts: Int[np.ndarray, "B T+1"], initial: np.ndarray | None = None
    ) -> tuple[Float[np.ndarray, "B T+1 H"], Float[np.ndarray, "B T+1"]]:
        """The HMM's beliefs before each token and after the last, and the log-likelihood of the tokens so far."""
        ends = np.insert(self.tokenizer.sizes[tokens].cumsum(1), 0, 0, axis=1)
        symbols, lengths = self.tokenizer.table[tokens], ends[:, -1]
        rows = rows_from(symbols[symbols >= 0], lengths.cumsum() - lengths, lengths)
        start = None if initial is None else torch.from_numpy(initial)
        states = forward_filter(self.process.parameters(), torch.from_numpy(rows), torch.from_numpy(lengths), start)
        logs = np.insert(states.log_scale.numpy().cumsum(1), 0, 0, axis=1)
        beliefs = np.take_along_axis(states.beliefs.numpy(), ends[:, :, None], 1)
        with np.errstate(divide="ignore"):
            return beliefs, np.take_along_axis(logs, ends, 1) + np.log((beliefs * self._stays[contexts]).sum(-1))


def tokenized(
    process: HMM, vocab_size: int, *, num_sequences: int = 256, length: int = 1024, seed: int = 0
) -> TokenizedProcess:
    """The tokens of an HMM by byte pair encoding that is trained on its own sequences; see [`train_symbol_bpe`]."""
    symbols = process.sample(num_sequences, length, seed)
    return TokenizedProcess(process, train_symbol_bpe(symbols, process.num_symbols, vocab_size))
