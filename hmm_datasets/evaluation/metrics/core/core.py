"""CORE: accuracy above chance, averaged over tasks."""

import datasets

from hmm_datasets.evaluation import metrics
from hmm_datasets.evaluation.core.centered_accuracy import core_score


class Core(metrics.CheckedMetric):
    """CORE (DCLM, arXiv:2406.11794) is the mean over 22 tasks of the centered accuracy (a - b) / (1 - b), where a is
    the accuracy and b that of guessing. If a task is missing, the score is that of a subset, which its name states.
    There are two tables of b; this is v1, and scores under v2 cannot be compared with it. The interval of a task is
    Wilson's, that of the mean Wilson's with the number of items that have the same variance. They ignore that the two
    hellaswag tasks have the same questions.

    Args:
        predictions: list of N integers, for each item 1 if it was answered correctly, else 0.
        references: list of N strings, for each item the label of its task.
        level (0.95): of the intervals.

    Returns:
        name: CORE, or CORE subset (k of 22 tasks).
        score, low, high: the mean centered accuracy and its interval.
        complete: whether no task is missing.
        baselines: the table of b, v1.
        tasks: for each task items, accuracy, baseline, centered, and low and high, the bounds of centered.
        missing: labels of the missing tasks.

    Example:
        >>> import evaluate
        >>> from hmm_datasets.evaluation.metrics import metric_path
        >>> metric = evaluate.load(metric_path("core"))
        >>> found = metric.compute(predictions=[1, 1, 1, 0], references=["copa"] * 4)
        >>> found["name"], found["score"]
        ('CORE subset (1 of 22 tasks)', 0.5)
    """

    predictions = datasets.Value("int64")
    references = datasets.Value("string")
    citation = """\
@article{li2024datacomplm, title={DataComp-LM: In search of the next generation of training sets for language models},
author={Li, Jeffrey and others}, journal={arXiv:2406.11794}, year={2024}}
"""

    def _compute(self, predictions, references, level=0.95) -> dict:
        return core_score(predictions, references, level)
