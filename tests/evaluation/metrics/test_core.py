"""The metric `core`: scores computed by hand, names, intervals."""

import pytest

from hmm_datasets.errors import InputError
from hmm_datasets.evaluation.core.tasks import CORE_TASKS
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


def test_the_interval_of_one_task_is_wilsons_and_that_of_equal_tasks_is_of_all_items():
    correct = {"copa": [1] * 8 + [0] * 2}
    found = compute(correct, level=0.9)
    z, share, count = 1.6448536269514722, 0.8, 10
    for name, sign in (("low", -1), ("high", 1)):
        root = (share * (1 - share) / count + z**2 / (4 * count**2)) ** 0.5
        bound = (share + z**2 / (2 * count) + sign * z * root) / (1 + z**2 / count)
        assert found["tasks"]["copa"][name] == pytest.approx(2 * bound - 1, abs=1e-12)
    alike = compute({"copa": [1] * 10, "winograd": [1] * 10})
    alone = compute({"copa": [1] * 20})
    assert (alike["low"], alike["high"]) == pytest.approx((alone["low"], alone["high"]))
    assert alike["low"] < 0.7, "twenty right answers are no certainty"
    assert alike["high"] == 1


@pytest.mark.parametrize(
    ("correct", "settings", "said"),
    [
        ({"mmlu": [1]}, {}, "references have 'mmlu', which is not in CORE"),
        ({"copa": [2]}, {}, r"predictions are \[2\]; expected 0 or 1 for each item"),
        ({"copa": [1]}, {"level": 1.0}, "level=1.0"),
    ],
)
def test_wrong_inputs_are_refused(correct, settings, said):
    with pytest.raises(InputError, match=said):
        compute(correct, **settings)
