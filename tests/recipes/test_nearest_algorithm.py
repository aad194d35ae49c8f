"""The nearest algorithm of models that are one of the four algorithms."""

from types import SimpleNamespace

import pytest
import torch
from experiments import load
from mixture_predictors import mixture_predictors

from hmm_datasets.hmm.families.mixture import random_chain_mixture

measure = load("four_phases", "measure")

MIXTURE = random_chain_mixture(5, 4)


class Predicting:
    """A model whose predictions are those of an algorithm, after a beginning token."""

    device = torch.device("cpu")

    def __init__(self, predictor):
        self.predictor = predictor

    def __call__(self, rows):
        logits = self.predictor(rows[:, 1:]).log()
        return SimpleNamespace(logits=torch.nn.functional.pad(logits, (0, 1), value=-30.0))


@pytest.mark.thorough
@pytest.mark.parametrize("name", measure.ALGORITHMS)
def test_a_model_that_is_an_algorithm_is_nearest_to_it(name):
    found = measure.NearestAlgorithm(MIXTURE, 12, 40, alpha=1.0)(Predicting(mixture_predictors(MIXTURE)[name]))
    assert found["nearest"] == name
    for kind in ("mixture", "new"):
        # Float32 sums.
        assert found[kind][name] == pytest.approx(0, abs=1e-5)
        assert min(value for other, value in found[kind].items() if other != name) > 0.01


def test_a_model_that_has_learned_nothing_is_nearest_to_chance_and_to_no_algorithm():
    model = Predicting(lambda tokens: torch.full((len(tokens), tokens.shape[1] + 1, 4), 0.25))
    assert measure.NearestAlgorithm(MIXTURE, 12, 40, alpha=1.0)(model)["nearest"] == measure.CHANCE
    assert set(load("four_phases", "plot")._COLOURS) == {*measure.ALGORITHMS, measure.CHANCE}


def test_the_divergence_is_a_mean_over_positions():
    law, other = torch.tensor([[[1.0, 0.0], [0.5, 0.5]]]), torch.tensor([[[0.5, 0.5], [0.5, 0.5]]])
    assert measure.divergence(law, other.log()) == pytest.approx(torch.log(torch.tensor(2.0)).item() / 2)


def test_new_chains_are_none_of_the_mixture():
    tokens = measure.NearestAlgorithm(MIXTURE, 12, 40, alpha=1.0).tokens
    known, new = (MIXTURE.log_likelihood(tokens[kind]).mean() for kind in ("mixture", "new"))
    assert known > new + 1


def test_equal_divergences_go_to_the_first():
    assert measure.nearest({"mixture": {"a": 1.0, "b": 1.0}}) == "a"


def test_a_symbol_that_algorithm_and_model_exclude_adds_nothing_to_the_divergence():
    law = torch.tensor([[[1.0, 0.0]]])
    assert measure.divergence(law, law.log()) == 0
