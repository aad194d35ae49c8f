import numpy as np
import pytest
from experiments import load

from hmm_datasets.errors import InputError
from hmm_datasets.hmm import processes
from hmm_datasets.hmm.tilted import TiltedHMM

preference_pairs = load("known_optimum", "preferences").preference_pairs
OPTIMUM = TiltedHMM(processes.mess3(0.05, 0.85), [0.0, 0.3, -0.3], 1.0, 16)


@pytest.mark.thorough
def test_the_better_sequence_is_preferred_as_often_as_bradley_and_terry_say():
    pairs = preference_pairs(OPTIMUM, 20_000, seed=3)
    chosen, rejected = (np.array(pairs[f"{name}_ids"]) for name in ("chosen", "rejected"))
    difference = OPTIMUM.reward(chosen) - OPTIMUM.reward(rejected)
    for low, high in ((0.2, 0.6), (0.6, 1.2), (1.2, 2.0), (2.0, 6.0)):
        near = (abs(difference) > low) & (abs(difference) <= high)
        expected = (1 / (1 + np.exp(-abs(difference[near])))).mean()
        error = np.sqrt(expected * (1 - expected) / near.sum())
        assert (difference[near] > 0).mean() == pytest.approx(expected, abs=4.5 * error)


def test_a_pair_depends_on_seed_and_index_alone():
    pairs = preference_pairs(OPTIMUM, 50, seed=1)
    assert preference_pairs(OPTIMUM, 20, seed=1, first=30)[:] == pairs[30:]
    assert preference_pairs(OPTIMUM, 50, seed=2)["chosen_ids"] != pairs["chosen_ids"]


def test_pairs_are_symbols_of_the_length_and_have_no_end():
    pairs = preference_pairs(OPTIMUM, 10)
    assert pairs["prompt_ids"] == [[3]] * 10
    for name in ("chosen", "rejected"):
        tokens = np.array(pairs[f"{name}_ids"])
        assert tokens.shape == (10, 16)
        assert tokens.max() < 3


def test_no_pairs_are_refused():
    with pytest.raises(InputError, match=r"num_pairs is 0; expected an integer in \[1, 2\*\*62\)"):
        preference_pairs(OPTIMUM, 0)
