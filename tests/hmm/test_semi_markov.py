import numpy as np
import pytest
from composed_examples import random_rows

from hmm_datasets import HMM
from hmm_datasets.errors import InputError
from hmm_datasets.hmm.structured.semi_markov import SemiMarkov

STATES, LONGEST = 4, 6
TRANSITION = random_rows(STATES, STATES, seed=1) * (1 - np.eye(STATES))
TRANSITION /= TRANSITION.sum(axis=1, keepdims=True)
DURATION, EMISSION = random_rows(STATES, LONGEST, seed=2), random_rows(STATES, 3, seed=3)


@pytest.mark.outside(
    "https://github.com/probml/dynamax/issues/21",
    "hidden semi-Markov models",
    "`SemiMarkov`, with explicit durations and an exact optimum",
)
@pytest.mark.parametrize("start", [None, random_rows(1, 4, seed=4)[0], random_rows(1, 24, seed=4).reshape(4, 6)])
def test_the_structured_filter_agrees_with_the_dense_hmm(start):
    model, dense = (
        SemiMarkov(DURATION, TRANSITION, EMISSION, start),
        SemiMarkov(DURATION, TRANSITION, EMISSION, start).to_hmm(),
    )
    assert dense.num_states == 24
    tokens = model.sample(20, 40, seed=5)
    np.testing.assert_allclose(model.beliefs(tokens), dense.beliefs(tokens), atol=1e-10)
    np.testing.assert_allclose(model.next_token_probs(tokens), dense.next_token_probs(tokens), atol=1e-10)
    np.testing.assert_allclose(model.log_likelihood(tokens), dense.log_likelihood(tokens), atol=1e-10)


def test_the_stationary_start_is_that_of_the_dense_hmm():
    model = SemiMarkov(DURATION, TRANSITION, EMISSION)
    dense = model.to_hmm()
    np.testing.assert_allclose(model.start.reshape(-1) @ dense.transition, model.start.reshape(-1), atol=1e-13)
    np.testing.assert_allclose(model.start.reshape(-1), dense.stationary(), atol=1e-13)


def test_drawn_segments_have_the_durations_asked_for():
    model = SemiMarkov(DURATION[:2], [[0, 1], [1, 0]], np.eye(2), [1, 0])
    tokens = model.sample(5000, 8, seed=6)
    # The length of the first segment, where it ends within 8 tokens: all do, since none is longer than 6.
    lengths = (np.cumprod(tokens == 0, axis=1)).sum(axis=1)
    shares = np.bincount(lengths, minlength=7)[1:] / 5000
    np.testing.assert_allclose(shares, DURATION[0], atol=5 * np.sqrt(0.25 / 5000))


def test_geometric_durations_make_the_usual_hmm():
    stay = 0.8
    duration = np.array([stay**d * (1 - stay) for d in range(199)])
    duration = np.append(duration, max(1 - duration.sum(), 0))
    model = SemiMarkov([duration] * 2, [[0, 1], [1, 0]], EMISSION[:2], [0.5, 0.5])
    usual = HMM(start=[0.5, 0.5], transition=[[stay, 1 - stay], [1 - stay, stay]], emission=EMISSION[:2])
    tokens = usual.sample(10, 50, seed=7)
    np.testing.assert_allclose(model.log_likelihood(tokens), usual.log_likelihood(tokens), atol=1e-10)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: SemiMarkov(DURATION, random_rows(4, 4, seed=1), EMISSION), r"transition\[0, 0\] is .* expected 0"),
        (lambda: SemiMarkov(DURATION[:3], TRANSITION, EMISSION), "with the same H"),
        (lambda: SemiMarkov(DURATION * 2, TRANSITION, EMISSION), r"duration\[0\] sums to 2"),
        (lambda: SemiMarkov(np.full((2, 5000), 1 / 5000), 1 - np.eye(2), np.eye(2)).to_hmm(), "10,000 states"),
        (lambda: SemiMarkov(DURATION, TRANSITION, EMISSION, [1.0]), r"expected \(4,\) or \(4, 6\)"),
    ],
)
def test_what_is_no_model_is_refused(make, words):
    with pytest.raises(InputError, match=words):
        make()
