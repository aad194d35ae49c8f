"""The experiment on belief geometry, from its command to the results of its report."""

import json

import pytest

pytestmark = [pytest.mark.launch, pytest.mark.slow]


def test_a_transformer_gets_close_to_the_optimum_and_represents_the_beliefs(program, succeeded, tmp_path):
    succeeded(program.run("recipes/belief_geometry/run.py", tmp_path, timeout=1800))
    folder = tmp_path / "evaluation"
    report = json.loads((folder / "report.json").read_text())

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
    assert (folder / "report.html").stat().st_size > 10_000
    assert (folder / "plots" / "simplex.png").stat().st_size > 10_000
