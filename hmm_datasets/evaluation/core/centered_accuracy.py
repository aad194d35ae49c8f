"""The CORE score: the mean over tasks of accuracy above chance, with intervals.

For a task with accuracy `a` and accuracy `b` of guessing, the centered accuracy is `(a - b) / (1 - b)`. The score is
the mean of these (Li et al., 2024, arXiv:2406.11794, section 3.5). Intervals are over the items of
each task: Wilson's, and Wilson's of as many items as have the same variance ([`~hmm_datasets.intervals`]).
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ...array_input import numbers
from ...errors import InputError
from ...intervals import mean_of_shares, wilson
from ...paired_differences import check_bootstrap
from .tasks import BASELINES, CORE_TASKS, core_name


def core_score(
    predictions: Sequence[int],
    references: Sequence[str],
    level: float = 0.95,
) -> dict[str, Any]:
    """Score items of CORE.

    Args:
        predictions (sequence of `int`): for each item 1 if it was answered correctly, else 0.
        references (sequence of `str`): for each item the label of its task.
        level (`float`, *optional*, defaults to 0.95): of the intervals, Wilson's for each task, and for their mean
            that of [`~hmm_datasets.intervals.mean_of_shares`].

    Returns:
        `dict`: the result of the metric `core`.

    Raises:
        `InputError`: a label that is not in CORE, or predictions that are not 0 or 1.
    """
    check_bootstrap(1, level)
    correct, labels = numbers("predictions", predictions), np.asarray(references)
    for label in np.unique(labels).tolist():
        if label not in CORE_TASKS:
            raise InputError(f"references have {label!r}, which is not in CORE; see CORE_TASKS")
    if not len(correct) or not np.isin(correct, (0, 1)).all():
        raise InputError(f"predictions are {predictions[:8]}; expected 0 or 1 for each item, and at least one item")
    scores = centered_mean(
        {
            label: (correct[labels == label], task.baseline / 100)
            for label, task in CORE_TASKS.items()
            if (labels == label).any()
        },
        level,
    )
    tasks = scores["tasks"]
    return {
        "name": core_name(tasks),
        **scores,
        "complete": len(tasks) == len(CORE_TASKS),
        "baselines": BASELINES,
        "missing": [label for label in CORE_TASKS if label not in tasks],
    }


def centered_mean(tasks: Mapping[str, tuple[np.ndarray, float]], level: float = 0.95) -> dict[str, Any]:
    """The mean over tasks of the centered accuracy.

    Args:
        tasks (mapping): for each task, for each of its items whether it was answered correctly, and the accuracy of
            guessing.
        level (`float`, *optional*, defaults to 0.95): of the intervals, Wilson's for each task, and for their mean
            that of [`~hmm_datasets.intervals.mean_of_shares`].

    Returns:
        `dict`: the `score` with its interval, `low` to `high`; and in `tasks` for each task the number of `items`,
        `accuracy`, `baseline`, and `centered` with its interval.

    ```python
    >>> round(centered_mean({"a": (np.array([1, 1, 1, 0]), 0.5), "b": (np.array([1, 0]), 0.0)})["score"], 3)
    0.5

    ```
    """
    by_task = {}
    for label, (correct, chance) in tasks.items():
        accuracy = float(correct.mean())
        bounds = wilson(int(correct.sum()), len(correct), level)
        low, high = (_centered(bound, chance) for bound in bounds or (0.0, 1.0))
        by_task[label] = {
            "items": len(correct),
            "accuracy": accuracy,
            "baseline": chance,
            "centered": _centered(accuracy, chance),
            "low": low,
            "high": high,
        }
    right = [int(correct.sum()) for correct, _ in tasks.values()]
    weights = np.array([1 / (1 - chance) for _, chance in tasks.values()])
    bounds = mean_of_shares(right, [task["items"] for task in by_task.values()], weights, level)
    score = float(np.mean([task["centered"] for task in by_task.values()]))
    # The score is the weighted mean of the accuracies, times the mean weight, less the score of guessing.
    guessed = float(np.mean([chance * weight for (_, chance), weight in zip(tasks.values(), weights, strict=True)]))
    low, high = (float(weights.mean()) * bound - guessed for bound in bounds)
    return {"score": score, "low": low, "high": high, "tasks": by_task}


def _centered(accuracy: float, chance: float) -> float:
    return (accuracy - chance) / (1 - chance)
