"""The experiment on known optima, from its command to its report."""

import json

import pytest

pytestmark = pytest.mark.thorough
TINY = ("--pretrain_tokens", 17 * 256, "--steps", 1)
TINY += ("--num_sequences", 16)


def experiment(program, succeeded, folder, *flags, **options):
    config = ("--config", "recipes/experiments/known_optimum/small.yaml", "--output_dir", folder)
    return succeeded(program.run("recipes/experiments/known_optimum/run.py", *config, *flags, **options)).stdout


@pytest.mark.slow
def test_the_experiment_runs_to_its_report(program, succeeded, tmp_path):
    said = experiment(program, succeeded, tmp_path, *TINY)
    report = json.loads((tmp_path / "report.json").read_text())
    assert [(trial["name"], trial["beta"]) for trial in report["trials"]] == [("dpo", 1.0), ("grpo", 1.0)]
    for trial in report["trials"]:
        assert trial["exact"]["expected_reward"] == pytest.approx(3.34, abs=0.001)
        assert trial["final"]["divergence"] > 0.05
        assert [row["step"] for row in trial["along"]] == [0, 1]
    assert (tmp_path / "frontier.png").read_bytes()[:4] == b"\x89PNG"
    assert "Distance from the exact optimum of post-training" in said
    assert (tmp_path / "report.md").read_text().count("| dpo |") == 1


@pytest.mark.slow
def test_dpo_and_grpo_reach_the_optimum(program, succeeded, tmp_path):
    """Takes ten minutes and more on two cores."""
    flags = ("--pretrain_tokens", 13_000_000, "--steps", "none", "--num_sequences", 8192)
    experiment(program, succeeded, tmp_path, *flags, timeout=3600)
    trials = json.loads((tmp_path / "report.json").read_text())["trials"]
    found = {trial["name"]: trial["final"]["divergence"] + 2 * trial["final"]["standard_error"] for trial in trials}
    assert found["dpo"] <= 0.002
    assert found["grpo"] <= 0.001
