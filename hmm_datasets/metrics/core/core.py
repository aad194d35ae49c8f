"""CORE: accuracy over chance, averaged over tasks."""

import datasets
import evaluate

from hmm_datasets.evaluation.core.score import core_score

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
        return core_score(predictions, references, baselines, resamples, level, seed)
