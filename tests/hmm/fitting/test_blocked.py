"""Fitting HMMs of blocks, and growing them from smaller ones."""

import numpy as np
import pytest

from hmm_datasets import HMM, fit_hmm
from hmm_datasets.errors import InputError
from hmm_datasets.hmm.fitting.growth import blocks_of, grown
from hmm_datasets.hmm.structured.blocked import BlockedHMM

GENERATOR = np.random.default_rng(7)
TRUTH = HMM(transition=GENERATOR.dirichlet(np.full(6, 0.3), 6), emission=GENERATOR.dirichlet(np.full(12, 0.2), 6))
TOKENS, HELD_OUT = TRUTH.sample(200, 40, seed=1), TRUTH.sample(80, 40, seed=2)
BLOCKS = blocks_of(TRUTH)
GUESS = grown(BLOCKS, block_size=3, rank=8)
QUIET = {"show_progress": False, "pseudocount": 0.01}


def test_each_symbol_is_in_the_block_of_the_state_that_emits_it_most():
    often = TRUTH.stationary()[:, None] * TRUTH.emission
    for symbol, block in enumerate(BLOCKS.blocks):
        others = np.flatnonzero(BLOCKS.blocks == block)
        assert (often[:, others].argmax(0) == often[:, symbol].argmax()).all()
    assert BLOCKS.rank == BLOCKS.num_states == BLOCKS.num_blocks == len(np.unique(often.argmax(0)))
    never = HMM(transition=[[0.5, 0.5]] * 2, emission=[[0.5, 0.5, 0], [0, 1, 0]])
    assert (blocks_of(never).emission > 0).all(), "a symbol that does not occur may occur in what it is fitted to"


@pytest.mark.thorough
@pytest.mark.parametrize(("block_size", "rank"), [(1, 6), (2, 6), (3, 9), (5, 17)])
def test_what_is_split_has_the_distribution_of_what_it_was_but_for_the_factors(monkeypatch, block_size, rank):
    monkeypatch.setattr("hmm_datasets.hmm.fitting.growth._SPREAD", 0.0)
    for start in (BLOCKS, grown(BLOCKS, block_size=1, rank=6)):
        larger = grown(start, block_size=block_size, rank=rank)
        assert (larger.block_size, larger.rank) == (block_size, rank)
        np.testing.assert_allclose(larger.log_likelihood(TOKENS[:20]), start.log_likelihood(TOKENS[:20]), rtol=1e-12)


def test_parts_differ_and_depend_on_the_seed():
    assert not np.allclose(GUESS.emission[:, 0], GUESS.emission[:, 1])
    assert not np.allclose(GUESS.leave[0], GUESS.leave[1])
    assert grown(BLOCKS, block_size=3, rank=8).fingerprint() == GUESS.fingerprint()
    assert grown(BLOCKS, block_size=3, rank=8, seed=1).fingerprint() != GUESS.fingerprint()
    np.testing.assert_array_equal(grown(BLOCKS, rank=8).emission, BLOCKS.emission)


@pytest.mark.thorough
def test_no_epoch_lowers_the_objective_and_the_fit_is_better_than_the_smaller_one():
    result = fit_hmm(TOKENS, initial=GUESS, test_tokens=HELD_OUT, max_epochs=15, dtype="float64", tolerance=0, **QUIET)
    objective = [row["objective"] for row in result.history]
    assert (np.diff(objective) >= -1e-12).all()
    assert isinstance(result.hmm, BlockedHMM)
    smaller = fit_hmm(TOKENS, initial=BLOCKS, test_tokens=HELD_OUT, max_epochs=15, **QUIET)
    assert result.test_log_likelihood > smaller.test_log_likelihood
    assert result.num_parameters == 7 + 8 * (GUESS.num_states - 1) + GUESS.num_states * 7 + 3 * (12 - GUESS.num_blocks)


@pytest.mark.thorough
@pytest.mark.parametrize("update_every", [None, 2])
def test_a_fit_that_stopped_goes_on_as_if_it_had_not(tmp_path, update_every):
    settings = {"initial": GUESS, "update_every": update_every, "batch_size": 60, "test_tokens": HELD_OUT} | QUIET
    whole = fit_hmm(TOKENS, max_epochs=4, **settings)
    fit_hmm(TOKENS, max_epochs=2, checkpoint_dir=tmp_path, **settings)
    resumed = fit_hmm(TOKENS, max_epochs=4, checkpoint_dir=tmp_path, **settings)
    assert resumed.hmm.fingerprint() == whole.hmm.fingerprint()
    assert len(resumed.history) == 4


def test_tables_that_are_fixed_and_zeros_stay():
    start = np.where(np.arange(8) == 0, 1.0, 0.0)
    held = GUESS.with_tables({**GUESS.tables(), "start": start})
    result = fit_hmm(TOKENS, initial=held, fixed=["transition"], max_epochs=2, **QUIET)
    np.testing.assert_array_equal(result.hmm.enter, GUESS.enter)
    np.testing.assert_array_equal(result.hmm.leave, GUESS.leave)
    np.testing.assert_array_equal(result.hmm.start, start)
    assert not np.allclose(result.hmm.emission, GUESS.emission)


def test_what_such_a_fit_does_not_take_is_refused():
    for options, words in (
        ({"num_restarts": 2}, "with which num_restarts is 1"),
        ({"states": np.zeros(TOKENS.shape, int)}, "states are given, but initial is BlockedHMM"),
        ({"num_states": 5}, "expected a state-emitting HMM of 5 states"),
    ):
        with pytest.raises(InputError, match=words):
            fit_hmm(TOKENS, initial=GUESS, **QUIET, **options)
    with pytest.raises(InputError, match="rank is 2; expected at least 8"):
        grown(GUESS, rank=2)
    edges = HMM(edges=np.full((2, 2, 2), 0.25))
    with pytest.raises(InputError, match="expected a state-emitting one"):
        blocks_of(edges)
