"""A fresh HMM for every sequence, or for every `group` sequences: data to study learning in context.

A family is a pure function: sequence `i` of the stream `seed` depends on `(family, seed, i)` alone, whatever the
batch, rank or worker, as with one HMM. What varies (a permutation, a component, a table) comes from the same
Philox4x32-10 generator as the tokens, keyed by the seed, and never shares a block with them. The counter of a block is

    (group number, low 32 bits; high 32 bits; draw; FAMILY_STREAM | purpose << 8 | attempt << 16)

where the group number is `i // group`, `draw` counts blocks within one choice, `purpose` is one number for each kind
of family, and `attempt` counts tries of rejection sampling. Tokens have stream 0, and are those of sequence `i`.

Permutations are Fisher and Yates's (Durstenfeld 1964), with 64 random bits a step: each has its probability `1 / n!`
to within a relative `n^2 / 2^64`. Dirichlet rows are those of `dirichlet`.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from jaxtyping import Float, Int, UInt

from ..errors import InputError
from .checks import as_tokens
from .dirichlet import dirichlet_rows
from .kernels import FAMILY_STREAM, draw_with_permuted_rows, rename_symbols, shuffle
from .model import HMM
from .sampling import integer_weights, philox, smallest_unsigned

_SYMBOLS, _EMISSIONS, _CHAINS, _MIXTURE = (np.uint64(FAMILY_STREAM | np.uint64(purpose << 8)) for purpose in range(4))
_MASK = (1 << 64) - 1


class Family:
    """What families have in common; made by its subclasses alone.

    Attributes:
        num_symbols (`int`): `E`.
        group (`int`): consecutive sequences that share an HMM: `i` and `j` do where `i // group == j // group`.
    """

    num_symbols: int
    group: int

    def hmm_at(self, seed: int, index: int) -> HMM:
        """The HMM of sequence `index` of the stream `seed`."""
        raise NotImplementedError

    def sample(self, num_sequences: int, length: int, seed: int = 0, first: int = 0) -> UInt[np.ndarray, "N L"]:
        """Draw sequences `first .. first + num_sequences - 1` of the stream named by `seed`, each from its own HMM.

        Args:
            num_sequences (`int`): `N`.
            length (`int`): `L`, tokens a sequence.
            seed (`int`, *optional*, defaults to 0): which stream, in `[0, 2**64)`.
            first (`int`, *optional*, defaults to 0): index of the first sequence, in `[0, 2**64)`; indices wrap there.

        Returns:
            `np.ndarray` of shape `(N, L)`: symbols, in the smallest unsigned type that holds `E - 1`.
        """
        _check_draw(num_sequences, length, seed, first)
        out = np.empty((num_sequences, length), dtype=smallest_unsigned(self.num_symbols))
        start = 0
        while start < num_sequences:
            index = (first + start) & _MASK
            stop = min(start + self._run_length(seed, index, num_sequences - start), num_sequences)
            self.hmm_at(seed, index).sample(stop - start, length, seed, index, out=out[start:stop])
            start = stop
        return out

    def _run_length(self, seed: int, index: int, most: int) -> int:
        # The sequences left in this group; the last group before indices wrap may be a short one.
        return min(self.group - index % self.group, _MASK + 1 - index)

    def _check_group(self) -> None:
        if self.group < 1:
            raise InputError(f"group is {self.group}; expected 1 or more sequences to an HMM")


@dataclass(frozen=True)
class PermutedSymbols(Family):
    """One HMM whose symbols are renamed by a uniform random permutation.

    The tokens of sequence `i` are those of `hmm` itself, each mapped by the permutation: the law is that of
    `hmm_at(seed, i)`, though that HMM's own `sample` draws others. Costs `E / 2` Philox blocks a sequence beyond
    those of its tokens.

    Args:
        hmm ([`~hmm_datasets.hmm.model.HMM`]): the base.
        group (`int`, *optional*, defaults to 1): consecutive sequences that share a permutation.

    ```python
    >>> from hmm_datasets.hmm import processes
    >>> family = PermutedSymbols(processes.mess3())
    >>> bool((family.sample(4, 9, seed=1)[3] == family.sample(1, 9, seed=1, first=3)[0]).all())
    True

    ```
    """

    hmm: HMM
    group: int = 1

    def __post_init__(self):
        self._check_group()

    @property
    def num_symbols(self) -> int:
        """`E`."""
        return self.hmm.num_symbols

    def permutation_at(self, seed: int, index: int) -> Int[np.ndarray, "E"]:
        """The permutation of sequence `index`: symbol `x` of the base becomes `permutation[x]`."""
        return _permutation(_SYMBOLS, self.num_symbols, seed, index, self.group)

    def hmm_at(self, seed: int, index: int) -> HMM:
        """The HMM of sequence `index` of the stream `seed`."""
        origin = np.argsort(self.permutation_at(seed, index))
        hmm = self.hmm
        if hmm.edges is not None:
            return HMM(start=hmm.start, edges=hmm.edges[origin], vocabulary=hmm.vocabulary)
        return HMM(
            start=hmm.start,
            transition=hmm.transition,
            emission=hmm.emission[:, origin],
            vocabulary=hmm.vocabulary,
        )

    def sample(self, num_sequences: int, length: int, seed: int = 0, first: int = 0) -> UInt[np.ndarray, "N L"]:
        """As [`Family.sample`]; all sequences at once."""
        out = self.hmm.sample(num_sequences, length, seed, first)
        rename_symbols(_SYMBOLS, self.num_symbols, np.uint64(seed), np.uint64(first), np.uint64(self.group), out)
        return out


@dataclass(frozen=True)
class PermutedEmissions(Family):
    """One HMM whose rows of the emission table are shuffled among its states by a uniform random permutation.

    The hidden chain stays as it is, and so does the set of laws a state can have; which state has which is new.
    Costs `H / 2` Philox blocks a sequence beyond those of its tokens.

    Args:
        hmm ([`~hmm_datasets.hmm.model.HMM`]): the base, state-emitting.
        group (`int`, *optional*, defaults to 1): consecutive sequences that share a permutation.

    ```python
    >>> from hmm_datasets.hmm import processes
    >>> PermutedEmissions(processes.dishonest_casino(), group=8).sample(2, 5).shape
    (2, 5)

    ```
    """

    hmm: HMM
    group: int = 1

    def __post_init__(self):
        self._check_group()
        if self.hmm.edges is not None:
            raise InputError(
                f"{self.hmm} has no emission rows to permute; PermutedEmissions takes a state-emitting HMM"
            )

    @property
    def num_symbols(self) -> int:
        """`E`."""
        return self.hmm.num_symbols

    def permutation_at(self, seed: int, index: int) -> Int[np.ndarray, "H"]:
        """The permutation of sequence `index`: state `i` emits by row `permutation[i]` of the base."""
        return _permutation(_EMISSIONS, self.hmm.num_states, seed, index, self.group)

    def hmm_at(self, seed: int, index: int) -> HMM:
        """The HMM of sequence `index` of the stream `seed`."""
        hmm = self.hmm
        emission = hmm.emission[self.permutation_at(seed, index)]
        return HMM(start=hmm.start, transition=hmm.transition, emission=emission, vocabulary=hmm.vocabulary)

    def sample(self, num_sequences: int, length: int, seed: int = 0, first: int = 0) -> UInt[np.ndarray, "N L"]:
        """As [`Family.sample`]; all sequences at once, and equal to those `hmm_at` draws."""
        _check_draw(num_sequences, length, seed, first)
        out = np.empty((num_sequences, length), dtype=smallest_unsigned(self.num_symbols))
        start, emission, transition = self.hmm._alias_tables
        draw_with_permuted_rows(
            *(start.threshold[0], start.alias[0], start.bits),
            *(emission.threshold, emission.alias, emission.bits),
            *(transition.threshold, transition.alias, transition.bits),
            *(_EMISSIONS, np.uint64(seed), np.uint64(first), np.uint64(self.group), out),
        )
        return out


@dataclass(frozen=True)
class RandomChains(Family):
    """Fully observed Markov chains with random transition rows, each from a symmetric Dirichlet law.

    State and symbol are one; the first is uniform. The tables, and so the tokens, are the same on every machine that
    keeps to IEEE 754 (see `hmm_datasets.hmm.dirichlet`).

    Args:
        num_states (`int`): `H = E`.
        alpha (`float`): concentration a symbol; 1 is uniform over laws, below rows are peaked, above flat.
        group (`int`, *optional*, defaults to 1): consecutive sequences that share a chain.

    ```python
    >>> family = RandomChains(num_states=3, alpha=1.0)
    >>> family.next_token_probs([[0, 1, 0]])[0, 3].round(3).tolist()
    [0.25, 0.5, 0.25]

    ```
    """

    num_states: int
    alpha: float
    group: int = 1

    _max_states: ClassVar[int] = 1 << 15  # draws of a table are counted in 32 bits

    def __post_init__(self):
        self._check_group()
        if not 1 <= self.num_states <= self._max_states:
            raise InputError(f"num_states is {self.num_states}; expected a number in 1 .. {self._max_states}")
        if not 0.0 < self.alpha < np.inf:
            raise InputError(f"alpha is {self.alpha}; expected a positive number")

    @property
    def num_symbols(self) -> int:
        """`E`, as many as states."""
        return self.num_states

    def hmm_at(self, seed: int, index: int) -> HMM:
        """The HMM of sequence `index` of the stream `seed`."""
        _check_draw(1, 1, seed, index)
        size, number = self.num_states, index // self.group

        def blocks(draws: UInt[np.ndarray, "M"], attempt: int) -> UInt[np.ndarray, "M 4"]:
            return _blocks(_CHAINS | np.uint64(attempt << 16), draws, seed, number)

        transition = dirichlet_rows(float(self.alpha), size, size, blocks)
        return HMM(start=np.full(size, 1 / size), transition=transition, emission=np.eye(size))

    def next_token_probs(self, tokens: Int[Any, "B T"]) -> Float[Any, "B T+1 E"]:
        """The Bayes-optimal law of token `t` given those before it, the chain unknown, for `t = 0 .. T`.

        Each row of the table is a Pólya urn: `(alpha + times x followed last) / (E alpha + times last was followed)`.
        Of a group the optimum could use the other sequences too; this law knows one alone.

        Args:
            tokens (array of shape `(B, T)`): symbols; a tensor gives a tensor, anything else NumPy.
        """
        import torch

        values, _ = as_tokens(tokens, self.num_symbols)
        batch, length = values.shape
        seen = torch.nn.functional.one_hot(values, self.num_symbols).to(torch.float64)
        law = torch.full((batch, length + 1, self.num_symbols), 1 / self.num_symbols, dtype=torch.float64)
        law = law.to(values.device)
        if length > 0:
            # earlier[b, t, s]: token s is the same as token t and comes before it, so it is followed by token s + 1.
            earlier = (values.unsqueeze(2) == values.unsqueeze(1)).to(torch.float64).tril(diagonal=-1)
            counts = earlier[:, :, :-1] @ seen[:, 1:] + self.alpha
            law[:, 1:] = counts / counts.sum(-1, keepdim=True)
        return law if isinstance(tokens, torch.Tensor) else law.numpy()


@dataclass(frozen=True)
class Mixture(Family):
    """One of finitely many HMMs, drawn for each sequence by its weight.

    Args:
        hmms (`tuple` of [`~hmm_datasets.hmm.model.HMM`]): the components, over the same symbols.
        weights (`tuple` of `float`): their probabilities, in multiples of 2^-32 where drawn.
        group (`int`, *optional*, defaults to 1): consecutive sequences of one component.

    ```python
    >>> from hmm_datasets.hmm import processes
    >>> family = Mixture((processes.golden_mean(), processes.even()), (0.25, 0.75))
    >>> family.next_token_probs([[0, 0]])[0, 2].round(3).tolist()
    [0.5, 0.5]

    ```
    """

    hmms: tuple[HMM, ...]
    weights: tuple[float, ...]
    group: int = 1

    def __post_init__(self):
        self._check_group()
        object.__setattr__(self, "hmms", tuple(self.hmms))
        object.__setattr__(self, "weights", tuple(float(w) for w in self.weights))
        if len(self.hmms) == 0 or len(self.hmms) != len(self.weights):
            raise InputError(f"{len(self.hmms)} hmms and {len(self.weights)} weights; expected as many, one or more")
        for place, hmm in enumerate(self.hmms):
            if hmm.num_symbols != self.num_symbols:
                raise InputError(
                    f"hmms[{place}] has {hmm.num_symbols} symbols; expected {self.num_symbols}, as hmms[0]"
                )
        if not all(w >= 0 for w in self.weights) or not abs(sum(self.weights) - 1) <= 1e-9:
            raise InputError(f"weights sum to {sum(self.weights):.10g}; expected probabilities that sum to 1")

    @property
    def num_symbols(self) -> int:
        """`E`."""
        return self.hmms[0].num_symbols

    def component_at(self, seed: int, index: int) -> int:
        """Which of `hmms` draws sequence `index`."""
        _check_draw(1, 1, seed, index)
        word = _blocks(_MIXTURE, np.zeros(1, np.uint64), seed, index // self.group)[0, 0]
        bounds = integer_weights(np.array([self.weights])).cumsum()
        return int(np.searchsorted(bounds, np.uint64(word), side="right"))

    def hmm_at(self, seed: int, index: int) -> HMM:
        """The HMM of sequence `index` of the stream `seed`."""
        return self.hmms[self.component_at(seed, index)]

    def next_token_probs(self, tokens: Int[Any, "B T"]) -> Float[Any, "B T+1 E"]:
        """The Bayes-optimal law of token `t` given those before it, the component unknown, for `t = 0 .. T`.

        The components' own laws, each weighted by its posterior probability given the tokens so far; zeros after
        tokens no component can emit. Of a group the optimum could use the other sequences too; this law knows one.

        Args:
            tokens (array of shape `(B, T)`): symbols; a tensor gives a tensor, anything else NumPy.
        """
        import torch

        from . import inference

        values, _ = as_tokens(tokens, self.num_symbols)
        log_weights, laws = [], []
        for hmm, weight in zip(self.hmms, self.weights, strict=True):
            parameters = hmm.parameters(device=values.device)
            filtered = inference.forward_filter(parameters, values)
            laws.append(inference.next_token_probs(parameters, filtered.beliefs))
            prior = torch.full_like(laws[-1][:, :1, 0], weight).log()
            log_weights.append(torch.cat([prior, prior + filtered.log_scale.cumsum(1)], dim=1))
        log_weight = torch.stack(log_weights)
        best = log_weight.max(dim=0).values
        # Where all components are impossible `best` is -inf, and -inf - -inf is NaN: those laws are zeros.
        posterior = (log_weight - best.clamp(min=-1e300)).exp()
        total = posterior.sum(0)
        posterior = posterior / torch.where(total > 0, total, 1.0)
        law = (posterior.unsqueeze(-1) * torch.stack(laws)).sum(0)
        return law if isinstance(tokens, torch.Tensor) else law.numpy()


def _check_draw(num_sequences: int, length: int, seed: int, first: int) -> None:
    for name, value, bits in (("seed", seed, 64), ("first", first, 64), ("length", length, 32)):
        if not 0 <= value < 1 << bits:
            raise InputError(f"{name} is {value}; expected an integer in [0, 2**{bits})")
    if num_sequences < 0:
        raise InputError(f"num_sequences is {num_sequences}; expected 0 or more")


def _permutation(stream: np.uint64, size: int, seed: int, index: int, group: int) -> Int[np.ndarray, "n"]:
    _check_draw(1, 1, seed, index)
    permutation = np.empty(size, dtype=np.int64)
    shuffle(permutation, np.uint64(index // group), stream, np.uint64(seed))
    return permutation


def _blocks(stream: np.uint64, draws: UInt[np.ndarray, "M"], seed: int, number: int) -> UInt[np.ndarray, "M 4"]:
    # The Philox blocks of group `number` for one purpose (and attempt), all draws at once.
    counter = np.empty((len(draws), 4), dtype=np.uint64)
    counter[:, 0], counter[:, 1] = number & 0xFFFFFFFF, number >> 32
    counter[:, 2], counter[:, 3] = draws, stream
    key = np.broadcast_to(np.array([seed & 0xFFFFFFFF, seed >> 32], dtype=np.uint64), (len(draws), 2))
    return philox(counter, key)
