"""The experiments of the README, and the results that it claims."""

import itertools

import pytest

from hmm_datasets.files import read_json

pytestmark = [pytest.mark.thorough, pytest.mark.slow]


def test_a_model_goes_from_uniform_to_unigram_to_bigram_to_the_optimum(program, succeeded):
    """Takes minutes; it runs in the checkout as a user would, where a finished run is only evaluated again."""
    said = succeeded(program.run("recipes/experiments/icl_transition/run.py", timeout=1500)).stdout
    report = read_json(program.root / "outputs" / "icl_transition" / "evaluation" / "report.json")
    phases = [name for name, _ in itertools.groupby(phase["predictor"] for phase in report["training"]["phases"])]
    assert phases == ["uniform", "unigram", "bigram", "bayes"]
    passed = [report["training"]["predictors"][name]["passed_step"] for name in ("uniform", "unigram", "bigram")]
    assert passed == sorted(passed)
    assert 0 < report["optimum"]["bayes_gap"]["bayes_gap"] < 0.02
    assert "passed" in said


def test_every_stage_of_the_chat_ladder_is_measured(program, succeeded):
    """Takes ten minutes; it runs in the checkout as a user would, where a finished run is only evaluated again."""
    succeeded(program.run("recipes/experiments/chat_ladder/run.py", timeout=2400))
    folder = program.root / "outputs" / "chat_ladder"
    reports = {name: read_json(folder / "evaluation" / name / "report.json") for name in ("pretrain", "sft", "grpo")}
    right = {name: report["chat"]["shares"]["right"] for name, report in reports.items()}
    assert right["pretrain"]["count"] == 0
    assert right["sft"]["low"] > 0.1
    assert right["grpo"]["share"] > right["sft"]["low"]
    assert reports["sft"]["chat"]["shares"]["ended"]["share"] > 0.95
    assert "expected:" in (folder / "stages.md").read_text()
