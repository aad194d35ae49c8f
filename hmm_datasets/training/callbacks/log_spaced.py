"""Evaluations and checkpoints at steps that are evenly spaced on a logarithmic axis."""

import math

from transformers import TrainerCallback


class LogSpaced(TrainerCallback):
    """Requests an evaluation and a checkpoint at step 1 and so many times while the step doubles.

    Args:
        evaluations (`int`): evaluations from step `n` to `2 n`; 0 for none.
        saves (`int`): checkpoints from step `n` to `2 n`; 0 for none.
    """

    def __init__(self, evaluations: int, saves: int):
        self.evaluations, self.saves = evaluations, saves

    def on_step_end(self, args, state, control, **kwargs):
        """Request what is due at this step."""
        control.should_evaluate |= is_due(state.global_step, self.evaluations)
        control.should_save |= is_due(state.global_step, self.saves)


def is_due(step: int, per_doubling: int) -> bool:
    """Whether one of `per_doubling` steps per doubling falls on `step`; none does with 0.

    ```python
    >>> [step for step in range(1, 40) if is_due(step, 2)]
    [1, 2, 3, 4, 6, 8, 12, 16, 23, 32]

    ```
    """
    if per_doubling == 0:
        return False
    return step == 1 or _number_until(step, per_doubling) > _number_until(step - 1, per_doubling)


def _number_until(step: int, per_doubling: int) -> int:
    # The small addend keeps rounding from pushing the logarithm of a power of two below an integer.
    return math.floor(per_doubling * math.log2(step) + 1e-9)
