import subprocess
import sys

import brute_force
import numpy as np
import pytest
import torch
from brute_force import LEFT_TO_RIGHT, random_edges
from hypothesis import given, settings
from hypothesis import strategies as st

from hmm_datasets.hmm import processes
from hmm_datasets.hmm.kernels import counts
from hmm_datasets.hmm.model import HMM


@pytest.fixture(scope="module", autouse=True)
def path(way):
    """Few states or many: on a CPU they are counted in different ways."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(counts, "MAX_STATES", 10**6 if way == "compiled" else 0)
        yield


EXACT = {"rtol": 1e-11, "atol": 1e-13}
TINY = {
    "dense": processes.random(3, 3, alpha=0.5, seed=3),
    "left to right": LEFT_TO_RIGHT,
    "one state": HMM(transition=[[1.0]], emission=[[0.2, 0.8]]),
    "even": processes.even(0.3),
    "sparse edges": random_edges(3, 3, seed=8, zeros=0.6),
}
tiny = pytest.mark.parametrize("hmm", TINY.values(), ids=TINY)


def check_counts(hmm: HMM, found, rows) -> None:
    start, moves, emitted = brute_force.expected_counts(hmm, rows)
    np.testing.assert_allclose(found.start, start, **EXACT)
    np.testing.assert_allclose(found.emission, emitted, **EXACT)
    if hmm.edges is None:
        assert found.edges is None
        np.testing.assert_allclose(found.transition, moves, **EXACT)
    else:
        edges = brute_force.expected_edge_counts(hmm, rows)
        np.testing.assert_allclose(found.edges, edges, **EXACT)
        np.testing.assert_allclose(found.transition, edges.sum(0), **EXACT)


@tiny
def test_expected_counts_are_those_of_all_paths(hmm):
    rows = hmm.sample(4, 5, seed=1)
    found = hmm.expected_counts(rows)
    check_counts(hmm, found, rows.tolist())
    np.testing.assert_allclose(found.log_likelihood, hmm.log_likelihood(rows), rtol=1e-13)


@pytest.mark.thorough
@given(seed=st.integers(0, 10**6), edges=st.booleans(), data=st.data())
@settings(deadline=None, derandomize=True, max_examples=25)
def test_expected_counts_of_ragged_rows_are_those_of_all_paths(seed, edges, data):
    hmm = random_edges(3, 3, seed=seed, zeros=0.3) if edges else processes.random(3, 3, alpha=0.3, seed=seed)
    lengths = data.draw(st.lists(st.integers(0, 5), min_size=1, max_size=4))
    rows = hmm.sample(len(lengths), 5, seed=seed).astype(int)
    words = [row[:length].tolist() for row, length in zip(rows, lengths, strict=True)]
    for row, length in zip(rows, lengths, strict=True):
        row[length:] = -1
    found = hmm.expected_counts(rows, lengths=lengths)
    # A row of no tokens has no state that emits.
    start, *_ = brute_force.expected_counts(hmm, [word for word in words if word])
    np.testing.assert_allclose(found.start, start, **EXACT)
    check_counts(hmm, found._replace(start=start), [word for word in words if word])
    expected = [brute_force.log_likelihood(hmm, word) for word in words]
    np.testing.assert_allclose(found.log_likelihood, expected, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("hmm", [LEFT_TO_RIGHT, processes.golden_mean()])
def test_an_impossible_row_adds_nothing(hmm):
    rows = hmm.sample(3, 5, seed=2).astype(int)
    impossible = np.array([[0, 0, 0, 0, 0] if hmm.edges is not None else [0, 1, 2, 0, 1]])
    found = hmm.expected_counts(np.concatenate([rows[:1], impossible, rows[1:]]))
    check_counts(hmm, found, rows.tolist())
    assert found.log_likelihood[1] == -np.inf
    assert np.isfinite(found.log_likelihood[[0, 2, 3]]).all()


@pytest.mark.thorough
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("length", [60, 500, 5000])
def test_states_that_the_past_rules_out_leave_no_nan_however_well_they_explain_the_rest(length, dtype):
    # Two chains that never meet, begun in the one that gives these tokens e^-2.2 times the other's chance, each.
    hmm = HMM(start=[1, 0], transition=np.eye(2), emission=[[0.9, 0.1], [0.1, 0.9]])
    found = hmm.expected_counts(np.ones((2, length), dtype=int), dtype=dtype)
    np.testing.assert_allclose(found.start, [2, 0], atol=1e-6)
    np.testing.assert_allclose(found.transition, [[2 * (length - 1), 0], [0, 0]], rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(found.emission, [[0, 2 * length], [0, 0]], rtol=1e-6, atol=1e-6)


@pytest.mark.thorough
@pytest.mark.outside(
    "https://github.com/lindermanlab/ssm/issues/26",
    "EM on one sequence of 3 million steps with 15 states, which took 140 GB",
    "one sequence of a million tokens takes less than 0.25 GB beside its tokens",
)
def test_a_long_sequence_takes_the_memory_of_its_beliefs(child_environment):
    code = """
import resource
from hmm_datasets.hmm import processes
hmm = processes.random(15, 20, seed=1)
hmm.expected_counts(hmm.sample(1, 100))
tokens = hmm.sample(1, 1_000_000).astype("int64")
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
assert abs(hmm.expected_counts(tokens).transition.sum() - 999_999) < 1e-3
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], env=child_environment, capture_output=True, text=True, check=True
    )
    assert int(done.stdout) < 250_000, "KiB"


@pytest.mark.thorough
@pytest.mark.outside(
    "https://github.com/OHBA-analysis/osl-dynamics/pull/189",
    "Baum-Welch in float32, which was not accurate enough",
    "counts of 10,000 tokens in float32 are within 1e-6 of those in float64",
)
@pytest.mark.parametrize(
    ("hmm", "dtype", "rtol"),
    [
        (processes.random(5, 4, alpha=0.5, seed=2), torch.float64, 1e-10),
        (processes.random(5, 4, alpha=0.5, seed=2), torch.float32, 1e-6),
        (processes.mess3(0.15, 0.6), torch.float32, 1e-6),
    ],
)
def test_counts_of_ten_thousand_tokens_add_up(hmm, dtype, rtol):
    rows, length = 3, 10_000
    tokens = hmm.sample(rows, length, seed=4)
    found = hmm.expected_counts(tokens, dtype=dtype)
    symbols = np.bincount(tokens.ravel(), minlength=hmm.num_symbols)
    np.testing.assert_allclose(found.start.sum(), rows, rtol=rtol)
    np.testing.assert_allclose(found.emission.sum(0), symbols, rtol=rtol)
    moves = length if hmm.edges is not None else length - 1
    np.testing.assert_allclose(found.transition.sum(), rows * moves, rtol=rtol)
    np.testing.assert_allclose(found.log_likelihood, hmm.log_likelihood(tokens), rtol=1e-6)
    assert found.log_likelihood.dtype == np.float64
    exact = hmm.expected_counts(tokens)
    np.testing.assert_allclose(found.transition, exact.transition, rtol=rtol)
    np.testing.assert_allclose(found.emission, exact.emission, rtol=rtol)


@pytest.mark.thorough
@pytest.mark.parametrize("hmm", [processes.random(5, 4, alpha=0.5, seed=2), processes.mess3(0.15, 0.6)])
def test_rounding_in_float32_does_not_accumulate_where_it_is_the_same_at_every_step(hmm):
    tokens = np.stack([np.full(10_000, 1), np.arange(10_000) % 3])
    found, exact = (hmm.expected_counts(tokens, dtype=dtype) for dtype in (torch.float32, torch.float64))
    for name in ("start", "transition", "emission"):
        np.testing.assert_allclose(getattr(found, name), getattr(exact, name), rtol=1e-6, atol=1e-3, err_msg=name)


@pytest.mark.parametrize("smallest", [1e-30, 1e-38, 1e-42])
def test_a_token_of_hardly_any_probability_in_float32_leaves_no_nan_and_the_likelihood_right(smallest):
    hmm = HMM(start=[0.5, 0.5], transition=[[0.9, 0.1], [0.2, 0.8]], emission=[[1 - smallest, smallest], [1.0, 0.0]])
    tokens = [[0, 0, 1, 0, 0], [0, 0, 0, 0, 0]]
    found, exact = (hmm.expected_counts(tokens, dtype=dtype) for dtype in (torch.float32, torch.float64))
    # The smallest numbers have few digits: 1e-42 has 9 bits.
    np.testing.assert_allclose(found.log_likelihood, exact.log_likelihood, rtol=1e-4, atol=1e-6)
    for name in ("start", "transition", "emission"):
        assert np.isfinite(getattr(found, name)).all(), name
    if smallest >= 1e-38:
        np.testing.assert_allclose(found.transition, exact.transition, rtol=1e-4, atol=1e-5)


def test_counts_are_sums_of_posteriors():
    hmm = processes.random(30, 12, alpha=0.3, seed=5)
    tokens = hmm.sample(7, 40, seed=5).astype(int)
    lengths = np.array([40, 3, 17, 1, 40, 0, 22])
    found, posteriors = hmm.expected_counts(tokens, lengths=lengths), hmm.posteriors(tokens, lengths=lengths)
    np.testing.assert_allclose(found.start, posteriors[lengths > 0, 0].sum(0), **EXACT)
    # Posteriors are zeros beyond the length.
    shown = np.eye(12)[tokens]
    np.testing.assert_allclose(found.emission, np.einsum("bth,bte->he", posteriors, shown), **EXACT)
    left = sum(posteriors[row, : max(length - 1, 0)].sum(0) for row, length in enumerate(lengths))
    entered = sum(posteriors[row, 1:length].sum(0) for row, length in enumerate(lengths))
    np.testing.assert_allclose(found.transition.sum(1), left, **EXACT)
    np.testing.assert_allclose(found.transition.sum(0), entered, **EXACT)


@tiny
def test_no_tokens_have_no_counts(hmm):
    found = hmm.expected_counts(np.zeros((2, 0), dtype=int))
    assert (found.transition == 0).all()
    assert (found.emission == 0).all()
    assert found.log_likelihood.tolist() == [0, 0]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("hmm", [processes.random(30, 12, alpha=0.3, seed=5), random_edges(5, 4, seed=2)])
def test_a_gpu_counts_the_same(hmm):
    tokens = torch.from_numpy(hmm.sample(6, 50, seed=1).astype(np.int64))
    lengths = torch.tensor([50, 1, 0, 30, 50, 7])
    here, there = (hmm.expected_counts(x, lengths=lengths) for x in (tokens, tokens.cuda()))
    for name, table in here._asdict().items():
        if table is not None:
            torch.testing.assert_close(getattr(there, name).cpu(), table, rtol=1e-10, atol=1e-12)
