"""Known states of the data of a fit, of all tokens or of some: labels, and how EM takes them as they are.

A token of symbol `x` whose state is known to be `s` is one more symbol, the pair `(x, s)`. State `s` emits it with the
probability `emission[s, x]`, and no other state does. So the recursions of Baum-Welch, whose columns need not sum to
one, have the posterior given tokens and known states together, exactly, and the counts of a pair are counts of its
symbol. Only pairs that occur get a column. Where all states are known, the expected counts are those of the labels
under any tables that allow them, which [`KnownPaths`] counts, and one step reaches the maximum (Rabiner 1989, section
III.C, with known states).
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from ...array_input import Ragged, checked_entries, integers_with_gaps, numbers
from ...errors import InputError
from ..model import HMM

UNKNOWN = -1
"""The label of a token whose state is not known."""


@dataclass(frozen=True)
class Pairs:
    """The pairs of a symbol and a known state that occur, each of which has a number `c` in `[0, C)`.

    Attributes:
        symbols (`np.ndarray` of shape `(C,)`): symbol of each pair.
        states (`np.ndarray` of shape `(C,)`): state of each pair, [`UNKNOWN`] if it is not known.
    """

    symbols: Int[np.ndarray, "C"]
    states: Int[np.ndarray, "C"]

    @property
    def are_known(self) -> bool:
        """Whether the state of every token is known."""
        return bool((self.states != UNKNOWN).all())

    def columns(self, emission: Float[Tensor, "H E"]) -> Float[Tensor, "H C"]:
        """The probability of each pair in each state."""
        states = torch.from_numpy(self.states).to(emission.device)
        possible = (states == UNKNOWN) | (states == torch.arange(len(emission), device=emission.device).unsqueeze(1))
        return emission[:, torch.from_numpy(self.symbols).to(emission.device)] * possible

    def of_symbols(self, counts: Float[np.ndarray, "H C"], num_symbols: int) -> Float[np.ndarray, "H E"]:
        """The counts of symbols, from those of pairs; those of symbol `E`, the missing one, are left out."""
        result = np.zeros((num_symbols + 1, len(counts)))
        np.add.at(result, self.symbols, counts.T)
        return np.ascontiguousarray(result[:num_symbols].T)


class KnownPaths:
    """Sums of Baum-Welch where the state of every token is known: counts of the labels, by look-up.

    Args:
        hmm ([`~hmm_datasets.HMM`]): the HMM, state-emitting.
        pairs ([`Pairs`]): the pairs of which tokens are the numbers, all known.
    """

    def __init__(self, hmm: HMM, pairs: Pairs):
        self._pairs, self._shape = pairs, hmm.emission.shape
        with np.errstate(divide="ignore"):
            self._start, self._moves, emission = (np.log(table) for table in hmm.tables().values())
        # The last symbol is one that is missing.
        self._emitted = np.hstack([emission, np.zeros((len(emission), 1))])[pairs.states, pairs.symbols]

    def log_likelihood(self, tokens: Int[Tensor, "B T"], lengths: Int[Tensor, "B"] | None) -> Float[Tensor, "B"]:
        """`log P(tokens, states)` of each row in nats, float64."""
        numbers, states, live = self._read(tokens, lengths)
        parts = (
            np.where(live[:, :1], self._start[states[:, :1]], 0.0),
            np.where(live[:, 1:], self._moves[states[:, :-1], states[:, 1:]], 0.0),
            np.where(live, self._emitted[numbers], 0.0),
        )
        return torch.from_numpy(sum(part.sum(1) for part in parts))

    def sums(
        self, tokens: Int[Tensor, "B T"], lengths: Int[Tensor, "B"] | None, weights: Float[Tensor, "B"] | None
    ) -> tuple[dict[str, Tensor], Float[Tensor, "B"]]:
        """Counts of each table by its name, of the rows that the HMM can emit, and their log-likelihoods."""
        scores, (numbers, states, live) = self.log_likelihood(tokens, lengths), self._read(tokens, lengths)
        weight = np.isfinite(scores.numpy()) * (1.0 if weights is None else weights.double().cpu().numpy())
        by_token, (num_states, num_symbols) = live * weight[:, None], self._shape

        def counted(index: np.ndarray, weight: np.ndarray, *shape: int) -> Tensor:
            return torch.from_numpy(np.bincount(index.ravel(), weight.ravel(), math.prod(shape)).reshape(shape))

        moves, emitted = states[:, :-1] * num_states + states[:, 1:], states * (num_symbols + 1)
        emitted += self._pairs.symbols[numbers]
        return {
            "start": counted(states[:, :1], by_token[:, :1], num_states),
            "transition": counted(moves, by_token[:, 1:], num_states, num_states),
            "emission": counted(emitted, by_token, num_states, num_symbols + 1)[:, :-1],
        }, scores

    def _read(self, tokens: Tensor, lengths: Tensor | None) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The number of the pair and the state of each token, and which of them are no padding."""
        numbers = tokens.cpu().numpy()
        ends = np.full(len(numbers), numbers.shape[1]) if lengths is None else lengths.cpu().numpy()
        return numbers, self._pairs.states[numbers], np.arange(numbers.shape[1]) < ends[:, None]


def paired(
    tokens: Int[Tensor, "N L"], states: Int[np.ndarray, "N L"], lengths: Int[Tensor, "N"] | None
) -> tuple[Int[Tensor, "N L"], Pairs]:
    """The number of the pair of every token, of rows or a column, 0 beyond the ends of rows, and the pairs.

    ```python
    >>> codes, pairs = paired(torch.tensor([[2, 0, 2]]), np.array([[-1, 1, -1]]), None)
    >>> codes.tolist(), pairs.symbols.tolist(), pairs.states.tolist()
    ([[1, 0, 1]], [0, 2], [1, -1])

    ```
    """
    live = np.ones(tokens.shape, dtype=bool)
    if lengths is not None and tokens.ndim == 2:
        live = np.arange(tokens.shape[1]) < lengths.numpy()[:, None]
    pairs, number = np.unique(np.stack([tokens.numpy()[live], states[live]]), axis=1, return_inverse=True)
    codes = np.zeros(tokens.shape, np.int64)
    codes[live] = number.ravel()
    return torch.from_numpy(codes), Pairs(*pairs)


def check_states(
    states: Any, shape: tuple[int, int], lengths: Int[Tensor, "N"] | None, num_states: int
) -> Int[np.ndarray, "N L"]:
    """The known states as integers, [`UNKNOWN`] where they are missing.

    Raises:
        `InputError`: another shape than the tokens, no integers, or a state that the HMM does not have.
    """
    try:
        table, missing = integers_with_gaps("states", states)
    except Ragged:
        raise InputError("states are ragged; expected a (N, L) array, padded like the tokens") from None
    table = table.numpy(force=True) if isinstance(table, Tensor) else np.asarray(table)
    kind, table = table.dtype, table.astype(np.int64)
    if table.shape != shape:
        raise InputError(f"states have shape {table.shape}; expected {shape}, one for each token, -1 where not known")
    table = table if missing is None else np.where(missing, UNKNOWN, table)
    live = True if lengths is None else np.arange(shape[1]) < lengths.numpy()[:, None]
    wrong = np.argwhere(((table < UNKNOWN) | (table >= num_states)) & live)
    if len(wrong) > 0:
        row, position = wrong[0].tolist()
        remedy, value = "", table[row, position]
        if kind.kind == "u" and value == np.iinfo(kind).max:
            remedy = f"; -1 becomes {value} in the type {kind}, so convert states with .astype(int) before setting it"
        elif value == num_states and not (table == 0).any():
            remedy = "; number the states from 0"
        raise InputError(
            f"states[{row}, {position}] is {value}; the states of this HMM are 0..{num_states - 1}, "
            f"and -1 stands for one that is not known{remedy}"
        )
    return table


def check_weights(weights: Any, num_sequences: int) -> Float[Tensor, "N"]:
    """The weights of sequences in float64.

    Raises:
        `InputError`: another shape, a weight that is negative or not finite, or none above 0.
    """
    table = numbers("weights", weights)
    if table.shape != (num_sequences,):
        raise InputError(f"weights have shape {table.shape}; expected ({num_sequences},), one for each sequence")
    checked_entries("weights", table, np.isfinite(table) & (table >= 0), "a finite number, 0 or more")
    if not table.any():
        raise InputError("all weights are 0, so that no sequence counts; give one a weight above 0")
    return torch.from_numpy(np.array(table, np.float64))
