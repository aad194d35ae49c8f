"""The wind tunnels: their numbers from trials, and the experiment from its command to its report."""

import json

import pytest
from experiments import load

TINY = ("--steps", 2, "--num_sequences", 8, "--seeds", 0, 1, "--architectures", "gru")


def test_errors_are_averaged_over_positions_then_over_seeds():
    recipe = vars(load("wind_tunnels"))
    settings = recipe["WindTunnelSettings"]("unused", tasks=["hmm"], architectures=["lstm"])
    shared = {"task": "hmm", "trained": 20, "architecture": "lstm", "parameters": 10, "steps": 2, "batch_size": 3}
    trials = [shared | {"of_each": [level] * 20 + [1.0] * 30, "of_means": [0.0] * 50} for level in (0.1, 0.3)]
    found = recipe["findings"](settings, trials)
    assert [one.measured for one in found] == pytest.approx([0.2, (4 + 10) / 30, (4 + 30) / 50])
    assert found[0].standard_error == pytest.approx(0.1)
    assert (found[0].published, found[1].published) == ("0.411", None)


def test_published_numbers_stand_beside_the_task_of_the_paper_only():
    recipe = vars(load("wind_tunnels"))
    shared = {"architecture": "llama", "parameters": 10, "steps": 2, "batch_size": 3, "of_means": [0.0] * 40}

    settings = recipe["WindTunnelSettings"]("unused", architectures=["llama"])
    trials = [
        shared | {"task": task, "trained": trained, "of_each": [0.1] * 60}
        for task, trained, _ in recipe["lengths_of"](settings)
    ]
    found = {one.quantity.split(" (")[0]: one.published for one in recipe["findings"](settings, trials)}
    assert found == {
        "bijection, llama, trained on 20 pairs, 20 pairs": "0.003",
        "bijection, llama, trained on 10 pairs, 10 pairs": None,
        "bijection, llama, trained on 10 pairs, 20 pairs": None,
        "hmm, llama, trained on 20 symbols, 20 symbols": "7.5e-5, or 0.049",
        "hmm, llama, trained on 20 symbols, 30 symbols": None,
        "hmm, llama, trained on 20 symbols, 50 symbols": "0.0288",
    }


@pytest.mark.thorough
def test_the_experiment_runs_to_its_report(program, succeeded, tmp_path):
    config = ("--config", "recipes/experiments/wind_tunnels/small.yaml", "--output_dir", tmp_path)
    said = succeeded(program.run("recipes/experiments/wind_tunnels/run.py", *config, *TINY)).stdout
    result = json.loads((tmp_path / "result.json").read_text())
    assert len(result["findings"]) == 3 + 3
    assert len(list((tmp_path / "trials").iterdir())) == 2 * (2 + 1)
    assert all(0 < one["measured"] < 3 for one in result["findings"])
    assert result["tokens"] == 2 * 2 * 64 * (41 + 21 + 30)
    assert (tmp_path / "entropy_errors.png").read_bytes()[:4] == b"\x89PNG"
    assert "2512.22471" in said
