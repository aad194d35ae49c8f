"""The disk that the checkpoints of a run will need: how many there are at once, and how large they are."""

import math
from typing import TYPE_CHECKING

from ..callbacks.log_spaced import is_due
from ..checkpoints.rotation import outdated_steps

if TYPE_CHECKING:
    from ..settings import RunSettings


def most_checkpoints(settings: "RunSettings", steps: int) -> int:
    """The largest number of checkpoints at once: those that are kept, and the one that is written before one goes.

    Args:
        settings (`RunSettings`): when the run saves, and what it keeps.
        steps (`int`): steps of the run.

    Returns:
        `int`: the number; 1, for the one of an interruption, if the run saves none in steps.
    """
    if str(getattr(settings.save_strategy, "value", settings.save_strategy)) != "steps":
        return 1
    every = settings.save_steps if settings.save_steps >= 1 else max(1, math.ceil(settings.save_steps * steps))
    saved = {*range(int(every), steps + 1, int(every)), steps}
    doubling = {step for step in range(1, steps + 1) if is_due(step, settings.saves_per_doubling)}
    newest_first = sorted(saved | doubling, reverse=True)
    limit = settings.save_total_limit and settings.save_total_limit + 1  # one more until the oldest goes
    outdated = outdated_steps(newest_first, limit, settings.keep_every, settings.saves_per_doubling)
    return len(newest_first) - len(outdated)


def checkpoint_bytes(parameters: int, trained: int, moments: float, weight_bytes: int, *, with_optimizer: bool) -> int:
    """Bytes of a checkpoint under DDP and FSDP2: the weights that are trained, and the moments of each.

    Args:
        parameters (`int`), trained (`int`): numbers of parameters of the model, and of those that are trained.
        moments (`float`): floats per parameter that the optimizer keeps.
        weight_bytes (`int`): bytes of a weight while the model is trained; those of an adapter have 4.
        with_optimizer (`bool`): whether the optimizer is saved.

    ```python
    >>> checkpoint_bytes(1000, 1000, 2, 4, with_optimizer=True)
    12000

    ```
    """
    each = weight_bytes if trained == parameters else 4
    return round(trained * each * (1 + (moments if with_optimizer else 0)))
