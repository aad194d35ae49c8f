import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from hmm_datasets.errors import InputError
from hmm_datasets.hmm import processes
from hmm_datasets.hmm.families import PermutedEmissions, PermutedSymbols
from hmm_datasets.hmm.sampling.lengths import RandomLengths

BASE = processes.random(3, 4, alpha=0.5, seed=2)
SOURCES = (BASE, processes.mess3(), PermutedEmissions(BASE, 2), PermutedSymbols(BASE))


@given(
    which=st.integers(0, 3),
    stop=st.sampled_from([None, 0.2]),
    seed=st.integers(0, 2**64 - 1),
    first=st.one_of(st.integers(0, 50), st.integers(2**64 - 6, 2**64 - 1)),
    step=st.sampled_from([1, 3, 2**64 - 1]),
)
@settings(max_examples=60, deadline=None, derandomize=True)
def test_a_ragged_sequence_depends_on_source_seed_and_index_alone_and_is_the_plain_one_cut(
    which, stop, seed, first, step
):
    source, lengths = SOURCES[which], RandomLengths(1, 9, stop)
    block = lengths.sample(source, 7, seed, first, step=step)
    for number in range(7):
        index = (first + number * step) % 2**64
        alone = lengths.sample(source, 1, seed, index)
        np.testing.assert_array_equal(block.tokens[number], alone.tokens[0])
        length = block.lengths[number]
        assert length == alone.lengths[0] == lengths.lengths_at(seed, [index])[0]
        plain = source.sample(1, 9, seed=seed, first=index)[0]
        np.testing.assert_array_equal(block.tokens[number, :length], plain[:length])
        assert (block.tokens[number, length:] == source.num_symbols).all()


def test_uniform_lengths_are_uniform():
    observed = np.bincount(RandomLengths(3, 12).lengths_at(5, np.arange(20_000)), minlength=13)
    assert observed[:3].sum() == 0
    assert stats.chisquare(observed[3:]).pvalue > 1e-3


def test_lengths_that_stop_are_geometric_up_to_the_longest():
    observed = np.bincount(RandomLengths(2, 6, stop=0.3).lengths_at(5, np.arange(20_000)), minlength=7)
    distribution = np.array([0, 0, 0.3, 0.7 * 0.3, 0.7**2 * 0.3, 0.7**3 * 0.3, 0.7**4])
    assert observed[:2].sum() == 0
    assert stats.chisquare(observed[2:], 20_000 * distribution[2:]).pvalue > 1e-3
    assert (RandomLengths(2, 6, stop=1.0).lengths_at(5, np.arange(100)) == 2).all()


def test_lengths_do_not_depend_on_the_tokens_nor_on_neighbours():
    coin = processes.random(1, 4, seed=0)
    tokens, lengths = RandomLengths(1, 4).sample(coin, 20_000, seed=3)
    assert stats.chi2_contingency(np.histogram2d(tokens[:, 0], lengths, bins=(4, 4))[0]).pvalue > 1e-3
    assert stats.chi2_contingency(np.histogram2d(lengths[1:], lengths[:-1], bins=(4, 4))[0]).pvalue > 1e-3
    other = RandomLengths(1, 4).lengths_at(4, np.arange(20_000))
    assert stats.chi2_contingency(np.histogram2d(other, lengths, bins=(4, 4))[0]).pvalue > 1e-3


def test_what_is_drawn_never_changes():
    assert RandomLengths(5, 90).lengths_at(7, range(6)).tolist() == [34, 79, 49, 23, 11, 29]
    assert RandomLengths(0, 50, stop=0.1).lengths_at(2**63, range(2**40, 2**40 + 6)).tolist() == [3, 8, 4, 14, 4, 4]


def test_padding_is_chosen_and_fits_the_type():
    assert RandomLengths(1, 3).sample(BASE, 4).tokens.dtype == np.uint8
    tokens, lengths = RandomLengths(1, 3).sample(BASE, 50, padding=300)
    assert tokens.dtype == np.uint16
    assert (tokens[np.arange(3) >= lengths[:, None]] == 300).all()
    tokens, _ = RandomLengths(0, 3).sample(BASE, 50, padding=0)
    assert tokens.max() < 4


def test_padding_changes_no_distribution_before_it():
    tokens, lengths = RandomLengths(2, 8).sample(BASE, 20, seed=4, padding=0)
    whole = BASE.next_token_probs(BASE.sample(20, 8, seed=4))
    for row, length in enumerate(lengths):
        np.testing.assert_array_equal(BASE.next_token_probs(tokens)[row, : length + 1], whole[row, : length + 1])
    np.testing.assert_allclose(
        BASE.log_likelihood(tokens, lengths=lengths),
        [BASE.log_likelihood(tokens[row : row + 1, :length])[0] for row, length in enumerate(lengths)],
        rtol=1e-12,
    )


def test_nothing_can_be_drawn():
    tokens, lengths = RandomLengths(0, 0).sample(BASE, 3)
    assert tokens.shape == (3, 0)
    assert lengths.tolist() == [0, 0, 0]
    assert RandomLengths(1, 2).sample(BASE, 0).tokens.shape == (0, 2)


def test_bad_input_is_reported_in_one_line():
    with pytest.raises(InputError, match="min_length is -1; expected an integer"):
        RandomLengths(-1, 3)
    for shortest, longest in ((4, 3), (0, 1 << 20)):
        with pytest.raises(InputError, match=f"min_length is {shortest}, max_length {longest}; expected 0 <= min_len"):
            RandomLengths(shortest, longest)
    for stop in (0.0, 1.5, float("nan")):
        with pytest.raises(InputError, match="stop is"):
            RandomLengths(1, 2, stop)
    with pytest.raises(InputError, match="padding is -1"):
        RandomLengths(1, 2).sample(BASE, 3, padding=-1)
    with pytest.raises(InputError, match="seed is -1"):
        RandomLengths(1, 2).sample(BASE, 3, seed=-1)
    with pytest.raises(InputError, match="seed is -1"):
        RandomLengths(1, 2).lengths_at(-1, [0])
