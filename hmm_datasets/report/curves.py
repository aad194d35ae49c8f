"""The curves of one run, against the tokens it has seen, from the rows of its `history.jsonl`."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .tables import FLOORS


@dataclass(frozen=True)
class Curve:
    """Values of one kind.

    Args:
        label (`str`): what they are; empty for a curve that is alone.
        tokens (sequence of `int`): where they were taken.
        values (sequence of `float`): all finite.
    """

    label: str
    tokens: Sequence[int]
    values: Sequence[float]


@dataclass(frozen=True)
class Panel:
    """Curves that share their axes.

    Args:
        name (`str`): of the file.
        title (`str`): what is shown, in which unit.
        curves (sequence of [`Curve`]): at least one.
        level (`tuple`, *optional*): name and value of a straight line across.
        falls (`bool`, *optional*, defaults to `False`): whether it changes as learning does, fast and then slowly.
    """

    name: str
    title: str
    curves: Sequence[Curve]
    level: tuple[str, float] | None = None
    falls: bool = False

    def suits_logarithm(self) -> bool:
        """Whether to draw tokens on a logarithmic axis: what falls, where tokens span more than a factor of ten."""
        tokens = [place for curve in self.curves for place in curve.tokens]
        return self.falls and max(tokens) > 10 * min(tokens) > 0


def panels(history: Sequence[Mapping[str, Any]]) -> list[Panel]:
    """Loss, learning rate, gradient norm and throughput, those of which a run has values.

    The loss has the held-out loss beside it, and, on data whose distribution is known, the cross-entropy of the best
    predictor.

    ```python
    >>> [panel.name for panel in panels([{"tokens": 64, "loss": 2.0, "learning_rate": 0.1}])]
    ['loss', 'learning_rate']

    ```
    """
    losses = [_curve(history, "training", "loss"), _curve(history, "held out", "eval_loss")]
    losses = [curve for curve in losses if curve.values]
    found = [
        Panel("loss", "loss (nats per token)", losses, _floor(history), falls=True),
        Panel("learning_rate", "learning rate", [_curve(history, "", "learning_rate")]),
        Panel("grad_norm", "gradient norm", [_curve(history, "", "grad_norm")]),
        Panel("tokens_per_second", "tokens per second", [_curve(history, "", "tokens_per_second")]),
    ]
    return [panel for panel in found if any(curve.values for curve in panel.curves)]


def _curve(history: Sequence[Mapping[str, Any]], label: str, name: str) -> Curve:
    # A later row of the same tokens, as of the evaluation at the end, takes the place of an earlier one.
    points = {row["tokens"]: row[name] for row in history if name in row and math.isfinite(row[name])}
    return Curve(label, list(points), list(points.values()))


def _floor(history: Sequence[Mapping[str, Any]]) -> tuple[str, float] | None:
    for name, label in FLOORS.items():
        values = _curve(history, label, f"eval_cross_entropy_{name}").values
        if values:
            return label, values[-1]
    return None
