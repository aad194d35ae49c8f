"""`metric_for_best_model`: a name that evaluations do not have is refused before anything is written."""

import pytest
from tiny_runs import random_rows, trainer

from hmm_datasets import processes
from hmm_datasets.errors import InputError
from hmm_datasets.evaluation.baselines import BaselineComparison
from hmm_datasets.training.run import train_and_save
from hmm_datasets.training.step.held_out_loss import HeldOutParts

PARTS = HeldOutParts({"text": random_rows(3), "chat": random_rows(2)})


def refusal(folder, metric, rows, compute=None):
    run = trainer(folder, rows=random_rows(16), max_steps=1, metric_for_best_model=metric)
    run.eval_dataset, run.compute_metrics = rows, compute
    with pytest.raises(InputError) as caught:
        train_and_save(run, settings={}, data={})
    assert not list(folder.glob("*.json"))
    return str(caught.value)


@pytest.mark.thorough
@pytest.mark.outside(
    "https://github.com/hiyouga/LlamaFactory/issues/7906",
    "learn before training that no evaluation has the `metric_for_best_model`, not by a KeyError at the first",
    "refused before anything is written, with the names that evaluations have",
)
@pytest.mark.parametrize("metric", ["los", "accuracy", "eval_acc", "text", "kl", "chat_loss "])
@pytest.mark.parametrize("rows", [random_rows(3), PARTS], ids=["rows", "parts"])
def test_an_unknown_metric_is_refused_with_those_that_there_are(metric, rows, tmp_path):
    line = refusal(tmp_path, metric, rows)
    assert line.startswith(f"metric_for_best_model is {metric}")
    assert line.endswith("evaluations have loss" if rows is not PARTS else "loss, text_loss, chat_loss")


def test_the_measures_of_a_process_are_among_the_metrics(tmp_path):
    baselines = BaselineComparison(processes.mess3(0.15, 0.6))
    line = refusal(tmp_path, "kl_base", random_rows(3), baselines.summarize)
    assert {"kl_bayes", "bayes_gap", "cross_entropy"} <= set(line.partition("evaluations have ")[2].split(", "))


@pytest.mark.thorough
@pytest.mark.parametrize("metric", ["loss", "eval_loss", "chat_loss"])
def test_a_metric_that_evaluations_have_is_taken(metric, tmp_path):
    chosen = {"metric_for_best_model": metric, "evaluations_per_doubling": 1, "max_steps": 2}
    run = trainer(tmp_path, rows=random_rows(200), **chosen)
    run.eval_dataset = PARTS
    train_and_save(run, settings={}, data={})
    assert run.state.best_metric is not None
