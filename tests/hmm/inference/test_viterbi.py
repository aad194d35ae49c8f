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


def check_paths(hmm: HMM, word, k: int, states, log_probability) -> None:
    """The `k` best of all paths: their probabilities, in order, and paths that are worth them, all different."""
    paths = brute_force.emitting_path_probabilities(hmm, word)
    best = sorted((p for p in paths.values() if p > 0), reverse=True)[:k]
    np.testing.assert_allclose(log_probability[: len(best)], np.log(best), rtol=1e-11, atol=1e-11)
    assert (log_probability[len(best) :] == -np.inf).all()
    assert (states[len(best) :] == 0).all()
    found = [tuple(path) for path in states[: len(best)].tolist()]
    assert len(set(found)) == len(found)
    # Paths may tie: the ones found have to be as good as the best.
    np.testing.assert_allclose([paths[path] for path in found], best, rtol=1e-11)


@tiny
@pytest.mark.parametrize("k", [1, 2, 5, 81, 100])
def test_the_k_best_paths_are_the_best_of_all(hmm, k):
    words = np.array(list(itertools.product(range(hmm.num_symbols), repeat=4)))
    states, log_probability = hmm.viterbi_k_best(words, k)
    assert states.shape == (len(words), k, 4)
    assert log_probability.shape == (len(words), k)
    for row, word in enumerate(words):
        check_paths(hmm, word, k, states[row], log_probability[row])


@given(seed=st.integers(0, 10**6), edges=st.booleans(), length=st.integers(1, 5), k=st.integers(1, 12))
@settings(deadline=None, derandomize=True, max_examples=25)
def test_the_k_best_paths_of_random_hmms_are_the_best_of_all(seed, edges, length, k):
    hmm = random_edges(3, 3, seed=seed, zeros=0.3) if edges else processes.random(3, 3, alpha=0.3, seed=seed)
    words = hmm.sample(2, length, seed=seed)
    states, log_probability = hmm.viterbi_k_best(words, k)
    for row, word in enumerate(words.tolist()):
        check_paths(hmm, word, k, states[row], log_probability[row])


@tiny
def test_viterbi_is_the_first_of_the_k_best(hmm):
    tokens = hmm.sample(5, 20, seed=1)
    path, paths = hmm.viterbi(tokens), hmm.viterbi_k_best(tokens, 3)
    assert path.states.shape == tokens.shape
    np.testing.assert_array_equal(path.states, paths.states[:, 0])
    np.testing.assert_array_equal(path.log_probability, paths.log_probability[:, 0])


def test_of_paths_that_tie_the_one_whose_last_differing_state_is_lower_comes_first():
    hmm = HMM(start=np.full(3, 1 / 3), transition=np.full((3, 3), 1 / 3), emission=np.full((3, 2), 0.5))
    everything = sorted(itertools.product(range(3), repeat=4), key=lambda path: path[::-1])
    states = hmm.viterbi_k_best([[0, 1, 1, 0]], 81).states[0]
    assert [tuple(path) for path in states.tolist()] == everything
    assert (hmm.viterbi([[0, 1, 1, 0]]).states == 0).all()


@tiny
def test_ragged_rows_have_the_paths_of_the_rows_by_themselves(hmm):
    tokens = hmm.sample(5, 9, seed=3).astype(int)
    lengths = [9, 5, 1, 0, 9]
    padded = tokens.copy()
    for row, length in enumerate(lengths):
        padded[row, length:] = -7
    paths = hmm.viterbi_k_best(padded, 4, lengths=lengths)
    path = hmm.viterbi(padded, lengths=lengths)
    for row, length in enumerate(lengths):
        alone = hmm.viterbi_k_best(tokens[row : row + 1, :length], 4)
        np.testing.assert_array_equal(paths.states[row, :, :length], alone.states[0])
        assert (paths.states[row, :, length:] == 0).all()
        np.testing.assert_allclose(paths.log_probability[row], alone.log_probability[0], rtol=1e-13, atol=1e-13)
        np.testing.assert_array_equal(path.states[row], paths.states[row, 0])


def test_no_tokens_have_one_path():
    hmm = processes.mess3(0.15, 0.6)
    none = np.zeros((2, 0), dtype=int)
    assert hmm.viterbi(none).states.shape == (2, 0)
    assert hmm.viterbi(none).log_probability.tolist() == [0, 0]
    paths = hmm.viterbi_k_best(none, 2)
    assert paths.states.shape == (2, 2, 0)
    assert paths.log_probability.tolist() == [[0, -math.inf]] * 2
    assert hmm.viterbi_k_best([[1]], 2, lengths=[0]).log_probability.tolist() == [[0, -math.inf]]


@pytest.mark.parametrize(("hmm", "word"), [(processes.golden_mean(), [1, 0, 0, 1]), (LEFT_TO_RIGHT, [0, 1, 2, 0, 1])])
def test_an_impossible_sequence_has_no_path_and_spoils_no_neighbour(hmm, word):
    good = hmm.sample(1, len(word), seed=0)[0].tolist()
    paths = hmm.viterbi_k_best([word, good], 2)
    assert paths.log_probability[0].tolist() == [-math.inf] * 2
    assert (paths.states[0] == 0).all()
    check_paths(hmm, good, 2, paths.states[1], paths.log_probability[1])


def score(hmm: HMM, states, word) -> float:
    """`log P(states, tokens)`, term by term."""
    steps = np.log(hmm.transition[states[:-1], states[1:]])
    return math.fsum([math.log(hmm.start[states[0]]), *steps, *np.log(hmm.emission[states, word])])


@pytest.mark.launch
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


@pytest.mark.parametrize("hmm", [processes.random(6, 4, alpha=0.5, seed=1), random_edges(6, 4, seed=1)])
def test_paths_do_not_depend_on_how_many_rows_fit_in_memory(hmm, monkeypatch):
    tokens = hmm.sample(11, 15, seed=2)
    whole = hmm.viterbi_k_best(tokens, 3)
    monkeypatch.setattr(viterbi, "_CACHE_BYTES", 2 * 6 * 6 * 3 * 8)
    monkeypatch.setattr(viterbi, "_VITERBI_BYTES", 4 * 6 * 3 * 3 * 8)
    parts = hmm.viterbi_k_best(tokens, 3)
    np.testing.assert_array_equal(parts.states, whole.states)
    np.testing.assert_array_equal(parts.log_probability, whole.log_probability)


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


@pytest.mark.parametrize("name", ["viterbi", "viterbi_k_best"])
def test_tensors_come_back_as_tensors_and_arrays_as_arrays(name):
    hmm = processes.mess3(0.15, 0.6)
    array = hmm.sample(3, 6, seed=0)
    more = (2,) if name == "viterbi_k_best" else ()
    from_array = getattr(hmm, name)(array, *more)
    from_tensor = getattr(hmm, name)(torch.from_numpy(array.astype(np.int64)), *more)
    assert isinstance(from_array.states, np.ndarray)
    assert isinstance(from_tensor.states, torch.Tensor)
    np.testing.assert_array_equal(from_tensor.states.numpy(), from_array.states)


@pytest.mark.parametrize("k", [0, -1, 1.5, None])
def test_a_k_that_is_not_a_positive_integer_is_refused(k):
    with pytest.raises(InputError, match=r"k is .*; expected an integer in \[1"):
        processes.mess3(0.15, 0.6).viterbi_k_best([[0, 1]], k)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_gpu_finds_the_same_paths():
    for hmm in (processes.random(20, 10, alpha=0.3, seed=1), random_edges(5, 4, seed=2)):
        tokens = torch.from_numpy(hmm.sample(6, 50, seed=1).astype(np.int64))
        lengths = torch.tensor([50, 1, 0, 30, 50, 7])
        here, there = (hmm.viterbi_k_best(x, 3, lengths=lengths) for x in (tokens, tokens.cuda()))
        assert there.states.is_cuda
        torch.testing.assert_close(there.states.cpu(), here.states, rtol=0, atol=0)
        torch.testing.assert_close(there.log_probability.cpu(), here.log_probability, rtol=1e-11, atol=1e-11)
