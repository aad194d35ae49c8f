import itertools

import numpy as np
import pytest
import torch
from mixture_predictors import mixture_predictors

from hmm_datasets.hmm.analysis.predictors import cross_entropy
from hmm_datasets.hmm.families.mixture import random_chain_mixture

MIXTURE = random_chain_mixture(3, 4, alpha=0.5, seed=1)
TOKENS = torch.from_numpy(MIXTURE.sample(6, 12, seed=2).astype(np.int64))


def test_the_predictors_are_their_formulas():
    stationary = np.stack([MIXTURE.chain(n).start for n in range(3)])
    found = {name: predictor(TOKENS).numpy() for name, predictor in mixture_predictors(MIXTURE, alpha=0.7).items()}
    for row, word in enumerate(TOKENS.tolist()):
        for t in range(1, 13):
            past = word[:t]
            counts = np.bincount(past, minlength=4)
            weights = np.exp((counts * np.log(stationary)).sum(axis=1))
            pairs = [table[past[:-1], past[1:]].prod() for table in MIXTURE.tables] * stationary[:, past[0]]
            after = np.bincount([y for x, y in itertools.pairwise(past) if x == past[-1]], minlength=4)
            expected = {
                "unigram_retrieval": weights @ stationary / weights.sum(),
                "bigram_retrieval": pairs @ MIXTURE.tables[:, past[-1]] / pairs.sum(),
                "unigram_inference": (counts + 0.7) / (t + 4 * 0.7),
                "bigram_inference": (after + 0.7) / (after.sum() + 4 * 0.7),
            }
            for name, distribution in expected.items():
                np.testing.assert_allclose(found[name][row, t], distribution, atol=1e-10, err_msg=name)


def test_the_bayes_predictor_of_the_mixture_has_the_least_loss():
    tokens = MIXTURE.sample(400, 30, seed=3)
    losses = {
        name: cross_entropy(predictor, tokens).nats[5:].mean()
        for name, predictor in mixture_predictors(MIXTURE).items()
    }
    assert min(losses, key=losses.__getitem__) == "bigram_retrieval"
    assert losses["bigram_retrieval"] == pytest.approx(MIXTURE.optimal_loss(30).nats[5:].mean(), abs=0.03)
