"""Finite mixtures: each sequence, or group of sequences, is drawn from one component, chosen by its weight.

The distribution of a token is the mean of those of the components by their posterior probabilities, which are computed
from running sums of logarithms. It costs what the components cost: an HMM is filtered once, for its likelihood, its
beliefs and its distributions; of another process the likelihood is read from its distributions.

[`ProcessMixture`] mixes processes of any kind, and each draws its sequences with a seed of its own. [`HMMMixture`]
mixes HMMs and is a family: sequence `i` is sequence `i` of the HMM of its group.

[`ChainMixture`] is for many Markov chains of order 1 (Park et al., "Competition dynamics shape algorithmic phases of
in-context learning", arXiv:2412.01003, 2025). The posterior over `N` chains at every position is the softmax of
cumulated log-probabilities: one gather from a table `(E^2, N)`, one running sum and one softmax for all chains
together. The distribution of the next token is a matrix product `(positions, N) (N, E)` for each last symbol. Time is
`O(B T N E)`; memory `O(T N)` for a few sequences at a time. The other mixtures would filter each chain by itself.
"""

import itertools
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Literal, Self

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import pad

from ...errors import InputError
from .. import inference
from ..analysis.stationary import cesaro_limit
from ..arrays import MISSING, as_given, as_tokens, distribution, tokens_with_gaps
from ..integers import integer
from ..kernels.draws import MIXTURE
from ..kernels.structured import CHAIN_COMPONENTS, PROCESS_COMPONENTS, draw_chains
from ..model import HMM
from ..process import Process, Rows
from ..sampling import AliasTable, checked_indices, components_of, derived_seed, draw_tokens, integer_weights
from ..structured.markov import MarkovChain, dirichlet_rows
from .family import Family, check_hmm

_BLOCK = 1 << 22  # entries of the posteriors over chains computed at once
_CALL_TOKENS = 1 << 14  # tokens that could be drawn in the time of one call


Hypothesis = tuple[Float[Tensor, "B T+1"], Float[Tensor, "B T+1 E"]]
"""`log P(hypothesis, tokens before t)`, and the distribution of token `t` given both, for `t = 0 .. T`."""


def posterior_mean(hypotheses: Iterable[Hypothesis]) -> Float[Tensor, "B T+1 E"]:
    """The distribution of token `t` given those before it; zeros after tokens that no hypothesis allows.

    Memory is that of two hypotheses, however many there are, because running sums are kept, relative to the maximum
    weight so far.
    """
    best = total = distribution = None
    for log_weight, estimate in hypotheses:
        if best is None:
            best, total = torch.full_like(log_weight, -torch.inf), torch.zeros_like(log_weight)
            distribution = 0 * estimate
        highest = torch.maximum(best, log_weight)
        # If all hypotheses so far are impossible, `highest` is -inf, and -inf - -inf would be NaN. The clamp makes
        # their weights zero.
        old, new = ((log - highest.clamp(min=-1e300)).exp() for log in (best, log_weight))
        total = total * old + new
        distribution = distribution * old.unsqueeze(-1) + estimate * new.unsqueeze(-1)
        best = highest
    return distribution / torch.where(total > 0, total, 1.0).unsqueeze(-1)


def shared_alphabet(
    components: Sequence[Process], by_names: bool
) -> tuple[int, tuple[str, ...] | None, list[Int[np.ndarray, "E"]]]:
    """The union of the alphabets of processes, its names, and where the symbols of each process are in it.

    Raises:
        `InputError`: a process has no names, or the same number has two names.
    """
    names = [component.vocabulary for component in components]
    if by_names:
        if None in names:
            raise InputError(
                f"components[{names.index(None)}] has no vocabulary, and alphabet is 'names'; name the symbols of "
                "each component, or leave alphabet out to take symbols of one number for one symbol"
            )
        union = tuple(dict.fromkeys(itertools.chain.from_iterable(filter(None, names))))
        return len(union), union, [np.array([union.index(name) for name in known or ()]) for known in names]
    size = max(component.num_symbols for component in components)
    if len({component.num_symbols for component in components}) > 1:
        known = {name for name in names if name is not None}
        longest = max(known, key=len, default=())
        if any(longest[: len(name)] != name for name in known):
            raise InputError(
                "components have different numbers of symbols, whose names disagree; pass alphabet='names' to take "
                "symbols of one name for one symbol"
            )
    return size, None, [np.arange(component.num_symbols) for component in components]


def hypothesis(
    component: Process, tokens: Int[Tensor, "B T"], returns: Literal["probs", "beliefs"] | None
) -> Hypothesis:
    """`log P(tokens before t)` under a component, and its distributions or its beliefs, as `returns` says.

    Tokens that are `MISSING` are summed over.
    """
    lost = tokens < 0
    if isinstance(component, HMM):
        parameters = component.parameters(device=tokens.device)
        if lost.any():
            parameters, tokens = parameters.with_missing(), tokens.masked_fill(lost, component.num_symbols)
        filtered = inference.forward_filter(parameters, tokens)
        estimate = inference.next_token_probs(parameters, filtered.beliefs) if returns == "probs" else filtered.beliefs
        return pad(filtered.log_scale.cumsum(1), (1, 0)), estimate
    probs = component.next_token_probs(tokens)
    drawn = probs[:, :-1].gather(2, tokens.clamp(min=0).unsqueeze(2)).squeeze(2).clamp(min=0.0)
    drawn = drawn.masked_fill(lost, 1.0)
    return pad(drawn.log().cumsum(1), (1, 0)), component.beliefs(tokens) if returns == "beliefs" else probs


class Mixture(Process):
    """What mixtures have in common: their weights, the choice of components, and posterior means.

    A subclass has `components`, `weights`, and the Philox stream from which components are chosen.
    """

    has_oracle = True
    components: Sequence[Process]
    weights: Sequence[float] | Float[np.ndarray, "C"]
    group: int = 1
    _stream: ClassVar[np.uint64]

    @property
    def num_symbols(self) -> int:
        """`E`."""
        return self.components[0].num_symbols

    @property
    def max_states(self) -> int | None:
        """Maximum number of states of a component."""
        maxima = [component.max_states for component in self.components]
        return None if None in maxima else max(states for states in maxima if states is not None)

    @property
    def belief_width(self) -> int | None:
        """Sum of the widths of the components' beliefs, if all have beliefs: of an HMM its number of states."""
        widths = [component.belief_width for component in self.components]
        return None if None in widths else sum(width for width in widths if width is not None)

    def belief_parts(self) -> dict[str, slice]:
        """Where the belief of each component lies, times its posterior: `component_0`, `component_1`, ..."""
        widths = [component.belief_width or 0 for component in self.components]
        ends = list(itertools.accumulate(widths, initial=0))
        return {f"component_{c}": slice(*ends[c : c + 2]) for c in range(len(widths))}

    @property
    def has_exact_distribution(self) -> bool:
        """Whether all components have exact distributions."""
        return all(component.has_exact_distribution for component in self.components)

    def parts(self) -> tuple[Process, ...]:
        """The components."""
        return tuple(self.components)

    @cached_property
    def _bounds(self) -> Int[np.ndarray, "C"]:
        return integer_weights(np.array(self.weights)[None])[0].cumsum()

    def _chosen(self, seed: int, first: int, step: int, count: int) -> Int[np.ndarray, "N"]:
        return components_of(self._bounds, self._stream, int(seed), int(first), int(step), count, self.group)

    def components_at(self, num_sequences: int, seed: int = 0, first: int = 0, *, step: int = 1) -> Int[Any, "N"]:
        """The component of each of the sequences that `sample` draws with these arguments."""
        return self._chosen(*checked_indices(seed, first, step), integer("num_sequences", num_sequences, 0, 63))

    def next_token_probs(self, tokens: Int[Any, "B T"]) -> Float[Any, "B T+1 E"]:
        """The Bayes-optimal distribution of token `t` given those before it, for `t = 0 .. T`.

        The component is unknown: the distribution is the mean of those of the components by their posterior
        probabilities given the tokens so far. It is zeros after tokens that no component can emit. It uses one
        sequence only, although the other sequences of a group could improve it.

        Args:
            tokens (array of shape `(B, T)`): symbols. The result for a tensor is a tensor, else a NumPy array.
        """
        return self._infer(self._probs, tokens)

    def component_posteriors(self, tokens: Int[Any, "B T"]) -> Float[Any, "B T+1 C"]:
        """`P(component | tokens before t)` for `t = 0 .. T`; zeros after tokens that no component can emit."""
        return self._infer(self._posteriors, tokens)

    def beliefs(self, tokens: Int[Any, "B T"]) -> Float[Any, "B T+1 W"]:
        """The components' beliefs side by side, each times the posterior probability of its component.

        [`belief_parts`][Mixture.belief_parts] says where that of each component lies. Of HMMs they are
        `P(component, its state before token t | tokens before t)`, and all entries of a position sum to one.
        """
        if self.belief_width is None:
            raise InputError(f"{self!r} has a component without beliefs; expected beliefs of all, or use posteriors")
        return self._infer(self._beliefs, tokens)

    def oracle_next_token_probs(
        self, tokens: Int[Any, "B T"], seed: int = 0, first: int = 0, *, step: int = 1
    ) -> Float[Any, "B T+1 E"]:
        """The distribution of token `t` given those before it and the component of the row, for `t = 0 .. T`.

        Args:
            tokens (array of shape `(B, T)`): row `r` is sequence `first + step r` of the stream `seed`.
            seed, first, step (`int`): see [`Process.sample`].
        """
        values = as_tokens(tokens, self.num_symbols)
        chosen = torch.from_numpy(self.components_at(len(values), seed, first, step=step)).to(values.device)
        return as_given(tokens, self._probs_of(chosen, values))

    def _infer(self, work: Callable[[Tensor], Tensor], tokens: Any) -> Any:
        return as_given(tokens, self._apply(work, tokens_with_gaps(tokens, self.num_symbols).tokens))

    def _apply(self, work: Callable[[Tensor], Tensor], values: Tensor) -> Tensor:
        return work(values)

    def _hypotheses(self, values: Tensor, returns: Literal["probs", "beliefs"] | None) -> Iterator[Hypothesis]:
        """`log P(component, tokens before t)` and what `returns` names, one component at a time."""
        for c, (component, weight) in enumerate(zip(self.components, self.weights, strict=True)):
            mine, inside = self._of_component(c, values)
            log_likelihood, estimate = hypothesis(component, mine, returns)
            log_likelihood = log_likelihood.masked_fill(~inside, -torch.inf)
            yield (
                log_likelihood.new_tensor(weight).log() + log_likelihood,
                (self._over_alphabet(c, estimate) if returns == "probs" else estimate),
            )

    def _probs(self, values: Tensor) -> Tensor:
        return posterior_mean(self._hypotheses(values, "probs"))

    def _posteriors(self, values: Tensor) -> Tensor:
        log_weights = torch.stack([log_weight for log_weight, _ in self._hypotheses(values, None)], dim=-1)
        return log_weights.softmax(-1).nan_to_num_(0.0)

    def _beliefs(self, values: Tensor) -> Tensor:
        log_weights, beliefs = zip(*self._hypotheses(values, "beliefs"), strict=True)
        posteriors = torch.stack(log_weights, dim=-1).softmax(-1).nan_to_num_(0.0)
        return torch.cat([part * posteriors[:, :, c : c + 1] for c, part in enumerate(beliefs)], dim=-1)

    def _probs_of(self, chosen: Int[Tensor, "B"], values: Int[Tensor, "B T"]) -> Float[Tensor, "B T+1 E"]:
        shape = len(values), values.shape[1] + 1, self.num_symbols
        predictive = torch.empty(shape, dtype=torch.float64, device=values.device)
        for c in chosen.unique().tolist():
            mine, inside = self._of_component(c, values[chosen == c])
            probs = self._over_alphabet(c, self.components[c].next_token_probs(mine).double())
            predictive[chosen == c] = probs * inside.unsqueeze(-1)
        return predictive

    def _of_component(self, c: int, values: Int[Tensor, "B T"]) -> tuple[Int[Tensor, "B T"], Bool[Tensor, "B T+1"]]:
        """Tokens as symbols of a component, and whether those before each position are of its alphabet."""
        return values, torch.ones(len(values), values.shape[1] + 1, dtype=torch.bool, device=values.device)

    def _over_alphabet(self, c: int, probs: Float[Tensor, "B T+1 e"]) -> Float[Tensor, "B T+1 E"]:
        """Distributions over the symbols of a component as those over all symbols."""
        return probs


def with_symbols(hmm: HMM, size: int) -> HMM:
    """An HMM with further symbols up to a number, which it never emits."""
    more = size - hmm.num_symbols
    if more == 0:
        return hmm
    tables = hmm.tables()
    name, axis = ("emission", 1) if hmm.edges is None else ("edges", 0)
    tables[name] = np.pad(tables[name], [(0, more * (index == axis)) for index in range(tables[name].ndim)])
    return HMM(**tables)


def given_or_even(weights: Any, count: int) -> Float[np.ndarray, "C"]:
    """The weights, which are a distribution; by default `count` even ones."""
    return np.full(count, 1 / count) if weights is None else distribution("weights", weights, 1)


class ChainMixture(Mixture):
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
    _stream = CHAIN_COMPONENTS

    def __init__(self, tables: Any, weights: Any = None, start: Any = None):
        self.tables = distribution("tables", tables, 3)
        count, symbols, width = self.tables.shape
        if symbols != width:
            raise InputError(f"tables has shape {self.tables.shape}; expected (N, E, E)")
        self.weights = given_or_even(weights, count)
        if start is None:
            start = [cesaro_limit(np.full(symbols, 1 / symbols), table) for table in self.tables]
        self.start = distribution("start", start, 2)
        if self.weights.shape != (count,) or self.start.shape != (count, symbols):
            raise InputError(
                f"weights has shape {self.weights.shape}, start {self.start.shape}; expected ({count},) and "
                f"({count}, {symbols})"
            )
        self._make_read_only()

    @property
    def num_symbols(self) -> int:
        """`E`."""
        return self.tables.shape[1]

    @property
    def num_chains(self) -> int:
        """`N`."""
        return self.tables.shape[0]

    max_states = num_symbols  # the state of a chain is the last symbol
    belief_width = num_chains  # the posterior over the chains

    @cached_property
    def components(self) -> tuple[MarkovChain, ...]:
        """The chains, each as a process."""
        return tuple(self.chain(component) for component in range(self.num_chains))

    @property
    def has_exact_distribution(self) -> bool:
        """Always true."""
        return True

    def parts(self) -> tuple[Process, ...]:
        """None: the chains are rows of `tables`."""
        return ()

    def belief_parts(self) -> dict[str, slice]:
        """None: a belief is one distribution, over the chains."""
        return {}

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

    @cached_property
    def _alias_tables(self) -> tuple[AliasTable, AliasTable]:
        rows = self.tables.reshape(-1, self.num_symbols)
        return AliasTable.from_probabilities(self.start), AliasTable.from_probabilities(rows)

    def _draw(self, seed: np.uint64, first: np.uint64, step: np.uint64, out: Rows) -> None:
        start, table = self._alias_tables
        sizes = np.uint64(self.num_symbols), np.uint64(self.num_symbols), np.uint64(1)
        component = self._chosen(seed, first, step, len(out))
        draw_chains(*start.flat, *table.flat, *sizes, component.astype(np.uint64), seed, first, step, out)

    def _log_weights(self, values: Tensor) -> Iterator[Tensor]:
        """`log P(chain, tokens before t)`, (B, N), for `t = 0 .. T`; the same tensor each time."""
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

    def _posteriors(self, values: Tensor) -> Tensor:
        if (values < 0).any():
            return Mixture._posteriors(self, values)  # which filters each chain
        shape = len(values), values.shape[1] + 1, self.num_chains
        posteriors = torch.empty(shape, dtype=torch.float64, device=values.device)
        for t, total in enumerate(self._log_weights(values)):
            posteriors[:, t] = total.softmax(-1)
        # Zeros after tokens that no chain can emit, where the softmax of -inf is not a number.
        return posteriors.nan_to_num_(0.0)

    _beliefs = _posteriors

    def _probs(self, values: Tensor) -> Tensor:
        if (values < 0).any():
            return Mixture._probs(self, values)
        tables, start = (torch.tensor(table, device=values.device) for table in (self.tables, self.start))
        weights = self._posteriors(values)
        predictive = weights.new_empty(len(values), values.shape[1] + 1, self.num_symbols)
        predictive[:, 0] = weights[:, 0] @ start
        after, later = weights[:, 1:], predictive[:, 1:]
        for x in values.unique().tolist():
            last = values == x
            later[last] = after[last] @ tables[:, x]
        return predictive

    def log_likelihood(self, tokens: Int[Any, "B T"]) -> Float[Any, "B"]:
        """Log-likelihood (nats) of each sequence; -inf if no chain can emit it."""
        return self._infer(self._log_likelihood, tokens)

    def _log_likelihood(self, values: Tensor) -> Tensor:
        if (values < 0).any():
            by_chain = [log_weight[:, -1] for log_weight, _ in self._hypotheses(values, None)]
            return torch.stack(by_chain, dim=-1).logsumexp(-1)
        return deque(self._log_weights(values), maxlen=1)[0].logsumexp(-1)

    def _probs_of(self, chosen: Int[Tensor, "B"], values: Int[Tensor, "B T"]) -> Float[Tensor, "B T+1 E"]:
        tables, start = (torch.tensor(table, device=values.device) for table in (self.tables, self.start))
        predictive = torch.cat([start[chosen].unsqueeze(1), tables[chosen.unsqueeze(1), values]], dim=1)
        drawn = predictive[:, :-1].gather(2, values.unsqueeze(2)).squeeze(2)
        predictive[:, 1:] *= (drawn > 0).cumprod(1).unsqueeze(-1)
        return predictive

    def _apply(self, work: Callable[[Tensor], Tensor], values: Tensor) -> Tensor:
        rows = max(1, _BLOCK // ((values.shape[1] + 1) * self.num_chains))
        return torch.cat([work(block) for block in values.split(rows)])

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
    count = integer("num_chains", num_chains, 1, 31)
    return ChainMixture(np.stack([dirichlet_rows(1, num_symbols, alpha, seed, n) for n in range(count)]))


@dataclass(frozen=True)
class HMMMixture(Mixture, Family):
    """A mixture of finitely many HMMs: each sequence is drawn from one component, chosen by its weight.

    Args:
        hmms (`tuple` of [`~hmm_datasets.hmm.model.HMM`]): the components; those of fewer symbols than others get the
            rest, which they never emit.
        weights (`tuple` of `float`): their probabilities, which are rounded to multiples of 2^-32 for drawing.
        group (`int`, *optional*, defaults to 1): number of consecutive sequences from one component.

    ```python
    >>> from hmm_datasets.hmm import processes
    >>> family = HMMMixture((processes.golden_mean(), processes.even()), (0.25, 0.75))
    >>> family.next_token_probs([[0, 0]])[0, 2].round(3).tolist()
    [0.5, 0.5]

    ```
    """

    stored_name: ClassVar[str] = "Mixture"
    _stream = MIXTURE

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
        size = max(hmm.num_symbols for hmm in self.hmms)
        object.__setattr__(self, "hmms", tuple(with_symbols(hmm, size) for hmm in self.hmms))
        if not all(w >= 0 for w in self.weights) or not abs(sum(self.weights) - 1) <= 1e-9:
            raise InputError(f"weights sum to {sum(self.weights):.10g}; expected probabilities that sum to 1")

    @property
    def components(self) -> tuple[HMM, ...]:
        """`hmms`."""
        return self.hmms

    def hmm_at(self, seed: int, index: int) -> HMM:
        """The HMM of sequence `index` of the stream `seed`."""
        return self.hmms[int(self.components_at(1, seed, index)[0])]

    def _draw_states(self, seed: np.uint64, first: np.uint64, step: np.uint64, out: Rows, states: Rows | None) -> None:
        component = self._chosen(seed, first, step, len(out))
        draw = self.num_symbols, seed, first, step, out, states
        for c in np.unique(component):
            draw_tokens(*self.hmms[c]._alias_tables, *draw, rows=np.flatnonzero(component == c))


class ProcessMixture(Mixture):
    """A mixture of finitely many processes: each sequence is drawn from one of them, chosen by its weight.

    Component `c` draws its sequences with a seed derived from that of the mixture and `c`; sequence `i` of the mixture
    is sequence `i` of its component.

    Args:
        components (sequence of [`~hmm_datasets.hmm.process.Process`]): processes, which may have different alphabets.
        weights (`np.ndarray` of shape `(C,)`, *optional*): their probabilities, rounded to multiples of 2^-32 for
            drawing; by default uniform.
        alphabet (`str`, *optional*, defaults to `"numbers"`): which symbols of two components are one symbol of the
            mixture: those of one number, so that there are as many as of the component that has most, or with
            `"names"` those of one name, so that the alphabet is the union of the vocabularies.

    ```python
    >>> from hmm_datasets.hmm import processes
    >>> from hmm_datasets.hmm.structured.markov import MarkovChain
    >>> mixture = ProcessMixture([processes.even(), MarkovChain([[0.9, 0.1], [0.1, 0.9]])])
    >>> mixture.component_posteriors([[0, 1, 0]])[0].round(3).tolist()
    [[0.5, 0.5], [0.4, 0.6], [0.769, 0.231], [0.0, 1.0]]

    ```
    """

    stored_name: ClassVar[str] = "process_mixture"
    _stream = PROCESS_COMPONENTS

    def __init__(
        self, components: Sequence[Process], weights: Any = None, alphabet: Literal["numbers", "names"] = "numbers"
    ):
        self.components = tuple(components)
        count = len(self.components)
        if count == 0:
            raise InputError("a mixture has no components; expected one or more processes")
        for index, component in enumerate(self.components):
            if not isinstance(component, Process):
                raise InputError(f"components[{index}] is a {type(component).__name__}; expected a process")
        if alphabet not in ("numbers", "names"):
            raise InputError(f"alphabet is {alphabet!r}; expected 'numbers' or 'names'")
        self.alphabet = alphabet
        self._size, self.vocabulary, self._symbols = shared_alphabet(self.components, alphabet == "names")
        self.weights = given_or_even(weights, count)
        if self.weights.shape != (count,):
            raise InputError(f"weights has shape {self.weights.shape}; expected ({count},), one per component")
        self._make_read_only()

    @property
    def num_symbols(self) -> int:
        """`E`."""
        return self._size

    def settings(self) -> dict[str, Any]:
        """`alphabet`, if it is not the default."""
        return {} if self.alphabet == "numbers" else {"alphabet": self.alphabet}

    def arrays(self) -> dict[str, np.ndarray]:
        """`weights`."""
        return {"weights": self.weights}

    @classmethod
    def from_parts(cls, settings: dict[str, Any], arrays: dict[str, np.ndarray], parts: tuple[Process, ...]) -> Self:
        """The mixture of these parts."""
        return cls(parts, **arrays, **settings)

    def describe(self) -> str:
        """What the process is, in a few words."""
        return f"a mixture of {len(self.components)} processes over {self.num_symbols:,} symbols"

    def _draw(self, seed: np.uint64, first: np.uint64, step: np.uint64, out: Rows) -> None:
        # A component draws all rows, of which its own are kept, where that is faster than one call for each of its
        # rows. So short sequences cost up to `C` times those of a component.
        chosen = self._chosen(seed, first, step, len(out))
        for c in np.unique(chosen).tolist():
            rows, part_seed = np.flatnonzero(chosen == c), derived_seed(int(seed), c)
            draw, origin, width = self.components[c].sample, int(first), int(step)
            symbols = self._symbols[c].astype(out.dtype)
            if len(rows) * _CALL_TOKENS < out.size:
                for row in rows.tolist():
                    index = (origin + width * row) % (1 << 64)
                    out[row] = symbols[draw(1, out.shape[1], part_seed, index, num_threads=1)[0]]
            else:
                out[rows] = symbols[draw(len(out), out.shape[1], part_seed, origin, step=width, num_threads=1)[rows]]

    def _of_component(self, c: int, values: Int[Tensor, "B T"]) -> tuple[Int[Tensor, "B T"], Bool[Tensor, "B T+1"]]:
        number = values.new_full((self.num_symbols,), -1)
        symbols = torch.from_numpy(self._symbols[c]).to(number.device)
        number[symbols] = torch.arange(len(symbols), device=number.device, dtype=number.dtype)
        lost, mine = values < 0, number[values.clamp(min=0)]
        inside = pad((lost | (mine >= 0)).cummin(dim=1).values, (1, 0), value=True)
        return mine.clamp(min=0).masked_fill(lost, MISSING), inside

    def _over_alphabet(self, c: int, probs: Float[Tensor, "B T+1 e"]) -> Float[Tensor, "B T+1 E"]:
        whole = probs.new_zeros((*probs.shape[:-1], self.num_symbols))
        whole[..., torch.from_numpy(self._symbols[c]).to(probs.device)] = probs
        return whole

    def __repr__(self) -> str:
        return f"ProcessMixture({len(self.components)} components, {self.num_symbols} symbols)"
