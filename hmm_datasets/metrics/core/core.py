"""CORE: accuracy over chance, averaged over tasks."""

import datasets
import evaluate
import numpy as np

from hmm_datasets.errors import InputError
from hmm_datasets.evaluation.core.tasks import CORE_TASKS, check_baselines, core_name
from hmm_datasets.statistics import check_bootstrap, interval

_DESCRIPTION = """\
CORE (DCLM, arXiv:2406.11794): of each of 22 tasks the accuracy a over that of guessing b, (a - b) / (1 - b), and the
plain mean of these. With a task missing it is a subset's score and is named so. Two tables of b exist, v1 and v2;
scores under one do not compare with scores under the other. Intervals are of the percentile bootstrap over the items
of each task, drawn apart; that the two tasks of hellaswag ask the same is not taken into account.
"""

_CITATION = """\
@article{li2024datacomplm, title={DataComp-LM: In search of the next generation of training sets for language models},
author={Li, Jeffrey and others}, journal={arXiv:2406.11794}, year={2024}}
"""

_INPUTS = """\
Args:
    predictions: list of N integers, 1 for an item that was answered correctly, 0 for another.
    references: list of N strings, the label of the task of each.
    baselines ("v1"): which table of random baselines, v1 or v2.
    resamples (2000), level (0.95), seed (0): of the bootstrap.

Returns:
    name: CORE, or CORE subset (k of 22 tasks).
    score, low, high: the mean centered accuracy and its interval.
    complete: whether all tasks are there.
    baselines: the table used.
    tasks: of each task items, accuracy, baseline, centered, and low and high, bounds of centered.
    missing: labels of the tasks that are not there.

Example:
    >>> metric = evaluate.load(metric_path("core"))
    >>> found = metric.compute(predictions=[1, 1, 1, 0], references=["copa"] * 4)
    >>> found["name"], found["score"]
    ('CORE subset (1 of 22 tasks)', 0.5)
"""


class Core(evaluate.Metric):
    """The metric module; see its description and inputs."""

    def _info(self) -> evaluate.MetricInfo:
        return evaluate.MetricInfo(
            description=_DESCRIPTION,
            citation=_CITATION,
            inputs_description=_INPUTS,
            features=datasets.Features(
                {"predictions": datasets.Value("int64"), "references": datasets.Value("string")}
            ),
        )

    def _compute(self, predictions, references, baselines="v1", resamples=2000, level=0.95, seed=0) -> dict:
        check_baselines(baselines)
        check_bootstrap(resamples, level)
        correct, labels = np.asarray(predictions), np.asarray(references)
        for label in np.unique(labels).tolist():
            if label not in CORE_TASKS:
                raise InputError(f"references have {label!r}, which is not in CORE; see CORE_TASKS")
        if not len(correct) or not np.isin(correct, (0, 1)).all():
            raise InputError(f"predictions are {predictions[:8]}; expected 0 or 1 for each item, and some")
        generator = np.random.default_rng(seed)
        tasks, resampled = {}, []
        for label, task in CORE_TASKS.items():
            of_task = correct[labels == label]
            if not len(of_task):
                continue
            chance, accuracy = task.baseline(baselines), of_task.mean()
            # Items drawn anew, counted: of zeros and ones that is a binomial distribution.
            drawn = generator.binomial(len(of_task), accuracy, resamples) / len(of_task)
            resampled.append((drawn - chance) / (1 - chance))
            low, high = interval(resampled[-1], level)
            tasks[label] = {
                "items": len(of_task),
                "accuracy": float(accuracy),
                "baseline": chance,
                "centered": float((accuracy - chance) / (1 - chance)),
                "low": low,
                "high": high,
            }
        low, high = interval(np.mean(resampled, axis=0), level)
        return {
            "name": core_name(tasks),
            "score": float(np.mean([task["centered"] for task in tasks.values()])),
            "low": low,
            "high": high,
            "complete": len(tasks) == len(CORE_TASKS),
            "baselines": baselines,
            "tasks": tasks,
            "missing": [label for label in CORE_TASKS if label not in tasks],
        }
