"""The CORE score: the mean over tasks of accuracy above chance, with intervals.

For a task with accuracy `a` and accuracy `b` of guessing, the centered accuracy is `(a - b) / (1 - b)`. The score is
the mean of these (Li et al., 2024, arXiv:2406.11794, section 3.5). Intervals come from the percentile bootstrap over
the items, which are resampled within each task.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ...errors import InputError
from ...statistics import check_bootstrap, interval
from .tasks import CORE_TASKS, check_baselines, core_name


def core_score(
    predictions: Sequence[int],
    references: Sequence[str],
    baselines: str = "v1",
    resamples: int = 2000,
    level: float = 0.95,
    seed: int = 0,
) -> dict[str, Any]:
    """Score items of CORE.

    Args:
        predictions (sequence of `int`): for each item 1 if it was answered correctly, else 0.
        references (sequence of `str`): for each item the label of its task.
        baselines (`str`, *optional*, defaults to `"v1"`): table of random baselines, `v1` or `v2`.
        resamples (`int`, *optional*, defaults to 2000), level (`float`, *optional*, defaults to 0.95), seed (`int`,
            *optional*, defaults to 0): settings of the bootstrap.

    Returns:
        `dict`: the result of the metric `core`.

    Raises:
        `InputError`: a label that is not in CORE, or predictions that are not 0 or 1.
    """
    check_baselines(baselines)
    check_bootstrap(resamples, level)
    correct, labels = np.asarray(predictions), np.asarray(references)
    for label in np.unique(labels).tolist():
        if label not in CORE_TASKS:
            raise InputError(f"references have {label!r}, which is not in CORE; see CORE_TASKS")
    if not len(correct) or not np.isin(correct, (0, 1)).all():
        raise InputError(f"predictions are {predictions[:8]}; expected 0 or 1 for each item, and at least one item")
    found = centered_mean(
        {
            label: (correct[labels == label], task.baseline(baselines))
            for label, task in CORE_TASKS.items()
            if (labels == label).any()
        },
        resamples,
        level,
        seed,
    )
    tasks = found["tasks"]
    return {
        "name": core_name(tasks),
        **found,
        "complete": len(tasks) == len(CORE_TASKS),
        "baselines": baselines,
        "missing": [label for label in CORE_TASKS if label not in tasks],
    }


def centered_mean(
    tasks: Mapping[str, tuple[np.ndarray, float]], resamples: int = 2000, level: float = 0.95, seed: int = 0
) -> dict[str, Any]:
    """The mean over tasks of the centered accuracy.

    Args:
        tasks (mapping): for each task, for each of its items whether it was answered correctly, and the accuracy of
            guessing.
        resamples (`int`, *optional*, defaults to 2000), level (`float`, *optional*, defaults to 0.95), seed (`int`,
            *optional*, defaults to 0): settings of the bootstrap.

    Returns:
        `dict`: the `score` with its interval, `low` to `high`; and in `tasks` for each task the number of `items`,
        `accuracy`, `baseline`, and `centered` with its interval.

    ```python
    >>> round(centered_mean({"a": (np.array([1, 1, 1, 0]), 0.5), "b": (np.array([1, 0]), 0.0)})["score"], 3)
    0.5

    ```
    """
    generator = np.random.default_rng(seed)
    found, resampled = {}, []
    for label, (correct, chance) in tasks.items():
        accuracy = correct.mean()
        # The sum of resampled zeros and ones has a binomial distribution.
        drawn = generator.binomial(len(correct), accuracy, resamples) / len(correct)
        resampled.append((drawn - chance) / (1 - chance))
        low, high = interval(resampled[-1], level)
        found[label] = {
            "items": len(correct),
            "accuracy": float(accuracy),
            "baseline": chance,
            "centered": float((accuracy - chance) / (1 - chance)),
            "low": low,
            "high": high,
        }
    low, high = interval(np.mean(resampled, axis=0), level)
    score = float(np.mean([task["centered"] for task in found.values()]))
    return {"score": score, "low": low, "high": high, "tasks": found}
