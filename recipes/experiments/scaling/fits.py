"""Ways of fitting scaling laws, with the floor free and known, and what each predicts for larger computes.

Approaches 1 and 2 find the best size of each compute, as the smallest loss and as the vertex of a parabola in the
logarithm of the size, and fit powers of compute to it and to its loss. Approach 3 and variable projection fit the loss
as a function of parameters and tokens, from which the best size follows. All take runs, whose floor is known if they
have one, and `computes`, the FLOPs that each run was to take. See Hoffmann et al., arXiv:2203.15556, and Czech et al.,
arXiv:2603.22339.
"""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float

from hmm_datasets.training.plan.law import Law, Runs, best_of, fit_law, nonnegative_factors

HUBER = 1e-3
"""Where the Huber loss of logarithms becomes linear, as in Hoffmann et al."""
LARGEST = 3.0
"""The largest exponent."""
STARTS = tuple(itertools.product((0.1, 0.3, 0.6, 1.0), repeat=2))
"""Pairs of exponents that the search of approach 3 starts from."""


@dataclass(frozen=True)
class Fit:
    """What a fit says.

    Attributes:
        floor (`float`): the loss of unlimited compute.
        exponent (`float`): of compute, for the best number of parameters.
        best (callable): the best number of parameters of a compute, and its loss.
    """

    floor: float
    exponent: float
    best: Callable[[float], tuple[float, float]]


def smallest(runs: Runs, computes: Float[np.ndarray, "R"]) -> Fit:
    """Approach 1: the size of the smallest loss of each compute."""
    chosen = [min(level, key=lambda run: run[1]) for level in _levels(runs, computes)]
    return frontier(np.unique(computes), np.array(chosen), runs.floor)


def parabolas(runs: Runs, computes: Float[np.ndarray, "R"]) -> Fit | None:
    """Approach 2: the vertices of parabolas through the smallest loss and those of two sizes on either side; None if
    fewer than three computes have one within a factor of two of these sizes, above the floor.
    """
    used, vertices = [], []
    for compute, level in zip(np.unique(computes), _levels(runs, computes), strict=True):
        lowest = min(range(len(level)), key=lambda at: level[at][1])
        sizes, losses = np.array(level[max(0, lowest - 2) : lowest + 3]).T
        if len(sizes) < 3:
            continue
        curve = np.polyfit(np.log(sizes), losses, 2)
        vertex = np.exp(-curve[1] / (2 * curve[0]))
        loss = np.polyval(curve, np.log(vertex))
        if curve[0] > 0 and sizes.min() / 2 < vertex < 2 * sizes.max() and loss > (runs.floor or 0.0):
            used.append(compute)
            vertices.append([vertex, loss])
    return frontier(np.array(used), np.array(vertices), runs.floor) if len(used) > 2 else None


def huber(runs: Runs, computes: Float[np.ndarray, "R"], starts: Sequence[tuple[float, float]] = STARTS) -> Fit:
    """Approach 3: the Huber loss of the logarithms of losses, by L-BFGS from pairs of exponents.

    Losses are summed: of their mean, L-BFGS would stop too early (marin-community/marin pull request 749; Besiroglu
    et al., arXiv:2404.10102).
    """
    return of_law(runs, huber_law(runs, starts))


def projection(runs: Runs, computes: Float[np.ndarray, "R"]) -> Fit:
    """Variable projection, see [`fit_law`][hmm_datasets.training.plan.law.fit_law]."""
    return of_law(runs, fit_law(runs))


def latest(runs: Runs, computes: Float[np.ndarray, "R"]) -> Fit:
    """Variable projection of the runs of the two largest computes; models predict best what models of like sizes lose
    (Choshen et al., arXiv:2410.11840).
    """
    kept = computes >= np.unique(computes)[-2]
    return projection(runs.only(kept), computes[kept])


def longer(runs: Runs, computes: Float[np.ndarray, "R"]) -> Fit:
    """Variable projection of the runs with three tokens per parameter or more."""
    kept = runs.tokens >= 3 * runs.parameters
    return projection(runs.only(kept), computes[kept])


METHODS = {
    "approach 1, smallest": smallest,
    "approach 2, parabolas": parabolas,
    "approach 3, Huber": huber,
    "variable projection": projection,
    "projection, two computes": latest,
    "projection, long runs": longer,
}


def huber_law(runs: Runs, starts: Sequence[tuple[float, float]] = STARTS) -> Law:
    """The law of approach 3."""
    sizes, counts, logs = (torch.from_numpy(np.log(values)) for values in runs[:3])
    losses, floor = runs.losses, runs.floor
    centres = sizes.mean(), counts.mean()
    fixed = None if floor is None else torch.tensor(floor, dtype=torch.float64).log()
    lowest = float(losses.min())

    def loss_of(numbers: torch.Tensor) -> torch.Tensor:
        a, b, e = numbers[:3]
        alpha, beta = LARGEST * numbers[3:].sigmoid()
        terms = [a - alpha * (sizes - centres[0]), b - beta * (counts - centres[1])]
        terms.append((e if fixed is None else fixed).expand_as(sizes))
        return torch.nn.functional.huber_loss(torch.stack(terms).logsumexp(0), logs, reduction="sum", delta=HUBER)

    def searched(alpha: float, beta: float) -> tuple[float, torch.Tensor]:
        half = np.log(max(float(losses.mean()) - 0.9 * lowest, 1e-9) / 2)
        powers = [np.log(power / (LARGEST - power)) for power in (alpha, beta)]
        numbers = torch.tensor([half, half, np.log(0.9 * lowest), *powers], dtype=torch.float64, requires_grad=True)
        search = torch.optim.LBFGS([numbers], max_iter=500, tolerance_change=1e-14, line_search_fn="strong_wolfe")

        def closure() -> torch.Tensor:
            search.zero_grad()
            loss = loss_of(numbers)
            loss.backward()
            return loss

        search.step(closure)
        return float(loss_of(numbers.detach()).nan_to_num(torch.inf)), numbers.detach()

    _, found = min((searched(*start) for start in starts), key=lambda pair: pair[0])
    a, b, e = found[:3].tolist()
    alpha, beta = (LARGEST * found[3:].sigmoid()).tolist()
    factors = [
        float(np.exp(log + power * float(centre)))
        for log, power, centre in zip((a, b), (alpha, beta), centres, strict=True)
    ]
    return Law(float(np.exp(e)) if floor is None else floor, factors[0], alpha, factors[1], beta)


def _levels(runs: Runs, computes: Float[np.ndarray, "R"]) -> list[list[tuple[float, float]]]:
    """For each compute the sizes and their losses, from the smallest size."""
    levels = (computes == compute for compute in np.unique(computes))
    return [sorted(zip(runs.parameters[at], runs.losses[at], strict=True)) for at in levels]


def frontier(computes: Float[np.ndarray, "C"], best: Float[np.ndarray, "C 2"], floor: float | None) -> Fit:
    """Powers of compute through the best sizes and their losses, of `C` computes.

    Args:
        computes (`np.ndarray` of shape `(C,)`): FLOPs.
        best (`np.ndarray` of shape `(C, 2)`): the best size of each and its loss.
        floor (`float`, *optional*): that of losses; fitted by default.
    """
    logs = np.log(computes)
    exponent, size = np.polyfit(logs, np.log(best[:, 0]), 1)
    powers = np.geomspace(0.02, 3, 2000)
    falls = np.exp(-powers[:, None] * (logs - logs.mean()))
    weights = np.ones(len(logs)) if floor is None else 1 / (best[:, 1] - floor)
    columns = [falls] if floor is not None else [np.ones_like(falls), falls]
    target = best[:, 1] - (0.0 if floor is None else floor)
    factors, errors = nonnegative_factors(np.stack(columns, -1) * weights[:, None], target * weights)
    at = int(errors.argmin())
    *fitted, factor = factors[at].tolist()
    known = fitted[0] if floor is None else floor

    def predicted(compute: float) -> tuple[float, float]:
        fall = factor * np.exp(-powers[at] * (np.log(compute) - logs.mean()))
        return float(np.exp(size + exponent * np.log(compute))), float(known + fall)

    return Fit(known, float(exponent), predicted)


def of_law(runs: Runs, law: Law) -> Fit:
    """What a law says of models with the FLOPs of runs."""

    def predicted(compute: float) -> tuple[float, float]:
        size, _, loss = best_of(law, compute, runs)
        return size, loss

    return Fit(law.floor, compute_exponent(law), predicted)


def compute_exponent(law: Law) -> float:
    """The power of compute with which the best number of parameters grows, by a law."""
    return law.token_exponent / (law.size_exponent + law.token_exponent)
