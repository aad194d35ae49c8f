"""The check of the demo: whether its losses are in order, but for noise."""

import math

import pytest
from experiments import load

REPORT = load("demo", "report")
GOOD = {"bayes": 0.9, "model": 0.95, "unigram": 1.05, "uniform": 1.1}


def measured(error: float = 0.01, **cross_entropies: float) -> dict:
    losses = GOOD | cross_entropies
    return {
        "cross_entropy": {name: {"cross_entropy": loss, "standard_error": error} for name, loss in losses.items()},
        "kl": {name: {"kl": 0.5, "standard_error": 0.125} for name in losses if name != "model"},
        "bayes_gap": {"bayes_gap": losses["model"] - losses["bayes"], "standard_error": 0.002},
        "floor": "bayes",
        "num_sequences": 1200,
        "length": 64,
    }


@pytest.mark.parametrize(
    ("losses", "faults"),
    [
        ({}, []),
        ({"model": 0.88}, []),  # within three standard errors
        ({"model": 0.8}, ["bayes 0.9000 > model 0.8000"]),
        ({"model": math.inf}, ["model inf > unigram 1.0500"]),
        ({"error": 0.0, "bayes": 1.05 + 1e-9, "model": 1.05 + 1e-9}, []),  # rounding
    ],
)
def test_losses_are_out_of_order_by_more_than_noise_and_rounding(losses, faults):
    assert REPORT.out_of_order(measured(**losses)) == faults


def test_the_table_ends_with_the_order():
    assert REPORT.hmm_table(measured()).endswith("optimal loss <= model <= unigram <= uniform: in order")
    below = REPORT.hmm_table(measured(model=1.2))
    assert below.endswith("NOT in order: model 1.2000 > unigram 1.0500")
