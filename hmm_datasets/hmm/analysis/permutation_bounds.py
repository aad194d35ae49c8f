"""Bounds from both sides on the optimal loss of permuted emissions, where there are too many permutations to sum over.

The upper bound is the loss of a particle filter (sequential Monte Carlo; Gordon, Salmond and Smith, IEE Proceedings F
140, 1993; fully adapted, Pitt and Shephard, JASA 94, 1999). A particle has a hidden state, and the emission rows of
the states that it has visited; those of the others are equally likely among the rows that are left, so the permutation
is drawn only as far as it matters. Before a token is seen each particle predicts it, exactly given what the particle
has. The mean of these predictions is a distribution that depends on the tokens before alone, so that its expected loss
is at least the optimal one, at every position (Gibbs' inequality). The product of what it gives to the tokens of a
sequence is the filter's unbiased estimate of their likelihood. Then particles are drawn anew by how well they
predicted, and states and rows by their posterior probabilities.

The lower bound is the loss of the oracle, which knows the permutation (see `Family.oracle_next_token_probs`).

Time is `O(N L P H)` for `P` particles, memory `O(P H)`.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

from ...errors import InputError
from ...runtime.progress import progress_bar
from ..families.permuted import PermutedEmissions
from ..integers import integer
from ..model import HMM


class OptimalLossBounds(NamedTuple):
    """Bounds on the optimal loss by position, in nats, estimated on the same sequences.

    Where they are close the estimates may cross, within a few `width_error`.

    Attributes:
        lower, upper (`np.ndarray` of shape `(L,)`): mean losses of the oracle and of the particle filter.
        lower_error, upper_error (`np.ndarray` of shape `(L,)`): their standard errors over sequences.
        width_error (`np.ndarray` of shape `(L,)`): that of their difference, which is smaller than those of both.
    """

    lower: Float[np.ndarray, "L"]
    lower_error: Float[np.ndarray, "L"]
    upper: Float[np.ndarray, "L"]
    upper_error: Float[np.ndarray, "L"]
    width_error: Float[np.ndarray, "L"]

    @property
    def width(self) -> Float[np.ndarray, "L"]:
        """`upper - lower`, within which the optimal loss is known."""
        return self.upper - self.lower


def optimal_loss_bounds(
    family: PermutedEmissions, length: int, *, num_sequences: int = 64, num_particles: int = 1024, seed: int = 0
) -> OptimalLossBounds:
    """Bounds on the optimal loss of a family of permuted emissions, by position.

    The bounds are too wide to be of use where the permutation matters. For an HMM of 200 states fitted to 200 words of
    TinyStories they are 3.77 and 4.98 nats at positions 50 to 99 with 512 particles, 4.96 with 4,096, where the mean
    of all emission rows alone loses 5.00. For random tables of 200 states and symbols with `alpha=0.02` they are 4.07
    and 5.18 (a uniform guess loses 5.30), of 500 states 5.75 and 6.17. With `alpha=0.1`, where the permutation hardly
    matters, they are 5.26 and 5.27. The lower bound is attained only once the tokens have revealed the rows of the
    states that matter. The upper one suffers as all particle filters of constants do: after some resampling all
    particles have the same rows, right or wrong, for the states that were visited first, so that eight times the
    particles help little.

    Args:
        family ([`~hmm_datasets.PermutedEmissions`]): with groups of one sequence.
        length (`int`): `L`.
        num_sequences (`int`, *optional*, defaults to 64): sequences of the stream `seed`, two or more.
        num_particles (`int`, *optional*, defaults to 1024): particles.
        seed (`int`, *optional*, defaults to 0): of the sequences and of the particles.

    Returns:
        [`OptimalLossBounds`]. The upper bound is infinite where no particle could emit the tokens of a sequence; use
        more particles.

    Raises:
        `InputError`: the family is another one, its groups have more sequences, or a number is out of range.

    ```python
    >>> from hmm_datasets.hmm import processes
    >>> family = PermutedEmissions(processes.random(200, 50, alpha=0.05))
    >>> bounds = optimal_loss_bounds(family, 8, num_sequences=4, num_particles=64)
    >>> bounds.width.shape
    (8,)

    ```
    """
    if not isinstance(family, PermutedEmissions) or family.group != 1:
        raise InputError(f"family is {family!r}; expected PermutedEmissions with groups of one sequence")
    numbers = integer("num_sequences", num_sequences, 2, 31), integer("length", length, 1, 31)
    particles, seed = integer("num_particles", num_particles, 1, 31), integer("seed", seed, 0, 64)
    tokens = family.sample(*numbers, seed).astype(np.int64)
    lower, upper = np.empty(tokens.shape), np.empty(tokens.shape)
    with progress_bar(len(tokens), " sequences", desc="bounds") as bar:
        for index, row in enumerate(tokens):
            oracle = family.oracle_next_token_probs(row[None], seed, index)[0, :-1]
            lower[index] = -np.log(oracle[np.arange(len(row)), row])
            upper[index] = particle_losses(family.hmm, row, particles, np.random.default_rng([seed, index]))
            bar.update(1)
    errors = [losses.std(axis=0, ddof=1) / len(tokens) ** 0.5 for losses in (lower, upper, upper - lower)]
    return OptimalLossBounds(lower.mean(0), errors[0], upper.mean(0), errors[1], errors[2])


def particle_losses(
    hmm: HMM, tokens: Int[np.ndarray, "L"], num_particles: int, generator: np.random.Generator
) -> Float[np.ndarray, "L"]:
    """The loss of the particle filter at every token of a sequence, in nats; their sum is minus the logarithm of an
    unbiased estimate of the likelihood. Infinite from the first token on that no particle can emit."""
    losses = np.full(len(tokens), np.inf)
    who = np.arange(num_particles)
    row_of = np.full((num_particles, hmm.num_states), -1)  # the emission row of each state, -1 if unknown
    is_free = np.ones((num_particles, hmm.num_states), dtype=bool)  # rows that no state has yet
    prior = np.broadcast_to(hmm.start, (num_particles, hmm.num_states))
    for t, symbol in enumerate(tokens):
        column = hmm.emission[:, symbol]
        joint = prior * _likelihoods(column, row_of, is_free)
        weights = joint.sum(axis=1)
        if weights.sum() == 0:
            break
        losses[t] = -np.log(weights.mean())
        kept = _resampled(weights, generator)
        row_of, is_free = row_of[kept], is_free[kept]
        state = _drawn(joint[kept], generator)
        row = row_of[who, state]
        new = np.flatnonzero(row < 0)
        row[new] = _drawn(is_free[new] * column, generator)
        row_of[who, state], is_free[who, row] = row, False
        prior = hmm.transition[state]
    return losses


def _likelihoods(
    column: Float[np.ndarray, "H"], row_of: Int[np.ndarray, "P H"], is_free: Bool[np.ndarray, "P H"]
) -> Float[np.ndarray, "P H"]:
    """How likely each state emits a symbol: by its row, or by the mean of the rows that are left."""
    of_free = (is_free @ column) / np.maximum(is_free.sum(axis=1), 1)
    return np.where(row_of >= 0, column[row_of], of_free[:, None])


def _resampled(weights: Float[np.ndarray, "P"], generator: np.random.Generator) -> Int[np.ndarray, "P"]:
    """As many particles as there are, by their weights, at evenly spaced points (systematic resampling)."""
    ends = weights.cumsum()
    points = (np.arange(len(weights)) + generator.random()) / len(weights) * ends[-1]
    return np.minimum(np.searchsorted(ends, points, side="right"), np.flatnonzero(weights)[-1])


def _drawn(weights: Float[np.ndarray, "P H"], generator: np.random.Generator) -> Int[np.ndarray, "P"]:
    """An index for each row, by its weights."""
    ends = weights.cumsum(axis=1)
    points = generator.random((len(weights), 1)) * ends[:, -1:]
    return (ends <= points).sum(axis=1)
