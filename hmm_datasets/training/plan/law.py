"""Scaling laws: the loss of a model by its parameters and tokens, fitted to runs, and what it says about a compute.

The loss of `N` parameters after `D` tokens is `E + A N^-alpha + B D^-beta` (Hoffmann et al., "Training compute-optimal
large language models", arXiv:2203.15556, equation 2). For given exponents it is linear in the floor `E` and in `A` and
`B`, so that these are nonnegative least squares, and only the two exponents are searched, on a grid that closes in on
the best one (variable projection; Czech et al., arXiv:2603.22339). Squares are of losses; where the floor is known, of
the excess over it, relative to that of each run, since it may span decades. Which way of fitting predicts best is
measured by the experiment `scaling`.
"""

import itertools
import os
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float

from ...errors import InputError
from ...records import Finite, Positive, read_record

_POINTS, _ROUNDS = 14, 16  # exponents of a grid on each axis, and grids
_EXPONENTS = (0.02, 3.0)
_DRAWS = 100
_FEWEST = 6  # runs: one more than there are numbers to fit
_LEAST_SPREAD = 0.1  # of logarithms, in every direction; with one number of tokens per parameter there is none in one


class Law(NamedTuple):
    """`E + A N^-alpha + B D^-beta`, in nats or whatever the losses are in.

    Attributes:
        floor (`float`): `E`.
        size_factor (`float`), size_exponent (`float`): `A` and `alpha`.
        token_factor (`float`), token_exponent (`float`): `B` and `beta`.
    """

    floor: float
    size_factor: float
    size_exponent: float
    token_factor: float
    token_exponent: float

    def loss(self, parameters: Any, tokens: Any) -> Any:
        """The loss of `parameters` after `tokens`, numbers or arrays."""
        beyond = self.size_factor * parameters**-self.size_exponent + self.token_factor * tokens**-self.token_exponent
        return self.floor + beyond


@dataclass
class _Run:
    parameters: Positive
    tokens: Positive
    loss: Positive
    flops: Positive | None = None


@dataclass
class _File:
    runs: list[_Run]
    floor: Finite | None = None


class Runs(NamedTuple):
    """Runs that a law is fitted to.

    Attributes:
        parameters, tokens, losses, flops (`np.ndarray` of shape `(R,)`): `N`, `D`, the loss on held-out data, compute.
        floor (`float`, *optional*): `E`, where it is known, as the entropy rate of a process is.
    """

    parameters: Float[np.ndarray, "R"]
    tokens: Float[np.ndarray, "R"]
    losses: Float[np.ndarray, "R"]
    flops: Float[np.ndarray, "R"]
    floor: float | None = None

    @classmethod
    def read(cls, path: str | os.PathLike) -> "Runs":
        """The runs of a JSON file; without FLOPs a run took `6 N D`.

        Raises:
            `InputError`: there is no such file, or it has fewer than six runs, runs with one number of tokens per
                parameter (Reid et al., arXiv:2605.08541) or otherwise too similar ones, or a loss below the floor.
        """
        remedy = 'expected {"runs": [{"parameters": N, "tokens": D, "loss": L, "flops": C}, ...], "floor": E or null}'
        found = read_record(path, _File, remedy)
        rows = [[r.parameters, r.tokens, r.loss, r.flops or 6 * r.parameters * r.tokens] for r in found.runs]
        runs = cls(*np.array(rows).reshape(-1, 4).T, found.floor)
        if not runs.give_a_law:
            raise InputError(
                f"{path}: {len(rows)} runs, from which the exponents of parameters and tokens cannot be told apart; "
                f"expected {_FEWEST} or more, of several sizes, with several numbers of tokens per parameter"
            )
        if runs.floor is not None and runs.losses.min() <= runs.floor:
            raise InputError(
                f"{path}: a loss of {runs.losses.min():g} is not above the floor, {runs.floor:g}; give both in one "
                "unit, of the same data, or leave the floor out"
            )
        return runs

    @property
    def give_a_law(self) -> bool:
        """Whether they are enough, and different enough, to tell the exponents of parameters and tokens apart."""
        return len(self.losses) >= _FEWEST and np.linalg.eigvalsh(np.cov(np.log(self[:2])))[0] >= _LEAST_SPREAD**2

    def only(self, kept: Bool[np.ndarray, "R"]) -> "Runs":
        """Some of the runs."""
        return Runs(*(values[kept] for values in self[:4]), self.floor)

    def errors(self, law: Law) -> Float[np.ndarray, "R"]:
        """Losses minus those of a law; where the floor is known, relative to the law's excess over it."""
        predicted = law.loss(self.parameters, self.tokens)
        return (self.losses - predicted) / (1.0 if self.floor is None else predicted - self.floor)


def fit_law(runs: Runs, counts: Float[np.ndarray, "R"] | None = None) -> Law:
    """The law of runs.

    Args:
        runs ([`Runs`]): the runs.
        counts (`np.ndarray` of shape `(R,)`, *optional*): how often each run counts, once by default.

    ```python
    >>> sizes, tokens = (part.ravel() for part in np.meshgrid(np.geomspace(1e4, 1e6, 4), np.geomspace(1e6, 1e8, 4)))
    >>> law = fit_law(Runs(sizes, tokens, 1.5 + 20 * sizes**-0.4 + 90 * tokens**-0.3, 6 * sizes * tokens))
    >>> [round(number, 3) for number in law]
    [1.5, 20.0, 0.4, 90.0, 0.3]

    ```
    """
    logs = np.log(runs[:2])
    centres = logs.mean(1)
    excess = runs.losses - (runs.floor or 0.0)
    weights = np.sqrt(np.ones_like(excess) if counts is None else counts) / (1.0 if runs.floor is None else excess)
    lowest, highest = np.log(_EXPONENTS)
    middle, reach = np.full(2, (lowest + highest) / 2), (highest - lowest) / 2
    for _ in range(_ROUNDS):
        axes = np.exp(np.clip(middle[:, None] + reach * np.linspace(-1, 1, _POINTS), lowest, highest))
        powers = np.exp(-axes[:, :, None] * (logs - centres[:, None])[:, None])
        columns = [np.repeat(powers[0], _POINTS, 0), np.tile(powers[1], (_POINTS, 1))]
        if runs.floor is None:
            columns.insert(0, np.ones_like(columns[0]))
        factors, errors = nonnegative_factors(np.stack(columns, -1) * weights[:, None], weights * excess)
        best = int(errors.argmin())
        places = divmod(best, _POINTS)
        exponents = axes[[0, 1], places]
        middle = np.log(exponents)
        if not {0, _POINTS - 1}.intersection(places):  # else the best one may be beyond the grid
            reach /= 2
    *fitted, a, b = factors[best].tolist()
    (alpha, beta), (a, b) = exponents.tolist(), (np.array([a, b]) * np.exp(exponents * centres)).tolist()
    return Law(*(fitted or [runs.floor]), a, alpha, b, beta)


def nonnegative_factors(
    designs: Float[np.ndarray, "G R K"], target: Float[np.ndarray, "R"]
) -> tuple[Float[np.ndarray, "G K"], Float[np.ndarray, "G"]]:
    """The factors, 0 or more, of least squares with each of `G` designs of `K` columns, and the squares that are left:
    of the subsets of columns, those of the best one whose factors are all 0 or more.
    """
    products, moments = designs.mT @ designs, designs.mT @ target
    products = products + 1e-13 * np.trace(products, axis1=1, axis2=2)[:, None, None] * np.eye(designs.shape[2])
    factors, explained = np.zeros_like(moments), np.zeros(len(designs))
    for size in range(1, designs.shape[2] + 1):
        for chosen in map(list, itertools.combinations(range(designs.shape[2]), size)):
            part = np.linalg.solve(products[:, chosen][:, :, chosen], moments[:, chosen, None])[:, :, 0]
            gained = np.where((part >= 0).all(1), (part * moments[:, chosen]).sum(1), -np.inf)
            better = gained > explained
            factors[better], explained[better] = 0.0, gained[better]
            factors[np.ix_(better, chosen)] = part[better]
    return factors, np.square((designs @ factors[:, :, None])[:, :, 0] - target).sum(1)


def tokens_for(flops: float, sizes: Float[np.ndarray, "S"], runs: Runs) -> Float[np.ndarray, "S"]:
    """The tokens of a compute for each of some numbers of parameters.

    FLOPs per parameter and token are those of the runs, interpolated by size, and beyond them those of the next one.
    """
    order = np.argsort(runs.parameters)
    each = (runs.flops / runs.parameters / runs.tokens)[order]
    return flops / (sizes * np.interp(np.log(sizes), np.log(runs.parameters[order]), each))


def _searched(runs: Runs, flops: float) -> Float[np.ndarray, "S"]:
    return np.geomspace(runs.parameters.min() / 10, runs.parameters.max() * max(10, flops / runs.flops.max()), 2000)


def best_of(law: Law, flops: float, runs: Runs) -> tuple[float, float, float]:
    """The parameters and the tokens of a compute that lose least by a law, and their loss; see [`tokens_for`]."""
    sizes = _searched(runs, flops)
    counts = tokens_for(flops, sizes, runs)
    at = law.loss(sizes, counts).argmin()
    return float(sizes[at]), float(counts[at]), float(law.loss(sizes[at], counts[at]))


def planned_by(runs: Runs, flops: float, *, seed: int = 0) -> dict[str, Any]:
    """The size and the tokens that lose least for a compute, and their loss, by the law of some runs.

    Intervals are for 95% of runs. The law is fitted to runs that are drawn with replacement, a hundred times, and an
    error is added to the loss: of one of the runs, and every second time of one in the upper half of the computes (of
    their logarithms), as a law of the lower half predicts it. So the interval of the loss follows a bend as far as the
    runs show it, unlike those of size and tokens. If the lower half gives no law, it is extended until it does.

    Args:
        runs ([`Runs`]): the runs.
        flops (`float`): the compute.
        seed (`int`, *optional*, defaults to 0): of the draws.

    Returns:
        `dict`: `law`, by its attributes; `runs`, their number; `fitted_flops`, the smallest and the largest compute of
        them; `parameters`, `tokens` and `loss`, each with `value`, `low` and `high`.

    Raises:
        `InputError`: by the law the best size is below a tenth of the smallest one, or as far above the largest.
    """
    law, number, sizes = fit_law(runs), len(runs.losses), _searched(runs, flops)
    values, generator = best_of(law, flops, runs), np.random.default_rng(seed)
    if values[0] in (sizes[0], sizes[-1]):
        best = f"by the law of these runs the best size for {flops:.3g} FLOPs is {values[0]:,.0f} parameters or"
        raise InputError(f"{best} {'fewer' if values[0] == sizes[0] else 'more'}; add runs of such models")
    is_known, middle = runs.floor is not None, np.sqrt(runs.flops.min() * runs.flops.max())
    parts = (runs.flops < bound for bound in np.sort(runs.flops) if bound >= middle)
    lower = itertools.islice((part for part in parts if runs.only(part).give_a_law), 1)
    errors = [runs.errors(law), *(runs.only(~part).errors(fit_law(runs.only(part))) for part in lower)]
    draws = []
    for _ in range(_DRAWS):
        drawn = fit_law(runs, generator.multinomial(number, np.full(number, 1 / number)))
        loss = drawn.loss(*values[:2])
        loss += generator.choice(errors[len(draws) % len(errors)]) * (loss - drawn.floor if is_known else 1.0)
        draws.append([*best_of(drawn, flops, runs)[:2], loss])
    bounds = zip(("parameters", "tokens", "loss"), values, *np.quantile(draws, [0.025, 0.975], axis=0), strict=True)
    return {
        "law": law._asdict(),
        "runs": number,
        "fitted_flops": [float(runs.flops.min()), float(runs.flops.max())],
        **{name: {"value": value, "low": float(low), "high": float(high)} for name, value, low, high in bounds},
    }
