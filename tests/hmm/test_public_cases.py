"""Reports of people who use other libraries for HMMs, tried here."""

import itertools

import numpy as np
import pytest

from hmm_datasets import HMM, FitSettings, fit_hmm
from hmm_datasets.errors import InputError

TABLES = {"start": [0.5, 0.5], "emission": [[0.9, 0.1], [0.2, 0.8]]}


def steps_on_a_grid(rows: int, columns: int) -> np.ndarray:
    """Transitions to oneself and to neighbours, whose rows sum to 0.98 away from the border."""
    table = np.zeros((rows * columns,) * 2)
    for i, j in itertools.product(range(rows * columns), repeat=2):
        far = max(abs(i // columns - j // columns), abs(i % columns - j % columns))
        table[i, j] = 0.17 * (far == 0) + 0.10125 * (far == 1)
    return table


@pytest.mark.outside(
    "https://github.com/hmmlearn/hmmlearn/issues/101",
    "know which of 70 rows of a transition table does not sum to one",
    "`transition[0] sums to 0.473750, not 1; pass normalize=True to rescale rows`, and that works",
)
@pytest.mark.outside(
    "https://github.com/hmmlearn/hmmlearn/issues/110",
    "rows of a table that do not sum to one after rounding",
    "refused by row and sum; `normalize=True` rescales them",
)
def test_a_row_that_does_not_sum_to_one_is_named_with_its_sum_and_a_remedy_that_works():
    table = steps_on_a_grid(7, 10)
    others = {"start": np.full(70, 1 / 70), "emission": np.full((70, 2), 0.5)}
    with pytest.raises(InputError, match=r"transition\[0\] sums to 0\.47\d*, not 1; pass normalize=True"):
        HMM(transition=table, **others)
    hmm = HMM(transition=table, **others, normalize=True)
    np.testing.assert_allclose(hmm.transition.sum(1), 1, atol=1e-15)
    np.testing.assert_allclose(hmm.transition[12], table[12] / 0.98, atol=1e-15)


@pytest.mark.outside(
    "https://github.com/hmmlearn/hmmlearn/issues/186",
    "start probabilities that are NaN after a fit",
    "tables of a fit are distributions, whatever states the data leave empty",
)
@pytest.mark.outside(
    "https://github.com/hmmlearn/hmmlearn/issues/169",
    "a state that the data never visit: a row of zeros, and NaN",
    "its rows keep a distribution, with and without pseudocounts",
)
@pytest.mark.outside(
    "https://github.com/hmmlearn/hmmlearn/issues/18",
    "a transition table of NaN from more states than the data support",
    "ten states on six tokens: all tables are distributions, and the likelihood is finite",
)
@pytest.mark.parametrize("pseudocount", [0.0, 0.1])
def test_states_that_the_data_leave_empty_keep_distributions(pseudocount):
    settings = FitSettings(num_states=10, pseudocount=pseudocount, max_epochs=60)
    result = fit_hmm(np.array([[0, 0, 0, 1, 1, 0]]), settings, num_symbols=4, show_progress=False)
    for table in result.hmm.tables().values():
        assert np.isfinite(table).all()
        np.testing.assert_allclose(table.sum(-1), 1, atol=1e-9)
    assert np.isfinite(result.hmm.log_likelihood([[0, 0, 0, 1, 1, 0]])).all()


@pytest.mark.thorough
@pytest.mark.outside(
    "https://github.com/jmschrei/pomegranate/issues/1119",
    "train an HMM on 1,000 sequences of 61 categories without `Improvement: nan`",
    "finite in every epoch, and never falling",
)
def test_a_thousand_sequences_of_sixty_one_categories_are_fitted_without_nan():
    tokens = np.random.default_rng(0).integers(5, size=(1000, 61))
    history = fit_hmm(tokens, num_states=4, show_progress=False).history
    losses = [row["train_log_likelihood"] for row in history]
    assert np.isfinite(losses).all()
    assert (np.diff([row["objective"] for row in history]) > -1e-6).all()


@pytest.mark.outside(
    "https://github.com/jmschrei/pomegranate/issues/1003",
    "predict states where the warning says that the sequence is impossible",
    "`viterbi` returns log-probability -inf and `log_likelihood` -inf; other rows keep their paths",
)
def test_an_impossible_sequence_is_told_from_a_path():
    hmm = HMM(start=[1, 0], transition=[[1, 0], [0, 1]], emission=[[1, 0], [0.5, 0.5]])
    paths = hmm.viterbi([[0, 1], [0, 0]])
    assert paths.log_probability.tolist() == [-np.inf, 0.0]
    assert hmm.log_likelihood([[0, 1], [0, 0]]).tolist() == [-np.inf, 0.0]


@pytest.mark.outside(
    "https://github.com/jmschrei/pomegranate/issues/961",
    "a path that a single switch of state would make more probable",
    "`viterbi` gives the best of all 256 paths, `posteriors` the probability of each state by itself",
)
def test_the_path_is_the_best_of_all_and_not_the_states_that_are_best_one_by_one():
    # Background and an island of C and G, as in the report: states change with 0.1, the alphabet is A, C, G, T.
    hmm = HMM(
        start=[0.5, 0.5],
        transition=[[0.9, 0.1], [0.1, 0.9]],
        emission=[[0.25, 0.25, 0.25, 0.25], [0.1, 0.4, 0.4, 0.1]],
    )
    tokens = ["ACGT".index(letter) for letter in "CTACGCGG"]
    joint = {}
    for path in itertools.product(range(2), repeat=len(tokens)):
        chance = hmm.start[path[0]] * np.prod(hmm.emission[list(path), tokens])
        joint[path] = chance * np.prod(hmm.transition[list(path[:-1]), list(path[1:])])
    best = max(joint, key=joint.__getitem__)
    found = hmm.viterbi([tokens])
    assert tuple(found.states[0].tolist()) == best
    assert found.log_probability[0] == pytest.approx(np.log(joint[best]))
    total = sum(joint.values())
    island = [sum(chance for path, chance in joint.items() if path[t]) / total for t in range(len(tokens))]
    np.testing.assert_allclose(hmm.posteriors([tokens])[0, :, 1], island, atol=1e-12)
    assert best != tuple(int(share > 0.5) for share in island)


@pytest.mark.thorough
@pytest.mark.outside(
    "https://github.com/tensorflow/probability/issues/1373",
    "train on sequences of different lengths without padding changing the log-probability",
    "`lengths=` counts the real tokens; log-likelihoods are those of each sequence by itself",
)
@pytest.mark.outside(
    "https://github.com/probml/dynamax/issues/37",
    "fit to sequences of different lengths",
    "`lengths=` of `fit_hmm`; the fit is that of the sequences whatever stands in the padding",
)
@pytest.mark.outside(
    "https://github.com/hmmlearn/hmmlearn/issues/272",
    "the log-likelihood of each sequence instead of the sum over all",
    "`log_likelihood` returns one number per sequence, with `lengths` too",
)
def test_padding_changes_nothing():
    hmm = HMM(transition=[[0.8, 0.2], [0.3, 0.7]], **TABLES)
    rows, lengths = np.array([[0, 1, 1, 0], [1, 0, 1, 1], [0, 0, 0, 0]]), [4, 2, 1]
    alone = [float(hmm.log_likelihood([row[:length]])[0]) for row, length in zip(rows, lengths, strict=True)]
    fits = []
    for padding in (0, 1):
        padded = np.where(np.arange(4) < np.array(lengths)[:, None], rows, padding)
        np.testing.assert_allclose(hmm.log_likelihood(padded, lengths=lengths), alone, atol=1e-12)
        fits.append(fit_hmm(padded, num_states=2, lengths=lengths, show_progress=False).hmm)
    np.testing.assert_allclose(fits[0].transition, fits[1].transition, atol=0)


@pytest.mark.outside(
    "https://github.com/jmschrei/pomegranate/issues/394",
    "fit to codes such as 11281100 as if they were symbols",
    "fit to the codes' positions in their sorted list, as `np.unique(..., return_inverse=True)` gives them",
)
def test_large_codes_are_fitted_by_their_positions():
    codes = np.array([[11281100, 11009101, 10527100, 10527100, 10103101, 10103101]] * 4)
    names, tokens = np.unique(codes, return_inverse=True)
    result = fit_hmm(tokens.reshape(codes.shape), num_states=2, vocabulary=names.astype(str), show_progress=False)
    assert result.hmm.num_symbols == 4
    assert result.hmm.vocabulary[3] == "11281100"
    assert np.isfinite(result.hmm.log_likelihood(tokens.reshape(codes.shape))).all()
