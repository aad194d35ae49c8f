"""How the loss falls along the context: the excess of a predictor over an oracle that knows the component.

Data are non-ergodic if each sequence comes from one of many processes, which a predictor has to find out from the
sequence itself. The excess at position `t` is the expected divergence of the predictor's distribution from the one
given the component and the tokens before `t`. For the Bayes-optimal predictor it is the information that token `t`
gives about the component, `I(component; X_t | X_0 .. X_t-1)`, so over all positions it sums to the information that
the sequence gives, at most the entropy of the component, `ln N` nats for `N` equally likely ones. If the components
differ in `d` parameters that vary continuously, it approaches `d / 2t` (Clarke and Barron, IEEE Trans. Inf. Theory 36,
1990): a power law of exponent 1.

Means over sequences of divergences have a much smaller error than means of losses, whose noise is that of the tokens.
"""

from collections.abc import Callable
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from jaxtyping import Float

from hmm_datasets.errors import InputError
from hmm_datasets.hmm.integers import integer

if TYPE_CHECKING:
    import torch

    from hmm_datasets.hmm.process import Process

_BLOCK_TOKENS = 1 << 16
_STRAIGHT = 0.2
"""Largest distance from the line of the logarithms. By theory mixtures of many chains have 0.02 to 0.12 (measured with
16 to 1,024 chains); the excess of two chains, which falls exponentially once the chain is known, has 0.25 to 2."""


def excess_by_position(
    process: "Process",
    num_sequences: int,
    length: int,
    *,
    seed: int = 0,
    first: int = 0,
    predictor: "Callable[[torch.Tensor], torch.Tensor] | None" = None,
) -> Float[np.ndarray, "N T"]:
    """The divergence of a predictor from the oracle at every position of sequences of a process, in nats.

    Args:
        process ([`~hmm_datasets.hmm.process.Process`]): a process with an oracle.
        num_sequences (`int`): `N`.
        length (`int`): `T`; entry `t` has `t` tokens of context.
        seed, first (`int`, *optional*, defaults to 0): the sequences, see [`Process.sample`].
        predictor (callable, *optional*): from tokens `(B, T)` to probabilities of tokens `0 .. T - 1`, `(B, T, E)`; by
            default the Bayes-optimal predictor.

    Raises:
        `InputError`: the process has no oracle, or has no exact distribution and there is no predictor.

    ```python
    >>> from hmm_datasets.hmm.families.mixture import ChainMixture
    >>> alike = ChainMixture([[[0.9, 0.1], [0.1, 0.9]]] * 2)
    >>> float(excess_by_position(alike, 4, 8).max())
    0.0

    ```
    """
    import torch

    from hmm_datasets.hmm.analysis.divergence import kl_divergence

    if not process.has_oracle or (predictor is None and not process.has_exact_distribution):
        raise InputError(f"{process!r}: expected a process with an oracle and an exact distribution")
    num_sequences, length = integer("num_sequences", num_sequences, 1, 63), integer("length", length, 1, 31)
    rows = max(1, _BLOCK_TOKENS // length)
    parts = []
    for start in range(0, num_sequences, rows):
        tokens = process.sample(min(rows, num_sequences - start), length, seed=seed, first=first + start)
        values = torch.from_numpy(tokens.astype(np.int64))
        oracle = process.oracle_next_token_probs(values, seed, first + start)[:, :-1]
        probs = process.next_token_probs(values)[:, :-1] if predictor is None else predictor(values)
        parts.append(kl_divergence(oracle, probs.to(oracle).log()).numpy())
    return np.concatenate(parts)


class PowerLaw(NamedTuple):
    """A fit of `excess(t) = coefficient / t ** exponent`.

    Attributes:
        exponent (`float`): the exponent.
        standard_error (`float`): its error, by resampling sequences.
        interval (`tuple` of two `float`): its 95% interval, likewise.
        coefficient (`float`): the coefficient, in nats.
        deviation (`float`): the largest distance of the logarithm of the excess from the line.
    """

    exponent: float
    standard_error: float
    interval: tuple[float, float]
    coefficient: float
    deviation: float

    @property
    def is_straight(self) -> bool:
        """Whether the excess surely falls and lies on the line to a fifth of its value: its slope is an exponent."""
        return self.deviation < _STRAIGHT and self.interval[0] > 0


def fit_power_law(
    excess: Float[np.ndarray, "N T"], first: int, last: int, *, resamples: int = 1000, seed: int = 0
) -> PowerLaw:
    """Least squares on logarithms of the mean excess and of the position, from position `first` to `last`.

    The mean is taken over bins of equal width on the logarithmic axis, four for each doubling, so that every doubling
    counts alike.

    Args:
        excess (`np.ndarray` of shape `(N, T)`): the result of [`excess_by_position`].
        first, last (`int`): positions from 1 to `T - 1`, `last` at least twice `first`.
        resamples (`int`, *optional*, defaults to 1000): resamplings of the sequences.
        seed (`int`, *optional*, defaults to 0): seed of the resampling.

    Raises:
        `InputError`: positions out of range, or an excess that is not positive.

    ```python
    >>> fit = fit_power_law(3 / np.arange(1, 100)[None].repeat(2, 0) ** 0.5, 4, 64)  # position 0 is 3 here
    >>> round(fit.exponent, 2)
    0.46

    ```
    """
    if not 1 <= first <= last / 2 or last >= excess.shape[1]:
        raise InputError(
            f"a power law from position {first} to {last}; expected 1 or more, to at least twice as many and at most "
            f"{excess.shape[1] - 1}"
        )
    count = round(4 * np.log2(last / first)) + 1
    edges = np.unique(np.geomspace(first, last + 1, count + 1).round().astype(int))
    positions = np.arange(excess.shape[1])
    centers = np.log([np.exp(np.log(positions[a:b]).mean()) for a, b in pairwise(edges)])
    bins = np.stack([excess[:, a:b].mean(1) for a, b in pairwise(edges)], axis=1)
    drawn = np.random.default_rng(seed).multinomial(len(bins), np.full(len(bins), 1 / len(bins)), size=resamples)
    means = np.concatenate([bins.mean(0)[None], drawn @ bins / len(bins)])
    if not (means > 0).all():
        raise InputError(f"the excess between positions {first} and {last} is not positive; there is no power law")
    offsets = centers - centers.mean()
    slopes = np.log(means) @ offsets / (offsets**2).sum()
    low, high = np.quantile(-slopes[1:], [0.025, 0.975])
    height = np.log(means[0]).mean()
    deviation = np.abs(np.log(means[0]) - height - slopes[0] * offsets).max()
    return PowerLaw(
        float(-slopes[0]),
        float(slopes[1:].std(ddof=1)),
        (float(low), float(high)),
        float(np.exp(height - slopes[0] * centers.mean())),
        float(deviation),
    )
