"""Generalized processes and architectures: how the result is measured, and a tiny run."""

import numpy as np
import pytest
from experiments import load
from word_probes import all_words, constant_rmse, markov_states

from hmm_datasets.files import read_json
from hmm_datasets.hmm.families import load_source
from hmm_datasets.operations.launching import recipe_settings
from hmm_datasets.runtime.command_line import parse_settings
from hmm_datasets.runtime.shipped import EXPERIMENTS, shipped

FOLDER = shipped(EXPERIMENTS) / "generalized_processes"
RECIPE = load("generalized_processes")

ROW = {
    "process": "moon",
    "architecture": "llama",
    "rmse": 0.1,
    "markov_rmse": 0.3,
    "untrained_rmse": 0.2,
    "of_paper": "moon()",
}
ROW |= {"r2": 0.9, "markov_r2": 0.7, "untrained_r2": 0.5, "constant_rmse": 0.4, "markov_constant_rmse": 0.8}
ROW |= {"cosines_r2": 0.9, "best_of_order_3": 0.15, "of_paper": "moon()"}


def test_cosines_of_scaled_vectors_are_the_same_and_those_of_others_are_not():
    generator = np.random.default_rng(0)
    vectors = generator.normal(size=(200, 3))
    assert RECIPE.cosines_r2(vectors, 5 * vectors) == pytest.approx(1)
    assert RECIPE.cosines_r2(vectors, generator.normal(size=(200, 3))) < 0.05


def test_vectors_are_drawn_in_the_plane_in_which_they_vary_most():
    generator = np.random.default_rng(0)
    vectors = generator.normal(size=(500, 4)) * [0.01, 3, 0.01, 1] + 2
    centre, directions = RECIPE.plane(vectors, np.full(500, 1 / 500))
    np.testing.assert_allclose(centre, vectors.mean(0))
    assert abs(directions[1, 0]) == pytest.approx(1, abs=0.01)
    assert abs(directions[3, 1]) == pytest.approx(1, abs=0.01)


def test_the_claim_counts_the_networks_whose_share_of_variance_is_the_highest_of_the_three():
    rows = [ROW, ROW | {"untrained_r2": 0.95}, ROW | {"markov_r2": 0.91}]
    claim = RECIPE.findings(rows, 10)[0]
    assert (claim.measured, claim.published) == (1, "all of 3")


def test_a_probe_of_nothing_does_not_support_the_claim():
    """A constant has a lower error for the predictive vectors of every process, since the Markov states vary more."""
    for call in RECIPE.OF_PAPER:
        words = all_words(load_source(f"process:{call}"), 5)
        errors = [constant_rmse(words, targets) for targets in (words.beliefs, markov_states(words, 3))]
        assert errors[0] < errors[1]
        row = ROW | {"rmse": errors[0], "markov_rmse": errors[1], "r2": 0.0, "markov_r2": 0.0, "untrained_r2": 0.0}
        assert RECIPE.findings([row], 10)[0].measured == 0


def test_processes_that_the_paper_has_not_are_compared_with_nothing():
    other = ROW | {"process": "mess3(x=0.3, a=0.5)", "of_paper": None}
    findings = RECIPE.findings([ROW, other], 10)
    assert [(one.measured, one.published) for one in findings[:2]] == [(1, "all of 1"), (1, None)]
    of_other = [one for one in findings if one.quantity.startswith("mess3")]
    assert len(of_other) == 5
    assert not any(one.published for one in of_other)
    assert of_other[0].difference == "the paper has not this process"


@pytest.mark.parametrize(("name", "models"), [("small", 8), ("full", 16)])
def test_settings_of_both_sizes_are_read(name, models):
    (settings,) = parse_settings(
        *recipe_settings("generalized-processes"), arguments=["--config", str(FOLDER / f"{name}.yaml")]
    )
    assert len(settings.processes) * len(settings.architectures) == models


@pytest.mark.thorough
def test_a_tiny_experiment_has_its_report_and_picture(program, succeeded, tmp_path):
    command = ["-m", "hmm_datasets.cli", "experiment", "generalized-processes", "--config", str(FOLDER / "small.yaml")]
    command += ["--output_dir", str(tmp_path), "--processes", "moon()", "--architectures", "llama", "gru"]
    command += ["--layers", "1", "--steps", "5"]
    said = succeeded(program.run(*command)).stdout
    assert "moon, gru: RMSE" in said
    result = read_json(tmp_path / "result.json")
    assert {row["architecture"] for row in result["models"]} == {"llama", "gru"}
    for row in result["models"]:
        assert 0 < row["rmse"] < 1
        assert len(row["layers"]) == 2
        assert row["excess"] > 0
    assert (tmp_path / "generalized_processes.png").stat().st_size > 10_000
    assert (tmp_path / "moon-gru" / "summary.json").is_file()
