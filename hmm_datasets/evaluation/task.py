"""A task of an evaluation: when it applies, and what it measures."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from accelerate import Accelerator

from .context import EvaluationContext

Result = dict[str, Any]
"""What a task measures: the part of `report.json` that has its name, and `items`. Empty on ranks but the main one."""


@dataclass(frozen=True)
class Task:
    """A task.

    Attributes:
        applies (callable): whether a context, whose model is not loaded yet, has what it needs.
        measure (callable): takes a context with its model and the accelerator, and returns the result.
        needs (`str`): why it does not apply, and how to mend that.
    """

    applies: Callable[[EvaluationContext], bool]
    measure: Callable[[EvaluationContext, Accelerator], Result]
    needs: str
