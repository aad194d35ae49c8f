import numpy as np
import pytest
import torch
from composed_examples import driven, given_probability, random_rows

from hmm_datasets.errors import InputError
from hmm_datasets.hmm import processes
from hmm_datasets.hmm.structured.input_output import InputOutputHMM

MODEL = driven(2, 3, 2, seed=3)


@pytest.mark.outside(
    "https://github.com/jmschrei/pomegranate/issues/416",
    "an input-output HMM",
    "`InputOutputHMM`, exact given the inputs",
)
def test_outputs_given_inputs_have_the_law_of_the_definition():
    generator = np.random.default_rng(0)
    inputs = generator.integers(2, size=(4, 6))
    tokens = MODEL.sample_given(inputs[:, :5], seed=1).astype(int)
    found = MODEL.next_token_probs_given(inputs, tokens)
    assert found.shape == (4, 6, 2)
    for row in range(4):
        for t in range(5):
            given, past = tuple(inputs[row, : t + 1]), tuple(tokens[row, :t])
            expected = [given_probability(MODEL, given, (*past, x)) for x in range(2)]
            np.testing.assert_allclose(found[row, t], np.array(expected) / sum(expected), atol=1e-10)
        likelihood = given_probability(MODEL, tuple(inputs[row, :5]), tuple(tokens[row]))
        np.testing.assert_allclose(
            MODEL.log_likelihood_given(inputs[:, :5], tokens)[row], np.log(likelihood), atol=1e-10
        )
    np.testing.assert_array_equal(found[:, :5], MODEL.next_token_probs_given(inputs[:, :5], tokens))


def test_one_input_makes_an_hmm():
    hmm = processes.random(3, 4, seed=2)
    model = InputOutputHMM(transition=[hmm.transition], emission=[hmm.emission], start=hmm.start)
    tokens = hmm.sample(6, 9)
    zeros = np.zeros((6, 9), int)
    np.testing.assert_allclose(model.beliefs_given(zeros, tokens), hmm.beliefs(tokens), atol=1e-12)
    np.testing.assert_allclose(model.log_likelihood_given(zeros, tokens), hmm.log_likelihood(tokens), atol=1e-10)


def test_an_input_that_the_process_never_draws_may_be_given():
    tables = {"transition": [np.eye(2), [[0, 1], [1, 0]]], "emission": [np.eye(2)] * 2, "start": [1, 0]}
    never, even = (InputOutputHMM(**tables, inputs=inputs) for inputs in ([1, 0], [0.5, 0.5]))
    inputs, tokens = [[0, 1, 0]], [[0, 0, 1]]
    for name in ("beliefs_given", "next_token_probs_given", "log_likelihood_given"):
        np.testing.assert_array_equal(getattr(never, name)(inputs, tokens), getattr(even, name)(inputs, tokens))
    assert never.log_likelihood_given(inputs, tokens) == pytest.approx(0, abs=1e-12)
    assert never.log_likelihood([[0, 2, 1, 2]]) == -np.inf


def test_outputs_depend_on_index_and_inputs_alone():
    inputs = np.random.default_rng(1).integers(2, size=(40, 13))
    tokens = MODEL.sample_given(inputs, seed=5, first=7, step=2, num_threads=2)
    for row in (0, 11, 39):
        alone = MODEL.sample_given(inputs[row : row + 1, :6], seed=5, first=7 + 2 * row)[0]
        np.testing.assert_array_equal(tokens[row, :6], alone)


def test_rows_are_inputs_and_outputs_in_turn():
    tokens = MODEL.sample(500, 9, seed=4)
    assert (tokens[:, 0::2] < 2).all()
    assert (tokens[:, 1::2] >= 2).all()
    probs = MODEL.next_token_probs(tokens)
    np.testing.assert_allclose(probs[:, 0::2, :2], np.broadcast_to(MODEL.inputs, (500, 5, 2)), atol=1e-15)
    outputs = MODEL.next_token_probs_given(tokens[:, 0::2], tokens[:, 1::2].astype(int) - 2)
    np.testing.assert_allclose(probs[:, 1::2, 2:], outputs, atol=1e-15)
    beliefs = MODEL.beliefs(tokens)
    np.testing.assert_array_equal(beliefs[:, 0::2, 3:], np.zeros((500, 5, 2)))
    np.testing.assert_allclose(beliefs[:, 1::2, 3:], np.eye(2)[tokens[:, 0::2]], atol=1e-15)
    np.testing.assert_allclose(beliefs[:, 1::2, :3], beliefs[:, 0:9:2, :3], atol=1e-15)


def test_the_entropy_rate_weighs_inputs_and_outputs_equally():
    coin = InputOutputHMM(transition=np.ones((2, 1, 1)), emission=[[[0.5, 0.5]], [[1, 0]]], inputs=[0.25, 0.75])
    of_inputs = -(0.25 * np.log(0.25) + 0.75 * np.log(0.75))
    expected = (of_inputs + 0.25 * np.log(2)) / 2
    rate = coin.entropy_rate(num_sequences=64, length=511, burn_in=3, seed=2)
    assert abs(rate.value - expected) < 4 * rate.standard_error


def test_tensors_are_taken_and_given():
    found = MODEL.next_token_probs_given(torch.tensor([[0, 1]]), torch.tensor([[1]]))
    assert isinstance(found, torch.Tensor)
    assert found.shape == (1, 2, 2)


EDGES = MODEL.edges


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: InputOutputHMM(), "found none"),
        (lambda: InputOutputHMM(edges=EDGES, emission=random_rows(2, 3, 2, seed=0)), "edges= alone"),
        (lambda: InputOutputHMM(transition=[np.eye(2)], emission=[np.eye(2)] * 2), "transition of 1 inputs"),
        (lambda: InputOutputHMM(edges=EDGES * [[[[1.0]]], [[[2.0]]]]), "input 1: edges"),
        (
            lambda: InputOutputHMM(transition=[np.eye(2)] * 2, emission=[np.eye(2), np.ones((2, 1))]),
            "different shapes",
        ),
        (lambda: InputOutputHMM(edges=EDGES, inputs=[1.0]), "inputs has 1 entries; expected 2"),
        (lambda: MODEL.next_token_probs_given([[0, 0, 0]], [[0]]), "as many inputs"),
        (lambda: MODEL.next_token_probs_given([[2]], [[0]]), r"tokens\[0, 0\] is 2"),
    ],
)
def test_what_has_no_inputs_is_refused(make, words):
    with pytest.raises(InputError, match=words):
        make()
