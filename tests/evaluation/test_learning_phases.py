"""Which predictor a model is closest to, and when it passes each."""

import pytest

from hmm_datasets.evaluation.learning_phases import evaluation_of, evaluations_of, learning_phases

NAMES = ("unigram", "bayes")


def evaluation(step, cross_entropy, unigram, bayes):
    return {
        "step": step,
        "tokens": 10 * step,
        "cross_entropy": cross_entropy,
        "cross_entropy_unigram": 1.0,
        "cross_entropy_bayes": 0.5,
        "kl_unigram": unigram,
        "kl_bayes": bayes,
    }


ROWS = [
    evaluation(0, 1.2, 0.20, 0.70),
    evaluation(1, 0.95, 0.05, 0.45),
    evaluation(2, 1.01, 0.10, 0.30),
    evaluation(4, 0.9, 0.02, 0.40),
    evaluation(8, 0.6, 0.30, 0.10),
]


def test_a_predictor_is_closest_at_its_minimum_divergence():
    found = learning_phases(ROWS)["predictors"]
    assert (found["unigram"]["closest_step"], found["unigram"]["closest_kl"]) == (4, 0.02)
    assert found["bayes"]["closest_step"] == 8


def test_a_predictor_is_passed_once_the_model_stays_below_it():
    found = learning_phases(ROWS)["predictors"]
    assert found["unigram"]["passed_step"] == 4, "it fell behind again at step 2"
    assert found["bayes"]["passed_step"] is None


def test_phases_are_the_runs_of_the_nearest_predictor():
    assert learning_phases(ROWS)["phases"] == [
        {"predictor": "unigram", "first_step": 0, "last_step": 4},
        {"predictor": "bayes", "first_step": 8, "last_step": 8},
    ]


def test_a_history_gives_one_row_per_step_for_learning_phases():
    history = [{"step": 1, "tokens": 5, "loss": 2.0}]
    for row in [*ROWS, ROWS[-1]]:
        measures = {f"eval_{name}": value for name, value in row.items() if name not in ("step", "tokens")}
        history.append({"step": row["step"], "tokens": row["tokens"], "eval_runtime": 0.1, **measures})
    assert evaluations_of(history) == ROWS
    assert evaluations_of([{"step": 1, "tokens": 5, "eval_loss": 2.0}]) == []


def test_the_result_of_measure_optimum_gives_such_a_row():
    measured = {
        "cross_entropy": {"model": {"cross_entropy": 0.9}, **{name: {"cross_entropy": 1.0} for name in NAMES}},
        "kl": {name: {"kl": 0.25} for name in NAMES},
    }
    row = {"step": 3, "tokens": 30} | evaluation_of(measured)
    assert set(row) == set(ROWS[0])
    assert learning_phases([row])["predictors"]["unigram"]["passed_step"] == 3
    assert row["kl_bayes"] == pytest.approx(0.25)
