"""The first hour of a user of hmmlearn, from the page about it: a model converted, drawn from, fitted and scored."""

import numpy as np
import pytest

from hmm_datasets import HMM, fit_hmm, load_source
from hmm_datasets.hmm.arrays import rows_of_column


@pytest.mark.thorough
def test_a_model_of_hmmlearn_is_converted_drawn_from_fitted_and_scored(tmp_path):
    hmmlearn = pytest.importorskip("hmmlearn.hmm")
    theirs = hmmlearn.CategoricalHMM(2, init_params="", n_features=3)
    theirs.startprob_ = np.array([0.6, 0.4])
    theirs.transmat_ = np.array([[0.9, 0.1], [0.2, 0.8]])
    theirs.emissionprob_ = np.array([[0.7, 0.2, 0.1], [0.1, 0.3, 0.6]])

    ours = HMM.from_hmmlearn(theirs)
    ours.save_pretrained(tmp_path / "hmm")
    assert load_source(tmp_path / "hmm") == ours
    tokens = ours.sample(300, 30, seed=0)
    column, lengths = tokens.reshape(-1, 1).astype(int), [30] * 300
    rows, counts = rows_of_column(column, lengths)
    assert rows.tolist() == tokens.tolist()
    assert ours.log_likelihood(rows, lengths=counts).sum() == pytest.approx(theirs.score(column, lengths), rel=1e-9)
    assert ours.viterbi(tokens).states.ravel().tolist() == theirs.predict(column, lengths).tolist()

    fitted = fit_hmm(column, num_states=2, lengths=lengths, show_progress=False).hmm
    again = fitted.to_hmmlearn()
    mine = fitted.log_likelihood(tokens).sum() / tokens.size
    assert again.score(column, lengths) / tokens.size == pytest.approx(mine, rel=1e-6)
    # A fit is at least as likely as what drew the data, but for the prior.
    assert mine > ours.log_likelihood(tokens).sum() / tokens.size - 1e-3
