import itertools
import json
import math

import numpy as np
import pytest
from PIL import Image

from hmm_datasets.cli import main
from hmm_datasets.errors import InputError
from hmm_datasets.hmm import processes
from hmm_datasets.hmm.analysis.predictors import predictors_of
from hmm_datasets.hmm.analysis.stationary import mixing_time
from hmm_datasets.report.process_description import describe_process


@pytest.mark.parametrize("seed", range(5))
def test_the_mixing_time_is_the_first_step_near_the_stationary_distribution(seed):
    hmm = processes.random(4, 2, alpha=0.15, seed=seed)
    stationary = hmm.stationary()
    optimum, steps = np.eye(4), 0
    while np.abs(optimum - stationary).sum(axis=1).max() / 2 > 0.25:
        optimum, steps = optimum @ hmm.transition, steps + 1
    assert steps > 1
    assert mixing_time(hmm.transition, stationary) == steps


def test_a_slow_chain_mixes_late_and_one_with_a_period_or_two_classes_never():
    slow = np.array([[1 - 1e-6, 1e-6], [1e-6, 1 - 1e-6]])
    # The distance is (1 - 2e-6)^t / 2.
    assert mixing_time(slow, np.full(2, 0.5)) == pytest.approx(math.log(0.5) / math.log1p(-2e-6), rel=1e-4)
    assert mixing_time(np.eye(2)[::-1].copy(), np.full(2, 0.5)) == math.inf
    assert mixing_time(np.eye(2), np.full(2, 0.5)) == math.inf
    assert describe_process(processes.rrxor(), num_sequences=2)["mixing_time"] is None


def test_cross_entropies_are_those_of_an_enumeration():
    hmm = processes.random(3, 3, alpha=0.5, seed=2)
    words = np.array(list(itertools.product(range(3), repeat=5)))
    probability = np.exp(hmm.log_likelihood(words))
    found = describe_process(hmm, length=5, num_sequences=5_000)["cross_entropy"]
    import torch

    for name, optimum in predictors_of(hmm).items():
        chosen = optimum(torch.from_numpy(words))[:, :-1].gather(-1, torch.from_numpy(words).unsqueeze(-1)).squeeze(-1)
        expected = probability @ -chosen.log().numpy()
        # The first position has no past, so no noise; the others are within some standard errors.
        assert found[name]["by_position"][0] == pytest.approx(expected[0], abs=1e-9)
        assert found[name]["mean"] == pytest.approx(expected.mean(), abs=5 * found[name]["standard_error"] + 1e-9)
        assert found[name]["standard_error"] < 0.01


@pytest.mark.thorough
def test_the_states_of_the_casino_are_described(capsys, tmp_path):
    processes.dishonest_casino().save_pretrained(tmp_path / "hmm")
    assert main(["describe", str(tmp_path / "hmm"), "--length", "8", "--num_sequences", "64"]) == 0
    text = capsys.readouterr().out
    assert "hmm: a state-emitting HMM of 2 states over 6 symbols; fingerprint" in text
    assert "starts in another distribution" in text
    # Stays 1 / 0.05 rolls with the fair die, 1 / 0.1 with the loaded one; two thirds of the time with the fair one.
    assert "0.6667          20.00" in text
    assert "0.3333          10.00  5 0.50" in text


@pytest.mark.thorough
def test_json_and_figures_of_three_states(capsys, tmp_path):
    processes.mess3(0.15, 0.6).save_pretrained(tmp_path / "hmm")
    command = ["describe", str(tmp_path / "hmm"), "--json", "--num_sequences", "64", "--length", "16"]
    assert main([*command, "--plot", str(tmp_path / "plots")]) == 0
    captured = capsys.readouterr()
    told = json.loads(captured.out)
    assert told["cross_entropy"]["bayes"]["mean"] < told["cross_entropy"]["process_unigram"]["mean"]
    assert len(told["cross_entropy"]["uniform"]["by_position"]) == 16
    written = [tmp_path / "plots" / name for name in ("transition.png", "emission.png", "beliefs.png")]
    assert captured.err.split() == [str(path) for path in written]
    beliefs = np.asarray(Image.open(written[2]).convert("RGB"))
    # The three corners of the fractal have the colors of their states.
    assert all(((beliefs.argmax(-1) == c) & (np.ptp(beliefs, axis=-1) > 100)).sum() > 500 for c in range(3))


def test_too_few_sequences_are_refused():
    with pytest.raises(InputError, match=r"num_sequences is 1; expected an integer in \[2"):
        describe_process(processes.mess3(0.15, 0.6), num_sequences=1)
