"""Markov chains of any order: the next token depends on the last `k` alone.

Nothing is hidden, so there is no filter: the distribution of a token is a row of a table, and so is its alias table
for drawing. One token costs one look-up, and one Philox block of 128 bits serves two tokens. Draws compare integers,
so that they are the same on every machine. Memory is `E^(k+1)` numbers.

Constructors draw tables by `sampling.dirichlet`, in a fixed order of operations, so that they too are the same
everywhere.
"""

from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from jaxtyping import Bool, Float, Int, UInt

from ...errors import InputError
from ..analysis.stationary import cesaro_limit, eliminate, entropy
from ..arrays import as_given, as_tokens, distribution, normalized, token_array_with_gaps
from ..integers import integer
from ..kernels.dirichlet import fill_dirichlet_rows
from ..kernels.draws import CHAINS
from ..kernels.structured import draw_chains
from ..model import HMM
from ..process import Process, possible_belief
from ..sampling import AliasTable

if TYPE_CHECKING:
    from ..analysis.entropy import EntropyRate, OptimalLoss

_MAX_ENTRIES = 1 << 27  # of a table; its alias table takes as much again
_MAX_BELIEF_ENTRIES = 1 << 24
_DENSE_CONTEXTS = 512  # up to which the stationary distribution is computed by squaring a matrix
_MAX_DENSE_CONTEXTS = 4096  # up to which contexts that mix slowly are eliminated
_MAX_STEPS = 100_000
_ENOUGH = 1e-12  # error of the stationary distribution, estimated from how fast its steps become smaller


class MarkovChain(Process):
    """A Markov chain of order `k` over `E` symbols.

    Args:
        table (`np.ndarray` of shape `(E,) * k + (E,)`): `table[x_1, ..., x_k, y]` is the probability of `y` after the
            tokens `x_1 .. x_k`, oldest first. Of shape `(E,)`, tokens are independent.
        start (`np.ndarray` of shape `(E,) * k`, *optional*): distribution of the first `k` tokens; by default the
            stationary one.

    Raises:
        `InputError`: a row is not a distribution, or shapes disagree.

    ```python
    >>> chain = MarkovChain([[0.9, 0.1], [0.5, 0.5]])
    >>> chain.order, chain.next_token_probs([[1]])[0].round(3).tolist()
    (1, [[0.833, 0.167], [0.5, 0.5]])

    ```
    """

    stored_name: ClassVar[str] = "markov_chain"
    is_stationary = True

    def __init__(self, table: Any, start: Any = None):
        shape = np.shape(table)
        if len(shape) == 0 or len(set(shape)) != 1:
            raise InputError(f"table has shape {shape}; expected (E,) * k + (E,), for example (E, E) for order 1")
        if np.size(table) > _MAX_ENTRIES:
            raise InputError(f"table has {np.size(table):,} entries; expected at most {_MAX_ENTRIES:,}")
        self.table = distribution("table", table, len(shape))
        if start is None:
            start = self.stationary_contexts()
        elif np.shape(start) != shape[:-1]:
            raise InputError(f"start has shape {np.shape(start)}; expected {shape[:-1]}, a context of {self.order}")
        flat = distribution("start", np.reshape(start, -1), 1)
        self.start = flat.reshape(shape[:-1])
        for values in (self.table, self.start):
            values.setflags(write=False)

    @property
    def num_symbols(self) -> int:
        """`E`."""
        return self.table.shape[-1]

    @property
    def order(self) -> int:
        """`k`."""
        return self.table.ndim - 1

    @property
    def num_contexts(self) -> int:
        """`E^k`."""
        return self.table.size // self.num_symbols

    max_states = num_contexts  # the states of `to_hmm`

    @property
    def belief_width(self) -> int | None:
        """`E^k`: a belief is the distribution of the next `k` tokens; None where that needs too large a table."""
        return self.num_contexts if self.num_contexts**2 <= _MAX_BELIEF_ENTRIES else None

    @property
    def rows(self) -> Float[np.ndarray, "C E"]:
        """The table with contexts in one row, the last token the least significant digit."""
        return self.table.reshape(self.num_contexts, self.num_symbols)

    def arrays(self) -> dict[str, np.ndarray]:
        """`table`, and `start` unless the order is 0."""
        return {"table": self.table, **({"start": self.start} if self.order > 0 else {})}

    def describe(self) -> str:
        """What the process is, in a few words."""
        return f"a Markov chain of order {self.order} over {self.num_symbols:,} symbols"

    def _draw(self, seed: np.uint64, first: np.uint64, step: np.uint64, out: UInt[np.ndarray, "N L"]) -> None:
        start, table = self._alias_tables
        sizes = np.uint64(self.num_symbols), np.uint64(self.num_contexts), np.uint64(self.order)
        component = np.zeros(len(out), np.uint64)
        draw_chains(*start.flat, *table.flat, *sizes, component, seed, first, step, out)

    @cached_property
    def _alias_tables(self) -> tuple[AliasTable, AliasTable]:
        start = AliasTable.from_probabilities(self.start.reshape(1, -1))
        return start, AliasTable.from_probabilities(self.rows)

    @cached_property
    def _has_zeros(self) -> bool:
        return bool((self.table == 0).any() or (self.start == 0).any())

    def _after(self, prefix: Int[np.ndarray, "P"]) -> "MarkovChain":
        return MarkovChain(self.table, possible_belief(self, prefix).reshape(self.start.shape))

    def _contexts(self, values: Int[np.ndarray, "B T"], order: int) -> Int[np.ndarray, "B T_minus_order_plus_1"]:
        # The code of the `order` tokens before each position from `order` to T.
        codes = np.zeros((len(values), max(values.shape[1] - order + 1, 0)), np.int64)
        for t in range(order):
            codes = codes * self.num_symbols + values[:, t : t + codes.shape[1]]
        return codes

    def _prefix_rows(self, length: int) -> Float[np.ndarray, "C E"]:
        # The distribution of token `length < k` after each possible beginning, from `start`.
        joint = self.start.reshape(self.num_symbols**length, self.num_symbols, -1).sum(axis=2)
        return normalized(joint)

    def _checked(self, tokens: Any, method: str) -> tuple[Int[np.ndarray, "B T"], Any]:
        """The tokens, and where some are missing the result of `method` of the HMM, which sums over them."""
        values = token_array_with_gaps(tokens, self.num_symbols)
        if not (values == self.num_symbols).any():
            return values, None
        if self.belief_width is None:
            as_tokens(tokens, self.num_symbols)  # refuses them
        return values, getattr(self.to_hmm(), method)(tokens)

    def next_token_probs(self, tokens: Int[Any, "B T"]) -> Float[Any, "B T+1 E"]:
        """The distribution of each token given those before it, by look-up."""
        values, summed = self._checked(tokens, "next_token_probs")
        if summed is not None:
            return summed
        probs = self._by_context(values, lambda t: self._prefix_rows(t) if t < self.order else self.rows)
        if self._has_zeros:
            probs[:, 1:] *= self._possible(probs, values)[:, :, None]
        return as_given(tokens, probs)

    def beliefs(self, tokens: Int[Any, "B T"]) -> Float[Any, "B T+1 W"]:
        """The distribution of the next `k` tokens before each token: what the past says about the future.

        It is the belief of [`to_hmm`][MarkovChain.to_hmm]; of order 1, the next-token distribution.
        """
        if self.belief_width is None:
            raise InputError(f"{self!r} has {self.num_contexts:,} contexts; expected at most 4,096 for beliefs")
        values, summed = self._checked(tokens, "beliefs")
        if summed is not None:
            return summed
        beliefs = self._by_context(values, self._following)
        beliefs[:, 1:] *= self._possible(self.next_token_probs(values), values)[:, :, None]
        return as_given(tokens, beliefs)

    def _by_context(
        self, values: Int[np.ndarray, "B T"], rows_after: Callable[[int], Float[np.ndarray, "C W"]]
    ) -> Float[np.ndarray, "B T+1 W"]:
        # Before each token the row of its context, of those for contexts of `t` tokens, up to `order`.
        parts = [rows_after(t)[self._contexts(values[:, :t], t)] for t in range(min(self.order, values.shape[1] + 1))]
        if values.shape[1] >= self.order:
            parts.append(rows_after(self.order)[self._contexts(values, self.order)])
        return np.concatenate(parts, axis=1)

    def _following(self, length: int) -> Float[np.ndarray, "C C"]:
        # The distribution of the next k tokens after each beginning of `length <= k` tokens.
        joint = self.start if length < self.order else np.ones(self.table.shape[:-1])
        for _ in range(length):
            joint = joint.reshape(-1, *self.table.shape[:-1], 1) * self.table
        return normalized(joint.reshape(self.num_symbols**length, -1))

    @staticmethod
    def _possible(probs: Float[np.ndarray, "B T_plus_1 E"], values: Int[np.ndarray, "B T"]) -> Int[np.ndarray, "B T"]:
        # Whether each token and those before it are possible.
        drawn = np.take_along_axis(probs[:, :-1], values[:, :, None], axis=2)[:, :, 0]
        return (drawn > 0).cumprod(axis=1)

    def log_likelihood(self, tokens: Int[Any, "B T"]) -> Float[Any, "B"]:
        """Log-likelihood (nats) of each sequence, by one look-up per token."""
        values, summed = self._checked(tokens, "log_likelihood")
        if summed is not None:
            return summed
        length = values.shape[1]
        beginning = min(self.order, length)
        marginal = self.start.reshape(self.num_symbols**beginning, -1).sum(axis=1)
        with np.errstate(divide="ignore"):
            total = np.log(marginal)[self._contexts(values[:, :beginning], beginning)[:, 0]]
            if length > self.order:
                total = total + np.log(self.table).reshape(-1)[self._contexts(values, self.order + 1)].sum(axis=1)
        return as_given(tokens, total)

    def stationary_contexts(self) -> Float[np.ndarray, "..."]:
        """The long-run distribution of the last `k` tokens, of shape `(E,) * k`.

        From `start` where that is given, else from the uniform distribution. Chains with more than 512 contexts are
        stepped until nothing changes by more than 1e-15, nor by more than 1e-12 in all steps to come. Up to 4,096
        contexts that mix too slowly for that are eliminated one after the other, which takes seconds.

        Raises:
            `InputError`: more contexts than that take more than 100,000 steps.
        """
        shape = self.table.shape[:-1]
        start = self.__dict__.get("start")
        weights = np.full(shape, 1 / self.num_contexts) if start is None else start
        if self.num_contexts <= _DENSE_CONTEXTS:
            return cesaro_limit(weights.reshape(-1), self._moves()).reshape(shape)
        first, before = weights, np.inf
        small = self.num_contexts <= _MAX_DENSE_CONTEXTS
        for _ in range(_MAX_STEPS):
            # Half the weight stays where it is, so that a chain with a period converges too.
            after = (weights + (weights[..., None] * self.table).sum(axis=0)) / 2
            change = np.abs(after - weights).max()
            weights = after / after.sum()
            # Changes fall by a constant factor in the end. Where it is near one, their sum is far larger than one.
            if change == 0 or (change < 1e-15 and change <= _ENOUGH * (1 - change / before)):
                return np.where(self._recurrent(weights), weights, 0.0)
            if change < 1e-15 and small:
                break
            before = change
        if small:
            return eliminate(first.reshape(-1), self._moves())[0].reshape(shape)
        raise InputError(
            f"the stationary distribution of {self.num_contexts:,} contexts is not reached in {_MAX_STEPS:,} steps; "
            "expected a chain that mixes faster, or give start="
        )

    def _recurrent(self, weights: Float[np.ndarray, "..."]) -> Bool[np.ndarray, "..."]:
        """Which contexts are in a closed class of contexts that has some weight."""
        possible = self.table > 0

        def reached(seen: np.ndarray, step: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
            while (more := seen | step(seen)).sum() > seen.sum():
                seen = more
            return seen

        recurrent, decided = np.zeros((2, *weights.shape), bool)
        while (left := np.where(decided, 0.0, weights)).any():
            context = np.arange(left.size).reshape(left.shape) == left.argmax()
            after = reached(context, lambda seen: (seen[..., None] & possible).any(axis=0))
            before = reached(context, lambda seen: (seen & possible).any(axis=-1))
            decided |= before  # where not all that follows leads back, what leads here is transient
            if (before | ~after).all():
                recurrent, decided = recurrent | after, decided | after
        return recurrent

    def _moves(self) -> Float[np.ndarray, "C C"]:
        # The chain of contexts: the oldest token leaves, a new one comes.
        moves = np.zeros((self.num_contexts, self.num_contexts))
        if self.order == 0:
            return np.ones((1, 1))
        contexts = np.arange(self.num_contexts)[:, None]
        following = contexts * self.num_symbols % self.num_contexts + np.arange(self.num_symbols)
        moves[contexts, following] = self.rows
        return moves

    def entropy_rate(self, **settings: Any) -> "EntropyRate":
        """The mean entropy of a row under the stationary distribution of contexts: a closed form, without error."""
        from ..analysis.entropy import EntropyRate

        weights = self.stationary_contexts().reshape(-1)
        return EntropyRate(float(weights @ entropy(self.rows)), 0.0)

    def optimal_loss(self, length: int, **settings: Any) -> "OptimalLoss":
        """The entropy of each token given those before it: exact, since contexts are stepped from `start`."""
        from ..analysis.entropy import OptimalLoss

        length = integer("length", length, 0, 31)
        nats = np.zeros(length)
        for t in range(min(self.order, length)):
            before = self.start.reshape(self.num_symbols**t, -1).sum(axis=1)
            nats[t] = before @ entropy(self._prefix_rows(t))
        weights, by_context = self.start, entropy(self.rows)
        for t in range(self.order, length):
            nats[t] = weights.reshape(-1) @ by_context
            weights = (weights[..., None] * self.table).sum(axis=0) if self.order > 0 else weights
        return OptimalLoss(nats, np.zeros(length))

    def to_hmm(self) -> HMM:
        """The same process as an HMM whose state is the next `k` tokens, of which it emits the first.

        It has `E^k` states, and dense tables of `E^(2k)` numbers.
        """
        if self.order == 0:
            return HMM(start=[1.0], transition=[[1.0]], emission=self.rows)
        oldest = np.arange(self.num_contexts) // (self.num_contexts // self.num_symbols)
        return HMM(start=self.start.reshape(-1), transition=self._moves(), emission=np.eye(self.num_symbols)[oldest])

    def __repr__(self) -> str:
        return f"MarkovChain(order {self.order}, {self.num_symbols} symbols)"


def random_markov_chain(
    order: int, num_symbols: int, *, alpha: float = 1.0, seed: int = 0, index: int = 0
) -> MarkovChain:
    """A chain whose rows are drawn from a symmetric Dirichlet distribution.

    With `order=1` and `alpha=1` this is the prior of Edelman et al., "The evolution of statistical induction heads"
    (arXiv:2402.11004). The table is the one that `RandomChains(num_symbols, alpha).hmm_at(seed, index)` has.

    Args:
        order (`int`): `k`.
        num_symbols (`int`): `E`.
        alpha (`float`, *optional*, defaults to 1.0): concentration per symbol.
        seed, index (`int`, *optional*, default to 0): which chain.
    """
    order = integer("order", order, 0, 4)
    return MarkovChain(dirichlet_rows(order, num_symbols, alpha, seed, index).reshape((num_symbols,) * (order + 1)))


def dirichlet_rows(order: int, num_symbols: int, alpha: float, seed: int, index: int) -> Float[np.ndarray, "C E"]:
    """The rows of the table of [`random_markov_chain`], one for each context."""
    num_symbols = integer("num_symbols", num_symbols, 1, 16)
    if num_symbols ** (order + 1) > _MAX_ENTRIES:
        raise InputError(f"{num_symbols}^{order + 1} entries are too many; expected at most {_MAX_ENTRIES:,}")
    if not 1e-100 <= alpha <= 1e100:
        raise InputError(f"alpha is {alpha}; expected a positive number, 1e-100 .. 1e100")
    rows = np.empty((num_symbols**order, num_symbols))
    numbers = np.uint64(integer("index", index, 0, 64)), CHAINS, np.uint64(integer("seed", seed, 0, 64))
    fill_dirichlet_rows(float(alpha), *numbers, rows)
    return rows
