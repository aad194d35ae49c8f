"""The experiment on belief geometry, from its command to the results of its report."""

import numpy as np
import pytest
import torch
from accelerate import Accelerator
from experiments import load
from transformers import LlamaConfig, LlamaForCausalLM

from hmm_datasets.data.sequences import TEST_FIRST, HMMSequences
from hmm_datasets.errors import InputError
from hmm_datasets.evaluation.beliefs import probe_beliefs
from hmm_datasets.files import read_json
from hmm_datasets.hmm import processes

measure = load("belief_geometry", "measure")
plot = load("belief_geometry", "plot")


RECIPE = load("belief_geometry")


@pytest.fixture(scope="module")
def untrained(tmp_path_factory):
    """RRXOR, and an untrained model of its symbols."""
    folder = tmp_path_factory.mktemp("untrained")
    processes.rrxor().save_pretrained(folder / "hmm")
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    LlamaForCausalLM(LlamaConfig(vocab_size=3, bos_token_id=2, **sizes)).save_pretrained(folder / "model")
    return folder


def test_rrxor_has_36_beliefs_but_eleven_distributions_of_the_next_symbol():
    tree = processes.rrxor().mixed_states(RECIPE.LENGTHS["rrxor"])
    assert len(tree.beliefs) == 36
    assert tree.closed
    assert len(np.unique(tree.next_token_probs.round(9), axis=0)) == 11


@pytest.mark.thorough
def test_drawn_beliefs_are_those_of_the_probes_in_the_report(untrained):
    found = measure.probed_beliefs(untrained / "model", untrained / "hmm", 10, 128)
    model, hmm = LlamaForCausalLM.from_pretrained(untrained / "model").eval(), processes.rrxor()
    rows = HMMSequences(hmm, 10, seed=0, first=TEST_FIRST, num_sequences=128)
    layers = probe_beliefs(model, hmm, rows, Accelerator(), controls=False)["layers"]
    spread = ((found.true - found.true.mean(0)) ** 2).sum()
    for name, layer in (("last layer", "2"), ("all layers", "all")):
        assert found.probed[name].shape == found.true.shape == (64 * 11, 5)
        r2 = 1 - ((found.true - found.probed[name]) ** 2).sum() / spread
        assert r2 == pytest.approx(layers[layer]["r2"], abs=1e-4)  # the model computes in float32
    assert found.nearest()["last layer"] < found.nearest()["all layers"] < 1


def test_exact_predictions_are_nearest_to_their_own_beliefs():
    tree = processes.rrxor().mixed_states(10)
    both = {"last layer": tree.beliefs, "all layers": np.full_like(tree.beliefs, 0.2)}
    found = plot.ProbedBeliefs(tree.beliefs, both)
    assert len(found.distinct) == 36
    assert found.nearest()["last layer"] == 1.0
    assert found.nearest()["all layers"] == pytest.approx(1 / 36), "all are nearest to the same belief"


def test_principal_axes_are_orthonormal_and_in_order_of_variance():
    points = np.random.default_rng(0).normal(size=(500, 4)) * [1.0, 5.0, 0.1, 2.0]
    mean, directions = plot.principal_axes(points)
    assert mean == pytest.approx(points.mean(0))
    assert directions.T @ directions == pytest.approx(np.eye(3), abs=1e-12)
    assert np.abs(directions).argmax(0).tolist() == [1, 3, 0]
    assert ((points - mean) @ directions).var(0) == pytest.approx(points.var(0)[[1, 3, 0]], rel=0.1)


@pytest.mark.thorough
def test_the_picture_has_a_row_for_each_process(untrained, tmp_path):
    clouds = {"rrxor": measure.probed_beliefs(untrained / "model", untrained / "hmm", 6, 16)}
    beliefs = np.eye(3)
    clouds["mess3"] = plot.ProbedBeliefs(beliefs, {"last layer": beliefs, "all layers": beliefs})
    figures = {layer: {"r2": 0.5, "untrained_r2": 0.2, "shuffled_r2": 0.0} for layer in ("0", "1", "2", "all")}
    plot.plot_belief_layers(dict.fromkeys(clouds, figures), clouds, tmp_path / "beliefs.png")
    assert (tmp_path / "beliefs.png").stat().st_size > 10_000


def test_wrong_processes_are_refused():
    with pytest.raises(InputError, match="expected some of mess3, rrxor"):
        RECIPE.BeliefGeometrySettings(processes=["mess4"])


@pytest.mark.thorough
@pytest.mark.slow
def test_a_tiny_experiment_ends_in_its_result(program, succeeded, tmp_path):
    tiny = ("--processes", "rrxor", "--train_sequences", 640, "--num_sequences", 64, "--seed", 5)
    succeeded(
        program.run("recipes/experiments/belief_geometry/run.py", *tiny, "--launcher", "", "--output_dir", tmp_path)
    )
    content = read_json(tmp_path / "result.json")
    assert set(content["layers"]["rrxor"]) == {"0", "1", "2", "3", "all"}
    assert all("mess3" not in one["quantity"] for one in content["findings"])
    data = read_json(tmp_path / "rrxor" / "pretrain" / "run.json")["data"]
    assert (data["length"], data["seed"]) == (10, 5)
    assert "10 (rrxor) symbols" in content["protocol"]
    assert (tmp_path / "beliefs.png").stat().st_size > 10_000


@pytest.mark.thorough
@pytest.mark.slow
def test_a_transformer_gets_close_to_the_optimum_and_represents_the_beliefs(program, succeeded, tmp_path):
    succeeded(program.run("recipes/experiments/belief_geometry/run.py", "--output_dir", tmp_path, timeout=1800))
    report = read_json(tmp_path / "mess3" / "evaluation" / "report.json")

    assert report["optimum"]["bayes_gap"]["bayes_gap"] <= 0.01
    assert report["optimum"]["kl"]["bayes"]["kl"] < 0.01
    for name in ("uniform", "unigram", "bigram", "process_bigram"):
        assert report["optimum"]["kl"][name]["kl"] > 0.03, "being near the optimum is not being near anything simpler"

    layers = report["beliefs"]["layers"]
    last = str(len(layers) - 2)
    for name in (last, "all"):
        figures = layers[name]
        assert figures["r2"] >= 0.99
        assert figures["shuffled_r2"] < 0.05
        # Training explains most of what an untrained network leaves unexplained.
        assert 1 - figures["r2"] < 0.1 * (1 - figures["untrained_r2"])
    assert (tmp_path / "mess3" / "evaluation" / "report.html").stat().st_size > 10_000
    assert (tmp_path / "mess3" / "evaluation" / "plots" / "simplex.png").stat().st_size > 10_000

    # RRXOR is represented by all layers together, and worse by the last one alone.
    report = read_json(tmp_path / "rrxor" / "evaluation" / "report.json")
    assert report["optimum"]["bayes_gap"]["bayes_gap"] <= 0.01
    layers = report["beliefs"]["layers"]
    assert layers["all"]["r2"] > layers["3"]["r2"] + 0.05
    assert (tmp_path / "beliefs.png").stat().st_size > 10_000
