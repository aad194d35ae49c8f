"""Factorial HMMs (Ghahramani and Jordan, "Factorial hidden Markov models", Machine Learning 29, 1997).

Several hidden chains move independently, and one symbol depends on the states of all. The joint state has
`J = H_1 ... H_K` values, but the chains move one after the other: a step of the filter takes `O(J (H_1 + ... + H_K))`
(appendix B of the paper) instead of the `O(J^2)` of a dense HMM, and a draw reads the chains' own tables.

Unlike those of a [`~hmm_datasets.FactoredProcess`], the chains depend on each other once symbols are seen, so the
joint distribution is filtered.
"""

import math
from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
from jaxtyping import Float, Int

from ...errors import InputError
from ..analysis.stationary import cesaro_limit
from ..arrays import (
    array,
    as_given,
    check_dense,
    distribution,
    kronecker_product,
    over_rows,
    summed_logs,
    token_array_with_gaps,
)
from ..kernels.structured import draw_factorial, filter_factorial
from ..model import HMM
from ..process import Process, Rows
from ..sampling import AliasTable

if TYPE_CHECKING:
    from ..analysis.entropy import EntropyRateBounds

_MAX_JOINT = 1 << 20


class FactorialHMM(Process):
    """Independent hidden chains, and one symbol that depends on the states of all of them.

    The joint state is numbered with the last chain the least significant.

    Args:
        transitions (sequence of `np.ndarray` of shape `(H_k, H_k)`): one table per chain.
        emission (`np.ndarray` of shape `(H_1, ..., H_K, E)`, *optional*): `P(symbol | states of all chains)`.
        weights (sequence of `np.ndarray` of shape `(H_k, E)`, *optional*): used instead of `emission`: the symbol's
            distribution is the softmax of the sum of the rows of the chains' states, the discrete form of the paper's
            linear observations.
        starts (sequence of `np.ndarray` of shape `(H_k,)`, *optional*): distribution of each chain's first state; by
            default stationary.

    Raises:
        `InputError`: a table is not a distribution, shapes disagree, or there are more than 2^20 joint states.

    ```python
    >>> stay = [[0.9, 0.1], [0.1, 0.9]]
    >>> pair = FactorialHMM([stay, stay], weights=[[[2, 0], [0, 0]], [[0, 0], [0, 2]]])
    >>> pair.sizes, pair.next_token_probs([[0]])[0, 0].round(3).tolist()
    ((2, 2), [0.5, 0.5])

    ```
    """

    stored_name: ClassVar[str] = "factorial"
    is_stationary = True

    def __init__(self, transitions: Sequence[Any], emission: Any = None, *, weights: Any = None, starts: Any = None):
        tables = [distribution(f"transitions[{k}]", table, 2, False) for k, table in enumerate(transitions)]
        self.transitions = tuple(tables)
        if len(tables) == 0 or any(table.shape[0] != table.shape[1] for table in tables):
            raise InputError(f"transitions have shapes {[t.shape for t in tables]}; expected (H_k, H_k) for each")
        if self.num_states > _MAX_JOINT:
            raise InputError(f"{self.num_states:,} joint states; expected at most {_MAX_JOINT:,}")
        if (emission is None) == (weights is None):
            raise InputError("a factorial HMM takes either emission= or weights=")
        rows = _softmax_rows(weights, self.sizes) if emission is None else emission
        self.emission = distribution("emission", rows, len(tables) + 1)
        if self.emission.shape[:-1] != self.sizes:
            raise InputError(f"emission has shape {self.emission.shape}; expected {(*self.sizes, 'E')}")
        if starts is None:
            starts = [cesaro_limit(np.full(len(table), 1 / len(table)), table) for table in tables]
        self.starts = tuple(distribution(f"starts[{k}]", start, 1, False) for k, start in enumerate(starts))
        if tuple(map(len, self.starts)) != self.sizes:
            raise InputError(f"starts have {tuple(map(len, self.starts))} entries; expected {self.sizes}")
        self._make_read_only()

    @property
    def sizes(self) -> tuple[int, ...]:
        """Number of states `H_k` of each chain."""
        return tuple(map(len, self.transitions))

    @property
    def num_states(self) -> int:
        """`J`, the number of joint states."""
        return math.prod(self.sizes)

    @property
    def num_symbols(self) -> int:
        """`E`."""
        return self.emission.shape[-1]

    max_states = belief_width = num_states

    def arrays(self) -> dict[str, np.ndarray]:
        """`emission`, and `transition_0`, `start_0`, ... of the chains."""
        chains = {f"transition_{k}": table for k, table in enumerate(self.transitions)}
        return {"emission": self.emission, **chains, **{f"start_{k}": start for k, start in enumerate(self.starts)}}

    def settings(self) -> dict[str, Any]:
        """`num_chains`."""
        return {"num_chains": len(self.transitions)}

    @classmethod
    def from_parts(cls, settings: dict[str, Any], arrays: dict[str, np.ndarray], parts: tuple[Process, ...]) -> Self:
        """The process with these arrays."""
        chains = range(settings["num_chains"])
        starts = [arrays[f"start_{k}"] for k in chains]
        return cls([arrays[f"transition_{k}"] for k in chains], arrays["emission"], starts=starts)

    def describe(self) -> str:
        """What the process is, in a few words."""
        return f"a factorial HMM of {len(self.sizes)} chains and {self.num_states:,} joint states"

    @property
    def start(self) -> np.ndarray:
        """Distribution of the first joint state, (J,)."""
        return kronecker_product(self.starts)

    def _draw_states(self, seed: np.uint64, first: np.uint64, step: np.uint64, out: Rows, states: Rows | None) -> None:
        start, symbol, *moves = self._alias_tables
        entries = np.concatenate([table.flat[0] for table in moves])
        offsets = np.cumsum([0, *(table.entries.size for table in moves[:-1])])
        bits = np.array([table.bits for table in moves], np.uint64)
        tables = *start.flat, *symbol.flat, entries, offsets, bits, np.array(self.sizes, np.uint64)
        draw_factorial(*tables, seed, first, step, out, states)

    @cached_property
    def _alias_tables(self) -> list[AliasTable]:
        rows = self.start[None], self.emission.reshape(self.num_states, -1), *self.transitions
        return [AliasTable.from_probabilities(table) for table in rows]

    def _after(self, prefix: Int[np.ndarray, "P"]) -> Process:
        return self.to_hmm()._after(prefix)

    def _filtered(self, tokens: Any, *, keep: bool = True) -> tuple[np.ndarray, np.ndarray]:
        values = token_array_with_gaps(tokens, self.num_symbols)
        beliefs = np.empty((values.shape[0], values.shape[1] + 1 if keep else 2, self.num_states))
        scales = np.empty(values.shape)
        flat = np.concatenate([table.reshape(-1) for table in self.transitions])
        offsets = np.cumsum([0, *(table.size for table in self.transitions[:-1])])
        tables = self.start, flat, offsets, np.array(self.sizes)
        emission = self.emission.reshape(self.num_states, -1)
        emission = np.hstack([emission, np.ones((self.num_states, 1))])  # the last for tokens that are missing

        def work(rows: slice) -> None:
            filter_factorial(*tables, emission, values[rows], beliefs[rows], scales[rows])

        over_rows(work, len(values), values.size * self.num_states * sum(self.sizes))
        return beliefs, scales

    def beliefs(self, tokens: Int[Any, "B T"]) -> Float[Any, "B T+1 J"]:
        """The filtering distribution over joint states, before each token."""
        return as_given(tokens, self._filtered(tokens)[0])

    def next_token_probs(self, tokens: Int[Any, "B T"]) -> Float[Any, "B T+1 E"]:
        """The Bayes-optimal distribution of each token given those before it."""
        probs, _ = self._filtered(tokens)
        return as_given(tokens, probs @ self.emission.reshape(self.num_states, -1))

    def log_likelihood(self, tokens: Int[Any, "B T"]) -> Float[Any, "B"]:
        """Log-likelihood (nats) of each sequence; -inf if the process cannot emit it."""
        _, scales = self._filtered(tokens, keep=False)
        return summed_logs(tokens, scales)

    def to_hmm(self) -> HMM:
        """The same process as an HMM with dense tables over the joint states (Ghahramani and Jordan 1997).

        Raises:
            `InputError`: there are more than 8,192 joint states.
        """
        check_dense(self.num_states)
        emission = self.emission.reshape(self.num_states, -1)
        return HMM(start=self.start, transition=kronecker_product(self.transitions), emission=emission)

    def entropy_rate_bounds(self) -> "EntropyRateBounds":
        """Bounds on the entropy rate in nats per token: those of the HMM, after 512 tokens."""
        return self.to_hmm().entropy_rate_bounds(length=512)

    def __repr__(self) -> str:
        return f"FactorialHMM({' x '.join(map(str, self.sizes))} states, {self.num_symbols} symbols)"


def _softmax_rows(weights: Any, sizes: tuple[int, ...]) -> Float[np.ndarray, "..."]:
    tables = [array(f"weights[{k}]", table, 2) for k, table in enumerate(weights)]
    if [len(table) for table in tables] != list(sizes) or len({table.shape[1] for table in tables}) != 1:
        raise InputError(f"weights have shapes {[table.shape for table in tables]}; expected (H_k, E) for H = {sizes}")
    total = tables[0]
    for table in tables[1:]:
        total = total[..., None, :] + table
    exponentials = np.exp(total - total.max(axis=-1, keepdims=True))
    return exponentials / exponentials.sum(axis=-1, keepdims=True)
