"""Rows in which the belief of a state underflows before later tokens need it, against arithmetic of 40 digits."""

import functools
import math

import numpy as np
import pytest
import torch
from extended_precision import exact, steps_of

from hmm_datasets.hmm import processes
from hmm_datasets.hmm.fitting.fit import fit_hmm
from hmm_datasets.hmm.kernels import counts
from hmm_datasets.hmm.kernels.logs import LogRecursions
from hmm_datasets.hmm.model import HMM

SKIPS = HMM(
    start=[1, 0, 0],
    transition=[[0.5, 0.3, 0.2], [0, 0.5, 0.5], [0, 0, 1]],
    emission=[[0.6, 0.4, 0], [0, 0, 1], [1, 0, 0]],
)
BLOCKS = HMM(
    start=[0.2, 0.3, 0.5],
    transition=[[0.9, 0.1, 0], [0.2, 0.8, 0], [0, 0, 1]],
    emission=[[0.8, 0.2], [0.9, 0.1], [0.15, 0.85]],
)
EDGES = HMM(start=[0.3, 0.3, 0.4], edges=BLOCKS.emission.T[:, :, None] * BLOCKS.transition)
SMALL = HMM(start=[1e-250, 1], transition=np.eye(2), emission=[[1e-100, 1 - 1e-100], [0, 1]])
CASES = {
    "absorbing after a skip": (SKIPS, [0] * 700 + [2]),
    "absorbing after a short skip": (SKIPS, [0] * 60 + [2]),
    "a component that comes back": (BLOCKS, [0] * 600 + [1] * 700),
    "a component that comes back and goes": (BLOCKS, [0] * 500 + [1] * 900 + [0] * 400),
    "edges": (EDGES, [0] * 600 + [1] * 700),
    "within one step": (SMALL, [0, 1]),
}


@pytest.fixture(scope="module", params=[True, False], ids=["fused", "by time"], autouse=True)
def fused(request):
    with pytest.MonkeyPatch.context() as patch:
        if not request.param:
            patch.setattr(counts, "MAX_STATES", 0)
        yield


@functools.cache
def expected(name: str):
    hmm, tokens = CASES[name]
    found = exact(hmm.start, steps_of(hmm, tokens))
    # A state-emitting HMM moves between the states that emit.
    return found, found.moves.sum(0) if hmm.edges is not None else found.moves[:-1].sum(0)


@pytest.mark.thorough
@pytest.mark.outside(
    "https://github.com/infer-actively/pymdp/issues/432",
    "a smoother whose exponential overflows after a rare observation, so that infinity times 0 is NaN",
    "posteriors after a token of probability 1e-350 are those of 40 digits",
)
@pytest.mark.outside(
    "https://github.com/stan-dev/math/issues/2677",
    "hidden states that are NaN where the probability of one of them becomes 1",
    "an absorbing state whose belief becomes 1 leaves those of the others exact, to 1e-305 and below",
)
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_a_row_whose_beliefs_underflow_has_its_exact_results(name, dtype):
    hmm, tokens = CASES[name]
    if dtype == torch.float32 and hmm is SMALL:
        pytest.skip("float32 has no 1e-100")
    (score, beliefs, posteriors, _), moves = expected(name)
    near = {"rtol": 1e-9, "atol": 1e-12} if dtype == torch.float64 else {"rtol": 3e-4, "atol": 1e-4}
    rows = [tokens, [1] * len(tokens)]
    lengths = [len(tokens), 2]
    np.testing.assert_allclose(hmm.log_likelihood(rows, lengths=lengths, dtype=dtype)[0], score, rtol=near["rtol"])
    np.testing.assert_allclose(hmm.beliefs(rows, lengths=lengths, dtype=dtype)[0], beliefs, **near)
    np.testing.assert_allclose(hmm.posteriors(rows, lengths=lengths, dtype=dtype)[0], posteriors, **near)
    predicted = hmm.next_token_probs(rows, lengths=lengths, dtype=dtype)[0]
    np.testing.assert_allclose(predicted, beliefs @ hmm.emission, **near)
    found, other = (hmm.expected_counts(part, dtype=dtype) for part in ([tokens], [[1] * 2]))
    both = hmm.expected_counts(rows, lengths=lengths, dtype=dtype)
    np.testing.assert_allclose(found.transition, moves, **near)
    np.testing.assert_allclose(found.start, posteriors[0], **near)
    by_symbol = np.stack([posteriors[np.array(tokens) == x].sum(0) for x in range(hmm.num_symbols)], axis=1)
    np.testing.assert_allclose(found.emission, by_symbol, **near)
    np.testing.assert_allclose(both.transition, found.transition + other.transition, **near)
    np.testing.assert_allclose(both.log_likelihood[0], score, rtol=near["rtol"])


@pytest.mark.thorough
@pytest.mark.outside(
    "https://github.com/mlpack/mlpack/issues/160",
    "states of a long sequence, whose probabilities become 0 so that the first state is chosen",
    "likelihood and counts of 100,000 tokens have their closed form, to 1e-11",
)
@pytest.mark.parametrize("length", [10, 1000, 100_000])
def test_a_long_left_to_right_row_has_its_closed_form(way, length):
    if way == "torch" and length == 100_000:
        pytest.skip("takes seconds")
    closed_form = length * math.log(0.6) + (length - 1) * math.log(0.5) + math.log(0.3)
    rows = [[0] * length + [2]]
    np.testing.assert_allclose(SKIPS.log_likelihood(rows), closed_form, rtol=1e-11)
    if length < 100_000:
        assert SKIPS.expected_counts(rows).transition[0].round(9).tolist() == [length - 1, 1, 0]


@pytest.mark.outside(
    "https://github.com/lindermanlab/ssm/pull/112",
    "messages with a small number instead of 0 are inaccurate where transitions have zeros",
    "zeros stay 0, and a step of EM over a state that came back is that of exact counts",
)
def test_a_step_of_em_is_that_of_exact_counts():
    result = fit_hmm([[0] * 60 + [2]], initial=SKIPS, max_epochs=1, pseudocount=0.0, dtype="float32")
    np.testing.assert_allclose(result.hmm.transition[0], [59 / 60, 1 / 60, 0], atol=1e-6)


@pytest.mark.thorough
def test_rows_that_are_impossible_stay_so():
    assert SKIPS.log_likelihood([[2] + [0] * 900])[0] == -math.inf
    assert not SKIPS.posteriors([[2] + [0] * 900]).any()
    assert not SKIPS.expected_counts([[2] + [0] * 900]).transition.any()


@pytest.mark.thorough
@pytest.mark.outside(
    "https://github.com/probml/dynamax/issues/290",
    "posteriors of a cycle of states, with zeros among the transitions, are NaN",
    "the same cycle over discrete symbols has posteriors that are those of 40 digits, 2,000 tokens long",
)
def test_the_posteriors_of_a_cycle_of_states_are_exact():
    states = 6
    emission = np.full((states, states), 1e-9) + np.eye(states) * (1 - states * 1e-9)
    hmm = HMM(
        start=np.full(states, 1 / states),
        transition=0.8 * np.eye(states) + 0.2 * np.roll(np.eye(states), 1, axis=1),
        emission=emission,
    )
    tokens = hmm.sample(1, 2000, seed=42)[0].tolist()
    result = exact(hmm.start, steps_of(hmm, tokens))
    np.testing.assert_allclose(hmm.posteriors([tokens])[0], result.posteriors, rtol=1e-8, atol=1e-12)
    np.testing.assert_allclose(hmm.log_likelihood([tokens]), [result.log_likelihood], rtol=1e-12)


@pytest.mark.thorough
@pytest.mark.outside(
    "https://github.com/probml/dynamax/issues/273",
    "left-to-right HMMs, whose transitions are mostly zeros: 0.8 to stay, 0.2 to the next of six states",
    "their likelihood and posteriors are those of 40 digits, also where states are left after 890 tokens",
)
def test_a_chain_that_is_left_late_has_its_exact_posteriors():
    states = 6
    transition = 0.8 * np.eye(states) + 0.2 * np.eye(states, k=1)
    transition[-1, -1] = 1.0
    emission = np.full((states, states), 1e-6) + (1 - states * 1e-6) * np.eye(states)
    hmm = HMM(start=np.full(states, 1 / states), transition=transition, emission=emission)
    tokens = [0] * 890 + [1, 2, 3, 4, 5, 5, 4, 5, 5, 5]
    result = exact(hmm.start, steps_of(hmm, tokens))
    np.testing.assert_allclose(hmm.log_likelihood([tokens]), [result.log_likelihood], rtol=1e-11)
    np.testing.assert_allclose(hmm.posteriors([tokens])[0], result.posteriors, rtol=1e-8, atol=1e-12)


@pytest.mark.thorough
@pytest.mark.parametrize("seed", range(40))
def test_where_any_state_leads_to_any_other_no_row_is_watched_and_none_underflows(seed):
    """The beliefs are not compared there, and they are not below the bound from which that is concluded."""
    generator = np.random.default_rng(seed)
    states, symbols, on_edges = int(generator.integers(2, 8)), int(generator.integers(2, 5)), seed % 2 == 0
    leads = generator.random((states, states)) < (1.0 if seed % 4 < 2 else 0.5)
    leads |= np.roll(np.eye(states, dtype=bool), 1, axis=1)
    transition = leads * (generator.dirichlet(np.ones(states), states) + 1e-3)
    transition /= transition.sum(1, keepdims=True)
    emission = generator.dirichlet(np.ones(symbols), states) + 1e-3
    emission /= emission.sum(1, keepdims=True)
    hmm = HMM(start=np.eye(states)[0], transition=transition, emission=emission)
    if on_edges:
        hmm = HMM(start=hmm.start, edges=emission.T[:, :, None] * hmm.transition)
    assert (hmm._log_tables.safe[0] == 0) == bool(leads.all())
    if leads.all():
        tokens = generator.integers(0, symbols, (64, 60))
        beliefs = hmm.beliefs(tokens)
        assert (beliefs[:, 1:].min((0, 1)) >= hmm.transition.min(0) * (1 - 1e-12)).all()
        np.testing.assert_allclose(hmm.posteriors(tokens).sum(-1), 1)


def test_small_entries_of_many_states_do_not_make_float32_slow(monkeypatch):
    """The smallest entries of 200 states multiply to 1e-40; no belief is as small as that."""
    hmm = processes.random(200, 200, alpha=0.3, seed=1)
    assert hmm.parameters(torch.float32).safe[0] == hmm.parameters().safe[0] == 0
    tokens = hmm.sample(64, 64, seed=2)
    monkeypatch.setattr(LogRecursions, "filtered", None)
    monkeypatch.setattr(LogRecursions, "posteriors", None)
    for method in (hmm.log_likelihood, hmm.beliefs, hmm.next_token_probs, hmm.posteriors):
        np.testing.assert_allclose(method(tokens, dtype=torch.float32), method(tokens), rtol=2e-4, atol=1e-6)


def test_what_float32_loses_is_found_in_float64_before_logarithms(monkeypatch):
    transition = 0.5 * np.eye(3) + 0.5 * np.eye(3, k=1)
    transition[2, 2] = 1.0
    hmm = HMM(start=[1, 0, 0], transition=transition, emission=[[1 - 1e-25, 1e-25], [0.5, 0.5], [1e-25, 1 - 1e-25]])
    assert hmm.parameters(torch.float32).safe[0] > 1e-13
    tokens = hmm.sample(200, 5, seed=1)
    lengths = np.arange(200) % 6
    monkeypatch.setattr(LogRecursions, "filtered", None)
    for method in (hmm.log_likelihood, hmm.beliefs, hmm.next_token_probs):
        wide = method(tokens, lengths=lengths)
        narrow = method(tokens, lengths=lengths, dtype=torch.float32)
        assert narrow.dtype == np.float32
        np.testing.assert_allclose(narrow, wide, rtol=1e-4, atol=1e-6)
