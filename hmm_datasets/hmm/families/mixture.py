"""Finite mixtures of HMMs: each sequence, or group of sequences, is drawn from one component.

If the components are concepts, which have the same symbols but different transition matrices, this is the prior of
GINC (Xie, Raghunathan, Liang and Ma, "An explanation of in-context learning as implicit Bayesian inference", ICLR
2022). See the example of [`HMMMixture`].

Mixtures of many Markov chains, each sequence from one of them (Park et al., "Competition dynamics shape algorithmic
phases of in-context learning", arXiv:2412.01003, 2025).

The posterior over `N` chains at every position is the softmax of cumulated log-probabilities: one gather from a table
`(E^2, N)`, one running sum and one softmax for all chains together. The distribution of the next token is a matrix
product `(positions, N) (N, E)` for each last symbol. Time is `O(B T N E)`; memory `O(T N)` for a few sequences at a
time. An [`~hmm_datasets.HMMMixture`] of the same chains would filter each by itself.

Next-token distributions averaged over hypotheses by their posterior probabilities, one hypothesis at a time.

Non-ergodic mixtures of any processes: each sequence is drawn from one component.

The distribution of a token is the mean of those of the components by their posterior probabilities, which are computed
from running sums of logarithms. It costs what the components cost. A mixture of HMMs is better made as an
[`~hmm_datasets.HMMMixture`], whose beliefs name the states of each HMM, one of Markov chains as a
[`~hmm_datasets.hmm.families.mixture.ChainMixture`].
"""

import itertools
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
import torch
from jaxtyping import Float, Int, UInt
from torch import Tensor
from torch.nn.functional import one_hot, pad

from ...errors import InputError
from .. import inference
from ..analysis.stationary import cesaro_limit
from ..arrays import as_tokens, distribution
from ..integers import integer
from ..kernels.dirichlet import fill_dirichlet_rows
from ..kernels.draws import CHAINS, MIXTURE
from ..kernels.structured import CHAIN_COMPONENTS, PROCESS_COMPONENTS, draw_chains
from ..model import HMM
from ..process import Process
from ..sampling import AliasTable, checked_draw, components_of, derived_seed, integer_weights, sample_tokens
from ..structured.markov import MarkovChain
from .family import Family, check_hmm, first_words, group_number

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


@dataclass(frozen=True)
class HMMMixture(Family):
    """A mixture of finitely many HMMs: each sequence is drawn from one component, chosen by its weight.

    Args:
        hmms (`tuple` of [`~hmm_datasets.hmm.model.HMM`]): the components, with the same symbols.
        weights (`tuple` of `float`): their probabilities, which are rounded to multiples of 2^-32 for drawing.
        group (`int`, *optional*, defaults to 1): number of consecutive sequences from one component.

    ```python
    >>> from hmm_datasets.hmm import processes
    >>> family = HMMMixture((processes.golden_mean(), processes.even()), (0.25, 0.75))
    >>> family.next_token_probs([[0, 0]])[0, 2].round(3).tolist()
    [0.5, 0.5]

    ```

    Four concepts that share their emission table, as in GINC:

    ```python
    >>> import numpy as np
    >>> from hmm_datasets.hmm.families import RandomChains
    >>> emission = processes.random(8, 50, alpha=0.1, seed=0).emission
    >>> tables = [RandomChains(8, alpha=0.2).hmm_at(seed=0, index=concept).transition for concept in range(4)]
    >>> concepts = HMMMixture([HMM(transition=table, emission=emission) for table in tables], [0.25] * 4)

    ```
    """

    stored_name: ClassVar[str] = "Mixture"

    hmms: tuple[HMM, ...]
    weights: tuple[float, ...]
    group: int = 1

    def __post_init__(self):
        self._check_group()
        object.__setattr__(self, "hmms", tuple(self.hmms))
        object.__setattr__(self, "weights", tuple(float(w) for w in self.weights))
        if len(self.hmms) == 0 or len(self.hmms) != len(self.weights):
            raise InputError(
                f"{len(self.hmms)} hmms and {len(self.weights)} weights; expected one weight per HMM, and one or more"
            )
        for index, hmm in enumerate(self.hmms):
            check_hmm(f"hmms[{index}]", hmm)
            if hmm.num_symbols != self.num_symbols:
                raise InputError(
                    f"hmms[{index}] has {hmm.num_symbols} symbols; expected {self.num_symbols}, as in hmms[0]"
                )
        if not all(w >= 0 for w in self.weights) or not abs(sum(self.weights) - 1) <= 1e-9:
            raise InputError(f"weights sum to {sum(self.weights):.10g}; expected probabilities that sum to 1")

    @property
    def num_symbols(self) -> int:
        """`E`."""
        return self.hmms[0].num_symbols

    def parts(self) -> tuple[HMM, ...]:
        """The components."""
        return self.hmms

    @property
    def has_exact_distribution(self) -> bool:
        """Always true."""
        return True

    @property
    def belief_width(self) -> int:
        """Sum of the numbers of states of the components."""
        return sum(hmm.num_states for hmm in self.hmms)

    def belief_parts(self) -> dict[str, slice]:
        """Where the states of each component lie: `component_0`, `component_1`, ..."""
        ends = list(itertools.accumulate((hmm.num_states for hmm in self.hmms), initial=0))
        return {f"component_{c}": slice(*ends[c : c + 2]) for c in range(len(self.hmms))}

    @cached_property
    def _bounds(self) -> np.ndarray:
        return integer_weights(np.array([self.weights]))[0].cumsum()

    def component_at(self, seed: int, index: int) -> int:
        """Index into `hmms` of the component of sequence `index`."""
        number, key = group_number(self, seed, index)
        return int(self._components(np.array([number]), key)[0])

    def _components(self, numbers: UInt[np.ndarray, "N"], seed: np.uint64) -> Int[np.ndarray, "N"]:
        return np.searchsorted(self._bounds, first_words(MIXTURE, numbers, seed)[:, 0], side="right")

    def hmm_at(self, seed: int, index: int) -> HMM:
        """The HMM of sequence `index` of the stream `seed`."""
        return self.hmms[self.component_at(seed, index)]

    def _fill(self, rows: np.ndarray, states: np.ndarray | None, seed: int, first: int, step: int) -> None:
        with np.errstate(over="ignore"):
            indices = np.uint64(first) + np.uint64(step) * np.arange(len(rows), dtype=np.uint64)
        component = self._components(indices // np.uint64(self.group), np.uint64(seed))
        for index in np.unique(component):
            own = np.flatnonzero(component == index)
            start, symbol, transition = self.hmms[index]._alias_tables
            draw = self.num_symbols, seed, first, step, rows
            sample_tokens(start, symbol, transition, *draw, rows=own, states=states)

    def next_token_probs(self, tokens: Int[Any, "B T"]) -> Float[Any, "B T+1 E"]:
        """The Bayes-optimal distribution of token `t` given those before it, for `t = 0 .. T`.

        The component is unknown: the distribution is the mean of those of the components by their posterior
        probabilities given the tokens so far. It is zeros after tokens that no component can emit. It uses one
        sequence only, although the other sequences of a group could improve it.

        Args:
            tokens (array of shape `(B, T)`): symbols. The result for a tensor is a tensor, else a NumPy array.
        """
        import torch

        values, _ = as_tokens(tokens, self.num_symbols)
        distribution = posterior_mean(components(self.hmms, self.weights, values))
        return distribution if isinstance(tokens, torch.Tensor) else distribution.numpy()

    def component_posteriors(self, tokens: Int[Any, "B T"]) -> Float[Any, "B T+1 C"]:
        """`P(component | tokens before t)` for `t = 0 .. T`; zeros after tokens that no component can emit."""
        beliefs = self.beliefs(tokens)
        found = beliefs[:, :, : len(self.hmms)] * 0
        for c, part in enumerate(self.belief_parts().values()):
            found[:, :, c] = beliefs[:, :, part].sum(-1)
        return found

    def beliefs(self, tokens: Int[Any, "B T"]) -> Float[Any, "B T+1 W"]:
        """`P(component, its state before token t | tokens before t)`, component after component.

        [`belief_parts`][HMMMixture.belief_parts] says where the states of a component lie. All entries of a position
        sum to one, those of a component to its posterior probability.
        """
        import torch
        from torch.nn.functional import pad

        from .. import inference

        values, _ = as_tokens(tokens, self.num_symbols)
        filtered = [inference.forward_filter(hmm.parameters(device=values.device), values) for hmm in self.hmms]
        log_weights = torch.stack([pad(each.log_scale.cumsum(1), (1, 0)) for each in filtered], dim=-1)
        log_weights += log_weights.new_tensor(self.weights).log()
        posteriors = log_weights.softmax(-1).nan_to_num_(0.0)
        found = torch.cat([each.beliefs * posteriors[:, :, c : c + 1] for c, each in enumerate(filtered)], dim=-1)
        return found if isinstance(tokens, torch.Tensor) else found.numpy()


Hypothesis = tuple[Float[Tensor, "B T+1"], Float[Tensor, "B T+1 E"]]
"""`log P(hypothesis, tokens before t)`, and the distribution of token `t` given both, for `t = 0 .. T`."""


def posterior_mean(hypotheses: Iterable[Hypothesis]) -> Float[Tensor, "B T+1 E"]:
    """The distribution of token `t` given those before it; zeros after tokens that no hypothesis allows.

    Memory is that of two hypotheses, however many there are, because running sums are kept, relative to the maximum
    weight so far.
    """
    best = total = distribution = None
    for log_weight, own in hypotheses:
        if best is None:
            best, total, distribution = torch.full_like(log_weight, -torch.inf), torch.zeros_like(log_weight), 0 * own
        highest = torch.maximum(best, log_weight)
        # If all hypotheses so far are impossible, `highest` is -inf, and -inf - -inf would be NaN. The clamp makes
        # their weights zero.
        old, new = ((log - highest.clamp(min=-1e300)).exp() for log in (best, log_weight))
        total = total * old + new
        distribution = distribution * old.unsqueeze(-1) + own * new.unsqueeze(-1)
        best = highest
    return distribution / torch.where(total > 0, total, 1.0).unsqueeze(-1)


def components(hmms: Iterable[HMM], weights: Iterable[float], tokens: Int[Tensor, "B T"]) -> Iterator[Hypothesis]:
    """The components of a mixture as hypotheses, by their filters."""
    for hmm, weight in zip(hmms, weights, strict=True):
        parameters = hmm.parameters(device=tokens.device)
        filtered = inference.forward_filter(parameters, tokens)
        own = inference.next_token_probs(parameters, filtered.beliefs)
        yield own.new_tensor(weight).log() + pad(filtered.log_scale.cumsum(1), (1, 0)), own


def urns(sizes: range, alpha: float, num_symbols: int, tokens: Int[Tensor, "B T"]) -> Iterator[Hypothesis]:
    """Observed chains with Dirichlet rows and a random subset of the symbols: a hypothesis per size in `sizes`.

    Given `H` states, a symbol that has been seen comes next with probability `(alpha + times it followed the last
    token) / (H alpha + times the last token was followed)`, as in a Pólya urn. The rest of the probability is shared
    equally by the symbols not seen yet.
    """
    shown = one_hot(tokens, num_symbols).to(torch.float64)
    seen = pad(shown, (0, 0, 1, 0)).cummax(dim=1).values
    followed = torch.zeros_like(seen)
    if tokens.shape[1] > 0:
        # earlier[b, t, s]: token s equals token t and comes before it, so that token s + 1 counts as following it.
        earlier = (tokens.unsqueeze(2) == tokens.unsqueeze(1)).to(torch.float64).tril(diagonal=-1)
        followed[:, 1:] = earlier[:, :, :-1] @ shown[:, 1:]
    times = followed.sum(-1, keepdim=True)
    num_seen = seen.sum(-1, keepdim=True)
    num_unseen = num_symbols - num_seen
    for size in sizes:
        fresh = (size - num_seen).clamp(min=0) * alpha / num_unseen.clamp(min=1)
        own = torch.where(seen > 0, alpha + followed, fresh) / (size * alpha + times)
        drawn = own[:, :-1].gather(2, tokens.unsqueeze(2)).squeeze(2)
        yield pad(drawn.log().cumsum(1), (1, 0)), own


_CALL_TOKENS = 1 << 14  # tokens that could be drawn in the time of one call


class ProcessMixture(Process):
    """A mixture of finitely many processes: each sequence is drawn from one of them, chosen by its weight.

    Component `c` draws its sequences with a seed derived from that of the mixture and `c`; sequence `i` of the mixture
    is sequence `i` of its component.

    Args:
        components (sequence of [`~hmm_datasets.hmm.process.Process`]): processes over the same symbols.
        weights (`np.ndarray` of shape `(C,)`, *optional*): their probabilities, rounded to multiples of 2^-32 for
            drawing; by default uniform.

    ```python
    >>> from hmm_datasets.hmm import processes
    >>> from hmm_datasets.hmm.structured.markov import MarkovChain
    >>> mixture = ProcessMixture([processes.even(), MarkovChain([[0.9, 0.1], [0.1, 0.9]])])
    >>> mixture.component_posteriors([[0, 1, 0]])[0].round(3).tolist()
    [[0.5, 0.5], [0.4, 0.6], [0.769, 0.231], [0.0, 1.0]]

    ```
    """

    stored_name: ClassVar[str] = "process_mixture"
    has_oracle = True

    def __init__(self, components: Sequence[Process], weights: Any = None):
        self.components = tuple(components)
        count = len(self.components)
        if count == 0:
            raise InputError("a mixture has no components; expected one or more processes")
        for index, component in enumerate(self.components):
            if not isinstance(component, Process):
                raise InputError(f"components[{index}] is a {type(component).__name__}; expected a process")
            if component.num_symbols != self.num_symbols:
                raise InputError(
                    f"components[{index}] has {component.num_symbols} symbols; expected {self.num_symbols}, as in "
                    "components[0]"
                )
        even = np.full(count, 1 / count)
        self.weights = even if weights is None else distribution("weights", weights, 1, False)
        if self.weights.shape != (count,):
            raise InputError(f"weights has shape {self.weights.shape}; expected ({count},), one per component")
        self.weights.setflags(write=False)

    @property
    def num_symbols(self) -> int:
        """`E`."""
        return self.components[0].num_symbols

    @property
    def max_states(self) -> int | None:
        """Maximum number of states of a component."""
        found = [component.max_states for component in self.components]
        return None if None in found else max(states for states in found if states is not None)

    @property
    def belief_width(self) -> int | None:
        """Sum of the widths of the components' beliefs, if all have beliefs."""
        found = [component.belief_width for component in self.components]
        return None if None in found else sum(width for width in found if width is not None)

    def belief_parts(self) -> dict[str, slice]:
        """Where the belief of each component lies, times its posterior: `component_0`, ..."""
        widths = [component.belief_width or 0 for component in self.components]
        ends = list(itertools.accumulate(widths, initial=0))
        return {f"component_{c}": slice(*ends[c : c + 2]) for c in range(len(widths))}

    @property
    def has_exact_distribution(self) -> bool:
        """Whether all components have exact distributions."""
        return all(component.has_exact_distribution for component in self.components)

    def arrays(self) -> dict[str, np.ndarray]:
        """`weights`."""
        return {"weights": self.weights}

    def parts(self) -> tuple[Process, ...]:
        """The components."""
        return self.components

    @classmethod
    def made_of(cls, settings: dict[str, Any], arrays: dict[str, np.ndarray], parts: tuple[Process, ...]) -> Self:
        """The mixture of these parts."""
        return cls(parts, **arrays)

    def describe(self) -> str:
        """What the process is, in a few words."""
        return f"a mixture of {len(self.components)} processes over {self.num_symbols:,} symbols"

    @cached_property
    def _bounds(self) -> np.ndarray:
        return integer_weights(self.weights[None])[0].cumsum()

    def components_at(self, num_sequences: int, seed: int = 0, first: int = 0, *, step: int = 1) -> Int[Any, "N"]:
        """The component of each of the sequences that `sample` draws with these arguments."""
        seed, first, step = integer("seed", seed, 0, 64), integer("first", first, 0, 64), integer("step", step, 1, 64)
        count = integer("num_sequences", num_sequences, 0, 63)
        return components_of(self._bounds, PROCESS_COMPONENTS, seed, first, step, count)

    def sample(
        self,
        num_sequences: int,
        length: int,
        seed: int = 0,
        first: int = 0,
        *,
        step: int = 1,
        out: UInt[np.ndarray, "N L"] | None = None,
        num_threads: int | None = None,
    ) -> UInt[np.ndarray, "N L"]:
        """Draw sequences; see [`Process.sample`].

        A component draws all rows, of which its own are kept, where that is faster than one call for each of its rows.
        So short sequences cost up to `C` times those of a component.
        """
        seed, first, step, out = checked_draw(self.num_symbols, num_sequences, length, seed, first, step, out)
        chosen = self.components_at(len(out), seed, first, step=step)
        for c in np.unique(chosen).tolist():
            rows, own = np.flatnonzero(chosen == c), derived_seed(seed, c)
            draw = self.components[c].sample
            if len(rows) * _CALL_TOKENS < out.size:
                for row in rows.tolist():
                    out[row] = draw(1, out.shape[1], own, (first + step * row) % (1 << 64), num_threads=num_threads)[0]
            else:
                out[rows] = draw(len(out), out.shape[1], own, first, step=step, num_threads=num_threads)[rows]
        return out

    def _hypotheses(self, values: "torch.Tensor") -> "Iterator[tuple[torch.Tensor, torch.Tensor]]":
        # log P(component, tokens before t), and the distribution of token t given both.
        from torch.nn.functional import pad

        for component, weight in zip(self.components, self.weights, strict=True):
            own = component.next_token_probs(values)
            drawn = own[:, :-1].gather(2, values.unsqueeze(2)).squeeze(2).clamp(min=0.0)
            yield own.new_tensor(weight).log() + pad(drawn.log().cumsum(1), (1, 0)), own

    def next_token_probs(self, tokens: Int[Any, "B T"]) -> Float[Any, "B T+1 E"]:
        """The Bayes-optimal distribution of each token, with the component unknown."""
        import torch

        values, _ = as_tokens(tokens, self.num_symbols)
        found = posterior_mean(self._hypotheses(values))
        return found if isinstance(tokens, torch.Tensor) else found.numpy()

    def component_posteriors(self, tokens: Int[Any, "B T"]) -> Float[Any, "B T+1 C"]:
        """`P(component | tokens before t)` for `t = 0 .. T`; zeros after tokens that no component can emit."""
        import torch

        values, _ = as_tokens(tokens, self.num_symbols)
        weights = torch.stack([log_weight for log_weight, _ in self._hypotheses(values)], dim=-1)
        found = weights.softmax(-1).nan_to_num_(0.0)
        return found if isinstance(tokens, torch.Tensor) else found.numpy()

    def beliefs(self, tokens: Int[Any, "B T"]) -> Float[Any, "B T+1 W"]:
        """The components' beliefs side by side, each times the posterior probability of its component."""
        import torch

        if self.belief_width is None:
            raise InputError(f"{self!r} has a component without beliefs; expected beliefs of all, or use posteriors")
        values, _ = as_tokens(tokens, self.num_symbols)
        posteriors = self.component_posteriors(values)
        own = [component.beliefs(values) for component in self.components]
        found = torch.cat([part * posteriors[:, :, c : c + 1] for c, part in enumerate(own)], dim=-1)
        return found if isinstance(tokens, torch.Tensor) else found.numpy()

    def oracle_next_token_probs(
        self, tokens: Int[Any, "B T"], seed: int = 0, first: int = 0, *, step: int = 1
    ) -> Float[Any, "B T+1 E"]:
        """The distribution of token `t` given those before it and the component of the row, for `t = 0 .. T`.

        Args:
            tokens (array of shape `(B, T)`): row `r` is sequence `first + step r` of the stream `seed`.
            seed, first, step (`int`): see [`Process.sample`].
        """
        import torch

        values, _ = as_tokens(tokens, self.num_symbols)
        chosen = torch.from_numpy(self.components_at(len(values), seed, first, step=step)).to(values.device)
        shape = len(values), values.shape[1] + 1, self.num_symbols
        found = torch.empty(shape, dtype=torch.float64, device=values.device)
        for c in chosen.unique().tolist():
            found[chosen == c] = self.components[c].next_token_probs(values[chosen == c]).double()
        return found if isinstance(tokens, torch.Tensor) else found.numpy()

    def __repr__(self) -> str:
        return f"ProcessMixture({len(self.components)} components, {self.num_symbols} symbols)"
