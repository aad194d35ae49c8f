"""The experiment on factored beliefs, from its command to its report."""

import pytest
from experiments import load

from hmm_datasets.files import read_json

plot = load("factored_beliefs", "plot")


def test_findings_name_the_noise_and_both_predictions():
    row = {"dimensions": {"0.95": 5, "0.99": 6}, "r2": {"factor_0": 0.9, "factor_1": 0.8, "joint": 0.7}}
    row |= {"overlap": 0.1, "chance_overlap": 0.2, "excess": 0.01}
    exact = {"sum": 6, "product": 26, "joint_r2_of_factors": 0.6}
    found = plot.factored_findings(0.2, {"rows": [row], "exact": exact})
    assert [one.measured for one in found] == [5, 6, 0.8, 0.7, 0.1, 0.01]
    assert all("noise 0.2" in one.quantity for one in found)
    assert "sum of (d - 1) is 6, product minus 1 is 26" in found[0].difference


@pytest.mark.thorough
def test_the_experiment_runs_to_its_report_and_does_not_train_twice(program, succeeded, tmp_path):
    small = ("--steps", 2, "--batch_size", 4, "--num_sequences", 64, "--layers", 1, "--width", 16)
    factors = ("--factors", "process:mess3(0.15,0.6)", "process:golden_mean", "--noises", 0, 0.1)
    command = (
        "recipes/experiments/factored_beliefs/run.py",
        "--config",
        "recipes/experiments/factored_beliefs/small.yaml",
        *small,
        *factors,
    )
    said = succeeded(program.run(*command, "--output_dir", tmp_path)).stdout
    result = read_json(tmp_path / "result.json")
    assert result["paper"]["arxiv"] == "2602.02385"
    assert [row["step"] for row in result["models"]["0.1"]["rows"]] == [0, 1, 2]
    assert result["tokens"] == 2 * 2 * 4 * 9
    assert (tmp_path / "factored_beliefs.png").read_bytes()[:4] == b"\x89PNG"
    assert "smallest R2 of a factor's belief, noise 0.1" in said
    assert (tmp_path / "noise-0" / "model.safetensors").is_file()
