"""Random Markov chains, observed, hidden or of higher order: the tables of every group are drawn from a prior.

Tables, and so tokens, are identical on every machine that follows IEEE 754 (see `dirichlet`). A table of 50 states
takes less than a millisecond to draw, and 100 tokens from it a few microseconds.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import one_hot, pad

from ...errors import InputError
from ..arrays import as_tokens
from ..integers import finite_number, integer, integer_range
from ..kernels.dirichlet import fill_dirichlet_rows, fill_zipf_rows, make_doubly_stochastic, stationary_distribution
from ..kernels.draws import CHAINS, HIDDEN, NUM_STATES, SUBSET, TREES, ZIPF
from ..model import HMM
from ..sampling import AliasTable, random_words
from ..structured.markov import MarkovChain, dirichlet_rows
from .family import Family, group_number, least_and_most, permutation_of, uniform_integer
from .mixture import Hypothesis, posterior_mean


@dataclass(frozen=True)
class RandomChains(Family):
    """Markov chains with random transition tables.

    Without `emission_alpha` the chain is observed: each state always emits its own symbol, and with a larger alphabet
    the symbols in use are a uniform random subset. With `emission_alpha` the chain is hidden: each state has a random
    emission distribution over all symbols.

    Args:
        num_states (`int` or pair of `int`): `H`. With a pair `(minimum, maximum)`, `H` is drawn uniformly for each
            chain.
        alpha (`float`, *optional*): concentration per state of the symmetric Dirichlet distribution of the rows. 1 is
            uniform over distributions; rows are peaked below 1 and flat above.
        group (`int`, *optional*, defaults to 1): number of consecutive sequences that share a chain.
        zipf (`float`, *optional*): used instead of `alpha`. The probabilities of each row are `1^-zipf, 2^-zipf, ...,
            H^-zipf` divided by their sum, in a uniform random order.
        doubly_stochastic (`bool`, *optional*, defaults to `False`): scale the table so that columns sum to one too
            (Sinkhorn), and the stationary distribution is uniform.
        alphabet (`int`, *optional*): `E`; by default the maximum number of states.
        emission_alpha (`float`, *optional*): concentration per symbol of the Dirichlet distribution of the emission
            rows.
        start (`str`, *optional*, defaults to `"uniform"`): distribution of the first state, `"uniform"` or
            `"stationary"`.

    ```python
    >>> family = RandomChains(num_states=3, alpha=1.0)
    >>> family.next_token_probs([[0, 1, 0]])[0, 3].round(3).tolist()
    [0.25, 0.5, 0.25]
    >>> RandomChains((2, 8), zipf=1.0, doubly_stochastic=True, alphabet=50).sample(2, 30, seed=1).shape
    (2, 30)

    ```
    """

    stored_name: ClassVar[str] = "RandomChains"

    num_states: int | tuple[int, int]
    alpha: float | None = None
    group: int = 1
    zipf: float | None = None
    doubly_stochastic: bool = False
    alphabet: int | None = None
    emission_alpha: float | None = None
    start: str = "uniform"

    _max_states: ClassVar[int] = 1 << 15  # rows and entries of a table are counted in 32 bits

    def __post_init__(self):
        self._check_group()
        object.__setattr__(self, "num_states", integer_range("num_states", self.num_states, 1, 31))
        maximum = self._range[1]
        if maximum > self._max_states:
            raise InputError(
                f"num_states is {self.num_states}; expected a number in 1 .. {self._max_states}, or two in increasing "
                "order"
            )
        if (self.alpha is None) == (self.zipf is None):
            raise InputError(f"alpha is {self.alpha}, zipf {self.zipf}; expected one of them, and None for the other")
        for name in ("alpha", "emission_alpha"):
            value = getattr(self, name)
            if value is not None and not 1e-100 <= value <= 1e100:
                raise InputError(f"{name} is {value}; expected a positive number, 1e-100 .. 1e100")
        if self.zipf is not None and not 0 <= self.zipf <= 100:
            raise InputError(f"zipf is {self.zipf}; expected an exponent in 0 .. 100")
        if self.alphabet is None:
            object.__setattr__(self, "alphabet", maximum)
        object.__setattr__(self, "alphabet", integer("alphabet", self.alphabet, 1, 31))
        needed = maximum if self.emission_alpha is None else 1
        if not needed <= self.alphabet <= 1 << 16:
            raise InputError(f"alphabet is {self.alphabet}; expected {needed} .. {1 << 16} symbols")
        if self.start not in ("uniform", "stationary"):
            raise InputError(f"start is {self.start!r}; expected 'uniform' or 'stationary'")

    @property
    def has_exact_distribution(self) -> bool:
        """Whether the chains are observed, with Dirichlet rows and a uniform start."""
        return not self._without_closed_form

    @property
    def _without_closed_form(self) -> list[str]:
        has_none = {
            "zipf": self.zipf is not None,
            "doubly_stochastic": self.doubly_stochastic,
            "emission_alpha": self.emission_alpha is not None,
            "start='stationary'": self.start != "uniform",
        }
        return [name for name, present in has_none.items() if present]

    @property
    def num_symbols(self) -> int:
        """`E`, the alphabet."""
        return self.alphabet

    @property
    def _range(self) -> tuple[int, int]:
        return least_and_most(self.num_states)

    def hmm_at(self, seed: int, index: int) -> HMM:
        """The HMM of sequence `index` of the stream `seed`."""
        start, emission, transition = self._tables(*group_number(self, seed, index))
        return HMM(start=start[0], transition=transition, emission=emission)

    @property
    def max_states(self) -> int:
        """Maximum number of states of a chain."""
        return self._range[1]

    def _own_tables(self, seed: int, index: int) -> tuple[AliasTable, AliasTable, AliasTable]:
        # Those of hmm_at(...), without checking tables that are known to be distributions.
        tables = self._tables(*group_number(self, seed, index))
        start, symbol, transition = map(AliasTable.from_probabilities, tables)
        return start, symbol, transition

    def _tables(self, number: np.uint64, key: np.uint64) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        # Returns start (1, H), emission (H, E) and transition (H, H).
        size = self._num_states(number, key)
        transition = np.empty((size, size))
        if self.zipf is not None:
            fill_zipf_rows(float(self.zipf), number, ZIPF, key, transition)
        else:
            fill_dirichlet_rows(float(self.alpha), number, CHAINS, key, transition)
        if self.doubly_stochastic:
            make_doubly_stochastic(transition)
        uniform = self.start == "uniform" or self.doubly_stochastic
        start = np.full(size, 1 / size) if uniform else stationary_distribution(transition)
        emission = np.zeros((size, self.num_symbols))
        if self.emission_alpha is None:
            emission[np.arange(size), self._symbols(size, number, key)] = 1
        else:
            fill_dirichlet_rows(float(self.emission_alpha), number, HIDDEN, key, emission)
        return start[None], emission, transition

    def _num_states(self, number: np.uint64, key: np.uint64) -> int:
        minimum, maximum = self._range
        if minimum == maximum:
            return minimum
        high, low, _, _ = random_words(NUM_STATES, np.array([number]), key)[0].tolist()
        return uniform_integer(self._range, high, low)

    def _symbols(self, size: int, number: np.uint64, key: np.uint64) -> Int[np.ndarray, "H"]:
        if size == self.num_symbols:
            return np.arange(size)
        return np.sort(permutation_of(SUBSET, self.num_symbols, number, key)[:size])

    def next_token_probs(self, tokens: Int[Any, "B T"]) -> Float[Any, "B T+1 E"]:
        """The Bayes-optimal distribution of token `t` given those before it, with unknown chain, for `t = 0 .. T`.

        With `H` known each row of the table is a Pólya urn. A symbol `x` that has been seen comes next with
        probability `(alpha + times x followed the last symbol) / (H alpha + times the last symbol was followed)`; the
        symbols not seen yet share the rest equally. With `H` unknown the distribution is the mean over `H` by
        posterior weight. It uses one sequence only, although the other sequences of a group could improve it. Memory
        is `O(B T (T + E))`, and time is of the same order for each possible number of states.

        The distribution is exact for observed Dirichlet chains with a uniform start. There is no closed form for Zipf
        or doubly stochastic tables, for a stationary start or for hidden chains. Then
        [`~Family.oracle_next_token_probs`] gives a lower bound on the optimal loss. The cross-entropy of any predictor
        is an upper bound, for example of this distribution of the corresponding Dirichlet chains.

        Args:
            tokens (array of shape `(B, T)`): symbols. The result for a tensor is a tensor, else a NumPy array.

        Raises:
            `InputError`: there is no closed form.
        """
        if not self.has_exact_distribution:
            raise InputError(
                f"chains with {' and '.join(self._without_closed_form)} have no next-token distribution in closed "
                "form; oracle_next_token_probs gives a lower bound on every predictor's loss, and next_token_probs "
                "of the same chains without these settings gives an upper bound on the optimal loss"
            )
        values = as_tokens(tokens, self.num_symbols)
        minimum, maximum = self._range
        return posterior_mean(urns(range(minimum, maximum + 1), float(self.alpha), self.num_symbols, values))


@dataclass(frozen=True)
class HigherOrderChains(Family):
    """Markov chains of order `k` with random tables: the prior of in-context learning of n-grams (Edelman et al., "The
    evolution of statistical induction heads", arXiv:2402.11004).

    Each row of a table, one for each of the `E^k` contexts, is drawn from a symmetric Dirichlet distribution. The
    first `k` tokens are uniform.

    Args:
        order (`int`): `k`, 1 or more.
        alphabet (`int`): `E`, with `E^k` of at most 1024 contexts, the states of the HMM of a sequence.
        alpha (`float`, *optional*, defaults to 1.0): concentration per symbol.
        group (`int`, *optional*, defaults to 1): number of consecutive sequences that share a chain.

    ```python
    >>> family = HigherOrderChains(2, 2)
    >>> family.next_token_probs([[0, 1, 1, 0, 1]])[0, 5].round(3).tolist()  # once 1 followed 0, 1
    [0.333, 0.667]

    ```
    """

    stored_name: ClassVar[str] = "HigherOrderChains"

    order: int
    alphabet: int
    alpha: float = 1.0
    group: int = 1

    _max_contexts: ClassVar[int] = 1024

    def __post_init__(self):
        self._check_group()
        for name in ("order", "alphabet"):
            object.__setattr__(self, name, integer(name, getattr(self, name), 1, 31))
        if self.order > 10 or self.num_symbols**self.order > self._max_contexts:
            raise InputError(
                f"order is {self.order}, alphabet {self.alphabet}: {self.alphabet}**{self.order} contexts; "
                f"expected at most {self._max_contexts:,}, lower one of them"
            )
        if not 1e-100 <= self.alpha <= 1e100:
            raise InputError(f"alpha is {self.alpha}; expected a positive number, 1e-100 .. 1e100")

    @property
    def num_symbols(self) -> int:
        """`E`, the alphabet."""
        return self.alphabet

    @property
    def max_states(self) -> int:
        """`E^k`."""
        return self.num_symbols**self.order

    def chain_at(self, seed: int, index: int) -> MarkovChain:
        """The chain of sequence `index` of the stream `seed`."""
        rows = self._rows(*group_number(self, seed, index))
        shape = (self.num_symbols,) * self.order
        return MarkovChain(rows.reshape(*shape, self.num_symbols), np.full(shape, 1 / self.max_states))

    def _rows(self, number: np.uint64, key: np.uint64) -> Float[np.ndarray, "C E"]:
        # One for each context, whose last token is the least significant digit.
        return dirichlet_rows(self.order, self.num_symbols, self.alpha, key, number)

    def hmm_at(self, seed: int, index: int) -> HMM:
        """The HMM of sequence `index` of the stream `seed`, whose state is the next `k` tokens."""
        return self.chain_at(seed, index).to_hmm()

    def next_token_probs(self, tokens: Int[Any, "B T"]) -> Float[Any, "B T+1 E"]:
        """The Bayes-optimal distribution of token `t` given those before it, with unknown chain, for `t = 0 .. T`.

        Each row of the table is a Pólya urn: after a context that was followed `n` times, `m` of them by `x`, token
        `x` has probability `(alpha + m) / (E alpha + n)`. It uses one sequence only, although the others of a group
        could improve it. Time and memory are `O(B T (T + E))`.
        """
        values = as_tokens(tokens, self.num_symbols)
        shape = len(values), values.shape[1] + 1, self.num_symbols
        probs = values.new_full(shape, 1 / self.num_symbols, dtype=torch.float64)
        if values.shape[1] >= self.order:
            probs[:, self.order :] = self._predictions(values.long())
        return probs

    def _predictions(self, values: Int[Tensor, "B T"]) -> Float[Tensor, "B N E"]:
        # The distributions of tokens k .. T, of which the last one is not seen yet.
        return self._urn(values, self.order)[0]

    def _urn(self, values: Int[Tensor, "B T"], depth: int) -> tuple[Float[Tensor, "B N E"], Float[Tensor, "B N M"]]:
        """The distributions of tokens `k .. T` if only the last `depth` tokens matter, and where tokens `k .. T - 1`
        came after the same `depth` tokens, earlier."""
        powers = self.num_symbols ** torch.arange(depth, device=values.device)
        contexts = (values[:, self.order - depth :].unfold(1, depth, 1) * powers).sum(-1)
        earlier = _are_earlier(contexts)
        followed = earlier @ one_hot(values[:, self.order :], self.num_symbols).to(torch.float64)
        times = followed.sum(-1, keepdim=True)
        return (self.alpha + followed) / (self.num_symbols * self.alpha + times), earlier


@dataclass(frozen=True)
class ContextTrees(HigherOrderChains):
    """Markov chains of variable order with random trees of contexts: the prior of context-tree weighting (Willems,
    Shtarkov and Tjalkens, "The context-tree weighting method: basic properties", IEEE Trans. Inf. Theory 41, 1995),
    which transformers learn in context (Zhou, Tian and Diggavi, "Transformers learn variable-order Markov chains
    in-context", arXiv:2410.05493).

    From the empty context on, each context of fewer than `k` last tokens is a leaf with probability `stop`; else it is
    split by the token before, into `E` contexts. Those of `k` tokens are leaves. Each leaf has a row, drawn from a
    symmetric Dirichlet distribution, of all contexts that end with it. The first `k` tokens are uniform. With `stop=0`
    these are the chains of [`HigherOrderChains`]; with `stop=1` all tokens after the first `k` are independent.

    Args:
        order (`int`): `k`, 1 or more: tokens of the longest contexts.
        alphabet (`int`): `E`, with `E^k` of at most 1024 contexts, the states of the HMM of a sequence.
        alpha (`float`, *optional*, defaults to 1.0): concentration per symbol; 0.5 is the Krichevsky-Trofimov
            estimator.
        group (`int`, *optional*, defaults to 1): number of consecutive sequences that share a chain.
        stop (`float`, *optional*, defaults to 0.5): probability that a context is a leaf, 0 .. 1.

    ```python
    >>> family = ContextTrees(2, 2, alpha=0.5)
    >>> family.next_token_probs([[0, 1, 1, 0, 1]])[0, 5].round(3).tolist()
    [0.35, 0.65]
    >>> family.chain_at(seed=0, index=0).table.shape
    (2, 2, 2)

    ```
    """

    stored_name: ClassVar[str] = "context_trees"

    stop: float = 0.5

    def __post_init__(self):
        super().__post_init__()
        object.__setattr__(self, "stop", finite_number("stop", self.stop, 0))
        if self.stop > 1:
            raise InputError(f"stop is {self.stop}; expected a probability, 0 .. 1")

    def _rows(self, number: np.uint64, key: np.uint64) -> Float[np.ndarray, "C E"]:
        rows = HigherOrderChains._rows(self, number, key)
        contexts = leaves = np.arange(len(rows))
        for depth in reversed(range(self.order)):
            # The block of a node has its depth as part, and the code of its tokens as draw.
            nodes = np.arange(self.num_symbols**depth)
            part = TREES | np.uint64(depth << 16)
            stops = random_words(part, np.full(len(nodes), number), key, nodes)[:, 0] < self.stop * 2.0**32
            # A leaf has the row of its code. No two leaves share one: of two with the same code the longer would be
            # the shorter one behind zeros, and so below it in the tree, where nothing is, as it is a leaf.
            codes = contexts % len(nodes)
            leaves = np.where(stops[codes], codes, leaves)
        return rows[leaves]

    def next_token_probs(self, tokens: Int[Any, "B T"]) -> Float[Any, "B T+1 E"]:
        """The Bayes-optimal distribution of token `t` given those before it, with unknown tree, for `t = 0 .. T`.

        It is the mean over all trees by posterior weight, by context-tree weighting: each node weights the urn of its
        own context (see [`HigherOrderChains.next_token_probs`]) and the mean over the trees below it by how well they
        predicted the tokens that followed this context. It uses one sequence only, although the others of a group
        could improve it. Memory is `O(B T (T + E))`, and time `k + 1` times that.
        """
        return super().next_token_probs(tokens)

    def _predictions(self, values: Int[Tensor, "B T"]) -> Float[Tensor, "B N E"]:
        probs, _ = self._urn(values, self.order)
        seen = values[:, self.order :].unsqueeze(2)
        for depth in reversed(range(self.order)):
            urn, earlier = self._urn(values, depth)
            gains = urn[:, :-1].gather(2, seen).log() - probs[:, :-1].gather(2, seen).log()
            # The log odds that the context is a leaf; both weights are computed, since 1 - weight loses digits.
            odds = torch.tensor(self.stop, dtype=torch.float64).logit() + earlier @ gains
            probs = odds.sigmoid() * urn + (-odds).sigmoid() * probs
        return probs


def _are_earlier(contexts: Int[Tensor, "B N"]) -> Float[Tensor, "B N N_minus_1"]:
    """1 at `[b, t, s]` where context `s` equals context `t` and comes before it, else 0."""
    return (contexts.unsqueeze(2) == contexts.unsqueeze(1)).to(torch.float64).tril(diagonal=-1)[:, :, :-1]


def urns(sizes: range, alpha: float, num_symbols: int, tokens: Int[Tensor, "B T"]) -> Iterator[Hypothesis]:
    """Observed chains with Dirichlet rows and a random subset of the symbols: a hypothesis per size in `sizes`.

    Given `H` states, a symbol that has been seen comes next with probability `(alpha + times it followed the last
    token) / (H alpha + times the last token was followed)`, as in a Pólya urn. The rest of the probability is shared
    equally by the symbols not seen yet.
    """
    shown = one_hot(tokens, num_symbols).to(torch.float64)
    seen = pad(shown, (0, 0, 1, 0)).cummax(dim=1).values
    followed = torch.zeros_like(seen)
    # Token s + 1 follows token s, if that equals token t and comes before it.
    followed[:, 1:] = _are_earlier(tokens) @ shown[:, 1:]
    times = followed.sum(-1, keepdim=True)
    num_seen = seen.sum(-1, keepdim=True)
    num_unseen = num_symbols - num_seen
    for size in sizes:
        fresh = (size - num_seen).clamp(min=0) * alpha / num_unseen.clamp(min=1)
        from_urn = torch.where(seen > 0, alpha + followed, fresh) / (size * alpha + times)
        drawn = from_urn[:, :-1].gather(2, tokens.unsqueeze(2)).squeeze(2)
        yield pad(drawn.log().cumsum(1), (1, 0)), from_urn
