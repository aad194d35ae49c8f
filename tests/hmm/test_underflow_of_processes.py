"""Processes that are made of HMMs, and draws given tokens, where a belief underflows before later tokens need it."""

import math

import numpy as np
import pytest
import torch
from extended_precision import exact, steps_of

from hmm_datasets import HMM, HMMMixture
from hmm_datasets.errors import InputError
from hmm_datasets.hmm.families.mixture import ChainMixture, ProcessMixture
from hmm_datasets.hmm.structured.blocked import BlockedHMM
from hmm_datasets.hmm.structured.factored import FactoredProcess

# Of the last state nothing leads to the others, and it explains many ones better than they do.
LEAVE = np.array([[0.9, 0.1, 0], [0.2, 0.8, 0], [0, 0, 1]])
EMISSION = np.array([[0.8, 0.2], [0.9, 0.1], [0.15, 0.85]])
BACK = [0] * 600 + [1] * 700
GONE = [0] * 1300
HIDDEN = [0] * 500 + [-1] * 5 + [1] * 795
ROWS = np.array([BACK, GONE, HIDDEN])

DENSE = HMM(start=[0.2, 0.3, 0.5], transition=LEAVE, emission=EMISSION)
BLOCKED = BlockedHMM(DENSE.start, np.eye(3), LEAVE, EMISSION.T, [0, 0])
# Two blocks of two states each; the classes are those of one component or of the other.
PAIRS = BlockedHMM(
    [0.4, 0.6], [[0.5, 0.1, 0.4, 0], [0, 0, 0.2, 0.8]], [[1, 0], [1, 0], [1, 0], [0, 1]], [[1, 0.9], [0, 0.1], [1, 1]],
    [0, 0, 1],
)  # fmt: skip
SKIPS = HMM(
    start=[1, 0, 0],
    transition=[[0.5, 0.3, 0.2], [0, 0.5, 0.5], [0, 0, 1]],
    emission=[[0.6, 0.4, 0], [0, 0, 1], [1, 0, 0]],
)
EXACT = {"rtol": 1e-9, "atol": 1e-12}


@pytest.mark.thorough
@pytest.mark.parametrize("row", range(len(ROWS)))
def test_an_hmm_of_blocks_has_its_exact_likelihood_beliefs_and_posteriors(row):
    found = exact(DENSE.start, steps_of(DENSE, ROWS[row]))
    np.testing.assert_allclose(BLOCKED.log_likelihood(ROWS)[row], found.log_likelihood, rtol=1e-11)
    np.testing.assert_allclose(BLOCKED.beliefs(ROWS)[row], found.beliefs, **EXACT)
    np.testing.assert_allclose(BLOCKED.next_token_probs(ROWS)[row], found.beliefs @ EMISSION, **EXACT)
    np.testing.assert_allclose(BLOCKED.posteriors(ROWS)[row], found.posteriors, **EXACT)


@pytest.mark.thorough
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_the_counts_of_an_hmm_of_blocks_are_exact(dtype):
    lengths = torch.tensor([1300, 1000, 1300])
    near = {"rtol": 1e-8, "atol": 1e-9} if dtype == torch.float64 else {"rtol": 1e-4, "atol": 1e-3}
    tables = BLOCKED.parameters(dtype).with_missing()
    rows = [row[:length] for row, length in zip(ROWS, lengths.tolist(), strict=True)]
    by_row = [exact(DENSE.start, steps_of(DENSE, row)) for row in rows]
    counts, scores = tables.sums(torch.from_numpy(np.where(ROWS < 0, 2, ROWS)), lengths, torch.tensor([1.0, 2, 3]))
    np.testing.assert_allclose(scores, [of_row.log_likelihood for of_row in by_row], rtol=near["rtol"])
    moves = sum(weight * of_row.moves[:-1].sum(0) for weight, of_row in enumerate(by_row, 1))
    emitted = np.zeros((2, 3))
    for weight, (row, of_row) in enumerate(zip(rows, by_row, strict=True), 1):
        np.add.at(emitted, row[row >= 0], weight * of_row.posteriors[row >= 0])
    np.testing.assert_allclose(counts["leave"], moves, **near)
    np.testing.assert_allclose(counts["emission"], emitted, **near)
    every = sum(weight * of_row.posteriors.sum(0) for weight, of_row in enumerate(by_row, 1))
    np.testing.assert_allclose(counts["enter"], np.diag(every), **near)
    np.testing.assert_allclose(counts["start"].sum(), 6, rtol=1e-5)


@pytest.mark.thorough
def test_the_counts_of_several_blocks_are_the_derivatives_of_the_exact_likelihood():
    """Fisher's identity: the count of an entry is the entry times the derivative of the log-likelihood by it."""
    row = [2] * 900 + [0] * 5 + [2, 0, 1, 2]

    def score(tables):
        enter, leave, emission = tables["enter"], tables["leave"], tables["emission"]
        blocks = [slice(0, 2), slice(0, 2), slice(2, 4)]
        steps = [[enter[:, blocks[x]] * emission[x], leave[blocks[x]]] for x in row]
        steps[-1][1] = np.ones((2, 2)) / 2  # after the last token there is no move
        return exact(tables["start"], steps).log_likelihood

    tables, size = {name: table.copy() for name, table in PAIRS.tables().items()}, 1e-5
    counts, scores = PAIRS.parameters(torch.float64).sums(torch.tensor([row]), None, None)
    np.testing.assert_allclose(scores, score(tables), rtol=1e-11)
    for name, table in tables.items():
        for place in zip(*np.nonzero(table), strict=True):
            before = table[place]
            table[place] = before * (1 + size)
            above = score(tables)
            table[place] = before * (1 - size)
            np.testing.assert_allclose(counts[name][place], (above - score(tables)) / (2 * size), rtol=1e-4, atol=1e-5)
            table[place] = before


@pytest.mark.thorough
def test_a_noisy_factored_process_has_its_exact_likelihood():
    noisy = FactoredProcess([HMM(start=[1], transition=[[1]], emission=[[1]]), DENSE], noise=1e-12)
    found = exact(DENSE.start, steps_of(DENSE, BACK))
    np.testing.assert_allclose(noisy.log_likelihood([BACK]), [found.log_likelihood], rtol=1e-8)


PARTS = [HMM(start=[1], transition=[[1]], emission=[row]) for row in ([0.8, 0.2], [0.15, 0.85])]


@pytest.mark.thorough
@pytest.mark.parametrize(
    "mixture",
    [HMMMixture(PARTS, [0.5, 0.5]), ProcessMixture(PARTS), ChainMixture([[[0.8, 0.2]] * 2, [[0.15, 0.85]] * 2])],
    ids=["HMMs", "processes", "chains"],
)
def test_a_mixture_keeps_the_component_that_comes_back(mixture):
    dense = HMM(start=[0.5, 0.5], transition=np.eye(2), emission=[[0.8, 0.2], [0.15, 0.85]])
    found = exact(dense.start, steps_of(dense, BACK))
    np.testing.assert_allclose(mixture.log_likelihood([BACK]), [found.log_likelihood], rtol=1e-11)
    np.testing.assert_allclose(mixture.next_token_probs([BACK])[0], found.beliefs @ dense.emission, **EXACT)


@pytest.mark.parametrize("kind", ["states", "edges"])
def test_continuations_are_drawn_where_a_state_was_improbable(kind):
    hmm = SKIPS if kind == "states" else HMM(start=SKIPS.start, edges=SKIPS.emission.T[:, :, None] * SKIPS.transition)
    prefix = [0] * 900 + [2]
    drawn = hmm.sample(4000, 1, seed=5, prefix=prefix)[:, 0]
    assert np.isin(drawn, [0, 2]).all()
    for symbol, chance in enumerate(exact(hmm.start, steps_of(hmm, prefix)).beliefs[-1] @ SKIPS.emission):
        error = math.sqrt(chance * (1 - chance) / 4000)
        assert abs((drawn == symbol).mean() - chance) <= 4.5 * error
    with pytest.raises(InputError, match=r"of prefix, row 0: tokens\[0, 901\] is 1, which .* cannot emit"):
        hmm.sample(1, 1, prefix=[*prefix, 1])
