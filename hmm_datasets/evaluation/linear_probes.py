"""Linear regression from features to targets, with one pass over the fitting data and one over the held-out data.

This is least squares with an intercept. Only the means and centered second moments of features and targets are kept,
updated batch by batch in float64 (Chan, Golub and LeVeque, The American Statistician 37, 1983). So memory is
`O((D + K)^2)` for `D` features and `K` targets, whatever the number of positions. The scatter matrix of the features
is then decomposed, and directions whose variance is below `D` rounding errors of the largest are left out. This gives
the minimum-norm solution, which is needed if the features span fewer than `D` dimensions, as an embedding of few
symbols does. Time is `O(D^2)` per position and `O(D^3)` to solve. Second moments cost half the digits of float64,
which leaves about the precision of float32, the type of the features.

The control is the same regression to targets of other positions: those of another sequence of the same half, in random
order. What it explains is due to chance.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from ..errors import InputError


def split_sequences(count: int, seed: int) -> tuple[Int[np.ndarray, "F"], Int[np.ndarray, "G"]]:
    """The indices of the sequences to fit on and of those to test on: random halves, each in ascending order.

    Raises:
        `InputError`: fewer than 4 sequences, so that a half has fewer than two.

    ```python
    >>> [half.tolist() for half in split_sequences(6, seed=0)]
    [[2, 3, 5], [0, 1, 4]]

    ```
    """
    if count < 4:
        raise InputError(f"{count} sequences to probe; expected 4 or more, two of them in each half")
    order = np.random.default_rng(seed).permutation(count)
    return np.sort(order[: count // 2]), np.sort(order[count // 2 :])


def partners(half: Int[np.ndarray, "F"]) -> Int[np.ndarray, "F"]:
    """For each sequence of a half another sequence of the same half."""
    return np.roll(half, 1)


def shuffled_positions(sequence: int, length: int, seed: int) -> Int[np.ndarray, "T"]:
    """A random order of the positions of one sequence's partner."""
    return np.random.default_rng([seed, sequence]).permutation(length)


class Moments:
    """Count, means and centered second moments of rows that are added in batches.

    Attributes:
        count (`int`): rows so far.
        mean (`torch.Tensor` of shape `(C,)`, float64): mean of the rows.
        scatter (`torch.Tensor` of shape `(C, C)`, float64): sum of the outer products of their deviations from the
            mean.
    """

    count = 0
    mean: Float[Tensor, "C"]
    scatter: Float[Tensor, "C C"]

    def add(self, rows: Float[Tensor, "R C"]) -> None:
        """Add rows, in float64."""
        mean = rows.mean(0)
        deviation = rows - mean
        scatter = deviation.T @ deviation
        if self.count == 0:
            self.count, self.mean, self.scatter = len(rows), mean, scatter
            return
        total = self.count + len(rows)
        change = mean - self.mean
        self.scatter += scatter + torch.outer(change, change) * (self.count * len(rows) / total)
        self.mean = self.mean + change * (len(rows) / total)
        self.count = total

    def regress(self, features: slice, targets: slice) -> tuple[Float[Tensor, "D K"], Float[Tensor, "K"]]:
        """Weights and intercept of the least-squares regression of some columns on others."""
        values, vectors = torch.linalg.eigh(self.scatter[features, features])
        smallest = values[-1] * len(values) * torch.finfo(values.dtype).eps
        inverse = torch.where(values > smallest, values.reciprocal(), 0.0)
        weights = vectors @ (inverse.unsqueeze(1) * (vectors.T @ self.scatter[features, targets]))
        return weights, self.mean[targets] - self.mean[features] @ weights


class LinearProbe:
    """Regressions of groups of targets on several sets of features, and on all features together.

    First call [`LinearProbe.fit`] with all positions to fit on, then [`LinearProbe.test`] with all held-out positions.

    Args:
        widths (sequence of `int`, or mapping from `str`): number of features of each set, `D_0, D_1, ..`; the sets are
            concatenated. Those of a sequence are named `"0"`, `"1"`, ..
        targets (mapping from `str` to `int`): number of targets of each group, such as beliefs and shuffled beliefs.
            The first group is the main one.
    """

    def __init__(self, widths: Sequence[int] | Mapping[str, int], targets: Mapping[str, int]):
        named = widths if isinstance(widths, Mapping) else {str(k): width for k, width in enumerate(widths)}
        ends = np.cumsum(list(named.values())).tolist()
        self._sets = {name: slice(end - width, end) for (name, width), end in zip(named.items(), ends, strict=True)}
        self._sets["all"] = slice(0, ends[-1])
        last = np.cumsum(list(targets.values())).tolist()
        self._groups = {
            name: slice(end - width, end) for (name, width), end in zip(targets.items(), last, strict=True)
        }
        self._main = self._groups[next(iter(targets))]
        self._targets = slice(ends[-1], ends[-1] + last[-1])
        self._moments, self._held_out = Moments(), Moments()
        self._solved: dict[str, tuple[Tensor, Tensor]] = {}
        self._squares: dict[str, Tensor] = {}

    def fit(self, features: Float[Tensor, "R D"], targets: Mapping[str, Float[Tensor, "R K"]]) -> None:
        """Add positions to fit on."""
        self._moments.add(torch.cat([features.double(), self._joined(targets)], dim=1))

    def test(
        self, features: Float[Tensor, "R D"], targets: Mapping[str, Float[Tensor, "R K"]]
    ) -> Float[Tensor, "R K"]:
        """Add held-out positions; returns the predictions of the main targets from all features together."""
        if not self._solved:
            self._solved = {name: self._moments.regress(part, self._targets) for name, part in self._sets.items()}
        features, joined = features.double(), self._joined(targets)
        self._held_out.add(joined)
        for name, part in self._sets.items():
            weights, intercept = self._solved[name]
            predicted = features[:, part] @ weights + intercept
            self._squares[name] = self._squares.get(name, 0) + (joined - predicted).square().sum(0)
        return predicted[:, self._main]

    def _joined(self, targets: Mapping[str, Tensor]) -> Tensor:
        return torch.cat([targets[name].double() for name in self._groups], dim=1)

    def figures(self, group: str, columns: slice = slice(None)) -> dict[str, dict[str, float | None]]:
        """`r2` and `rmse` of a group of targets, or of some of its columns, for each set of features.

        The sets are those of `widths`, and `"all"`. R2 is the explained share of the variance of all targets together
        on the held-out positions, None if they do not vary. RMSE is the root of the mean squared error of a target.
        """
        kept = torch.arange(self._groups[group].start, self._groups[group].stop)[columns]
        spread = self._held_out.scatter.diagonal()[kept].sum().item()
        entries = self._held_out.count * len(kept)
        return {
            name: r2_and_rmse(squares[kept].sum().item(), spread, entries) for name, squares in self._squares.items()
        }

    def compared(self, group: str, error: float) -> dict[str, float | None]:
        """`r2` and `rmse` of other predictions of a group of targets, from the sum of their squared errors."""
        part = self._groups[group]
        spread = self._held_out.scatter.diagonal()[part].sum().item()
        return r2_and_rmse(error, spread, self._held_out.count * (part.stop - part.start))


def r2_and_rmse(error: float, spread: float, entries: int) -> dict[str, float | None]:
    """R2 and RMSE from the sum of squared errors, that of squared deviations, and the number of entries."""
    return {"r2": 1 - error / spread if spread > 0 else None, "rmse": (error / entries) ** 0.5}
