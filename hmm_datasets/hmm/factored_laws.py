"""From what is known of each factor to the distributions, beliefs and losses of a factored process."""

import functools
import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Bool, Float, Int

from ..errors import InputError
from .analysis.stationary import entropy
from .integers import integer
from .sampling.derived_seeds import derived_seed

if TYPE_CHECKING:
    from .analysis.entropy import EntropyRate, EntropyRateBounds, OptimalLoss
    from .factored import FactoredProcess

_BLOCK = 1 << 22  # entries of the distributions of a factor that an estimate makes at once


def product_law(
    process: "FactoredProcess", laws: Sequence[Float[np.ndarray, "B S_plus_1 ..."]]
) -> Float[np.ndarray, "B S_plus_1 E"]:
    """The law of the product symbol: the product of the factors' laws, each given its parent's symbol."""
    batch = laws[0].shape[:2]
    table = np.ones(batch)
    for k, (law, parent) in enumerate(zip(laws, process.parents, strict=True)):
        axes = [1] * k + [process.sizes[k]]
        if parent is not None:
            axes[parent] = process.sizes[parent]
        table = table[..., None] * law.reshape(*batch, *axes)
    return table.reshape(*batch, process.num_symbols)


def tuple_law(
    process: "FactoredProcess",
    symbols: Int[np.ndarray, "F B S"],
    laws: Sequence[Float[np.ndarray, "B S_plus_1 ..."]],
    right: Bool[np.ndarray, "B T"],
) -> Float[np.ndarray, "B T+1 E"]:
    """The law of each token where a step is `F` tokens: that of one factor, given its parent's symbol of the step.

    Zeros after tokens that are impossible, or those of another factor, where `right` is false.
    """
    rows, length = right.shape
    result = np.zeros((rows, length + 1, process.num_symbols))
    alive = np.ones((rows, length + 1), dtype=bool)
    for k, (law, parent) in enumerate(zip(laws, process.parents, strict=True)):
        steps = np.arange(len(range(k, length + 1, process.num_factors)))
        at = k + process.num_factors * steps
        mine = law[:, steps]
        if parent is not None:
            mine = np.take_along_axis(mine, symbols[parent][:, steps, None, None], axis=2)[:, :, 0]
        offset = process._tokens.offsets[k]
        result[:, at, offset : offset + process.sizes[k]] = mine
        shown = at < length
        drawn = np.take_along_axis(mine[:, shown], symbols[k][:, steps[shown], None], axis=2)[:, :, 0]
        alive[:, at[shown] + 1] = right[:, at[shown]] & (drawn > 0)
    return result * alive.cumprod(axis=1)[:, :, None]


def before_each_token(
    process: "FactoredProcess", found: Sequence[Float[np.ndarray, "B S_plus_1 W"]], length: int
) -> list[Float[np.ndarray, "B T+1 W"]]:
    """The factors' beliefs before each token, from those before each step."""
    if process.tokens_per_step == 1:
        return list(found)
    positions, factors = np.arange(length + 1), process.num_factors
    return [beliefs[:, (positions - k + factors - 1) // factors] for k, beliefs in enumerate(found)]


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
        found = table
        for k in reversed(range(len(finals))):
            if k != kept:
                found = np.moveaxis(found, 2 + k, -1) @ finals[k]
        return found

    return np.concatenate([without_others(k) for k in range(len(finals))], axis=2)


def kronecker_product(tables: Sequence[np.ndarray]) -> np.ndarray:
    """The Kronecker product of vectors or matrices, the last with the least significant index."""
    found = tables[0]
    for table in tables[1:]:
        found = np.kron(found, table)
    return found


def joint_operators(
    tables: Sequence[np.ndarray], parents: Sequence[int | None], sizes: Sequence[int]
) -> Float[np.ndarray, "E J J"]:
    """`P(emit the product symbol x, go to j | in i)` of the joint states, by Kronecker products.

    Args:
        tables (sequence of `np.ndarray`): `(E_k, H_k, H_k)`, or `(E_parent, E_k, H_k, H_k)` for a driven factor.
        parents (sequence of `int` or `None`): which factor drives each.
        sizes (sequence of `int`): `E_k`.
    """
    found = []
    for symbols in itertools.product(*map(range, sizes)):
        moves = [
            table[x] if parent is None else table[symbols[parent], x]
            for table, parent, x in zip(tables, parents, symbols, strict=True)
        ]
        found.append(kronecker_product(moves))
    return np.stack(found)


def entropy_rate(
    process: "FactoredProcess", *, num_sequences: int, length: int, burn_in: int, seed: int
) -> "EntropyRate":
    """The sum of the factors' entropy rates over the tokens of a step; errors of separate estimates add in squares."""
    from .analysis.entropy import EntropyRate, check_sample

    if not process.is_stationary:
        raise InputError(f"{process!r} has a factor without an entropy rate; optimal_loss gives that by position")
    check_sample(num_sequences, length, burn_in)
    settings = {"num_sequences": num_sequences, "length": length, "burn_in": burn_in}
    value = variance = 0.0
    for k, (factor, parent) in enumerate(zip(process.factors, process.parents, strict=True)):
        if parent is None:
            # Another seed than that of the samples from which the driven factors' are estimated.
            rate = factor.entropy_rate(**settings, seed=derived_seed(seed, process.num_factors + k))
            value, variance = value + rate.value, variance + rate.standard_error**2
    if process.is_coupled:
        found = _driven_entropies(process, length, num_sequences, seed)
        means = np.sum(list(found.values()), axis=0)[:, burn_in:].mean(axis=1)
        value, variance = value + means.mean(), variance + means.var(ddof=1) / num_sequences
    return EntropyRate(float(value) / process.tokens_per_step, float(np.sqrt(variance)) / process.tokens_per_step)


def entropy_rate_bounds(process: "FactoredProcess") -> "EntropyRateBounds":
    """Sums of the factors' bounds; errors of separate estimates add in squares."""
    from .analysis.entropy import EntropyRateBounds, bounds_of_rate

    joint = process.noise > 0 or process.is_coupled
    parts = (process.joint_process(),) if joint else process.factors
    found = np.array([bounds_of_rate(one, one.entropy_rate()) for one in parts])
    sums, errors = found[:, :2].sum(axis=0), np.sqrt(np.square(found[:, 2:]).sum(axis=0))
    return EntropyRateBounds(*map(float, np.concatenate([sums, errors]) / process.tokens_per_step))


def optimal_loss(process: "FactoredProcess", length: int, num_sequences: int, seed: int) -> "OptimalLoss":
    """The minimum expected loss at each position; see [`FactoredProcess.optimal_loss`]."""
    from .analysis.entropy import OptimalLoss

    steps = -(-length // process.tokens_per_step)
    losses = {}
    for k, (factor, parent) in enumerate(zip(process.factors, process.parents, strict=True)):
        if parent is None:
            own = derived_seed(seed, process.num_factors + k)
            losses[k] = factor.optimal_loss(steps, num_sequences=num_sequences, seed=own)
    found = _driven_entropies(process, steps, num_sequences, seed) if process.is_coupled else {}
    error = 1 / np.sqrt(num_sequences)
    if process.tokens_per_step > 1:
        for k, entropies in found.items():
            losses[k] = OptimalLoss(entropies.mean(axis=0), entropies.std(axis=0, ddof=1) * error)
        by_step = [losses[k] for k in range(process.num_factors)]
        nats, errors = (np.stack(values, axis=1).reshape(-1)[:length] for values in zip(*by_step, strict=True))
        return OptimalLoss(nats, errors)
    nats = sum((loss.nats for loss in losses.values()), np.zeros(steps))
    variance = sum((loss.standard_error**2 for loss in losses.values()), np.zeros(steps))
    if found:
        total = np.sum(list(found.values()), axis=0)
        nats, variance = nats + total.mean(axis=0), variance + total.var(axis=0, ddof=1) / num_sequences
    return OptimalLoss(nats, np.sqrt(variance))


def _driven_entropies(
    process: "FactoredProcess", steps: int, num_sequences: int, seed: int
) -> dict[int, Float[np.ndarray, "N S"]]:
    """For each driven factor the entropy of its symbol given its past and its parent, in sampled sequences."""
    from .input_output import InputOutputHMM

    num_sequences = integer("num_sequences", num_sequences, 2, 63)
    drawn = list(process._drawn_factors(num_sequences, steps, seed, 0, 1, None))
    found = {}
    for k, (factor, parent) in enumerate(zip(process.factors, process.parents, strict=True)):
        if parent is None or not isinstance(factor, InputOutputHMM):
            continue
        found[k] = np.empty((num_sequences, steps))
        rows = max(1, _BLOCK // (max(steps, 1) * max(factor.num_outputs, factor.num_states)))
        for begin in range(0, num_sequences, rows):
            part = slice(begin, begin + rows)
            found[k][part] = entropy(factor.next_token_probs_given(drawn[parent][part], drawn[k][part]))
    return found
