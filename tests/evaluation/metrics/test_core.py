"""The metric `core`: scores computed by hand, names, intervals."""

import numpy as np
import pytest

from hmm_datasets.errors import InputError
from hmm_datasets.evaluation.core import CORE_TASKS
from hmm_datasets.evaluation.metrics import load_metric


def compute(correct: dict[str, list[int]], **settings) -> dict:
    labels = [label for label, values in correct.items() for _ in values]
    return load_metric("core").compute(
        predictions=[value for values in correct.values() for value in values], references=labels, **settings
    )


def test_the_score_by_hand():
    found = compute({"copa": [1, 1, 1, 0], "boolq": [1, 0], "squad": [0, 1, 0, 0]})
    assert found["tasks"]["copa"]["centered"] == 0.5
    assert found["tasks"]["boolq"]["centered"] == pytest.approx((0.5 - 0.62) / 0.38)
    assert found["tasks"]["squad"]["centered"] == 0.25
    assert found["score"] == pytest.approx((0.5 - 0.12 / 0.38 + 0.25) / 3)
    assert found["name"] == "CORE subset (3 of 22 tasks)"
    assert (found["complete"], len(found["missing"])) == (False, 19)


def test_only_the_score_of_all_tasks_is_called_core():
    found = compute({label: [1, 0] for label in CORE_TASKS})
    assert (found["name"], found["complete"], found["missing"]) == ("CORE", True, [])
    assert len(found["tasks"]) == 22


def test_the_tables_of_baselines_differ_for_three_tasks():
    correct = {label: [1, 0, 1] for label in CORE_TASKS}
    first, second = (compute(correct, baselines=version)["tasks"] for version in ("v1", "v2"))
    other = {label: (first[label]["baseline"], second[label]["baseline"]) for label in CORE_TASKS
             if first[label]["centered"] != second[label]["centered"]}  # fmt: skip
    assert other == {
        "commonsense_qa": (0.2, pytest.approx(0.403)),
        "agi_eval_lsat_ar": (0.2, 0.25),
        "bigbench_language_identification": (0.091, 0.25),
    }


def test_the_interval_is_that_of_items_resampled_within_each_task():
    """A loop over resamples; both have 4,000, whose quantiles err by about 2% of the width."""
    generator = np.random.default_rng(0)
    correct = {
        "copa": generator.integers(0, 2, 60).tolist(),
        "squad": (generator.random(90) < 0.2).astype(int).tolist(),
    }
    scores = []
    for _ in range(4000):
        centered = []
        for label, values in correct.items():
            drawn = np.mean(generator.choice(values, len(values)))
            chance = CORE_TASKS[label].v1 / 100
            centered.append((drawn - chance) / (1 - chance))
        scores.append(np.mean(centered))
    low, high = np.quantile(scores, [0.05, 0.95])
    found = compute(correct, resamples=4000, level=0.9)
    assert found["low"] == pytest.approx(low, abs=0.06 * (high - low))
    assert found["high"] == pytest.approx(high, abs=0.06 * (high - low))
    assert found["low"] < found["score"] < found["high"]


@pytest.mark.parametrize(
    ("correct", "settings", "said"),
    [
        ({"mmlu": [1]}, {}, "references have 'mmlu', which is not in CORE"),
        ({"copa": [2]}, {}, r"predictions are \[2\]; expected 0 or 1 for each item"),
        ({"copa": [1]}, {"baselines": "v3"}, "baselines='v3': expected one of v1, v2"),
        ({"copa": [1]}, {"resamples": 0}, "resamples=0"),
    ],
)
def test_wrong_inputs_are_refused(correct, settings, said):
    with pytest.raises(InputError, match=said):
        compute(correct, **settings)
