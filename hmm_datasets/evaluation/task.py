"""A task of an evaluation: when it applies, what it measures, and what it costs."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from accelerate import Accelerator

from .context import EvaluationContext

Result = dict[str, Any]
"""What a task measures: the part of `report.json` that has its name, and `items`. Empty on ranks but the main one."""


class Workload(NamedTuple):
    """What a model reads in a task: tokens of whole rows, and passes of one more token of a batch of answers."""

    tokens: int
    passes: int = 0


@dataclass(frozen=True)
class Task:
    """A task.

    Attributes:
        applies (callable): whether a context, whose model is not loaded yet, has what it needs.
        measure (callable): takes a context with its model and the accelerator, and returns the result.
        needs (`str`): why it does not apply, and how to mend that.
        cost (callable, *optional*): takes a context with its model, and returns the [`Workload`]; None if most of the
            time is not the model's.
    """

    applies: Callable[[EvaluationContext], bool]
    measure: Callable[[EvaluationContext, Accelerator], Result]
    needs: str
    cost: Callable[[EvaluationContext], Workload] | None = None
