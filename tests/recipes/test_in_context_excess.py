"""The excess of a predictor over the oracle."""

import numpy as np
import torch
from experiments import load

from hmm_datasets.hmm.families.mixture import ChainMixture

measure = load("nonergodic", "measure")

CYCLES = ChainMixture([np.roll(np.eye(3), 1, axis=1), np.roll(np.eye(3), 2, axis=1)])


def test_a_predictor_that_excludes_a_token_has_an_infinite_excess():
    excess = measure.excess_by_position(CYCLES, 8, 4, predictor=lambda tokens: torch.eye(3)[(tokens + 1) % 3])
    assert np.isinf(excess).all()


def test_a_token_that_oracle_and_predictor_exclude_adds_nothing_to_the_excess():
    np.testing.assert_allclose(measure.excess_by_position(CYCLES, 8, 4), [[0, np.log(2), 0, 0]] * 8, atol=1e-12)
