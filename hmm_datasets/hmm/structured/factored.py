"""Factored processes: several independent processes side by side.

(Shai et al., "Transformers learn factored representations", arXiv:2602.02385, 2026.) At every step each of `F` factors
emits a symbol, and all are seen, so every factor is filtered by itself. The matrix of a step is a Kronecker product,
`T^(x_1 .. x_F) = T_1^(x_1) (x) T_2^(x_2) (x) ...`, which takes a product of beliefs to a product of beliefs. Time
is `O(B T sum_k H_k^2)` and memory `O(B T sum_k H_k)`, where the joint filter needs `prod_k H_k` states.

A step is read as one product symbol, or as one token per factor. A factored process of HMMs, or of generalized HMMs,
also has a joint process over all `J = prod_k H_k` joint states, made of Kronecker products, with `E J^2` entries: for
few and small factors. With `noise`, a step's symbol is replaced by a uniform one with that probability. Then the
matrix of a step is a sum of Kronecker products, beliefs no longer factor, and the joint process is filtered.
"""

import functools
import itertools
import math
from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
from jaxtyping import Bool, Float, Int, UInt

from ...errors import InputError
from ..arrays import (
    MISSING,
    as_given,
    operators,
    token_array,
    token_array_with_gaps,
)
from ..generalized import GeneralizedHMM
from ..integers import integer
from ..kernels.structured import replace_symbols, split_codes
from ..model import HMM
from ..process import Process
from ..sampling import derived_seed
from .markov import MarkovChain

if TYPE_CHECKING:
    from ..analysis.entropy import EntropyRate, EntropyRateBounds, OptimalLoss


_MAX_TABLE = 1 << 28  # entries of a result over product symbols

MAX_JOINT_ENTRIES = 1 << 26
"""Maximum number of entries `E J^2` of the joint process with `J` states, which take 512 MB."""

_JOINED = HMM | GeneralizedHMM | MarkovChain

_kronecker: Any = functools.partial(functools.reduce, np.kron)  # of vectors or matrices, the last varies fastest


class FactoredProcess(Process):
    """Processes side by side, whose symbols are read together.

    Sequence `i` of the stream `seed` is made of sequence `i` of each factor, drawn with a seed derived from `seed` and
    the number of the factor (see `sampling.derived_seeds`), so that factors are independent.

    Args:
        factors (sequence of [`~hmm_datasets.hmm.process.Process`]): HMMs or other processes with beliefs.
        symbols (`str`, *optional*, defaults to `"product"`): `"product"` reads a step as one symbol of
            `E_1 E_2 ... E_F`, the code that `numpy.ravel_multi_index(parts, process.sizes)` gives for the symbols of
            the factors, the last factor the least significant. `"tuple"` reads it as `F` tokens, factor after factor,
            each factor with tokens of its own: the symbols of factor `k` come after those of the factors before it.
            `"shared"` is `"tuple"` with the same tokens for all factors.
        noise (`float`, *optional*, defaults to 0): probability that a step's symbol is replaced by one drawn uniformly
            from all; for `symbols="product"` and HMMs or generalized HMMs with few joint states.

    Raises:
        `InputError`: there is no factor, one has no beliefs, or a size is too large.

    ```python
    >>> from hmm_datasets.hmm import processes
    >>> pair = FactoredProcess([processes.mess3(), processes.golden_mean()])
    >>> pair.num_symbols, pair.beliefs([[0, 5]]).shape, pair.belief_parts()["factor_1"]
    (6, (1, 3, 5), slice(3, 5, None))

    ```
    """

    stored_name: ClassVar[str] = "factored"

    def __init__(self, factors: Sequence[Process], *, symbols: str = "product", noise: float = 0.0):
        self.factors = tuple(factors)
        for k, factor in enumerate(self.factors):
            if not isinstance(factor, Process):
                raise InputError(f"factors[{k}] is a {type(factor).__name__}; expected a process")
            if factor.belief_width is None:
                raise InputError(f"factors[{k}] is {factor!r}; expected a process with beliefs")
        if len(self.factors) == 0:
            raise InputError("there are no factors; expected one or more")
        self.symbols = symbols
        self.noise = float(noise)
        self.is_stationary = all(factor.is_stationary for factor in self.factors)
        if symbols not in ("product", "tuple", "shared"):
            raise InputError(f"symbols is {symbols!r}; expected 'product', 'tuple' or 'shared'")
        if self.num_symbols > 1 << 32:
            raise InputError(f"the product has {self.num_symbols:,} symbols; expected at most 2^32, or 'tuple'")
        if not 0 <= self.noise <= 1 or (self.noise > 0 and symbols != "product"):
            raise InputError(f"noise is {noise}, symbols {symbols!r}; expected a probability, and 'product' if not 0")
        if self.noise > 0:
            self._check_joint()

    @property
    def num_factors(self) -> int:
        """`F`."""
        return len(self.factors)

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """Number of symbols `E_k` of each factor."""
        return tuple(factor.num_symbols for factor in self.factors)

    @property
    def widths(self) -> tuple[int, ...]:
        """Width of each factor's belief: the number of its states if it is an HMM."""
        return tuple(factor.belief_width or 0 for factor in self.factors)

    @property
    def num_symbols(self) -> int:
        """`E`: the product of all sizes, their sum, or the largest, by `symbols`."""
        return {"product": math.prod, "tuple": sum, "shared": max}[self.symbols](self.sizes)

    @property
    def tokens_per_step(self) -> int:
        """Tokens of one step of all factors: 1 for a product, else `F`."""
        return 1 if self.symbols == "product" else self.num_factors

    @cached_property
    def _offsets(self) -> tuple[int, ...]:
        """The token of symbol 0 of each factor, where a step is a tuple."""
        sizes = self.sizes if self.symbols == "tuple" else (0,) * self.num_factors
        return tuple(itertools.accumulate(sizes[:-1], initial=0))

    @property
    def num_joint_states(self) -> int:
        """`J`, the product of the widths of the factors' beliefs."""
        return math.prod(self.widths)

    max_states = num_joint_states

    @property
    def belief_width(self) -> int:
        """Sum of the widths of the factors' beliefs."""
        return sum(self.widths)

    def belief_parts(self) -> dict[str, slice]:
        """Where the belief of each factor lies: `factor_0`, `factor_1`, ..."""
        ends = list(itertools.accumulate(self.widths, initial=0))
        return {f"factor_{k}": slice(*ends[k : k + 2]) for k in range(self.num_factors)}

    @property
    def has_exact_distribution(self) -> bool:
        """Whether all factors have exact distributions."""
        return all(factor.has_exact_distribution for factor in self.factors)

    def settings(self) -> dict[str, Any]:
        """`symbols` and `noise`, and `parents`, a None for each factor, as folders had it when there were others."""
        return {"parents": [None] * self.num_factors, "symbols": self.symbols, "noise": self.noise}

    def parts(self) -> tuple[Process, ...]:
        """The factors."""
        return self.factors

    @classmethod
    def from_parts(cls, settings: dict[str, Any], arrays: dict[str, np.ndarray], parts: tuple[Process, ...]) -> Self:
        """The process with these settings and factors."""
        return cls(parts, symbols=settings["symbols"], noise=settings["noise"])

    def describe(self) -> str:
        """What the process is, in a few words."""
        noise = f", noise {self.noise:g}" if self.noise > 0 else ""
        return f"{self.num_factors} independent factors of {self.num_joint_states:,} joint states{noise}"

    def _digits(self, codes: Int[np.ndarray, "B T"]) -> Int[np.ndarray, "F B T"]:
        out = np.empty((self.num_factors, *codes.shape), np.int64)
        split_codes(codes, np.array(self.sizes), out)
        return out

    def _draw(self, seed: np.uint64, first: np.uint64, step: np.uint64, out: UInt[np.ndarray, "N L"]) -> None:
        steps = -(-out.shape[1] // self.tokens_per_step)
        for k, factor in enumerate(self.factors):
            factor_seed = derived_seed(int(seed), k)
            drawn = factor.sample(len(out), steps, factor_seed, int(first), step=int(step), num_threads=1)
            if self.symbols == "product":
                # In 64 bits, since the number of symbols itself need not fit in the type of the symbols.
                np.multiply(out if k > 0 else 0, self.sizes[k], out=out, dtype=np.uint64, casting="unsafe")
                np.add(out, drawn, out=out, casting="unsafe")
            else:
                mine = out[:, k :: self.num_factors]
                mine[:] = drawn[:, : mine.shape[1]].astype(out.dtype) + out.dtype.type(self._offsets[k])
        if self.noise > 0:
            threshold = np.uint64(round(self.noise * 2**32))
            replace_symbols(np.uint64(self.num_symbols), threshold, seed, first, step, out)

    def factor_tokens(self, tokens: Int[Any, "B T"]) -> Int[np.ndarray, "F B S"]:
        """The symbols of each factor at each step. Of an incomplete last step the symbols not yet seen are 0.

        Raises:
            `InputError`: a token of `symbols="tuple"` is one of another factor.
        """
        values = token_array(tokens, self.num_symbols)
        symbols, right = self._split(values)
        if not right.all():
            row, t = np.argwhere(~right)[0].tolist()
            k = t % self.num_factors
            raise InputError(
                f"tokens[{row}, {t}] is {values[row, t]}; expected a token of factor {k}, {self._offsets[k]} .. "
                f"{self._offsets[k] + self.sizes[k] - 1}"
            )
        return symbols

    def _split(self, tokens: Int[np.ndarray, "B T"]) -> tuple[Int[np.ndarray, "F B S"], Bool[np.ndarray, "B T"]]:
        """The symbols of each factor at each step, and which tokens are of the factor whose turn it is.

        Symbols are 0 for other tokens, and in an incomplete last step for those not seen yet; `MISSING` where `tokens`
        are `E`.
        """
        right, missing = np.ones(tokens.shape, dtype=bool), tokens == self.num_symbols
        if self.symbols == "product":
            return np.where(missing, MISSING, self._digits(np.where(missing, 0, tokens))), right
        steps = -(-tokens.shape[1] // self.num_factors)
        symbols_by_factor = np.zeros((self.num_factors, len(tokens), steps), np.int64)
        for k in range(self.num_factors):
            mine = tokens[:, k :: self.num_factors] - self._offsets[k]
            lost = missing[:, k :: self.num_factors]
            fits = (mine >= 0) & (mine < self.sizes[k])
            right[:, k :: self.num_factors] = fits | lost
            symbols_by_factor[k, :, : mine.shape[1]] = np.where(lost, MISSING, np.where(fits, mine, 0))
        return symbols_by_factor, right

    def next_token_probs(self, tokens: Int[Any, "B T"]) -> Float[Any, "B T+1 E"]:
        """The Bayes-optimal distribution of each token; see [`Process.next_token_probs`].

        For a product of many factors it is large. Those of the factors, of which it is the product, are small:
        `factors[k].next_token_probs(factor_tokens(tokens)[k])`.
        """
        if self.noise > 0:
            return self._joint.next_token_probs(tokens)
        values = token_array_with_gaps(tokens, self.num_symbols)
        if values.shape[0] * (values.shape[1] + 1) * self.num_symbols > _MAX_TABLE:
            raise InputError(
                f"{values.shape[0]} x {values.shape[1] + 1} distributions over {self.num_symbols:,} symbols are more "
                f"than {_MAX_TABLE:,} numbers; expected fewer rows, or "
                "factors[k].next_token_probs(factor_tokens(tokens)[k])"
            )
        symbols, right = self._split(values)
        by_factor = [factor.next_token_probs(symbols[k]) for k, factor in enumerate(self.factors)]
        return outer_product(by_factor) if self.symbols == "product" else self._tuple_probs(symbols, by_factor, right)

    def _tuple_probs(
        self,
        symbols: Int[np.ndarray, "F B S"],
        by_factor: Sequence[Float[np.ndarray, "B S_plus_1 E"]],
        right: Bool[np.ndarray, "B T"],
    ) -> Float[np.ndarray, "B T+1 E"]:
        """The distribution of each token where a step is `F` tokens: that of a factor.

        Zeros after tokens that are impossible, or those of another factor, where `right` is false.
        """
        rows, length = right.shape
        result = np.zeros((rows, length + 1, self.num_symbols))
        alive = np.ones((rows, length + 1), dtype=bool)
        for k, probs in enumerate(by_factor):
            steps = np.arange(len(range(k, length + 1, self.num_factors)))
            at = k + self.num_factors * steps
            mine = probs[:, steps]
            offset = self._offsets[k]
            result[:, at, offset : offset + self.sizes[k]] = mine
            shown = at < length
            read = symbols[k][:, steps[shown], None]
            drawn = np.take_along_axis(mine[:, shown], np.maximum(read, 0), axis=2)[:, :, 0]
            alive[:, at[shown] + 1] = right[:, at[shown]] & ((drawn > 0) | (read[:, :, 0] == MISSING))
        return result * alive.cumprod(axis=1)[:, :, None]

    def beliefs(self, tokens: Int[Any, "B T"]) -> Float[Any, "B T+1 W"]:
        """The beliefs of the factors side by side, before each token; `belief_parts` says where each lies.

        Where a step is several tokens, those factors that have shown their symbol of the step are a step ahead. With
        noise, they are the marginal distributions of [`joint_beliefs`][FactoredProcess.joint_beliefs].
        """
        if self.noise > 0:
            joint = np.asarray(self._joint.beliefs(tokens))
            return as_given(tokens, marginals(joint, [final_of(factor) for factor in self.factors]))
        values = token_array_with_gaps(tokens, self.num_symbols)
        symbols, right = self._split(values)
        by_factor = [factor.beliefs(symbols[k]) for k, factor in enumerate(self.factors)]
        joined = np.concatenate(self._before_each_token(by_factor, values.shape[1]), axis=2)
        if not right.all():
            joined[:, 1:] *= right.cumprod(axis=1)[:, :, None]
        return as_given(tokens, joined)

    def _before_each_token(
        self, by_factor: Sequence[Float[np.ndarray, "B S_plus_1 W"]], length: int
    ) -> list[Float[np.ndarray, "B T+1 W"]]:
        """The factors' beliefs before each token, from those before each step."""
        if self.tokens_per_step == 1:
            return list(by_factor)
        positions, factors = np.arange(length + 1), self.num_factors
        return [beliefs[:, (positions - k + factors - 1) // factors] for k, beliefs in enumerate(by_factor)]

    def joint_beliefs(self, tokens: Int[Any, "B T"], *, max_states: int = 4096) -> Float[Any, "B T+1 J"]:
        """The distribution of the joint state of all factors, the last factor the least significant.

        Without noise it is the outer product of the factors' beliefs.

        Raises:
            `InputError`: there are more than `max_states` joint states.
        """
        max_states = integer("max_states", max_states, 1, 63)
        if self.num_joint_states > max_states:
            raise InputError(
                f"{self!r} has {self.num_joint_states:,} joint states; expected at most {max_states:,}, or a larger "
                "max_states; beliefs gives the factors'"
            )
        if self.noise > 0:
            return self._joint.beliefs(tokens)
        beliefs = np.asarray(self.beliefs(tokens))
        return as_given(tokens, outer_product([beliefs[:, :, part] for part in self.belief_parts().values()]))

    def log_likelihood(self, tokens: Int[Any, "B T"]) -> Float[Any, "B"]:
        """Log-likelihood (nats) of each sequence: the sum of those of the factors."""
        if self.noise > 0:
            return self._joint.log_likelihood(tokens)
        values = token_array_with_gaps(tokens, self.num_symbols)
        symbols, right = self._split(values)
        length, total = values.shape[1], np.zeros(len(values))
        for k, factor in enumerate(self.factors):
            # Of an incomplete last step the factors not yet shown are left out.
            steps = len(range(k, length, self.num_factors)) if self.tokens_per_step > 1 else length
            total += factor.log_likelihood(symbols[k, :, :steps])
        return as_given(tokens, np.where(right.all(axis=1), total, -np.inf))

    def joint_process(self) -> HMM | GeneralizedHMM:
        """The joint process with product symbols, noise included: generalized if a factor is a generalized HMM.

        Raises:
            `InputError`: it has more than 2^26 entries, or a factor is neither an HMM nor a generalized HMM.
        """
        return self._joint

    @cached_property
    def _joint(self) -> HMM | GeneralizedHMM:
        self._check_joint()
        factors = [factor for factor in self.factors if isinstance(factor, _JOINED)]
        parts = [factor.to_hmm() if isinstance(factor, MarkovChain) else factor for factor in factors]
        start = _kronecker([part.initial if isinstance(part, GeneralizedHMM) else part.start for part in parts])
        tables = [part.operators if isinstance(part, GeneralizedHMM) else operators(part) for part in parts]
        edges = np.stack([_kronecker(moves) for moves in itertools.product(*tables)])
        edges = (1 - self.noise) * edges + self.noise / len(edges) * edges.sum(axis=0)
        if any(isinstance(part, GeneralizedHMM) for part in parts):
            return GeneralizedHMM(edges, start, _kronecker(map(final_of, parts)))
        return HMM(start=start, edges=edges)

    def _check_joint(self) -> None:
        """Raise an error if there is no joint process, or it is too large."""
        for k, factor in enumerate(self.factors):
            if not isinstance(factor, _JOINED):
                raise InputError(
                    f"factors[{k}] is {factor!r}; the joint process needs factors that are HMMs or generalized HMMs"
                )
        entries = math.prod(self.sizes) * self.num_joint_states**2
        if entries > MAX_JOINT_ENTRIES:
            raise InputError(
                f"the joint process of {math.prod(self.sizes):,} symbols and {self.num_joint_states:,} states has "
                f"{entries:,} entries; expected at most {MAX_JOINT_ENTRIES:,}"
            )

    def entropy_rate(
        self, *, num_sequences: int = 256, length: int = 2048, burn_in: int = 512, seed: int = 0
    ) -> "EntropyRate":
        """Nats per token and its standard error: the sum of the factors' rates, over the tokens of a step.

        `length` and `burn_in` count steps. The errors of separate estimates add in squares.
        """
        from ..analysis.entropy import EntropyRate, check_sample

        settings = {"num_sequences": num_sequences, "length": length, "burn_in": burn_in}
        if self.noise > 0:
            return self._joint.entropy_rate(**settings, seed=seed)
        if not self.is_stationary:
            raise InputError(f"{self!r} has a factor without an entropy rate; optimal_loss gives that by position")
        check_sample(num_sequences, length, burn_in)
        value = variance = 0.0
        for k, factor in enumerate(self.factors):
            rate = factor.entropy_rate(**settings, seed=derived_seed(seed, self.num_factors + k))
            value, variance = value + rate.value, variance + rate.standard_error**2
        return EntropyRate(float(value) / self.tokens_per_step, float(np.sqrt(variance)) / self.tokens_per_step)

    def entropy_rate_bounds(self) -> "EntropyRateBounds":
        """Bounds in nats per token: sums of the factors' over the tokens of a step, or those of the joint process.

        The errors of separate estimates add in squares.
        """
        from ..analysis.entropy import EntropyRateBounds, bounds_of_rate

        parts = (self._joint,) if self.noise > 0 else self.factors
        bounds = np.array([bounds_of_rate(part, part.entropy_rate()) for part in parts])
        sums, errors = bounds[:, :2].sum(axis=0), np.sqrt(np.square(bounds[:, 2:]).sum(axis=0))
        return EntropyRateBounds(*map(float, np.concatenate([sums, errors]) / self.tokens_per_step))

    def optimal_loss(self, length: int, *, num_sequences: int = 1024, seed: int = 0) -> "OptimalLoss":
        """The minimum expected loss at each position: the sum of the factors' where a token is a product."""
        from ..analysis.entropy import OptimalLoss

        length = integer("length", length, 0, 31)
        if self.noise > 0:
            return self._joint.optimal_loss(length, num_sequences=num_sequences, seed=seed)
        steps = -(-length // self.tokens_per_step)
        seeds = [derived_seed(seed, self.num_factors + k) for k in range(self.num_factors)]
        losses = [
            factor.optimal_loss(steps, num_sequences=num_sequences, seed=factor_seed)
            for factor, factor_seed in zip(self.factors, seeds, strict=True)
        ]
        nats, errors = (np.stack(values, axis=1) for values in zip(*losses, strict=True))
        if self.tokens_per_step > 1:
            return OptimalLoss(nats.reshape(-1)[:length], errors.reshape(-1)[:length])
        return OptimalLoss(nats.sum(axis=1), np.sqrt(np.square(errors).sum(axis=1)))


def outer_product(parts: Sequence[Float[np.ndarray, "B T W"]]) -> Float[np.ndarray, "B T J"]:
    """The distribution of all parts together where they are independent."""

    def joined(left: np.ndarray, right: np.ndarray) -> np.ndarray:
        return (left[..., :, None] * right[..., None, :]).reshape(*left.shape[:2], left.shape[2] * right.shape[2])

    return functools.reduce(joined, parts)


def marginals(
    joint: Float[np.ndarray, "B T J"], finals: Sequence[Float[np.ndarray, "H"]]
) -> Float[np.ndarray, "B T W"]:
    """The beliefs of the factors side by side: that of the joint times the `finals` of all other factors.

    They are ones for a distribution over states, so that these are its marginal distributions.
    """
    table = joint.reshape(*joint.shape[:2], *map(len, finals))

    def without_others(kept: int) -> np.ndarray:
        reduced = table
        for k in reversed(range(len(finals))):
            if k != kept:
                reduced = np.moveaxis(reduced, 2 + k, -1) @ finals[k]
        return reduced

    return np.concatenate([without_others(k) for k in range(len(finals))], axis=2)


def final_of(factor: Process) -> Float[np.ndarray, "H"]:
    """The vector whose product with a belief of the factor is one: ones, except for a generalized HMM."""
    return factor.final if isinstance(factor, GeneralizedHMM) else np.ones(factor.belief_width or 0)
