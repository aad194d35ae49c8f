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
from hmm_datasets.hmm import inference, processes
from hmm_datasets.hmm.model import HMM

# A sum over 3**6 paths and a product of six matrices: some hundred roundings of 1e-16.
EXACT = {"rtol": 1e-11, "atol": 1e-13}
TINY = {
    "dense": HMM(**{**processes.random(3, 3, alpha=0.5, seed=3).tables(), "start": np.array([0.6, 0.3, 0.1])}),
    "left to right": LEFT_TO_RIGHT,
    "one state": HMM(transition=[[1.0]], emission=[[0.2, 0.8]]),
    "mess3": processes.mess3(0.15, 0.6),
    "even": processes.even(0.3),
    "dense edges": random_edges(3, 2, seed=5),
    "sparse edges": random_edges(3, 3, seed=8, zeros=0.6),
}


def all_words(hmm: HMM, length: int) -> np.ndarray:
    words = list(itertools.product(range(hmm.num_symbols), repeat=length))
    return np.array(words).reshape(len(words), length)


tiny = pytest.mark.parametrize("hmm", TINY.values(), ids=TINY)


# Against the sum over all paths


@pytest.mark.thorough
@tiny
@pytest.mark.parametrize("length", [0, 1, 4])
def test_every_word_has_the_likelihood_of_its_paths(hmm, length):
    words = all_words(hmm, length)
    found = hmm.log_likelihood(words)
    np.testing.assert_allclose(found, [brute_force.log_likelihood(hmm, word) for word in words], **EXACT)
    assert np.exp(found).sum() == pytest.approx(1, abs=1e-12)


@pytest.mark.thorough
def test_probabilities_near_the_smallest_number_of_the_type_neither_overflow_nor_vanish():
    # 1 / 2e-43 is infinity in float32, whose smallest number is 1e-45.
    hmm = HMM(transition=[[0.7, 0.3], [0.4, 0.6]], emission=[[1.0, 2e-43], [1.0, 4e-43]])
    words = np.ones((1, 20), int)
    single = {name: getattr(hmm, name)(words, dtype=torch.float32) for name in ("beliefs", "posteriors")}
    for name, found in single.items():
        np.testing.assert_allclose(found, getattr(hmm, name)(words), rtol=0.02)
    found = hmm.log_likelihood(words, dtype=torch.float32)
    np.testing.assert_allclose(found, hmm.log_likelihood(words), rtol=1e-3)


@tiny
def test_beliefs_posteriors_and_next_token_distributions_are_those_of_all_paths(hmm):
    words = all_words(hmm, 3)
    beliefs, posteriors, distributions = hmm.beliefs(words), hmm.posteriors(words), hmm.next_token_probs(words)
    for row, word in enumerate(words):
        np.testing.assert_allclose(beliefs[row], brute_force.beliefs(hmm, word), err_msg=str(word), **EXACT)
        np.testing.assert_allclose(posteriors[row], brute_force.posteriors(hmm, word), err_msg=str(word), **EXACT)
        np.testing.assert_allclose(
            distributions[row], brute_force.next_token_probs(hmm, word), err_msg=str(word), **EXACT
        )


@pytest.mark.thorough
@given(seed=st.integers(0, 10**6), edges=st.booleans(), length=st.integers(1, 5), data=st.data())
@settings(deadline=None, derandomize=True, max_examples=25)
def test_filter_and_smoother_of_random_hmms_agree_with_all_paths(seed, edges, length, data):
    hmm = random_edges(3, 3, seed=seed, zeros=0.3) if edges else processes.random(3, 3, alpha=0.3, seed=seed)
    word = [data.draw(st.integers(0, 2)) for _ in range(length)]
    np.testing.assert_allclose(hmm.beliefs([word])[0], brute_force.beliefs(hmm, word), **EXACT)
    np.testing.assert_allclose(hmm.posteriors([word])[0], brute_force.posteriors(hmm, word), **EXACT)
    np.testing.assert_allclose(hmm.log_likelihood([word])[0], brute_force.log_likelihood(hmm, word), **EXACT)


@pytest.mark.outside(
    "https://github.com/hmmlearn/hmmlearn/issues/171",
    "the next symbol given those observed, without a guess at the hidden state",
    "`next_token_probs` sums over the states: the ratio of two likelihoods",
)
@tiny
def test_a_next_token_distribution_is_the_ratio_of_two_likelihoods(hmm):
    tokens = hmm.sample(5, 40, seed=1).astype(int)
    distributions = hmm.next_token_probs(tokens)
    np.testing.assert_allclose(distributions.sum(-1), 1, atol=1e-12)
    chosen = np.take_along_axis(distributions[:, :-1], tokens[..., None], -1)
    np.testing.assert_allclose(np.log(chosen).sum((1, 2)), hmm.log_likelihood(tokens), rtol=1e-12)


# Ragged, empty, long


@pytest.mark.outside(
    "https://github.com/google-deepmind/distrax/issues/337",
    "posteriors of a padded row, whose length is given, are all zero",
    "they are those of the row without padding",
)
@tiny
def test_ragged_rows_equal_the_rows_by_themselves(hmm):
    tokens = hmm.sample(4, 12, seed=3).astype(int)
    lengths = [12, 5, 1, 0]
    padded = tokens.copy()
    for row, length in enumerate(lengths):
        padded[row, length:] = -7
    scores = hmm.log_likelihood(padded, lengths=lengths)
    beliefs, posteriors = hmm.beliefs(padded, lengths=lengths), hmm.posteriors(padded, lengths=lengths)
    distributions = hmm.next_token_probs(padded, lengths=lengths)
    for row, length in enumerate(lengths):
        alone = tokens[row : row + 1, :length]
        assert scores[row] == pytest.approx(hmm.log_likelihood(alone)[0], abs=1e-12)
        np.testing.assert_allclose(beliefs[row, : length + 1], hmm.beliefs(alone)[0], **EXACT)
        np.testing.assert_allclose(distributions[row, : length + 1], hmm.next_token_probs(alone)[0], **EXACT)
        np.testing.assert_allclose(posteriors[row, :length], hmm.posteriors(alone)[0], **EXACT)
        assert (posteriors[row, length:] == 0).all()
        assert (beliefs[row, length:] == beliefs[row, length]).all(), "the last belief stays"


@tiny
def test_no_tokens_leave_the_start_distribution(hmm):
    none = np.zeros((2, 0), dtype=int)
    assert hmm.log_likelihood(none).tolist() == [0, 0]
    np.testing.assert_array_equal(hmm.beliefs(none), np.tile(hmm.start, (2, 1, 1)))
    np.testing.assert_allclose(hmm.next_token_probs(none)[0, 0], hmm.start @ hmm.emission, rtol=1e-15)
    assert hmm.posteriors(none).shape == (2, 0, hmm.num_states)
    assert hmm.log_likelihood(np.zeros((0, 4), int)).shape == (0,)


def log_space_likelihood(hmm: HMM, word) -> float:
    """The forward recursion in logarithms, unscaled."""
    with np.errstate(divide="ignore"):
        log_start, log_edges = np.log(hmm.start), np.log(hmm.parameters().edges.numpy())
    alpha = log_start
    for symbol in word:
        alpha = np.logaddexp.reduce(alpha[:, None] + log_edges[symbol], axis=0)
    return float(np.logaddexp.reduce(alpha))


# 10,000 logarithms of some 1.0, each right to the type's precision, summed in float64.
@pytest.mark.thorough
@pytest.mark.parametrize(("dtype", "rtol", "atol"), [(torch.float64, 1e-12, 1e-9), (torch.float32, 1e-6, 2e-5)])
def test_ten_thousand_tokens_do_not_underflow(dtype, rtol, atol):
    hmm = processes.mess3(0.15, 0.6)
    tokens = hmm.sample(2, 10_000, seed=6)
    found = hmm.log_likelihood(tokens, dtype=dtype)
    expected = [log_space_likelihood(hmm, word) for word in tokens]
    assert (found < math.log(5e-324)).all(), "too short to underflow"
    np.testing.assert_allclose(found, expected, rtol=rtol)
    for values in (hmm.beliefs(tokens, dtype=dtype), hmm.posteriors(tokens, dtype=dtype)):
        np.testing.assert_allclose(values.sum(-1), 1, atol=atol)


@pytest.mark.thorough
def test_float32_agrees_with_float64_to_its_precision():
    hmm = processes.random(20, 30, alpha=0.5, seed=4)
    tokens = hmm.sample(8, 1000, seed=7)
    single, double = hmm.log_likelihood(tokens, dtype=torch.float32), hmm.log_likelihood(tokens)
    assert single.dtype == np.float32
    assert double.dtype == np.float64
    np.testing.assert_allclose(single, double, rtol=1e-5)
    np.testing.assert_allclose(hmm.posteriors(tokens, dtype=torch.float32), hmm.posteriors(tokens), atol=1e-4)
    distributions = hmm.next_token_probs(tokens, dtype=torch.float32)
    np.testing.assert_allclose(distributions, hmm.next_token_probs(tokens), atol=1e-5)


# Impossible sequences


@pytest.mark.parametrize(
    ("hmm", "word", "possible"),
    [
        (processes.golden_mean(), [1, 0, 0, 1, 1], 2),
        (processes.even(), [0, 1, 0, 1, 1], 2),
        (LEFT_TO_RIGHT, [2, 0, 1, 0, 0], 0),
        (LEFT_TO_RIGHT, [0, 1, 2, 0, 1], 4),
    ],
)
def test_an_impossible_sequence_has_likelihood_zero_and_no_nan(hmm, word, possible):
    assert brute_force.likelihood(hmm, word[:possible]) > 0
    assert brute_force.likelihood(hmm, word[: possible + 1]) == 0
    tokens = [word, word]
    assert hmm.log_likelihood(tokens).tolist() == [-np.inf] * 2
    beliefs, distributions = hmm.beliefs(tokens)[0], hmm.next_token_probs(tokens)[0]
    np.testing.assert_allclose(beliefs[: possible + 1], brute_force.beliefs(hmm, word[:possible]), **EXACT)
    np.testing.assert_allclose(distributions[: possible + 1].sum(-1), 1, atol=1e-12)
    assert (beliefs[possible + 1 :] == 0).all()
    assert (distributions[possible + 1 :] == 0).all()
    assert (hmm.posteriors(tokens) == 0).all()
    # It does not spoil its neighbours.
    good = hmm.sample(1, len(word), seed=0)[0].tolist()
    assert hmm.log_likelihood([word, good])[1] == pytest.approx(hmm.log_likelihood([good])[0], abs=1e-12)


@pytest.mark.thorough
@pytest.mark.parametrize("length", [500, 5000])
def test_states_that_the_past_rules_out_leave_no_nan_however_well_they_explain_the_rest(length):
    # Two chains that never meet, begun in the one that gives these tokens e^-2.2 times the other's chance, each.
    hmm = HMM(start=[1, 0], transition=np.eye(2), emission=[[0.9, 0.1], [0.1, 0.9]])
    tokens = np.ones((2, length), dtype=int)
    np.testing.assert_allclose(hmm.log_likelihood(tokens), length * math.log(0.1), rtol=1e-12)
    np.testing.assert_allclose(hmm.posteriors(tokens), np.tile([1.0, 0.0], (2, length, 1)), atol=1e-9)


# Arrays and tensors


@tiny
def test_tensors_come_back_as_tensors_and_arrays_as_arrays(hmm):
    array = hmm.sample(3, 6, seed=0)
    tensor = torch.from_numpy(array.astype(np.int64))
    for name in ("log_likelihood", "beliefs", "next_token_probs", "posteriors"):
        from_array, from_tensor = getattr(hmm, name)(array), getattr(hmm, name)(tensor)
        assert isinstance(from_array, np.ndarray)
        assert isinstance(from_tensor, torch.Tensor)
        assert from_tensor.dtype == torch.float64
        np.testing.assert_array_equal(from_tensor.numpy(), from_array)
        np.testing.assert_array_equal(getattr(hmm, name)(array.tolist()), from_array)
        np.testing.assert_array_equal(getattr(hmm, name)(tensor.to(torch.uint8)).numpy(), from_array)


def test_the_filter_continues_from_given_beliefs():
    hmm = processes.mess3(0.15, 0.6)
    tokens = torch.from_numpy(hmm.sample(3, 20, seed=1).astype(np.int64))
    whole = inference.forward_filter(hmm.parameters(), tokens)
    first = inference.forward_filter(hmm.parameters(), tokens[:, :8])
    rest = inference.forward_filter(hmm.parameters(), tokens[:, 8:], initial=first.beliefs[:, -1])
    torch.testing.assert_close(rest.beliefs, whole.beliefs[:, 8:], rtol=0, atol=0)
    torch.testing.assert_close(rest.log_scale, whole.log_scale[:, 8:], rtol=0, atol=0)


def test_a_step_on_edges_is_the_same_however_few_rows_fit_in_memory(monkeypatch):
    hmm = random_edges(4, 3, seed=2)
    tokens = hmm.sample(7, 9, seed=1)
    beliefs, posteriors = hmm.beliefs(tokens), hmm.posteriors(tokens)
    monkeypatch.setattr(inference, "_WORK_BYTES", 2 * hmm.edges[0].nbytes)
    np.testing.assert_array_equal(hmm.beliefs(tokens), beliefs)
    np.testing.assert_array_equal(hmm.posteriors(tokens), posteriors)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_gpu_gives_the_same():
    hmm = processes.mess3(0.15, 0.6)
    tokens = torch.from_numpy(hmm.sample(3, 50, seed=1).astype(np.int64))
    gaps = tokens.index_fill(1, torch.tensor([3, 7, 8]), -1)
    for some, name in itertools.product((tokens, gaps), ("log_likelihood", "beliefs", "posteriors")):
        found = getattr(hmm, name)(some.cuda())
        assert found.is_cuda
        torch.testing.assert_close(found.cpu(), getattr(hmm, name)(some), rtol=1e-10, atol=1e-12)


# Errors


@pytest.mark.parametrize(
    ("tokens", "lengths", "message"),
    [
        ([[0, 1, 2], [0, 3, 0]], None, "tokens[1, 1] is 3; the symbols of this HMM are 0..2"),
        ([[0, -2]], None, "tokens[0, 1] is -2; the symbols of this HMM are 0..2, and -1 stands for a missing token"),
        ([[0, 3]], [2], "tokens[0, 1] is 3"),
        ([0, 1], None, "tokens have shape (2,); expected (B, T)"),
        ([[0, 1], [2]], None, "tokens are ragged; expected a (B, T) array, padded, with lengths="),
        ([[0.0, 1.0]], None, "tokens have type float64; expected integers"),
        (torch.zeros(1, 2), None, "tokens have type float32; expected integers; convert them with .astype(int)"),
        ([[0, 1]], [3], "lengths[0] is 3; expected 0..2"),
        ([[0, 1], [0, 1]], [2, -1], "lengths[1] is -1; expected 0..2"),
        ([[0, 1]], [1, 1], "shape (2,); expected integers, one for each of the 1 rows"),
        (
            [[0, 1]],
            [1.5],
            "lengths have type float64; expected integers, one for each of the 1 rows; lengths[0] is 1.5",
        ),
    ],
)
def test_tokens_that_are_none_are_refused_by_place(tokens, lengths, message):
    hmm = processes.mess3(0.15, 0.6)
    for name in ("log_likelihood", "beliefs", "posteriors", "next_token_probs"):
        with pytest.raises(InputError) as caught:
            getattr(hmm, name)(tokens, lengths=lengths)
        assert message in str(caught.value)
        assert "\n" not in str(caught.value)
