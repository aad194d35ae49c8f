"""Known states of the data of a fit, of all tokens or of some: labels, and how EM takes them as they are.

A token of symbol `x` whose state is known to be `s` is one more symbol, the pair `(x, s)`. State `s` emits it with the
probability `emission[s, x]`, and no other state does. So the recursions of Baum-Welch, whose columns need not sum to
one, have the posterior given tokens and known states together, exactly, and the counts of a pair are counts of its
symbol. Only pairs that occur get a column. Where all states are known, the expected counts are those of the labels
under any tables that allow them, which [`KnownPaths`] counts, and one step reaches the maximum (Rabiner 1989, section
III.C, with known states).
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from ...array_input import Ragged, integers_with_gaps, numbers
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
        self._shapes = {name: table.shape for name, table in hmm.tables().items()}
        self._pairs = pairs
        with np.errstate(divide="ignore"):
            self._logs = {name: np.log(table) for name, table in hmm.tables().items()}
        # The last symbol is one that is missing.
        emission = np.hstack([self._logs["emission"], np.zeros((hmm.num_states, 1))])
        self._logs["emission"] = emission[pairs.states, pairs.symbols]

    def log_likelihood(self, tokens: Int[Tensor, "B T"], lengths: Int[Tensor, "B"] | None) -> Float[Tensor, "B"]:
        """`log P(tokens, states)` of each row in nats, float64."""
        logs, (moves, live) = self._logs, self._places(tokens, lengths)
        numbers, states = tokens.cpu().numpy(), self._pairs.states[tokens.cpu().numpy()]
        total = np.where(live, logs["emission"][numbers], 0.0).sum(1)
        total += np.where(moves, logs["transition"][states[:, :-1], states[:, 1:]], 0.0).sum(1)
        return torch.from_numpy(total + (np.where(live[:, 0], logs["start"][states[:, 0]], 0.0) if live.size else 0.0))

    def sums(
        self, tokens: Int[Tensor, "B T"], lengths: Int[Tensor, "B"] | None, weights: Float[Tensor, "B"] | None
    ) -> tuple[dict[str, Tensor], Float[Tensor, "B"]]:
        """Counts of each table by its name, of the rows that the HMM can emit, and their log-likelihoods."""
        scores, (moves, live) = self.log_likelihood(tokens, lengths), self._places(tokens, lengths)
        numbers = tokens.cpu().numpy()
        states, symbols = self._pairs.states[numbers], self._pairs.symbols[numbers]
        weight = np.isfinite(scores.numpy()) * (1.0 if weights is None else weights.double().cpu().numpy())
        by_token = np.broadcast_to(weight[:, None], numbers.shape)
        num_states, num_symbols = self._shapes["emission"]
        observed = live & (symbols < num_symbols)
        places = {
            "start": (states[:, 0][live[:, 0]], weight[live[:, 0]]),
            "transition": ((states[:, :-1] * num_states + states[:, 1:])[moves], by_token[:, 1:][moves]),
            "emission": ((states * num_symbols + symbols)[observed], by_token[observed]),
        }
        counts = {
            name: np.bincount(places[name][0], places[name][1], np.prod(shape, dtype=int)).reshape(shape)
            for name, shape in self._shapes.items()
        }
        return {name: torch.from_numpy(table) for name, table in counts.items()}, scores

    @staticmethod
    def _places(tokens: Tensor, lengths: Tensor | None) -> tuple[np.ndarray, np.ndarray]:
        """Where there is a move to the next token, and where there is a token."""
        ends = np.full(len(tokens), tokens.shape[1]) if lengths is None else lengths.cpu().numpy()
        live = np.arange(tokens.shape[1]) < ends[:, None]
        return live[:, 1:], live


def paired(
    tokens: Int[Tensor, "N L"], states: Int[np.ndarray, "N L"], lengths: Int[Tensor, "N"] | None
) -> tuple[Int[Tensor, "N L"], Pairs]:
    """The number of the pair of every token, 0 beyond the ends of rows, and the pairs.

    ```python
    >>> codes, pairs = paired(torch.tensor([[2, 0, 2]]), np.array([[-1, 1, -1]]), None)
    >>> codes.tolist(), pairs.symbols.tolist(), pairs.states.tolist()
    ([[1, 0, 1]], [0, 2], [1, -1])

    ```
    """
    live = np.ones(tokens.shape, dtype=bool)
    if lengths is not None:
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
    wrong = np.flatnonzero(~(np.isfinite(table) & (table >= 0)))
    if len(wrong) > 0:
        raise InputError(f"weights[{wrong[0]}] is {table[wrong[0]]}; expected a finite number, 0 or more")
    if not table.any():
        raise InputError("all weights are 0, so that no sequence counts; give one a weight above 0")
    return torch.from_numpy(np.array(table, np.float64))
