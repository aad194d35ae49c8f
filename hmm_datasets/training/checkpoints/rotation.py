"""Which checkpoints of a run are kept: the newest, those of some steps for good, and the best."""

from collections.abc import Sequence

from ..callbacks.log_spaced import is_due


def outdated_steps(
    steps: Sequence[int], newest: int | None, every: int | None, per_doubling: int, best: int | None = None
) -> list[int]:
    """The steps whose checkpoints are not kept.

    Args:
        steps (sequence of `int`): steps of all checkpoints, newest first.
        newest (`int` or None): number of newest ones that are kept; all are without it, or with 0.
        every (`int` or None): those of steps that it divides are kept for good.
        per_doubling (`int`): as are so many while the step doubles; see
            [`~hmm_datasets.training.callbacks.log_spaced.is_due`].
        best (`int`, *optional*): as is this one.

    ```python
    >>> outdated_steps([50, 40, 30, 20, 10], 1, 20, 0, best=10)
    [30]

    ```
    """
    if not newest or newest < 1:
        return []
    older = [step for step in steps[newest:] if step != best and not is_due(step, per_doubling)]
    return [step for step in older if not every or step % every != 0]
