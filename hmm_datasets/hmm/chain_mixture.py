"""Mixtures of many Markov chains, each sequence from one of them (Park et al., "Competition dynamics shape algorithmic
phases of in-context learning", arXiv:2412.01003, 2025).

The posterior over `N` chains at every position is the softmax of cumulated log-probabilities: one gather from a table
`(E^2, N)`, one running sum and one softmax for all chains together. The distribution of the next token is a matrix
product `(positions, N) (N, E)` for each last symbol. Time is `O(B T N E)`; memory `O(T N)` for a few sequences at a
time. An [`~hmm_datasets.HMMMixture`] of the same chains would filter each by itself.
"""

from collections import deque
from collections.abc import Iterator
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from jaxtyping import Float, Int, UInt

from ..errors import InputError
from .analysis.stationary import cesaro_limit
from .checks import as_tokens, distribution
from .families.family import CHAINS
from .integers import integer
from .markov import MarkovChain
from .process import Process
from .sampling.chain_kernels import CHAIN_COMPONENTS, draw_chains
from .sampling.derived_seeds import components_of
from .sampling.dirichlet import fill_dirichlet_rows
from .sampling.sequences import AliasTable, integer_weights

if TYPE_CHECKING:
    import torch

_BLOCK = 1 << 22  # entries of the posteriors computed at once


class ChainMixture(Process):
    """A mixture of `N` Markov chains of order 1: each sequence is drawn from one of them, chosen by its weight.

    Args:
        tables (`np.ndarray` of shape `(N, E, E)`): `P(next symbol y | symbol x)` of each chain.
        weights (`np.ndarray` of shape `(N,)`, *optional*): their probabilities, rounded to multiples of 2^-32 for
            drawing; by default uniform.
        start (`np.ndarray` of shape `(N, E)`, *optional*): distributions of the first symbol; by default stationary.

    ```python
    >>> mixture = ChainMixture([[[0.9, 0.1], [0.1, 0.9]], [[0.1, 0.9], [0.9, 0.1]]])
    >>> mixture.component_posteriors([[0, 0]])[0].round(3).tolist()
    [[0.5, 0.5], [0.5, 0.5], [0.9, 0.1]]

    ```
    """

    stored_name: ClassVar[str] = "chain_mixture"
    has_oracle = True

    def __init__(self, tables: Any, weights: Any = None, start: Any = None):
        self.tables = distribution("tables", tables, 3, False)
        count, symbols, width = self.tables.shape
        if symbols != width:
            raise InputError(f"tables has shape {self.tables.shape}; expected (N, E, E)")
        even = np.full(count, 1 / count)
        self.weights = even if weights is None else distribution("weights", weights, 1, False)
        if start is None:
            start = [cesaro_limit(np.full(symbols, 1 / symbols), table) for table in self.tables]
        self.start = distribution("start", start, 2, False)
        if self.weights.shape != (count,) or self.start.shape != (count, symbols):
            raise InputError(
                f"weights has shape {self.weights.shape}, start {self.start.shape}; expected ({count},) and "
                f"({count}, {symbols})"
            )
        for values in (self.tables, self.weights, self.start):
            values.setflags(write=False)

    @property
    def num_symbols(self) -> int:
        """`E`."""
        return self.tables.shape[1]

    @property
    def num_chains(self) -> int:
        """`N`."""
        return self.tables.shape[0]

    @property
    def max_states(self) -> int:
        """`E`, the states of a chain."""
        return self.num_symbols

    @property
    def belief_width(self) -> int:
        """`N`: the posterior over the chains; the state is the last symbol."""
        return self.num_chains

    def arrays(self) -> dict[str, np.ndarray]:
        """`tables`, `weights` and `start`."""
        return {"tables": self.tables, "weights": self.weights, "start": self.start}

    def describe(self) -> str:
        """What the process is, in a few words."""
        return f"a mixture of {self.num_chains:,} Markov chains over {self.num_symbols:,} symbols"

    def chain(self, component: int) -> MarkovChain:
        """The chain number `component`."""
        component = integer("component", component, 0, 63)
        if component >= self.num_chains:
            raise InputError(f"component is {component}; expected one of the {self.num_chains:,} chains, from 0 on")
        return MarkovChain(self.tables[component], self.start[component])

    def components_at(self, num_sequences: int, seed: int = 0, first: int = 0, *, step: int = 1) -> Int[Any, "N"]:
        """The chain of each of the sequences that `sample` draws with these arguments."""
        seed, first, step = integer("seed", seed, 0, 64), integer("first", first, 0, 64), integer("step", step, 1, 64)
        count = integer("num_sequences", num_sequences, 0, 63)
        return components_of(self._bounds, CHAIN_COMPONENTS, seed, first, step, count)

    @cached_property
    def _bounds(self) -> np.ndarray:
        return integer_weights(self.weights[None])[0].cumsum()

    @cached_property
    def _alias_tables(self) -> tuple[AliasTable, AliasTable]:
        rows = self.tables.reshape(-1, self.num_symbols)
        return AliasTable.from_probabilities(self.start), AliasTable.from_probabilities(rows)

    def _draw(self, seed: np.uint64, first: np.uint64, step: np.uint64, out: UInt[np.ndarray, "N L"]) -> None:
        start, table = self._alias_tables
        sizes = np.uint64(self.num_symbols), np.uint64(self.num_symbols), np.uint64(1)
        component = components_of(self._bounds, CHAIN_COMPONENTS, int(seed), int(first), int(step), len(out))
        draw_chains(*start.flat, *table.flat, *sizes, component.astype(np.uint64), seed, first, step, out)

    def _log_weights(self, values: "torch.Tensor") -> "Iterator[torch.Tensor]":
        """`log P(chain, tokens before t)`, (B, N), for `t = 0 .. T`; the same tensor each time."""
        import torch

        weights, start, pairs = (
            torch.tensor(np.ascontiguousarray(table), device=values.device).log()
            for table in (self.weights, self.start.T, self.tables.reshape(self.num_chains, -1).T)
        )
        total = weights.expand(len(values), -1).clone()
        yield total
        codes = values[:, :-1] * self.num_symbols + values[:, 1:]
        for t in range(values.shape[1]):
            total += start[values[:, 0]] if t == 0 else pairs[codes[:, t - 1]]
            yield total

    def _posteriors(self, values: "torch.Tensor") -> "torch.Tensor":
        import torch

        shape = len(values), values.shape[1] + 1, self.num_chains
        found = torch.empty(shape, dtype=torch.float64, device=values.device)
        for t, total in enumerate(self._log_weights(values)):
            found[:, t] = total.softmax(-1)
        # Zeros after tokens that no chain can emit, where the softmax of -inf is not a number.
        return found if self._all_positive else found.nan_to_num_(0.0)

    @cached_property
    def _all_positive(self) -> bool:
        return bool((self.tables > 0).all() and (self.start > 0).all())

    def _in_blocks(self, values: "torch.Tensor", work: Any) -> "torch.Tensor":
        import torch

        rows = max(1, _BLOCK // ((values.shape[1] + 1) * self.num_chains))
        return torch.cat([work(block) for block in values.split(rows)])

    def component_posteriors(self, tokens: Int[Any, "B T"]) -> Float[Any, "B T+1 N"]:
        """`P(chain | tokens before t)` for `t = 0 .. T`; zeros after tokens that no chain can emit."""
        return self._infer(self._posteriors, tokens)

    beliefs = component_posteriors

    def next_token_probs(self, tokens: Int[Any, "B T"]) -> Float[Any, "B T+1 E"]:
        """The Bayes-optimal distribution: the mean of those of the chains by their posterior probabilities."""
        import torch

        def work(values: torch.Tensor) -> torch.Tensor:
            tables, start = (torch.tensor(table, device=values.device) for table in (self.tables, self.start))
            weights = self._posteriors(values)
            found = weights.new_empty(len(values), values.shape[1] + 1, self.num_symbols)
            found[:, 0] = weights[:, 0] @ start
            after, later = weights[:, 1:], found[:, 1:]
            for x in values.unique().tolist():
                last = values == x
                later[last] = after[last] @ tables[:, x]
            return found

        return self._infer(work, tokens)

    def log_likelihood(self, tokens: Int[Any, "B T"]) -> Float[Any, "B"]:
        """Log-likelihood (nats) of each sequence; -inf if no chain can emit it."""
        import torch

        def work(values: torch.Tensor) -> torch.Tensor:
            return deque(self._log_weights(values), maxlen=1)[0].logsumexp(-1)

        return self._infer(work, tokens)

    def oracle_next_token_probs(
        self, tokens: Int[Any, "B T"], seed: int = 0, first: int = 0, *, step: int = 1
    ) -> Float[Any, "B T+1 E"]:
        """The distribution of token `t` given those before it and the chain of the row, for `t = 0 .. T`.

        Args:
            tokens (array of shape `(B, T)`): row `r` is sequence `first + step r` of the stream `seed`.
            seed, first, step (`int`): see [`Process.sample`].
        """
        import torch

        values, _ = as_tokens(tokens, self.num_symbols)
        component = torch.from_numpy(self.components_at(len(values), seed, first, step=step)).to(values.device)
        tables, start = (torch.tensor(table, device=values.device) for table in (self.tables, self.start))
        found = torch.cat([start[component].unsqueeze(1), tables[component.unsqueeze(1), values]], dim=1)
        drawn = found[:, :-1].gather(2, values.unsqueeze(2)).squeeze(2)
        found[:, 1:] *= (drawn > 0).cumprod(1).unsqueeze(-1)
        return found if isinstance(tokens, torch.Tensor) else found.numpy()

    def _infer(self, work: Any, tokens: Any) -> Any:
        import torch

        values, _ = as_tokens(tokens, self.num_symbols)
        found = self._in_blocks(values, work)
        return found if isinstance(tokens, torch.Tensor) else found.numpy()

    def __repr__(self) -> str:
        return f"ChainMixture({self.num_chains} chains, {self.num_symbols} symbols)"


def random_chain_mixture(num_chains: int, num_symbols: int, *, alpha: float = 1.0, seed: int = 0) -> ChainMixture:
    """`N` chains with rows from a symmetric Dirichlet distribution, equally likely (arXiv:2412.01003).

    Chain `n` has the table of `random_markov_chain(1, num_symbols, alpha=alpha, seed=seed, index=n)`.

    Args:
        num_chains (`int`): `N`, the paper's data diversity.
        num_symbols (`int`): `E`; 10 in the paper.
        alpha (`float`, *optional*, defaults to 1.0): concentration per symbol.
        seed (`int`, *optional*, defaults to 0): which chains.
    """
    count, size = integer("num_chains", num_chains, 1, 31), integer("num_symbols", num_symbols, 1, 15)
    if not 1e-100 <= alpha <= 1e100:
        raise InputError(f"alpha is {alpha}; expected a positive number, 1e-100 .. 1e100")
    tables = np.empty((count, size, size))
    for n in range(count):
        fill_dirichlet_rows(float(alpha), np.uint64(n), CHAINS, np.uint64(integer("seed", seed, 0, 64)), tables[n])
    return ChainMixture(tables)
