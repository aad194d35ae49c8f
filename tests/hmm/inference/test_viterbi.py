import itertools
import math

import brute_force
import numpy as np
import pytest
import torch
from brute_force import LEFT_TO_RIGHT, random_edges
from hypothesis import given, settings
from hypothesis import strategies as st

from hmm_datasets.errors import InputError
from hmm_datasets.hmm import processes, viterbi
from hmm_datasets.hmm.model import HMM

TINY = {
    "dense": processes.random(3, 3, alpha=0.5, seed=3),
    "left to right": LEFT_TO_RIGHT,
    "starts in the last state": HMM(
        start=[0, 0, 1],
        transition=[[0.5, 0.5, 0], [0, 0.5, 0.5], [0.4, 0, 0.6]],
        emission=[[1, 0], [0, 1], [0.3, 0.7]],
    ),
    "one state": HMM(transition=[[1.0]], emission=[[0.2, 0.8]]),
    "even": processes.even(0.3),
    "dense edges": random_edges(3, 2, seed=5),
    "sparse edges": random_edges(3, 3, seed=8, zeros=0.6),
}
tiny = pytest.mark.parametrize("hmm", TINY.values(), ids=TINY)


def check_path(hmm: HMM, word, states, log_probability) -> None:
    """The greatest probability of all paths, and a path that has it."""
    paths = brute_force.emitting_path_probabilities(hmm, word)
    best = max(paths.values())
    np.testing.assert_allclose(log_probability, np.log(best) if best > 0 else -np.inf, rtol=1e-11, atol=1e-11)
    if best > 0:  # paths may tie
        np.testing.assert_allclose(paths[tuple(states.tolist())], best, rtol=1e-11)
    else:
        assert (states == 0).all()


@pytest.mark.thorough
@tiny
def test_the_path_is_the_best_of_all(hmm):
    words = np.array(list(itertools.product(range(hmm.num_symbols), repeat=4)))
    states, log_probability = hmm.viterbi(words)
    assert states.shape == words.shape
    assert log_probability.shape == (len(words),)
    for row, word in enumerate(words):
        check_path(hmm, word, states[row], log_probability[row])


@given(seed=st.integers(0, 10**6), edges=st.booleans(), length=st.integers(1, 5))
@settings(deadline=None, derandomize=True, max_examples=25)
def test_the_path_of_random_hmms_is_the_best_of_all(seed, edges, length):
    hmm = random_edges(3, 3, seed=seed, zeros=0.3) if edges else processes.random(3, 3, alpha=0.3, seed=seed)
    words = hmm.sample(2, length, seed=seed)
    states, log_probability = hmm.viterbi(words)
    for row, word in enumerate(words.tolist()):
        check_path(hmm, word, states[row], log_probability[row])


def test_of_paths_that_tie_it_is_the_one_whose_last_differing_state_is_lower():
    hmm = HMM(start=np.full(3, 1 / 3), transition=np.full((3, 3), 1 / 3), emission=np.full((3, 2), 0.5))
    assert (hmm.viterbi([[0, 1, 1, 0]]).states == 0).all()
    moves = [[0, 0.5, 0.5], [0, 0.5, 0.5], [0, 0, 1]]
    assert HMM(start=[0.5, 0.5, 0], transition=moves, emission=[[1.0]] * 3).viterbi([[0, 0]]).states.tolist() == [
        [0, 1]
    ]


@pytest.mark.outside(
    "https://github.com/kmkurn/pytorch-crf/pull/16",
    "Viterbi of a batch of rows of several lengths, which has to give the path of each row by itself",
    "it does, and states beyond the end of a row are 0",
)
@tiny
def test_ragged_rows_have_the_paths_of_the_rows_by_themselves(hmm):
    tokens = hmm.sample(5, 9, seed=3).astype(int)
    lengths = [9, 5, 1, 0, 9]
    padded = tokens.copy()
    for row, length in enumerate(lengths):
        padded[row, length:] = -7
    path = hmm.viterbi(padded, lengths=lengths)
    for row, length in enumerate(lengths):
        alone = hmm.viterbi(tokens[row : row + 1, :length])
        np.testing.assert_array_equal(path.states[row, :length], alone.states[0])
        assert (path.states[row, length:] == 0).all()
        np.testing.assert_allclose(path.log_probability[row], alone.log_probability[0], rtol=1e-13, atol=1e-13)


def test_no_tokens_have_one_path():
    hmm = processes.mess3(0.15, 0.6)
    none = np.zeros((2, 0), dtype=int)
    assert hmm.viterbi(none).states.shape == (2, 0)
    assert hmm.viterbi(none).log_probability.tolist() == [0, 0]
    assert hmm.viterbi([[1]], lengths=[0]).log_probability.tolist() == [0]


@pytest.mark.outside(
    "https://github.com/CPJKU/madmom/issues/100",
    "Viterbi of observations that no path emits, which hangs",
    "`viterbi` returns state 0 throughout and -inf",
)
@pytest.mark.parametrize(("hmm", "word"), [(processes.golden_mean(), [1, 0, 0, 1]), (LEFT_TO_RIGHT, [0, 1, 2, 0, 1])])
def test_an_impossible_sequence_has_no_path_and_spoils_no_neighbour(hmm, word):
    good = hmm.sample(1, len(word), seed=0)[0].tolist()
    path = hmm.viterbi([word, good])
    assert path.log_probability[0] == -math.inf
    assert (path.states[0] == 0).all()
    check_path(hmm, good, path.states[1], path.log_probability[1])


def score(hmm: HMM, states, word) -> float:
    """`log P(states, tokens)`, term by term."""
    steps = np.log(hmm.transition[states[:-1], states[1:]])
    return math.fsum([math.log(hmm.start[states[0]]), *steps, *np.log(hmm.emission[states, word])])


@pytest.mark.outside(
    "https://github.com/hmmlearn/hmmlearn/issues/394",
    "log-probabilities of paths that differ from the sum of the logarithms along them",
    "those of `viterbi` are these sums to 1e-12, over ten thousand tokens",
)
@pytest.mark.thorough
def test_the_best_path_over_ten_thousand_tokens_is_the_same_in_float32():
    hmm = processes.random(4, 3, alpha=0.5, seed=4)
    tokens = hmm.sample(2, 10_000, seed=6)
    double, single = hmm.viterbi(tokens), hmm.viterbi(tokens, dtype=torch.float32)
    assert single.log_probability.dtype == np.float32
    for row, word in enumerate(tokens):
        best = score(hmm, double.states[row], word)
        assert double.log_probability[row] == pytest.approx(best, rel=1e-12)
        # Ways that differ by less than float32 resolves may be exchanged; offsets keep that from growing with length.
        assert score(hmm, single.states[row], word) == pytest.approx(best, abs=1e-3)
        assert single.log_probability[row] == pytest.approx(best, rel=1e-6)


@pytest.mark.outside(
    "https://github.com/mlpack/mlpack/issues/160",
    "Predict() on long sequences, whose probabilities become 0 and then always state 0",
    "`viterbi` computes in logarithms near 0: 401 tokens of which the last decides a path of 1e-802",
)
def test_a_path_that_is_improbable_until_the_last_token_is_found():
    """After 400 tokens the one state that explains the last is as likely as 1e-800 of the other."""
    hmm = HMM(start=[0.5, 0.5], transition=np.eye(2), emission=[[0.99, 0.01, 0], [0.01, 0.98, 0.01]])
    path = hmm.viterbi([[0] * 400 + [2]])
    assert path.states.tolist() == [[1] * 401]
    assert path.log_probability[0] == pytest.approx(math.log(0.5) + 401 * math.log(0.01))


@pytest.mark.outside(
    "https://github.com/jmschrei/pomegranate/issues/970",
    "the most likely path of a sequence with many NaN, where -inf and no path came back",
    "`viterbi` has a state for each position and a finite log-probability with nine tenths of the tokens missing",
)
def test_a_row_of_which_most_is_missing_has_a_path():
    hmm = processes.random(3, 4, alpha=0.3, seed=1)
    tokens = hmm.sample(2, 200, seed=1).astype(float)
    tokens[np.random.default_rng(0).random(tokens.shape) < 0.9] = np.nan
    found, likelihood = hmm.viterbi(tokens), hmm.log_likelihood(tokens)
    assert found.states.shape == (2, 200)
    assert (found.log_probability < likelihood).all()
    for row, states, total in zip(tokens, found.states, found.log_probability, strict=True):
        shown = ~np.isnan(row)
        emitted = hmm.emission[states[shown], row[shown].astype(int)]
        moves = hmm.transition[states[:-1], states[1:]]
        assert total == pytest.approx(math.log(hmm.start[states[0]]) + np.log(moves).sum() + np.log(emitted).sum())


def test_tensors_come_back_as_tensors_and_arrays_as_arrays():
    hmm = processes.mess3(0.15, 0.6)
    array = hmm.sample(3, 6, seed=0)
    from_array = hmm.viterbi(array)
    from_tensor = hmm.viterbi(torch.from_numpy(array.astype(np.int64)))
    assert isinstance(from_array.states, np.ndarray)
    assert isinstance(from_tensor.states, torch.Tensor)
    np.testing.assert_array_equal(from_tensor.states.numpy(), from_array.states)


def test_more_states_than_two_bytes_hold_are_refused(monkeypatch):
    monkeypatch.setattr(viterbi, "MAX_STATES", 2)
    with pytest.raises(InputError, match=r"^viterbi of an HMM of 3 states; expected at most 2$"):
        processes.mess3().viterbi([[0]])


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_gpu_finds_the_same_paths():
    for hmm in (processes.random(20, 10, alpha=0.3, seed=1), random_edges(5, 4, seed=2)):
        tokens = torch.from_numpy(hmm.sample(6, 50, seed=1).astype(np.int64))
        lengths = torch.tensor([50, 1, 0, 30, 50, 7])
        here, there = (hmm.viterbi(x, lengths=lengths) for x in (tokens, tokens.cuda()))
        assert there.states.is_cuda
        torch.testing.assert_close(there.states.cpu(), here.states, rtol=0, atol=0)
        torch.testing.assert_close(there.log_probability.cpu(), here.log_probability, rtol=1e-11, atol=1e-11)
