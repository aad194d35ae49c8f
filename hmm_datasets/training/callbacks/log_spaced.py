"""Evaluations at steps that are evenly spaced on a logarithmic axis."""

import math

from transformers import TrainerCallback


class LogSpacedEvaluation(TrainerCallback):
    """Requests an evaluation at step 1 and `per_doubling` times while the step doubles.

    Args:
        per_doubling (`int`): evaluations from step `n` to `2 n`.
    """

    def __init__(self, per_doubling: int):
        self.per_doubling = per_doubling

    def on_step_end(self, args, state, control, **kwargs):
        """Request an evaluation if this step is due."""
        if is_due(state.global_step, self.per_doubling):
            control.should_evaluate = True


def is_due(step: int, per_doubling: int) -> bool:
    """Whether an evaluation falls on `step`.

    ```python
    >>> [step for step in range(1, 40) if is_due(step, 2)]
    [1, 2, 3, 4, 6, 8, 12, 16, 23, 32]

    ```
    """
    return step == 1 or _evaluations_until(step, per_doubling) > _evaluations_until(step - 1, per_doubling)


def _evaluations_until(step: int, per_doubling: int) -> int:
    # The small addend keeps rounding from pushing the logarithm of a power of two below an integer.
    return math.floor(per_doubling * math.log2(step) + 1e-9)
