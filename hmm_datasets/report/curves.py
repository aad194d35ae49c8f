"""The curves of a run against tokens, from the rows of its `history.jsonl`."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..records import Count, Finite, is_record
from .tables import OPTIMAL_LOSSES

_OF_DEVICE = (("in tensors", "memory_allocated"), ("reserved by the allocator", "memory_reserved"))
_OF_HOST = (("all", "host_memory"), ("/dev/shm", "shared_memory"))


@dataclass(frozen=True)
class Curve:
    """A curve in a panel.

    Args:
        label (`str`): name of the curve; empty if it is the only one.
        tokens (sequence of `int`): tokens consumed at each point.
        values (sequence of `float`): value at each point, finite.
    """

    label: str
    tokens: Sequence[int]
    values: Sequence[float]


@dataclass(frozen=True)
class Panel:
    """Curves that share their axes.

    Args:
        name (`str`): name of the file.
        title (`str`): quantity and unit.
        curves (sequence of [`Curve`]): one curve or more.
        level (`tuple`, *optional*): name and value of a horizontal line.
        falls (`bool`, *optional*, defaults to `False`): whether the curves fall fast at first and then slowly.
    """

    name: str
    title: str
    curves: Sequence[Curve]
    level: tuple[str, float] | None = None
    falls: bool = False

    def suits_logarithm(self) -> bool:
        """Whether to draw tokens on a logarithmic axis: if curves fall and tokens span more than a factor of 10."""
        tokens = [count for curve in self.curves for count in curve.tokens]
        return self.falls and max(tokens) > 10 * min(tokens) > 0


def panels_of(history: Sequence[Mapping[str, Any]]) -> list[Panel]:
    """Panels of loss, rewards, tasks, learning rate, gradient norm, times of a step, throughput and memory.

    There are those of which a run has values.

    The panel of the loss also has the held-out loss and, if the distribution of the data is known, the cross-entropy
    of the best predictor. Runs on preferences have the margins and accuracies of TRL, runs on rewards have the mean
    reward, the divergence from the reference and the length of completions.

    ```python
    >>> [panel.name for panel in panels_of([{"tokens": 64, "loss": 2.0, "learning_rate": 0.1}])]
    ['loss', 'learning_rate']

    ```
    """
    unit = loss_unit(history)
    panels = [
        Panel(
            "loss", f"loss ({unit})" if unit else "loss", _both(history, "loss"), _optimal_loss(history), falls=True
        ),
        Panel("margin", "margin of implicit rewards (nats)", _both(history, "rewards/margins")),
        Panel("accuracy", "share of pairs ranked as labelled", _both(history, "rewards/accuracies")),
        Panel("reward", "reward", _both(history, "reward")),
        Panel("kl", "divergence from the reference (nats per token)", _both(history, "kl")),
        Panel("length", "tokens per completion", _both(history, "completions/mean_length")),
        Panel("learning_rate", "learning rate", [_curve(history, "", "learning_rate")]),
        Panel("grad_norm", "gradient norm", [_curve(history, "", "grad_norm")]),
        Panel("step_seconds", "seconds per step", _parts_of_steps(history)),
        Panel("tokens_per_second", "tokens per second", [_curve(history, "", "tokens_per_second")]),
        Panel("samples_per_second", "rows per second", [_curve(history, "", "samples_per_second")]),
        Panel("mfu", "model FLOPs utilization", [_curve(history, "", "mfu")]),
        Panel("memory", "most memory on rank 0 (GiB)", _memory(history, _OF_DEVICE)),
        Panel("host_memory", "memory in use on the host of rank 0 (GiB)", _memory(history, _OF_HOST)),
    ]
    return [panel for panel in panels if any(curve.values for curve in panel.curves)]


def _parts_of_steps(history: Sequence[Mapping[str, Any]]) -> list[Curve]:
    """Seconds of a step, and of its parts."""
    parts = ("step", "data", "forward", "backward", "optimizer")
    return [curve for part in parts if (curve := _curve(history, part, f"{part}_seconds")).values]


def _memory(history: Sequence[Mapping[str, Any]], names: Sequence[tuple[str, str]]) -> list[Curve]:
    """Curves in GiB of values in bytes."""
    curves = [_curve(history, label, name) for label, name in names]
    return [
        Curve(curve.label, curve.tokens, [value / 2**30 for value in curve.values]) for curve in curves if curve.values
    ]


def loss_unit(history: Iterable[Mapping[str, Any]]) -> str:
    """The unit of the loss in the rows of a history; none for that of a run on rewards."""
    for row in history:
        if "reward" in row:
            return ""
        if "rewards/margins" in row:
            return "nats per pair"
    return "nats per token"


def _both(history: Sequence[Mapping[str, Any]], name: str) -> list[Curve]:
    """The curves of a value in training and on held-out rows, as far as there are any."""
    curves = [_curve(history, "training", name), _curve(history, "held out", f"eval_{name}")]
    return [curve for curve in curves if curve.values]


def _curve(history: Sequence[Mapping[str, Any]], label: str, name: str) -> Curve:
    # A later row with the same number of tokens, such as the evaluation at the end, replaces an earlier one.
    known = (row for row in history if is_record(row.get(name), Finite) and is_record(row.get("tokens"), Count))
    points = {row["tokens"]: float(row[name]) for row in known}
    return Curve(label, list(points), list(points.values()))


def _optimal_loss(history: Sequence[Mapping[str, Any]]) -> tuple[str, float] | None:
    for name, label in OPTIMAL_LOSSES.items():
        values = _curve(history, label, f"eval_cross_entropy_{name}").values
        if values:
            return label, values[-1]
    return None
