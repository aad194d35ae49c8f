"""The divergence between distributions of the next token, at zeros and infinities too."""

import math

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hmm_datasets.hmm.analysis.divergence import kl_divergence


@given(seed=st.integers(0, 10**6), scale=st.sampled_from([0.1, 3.0, 30.0]), extra=st.integers(0, 2))
@settings(deadline=None, derandomize=True, max_examples=50)
def test_a_divergence_is_never_negative(seed, scale, extra):
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(2, 6, 4 + extra, generator=generator, dtype=torch.float64) * scale
    distribution = torch.softmax(torch.randn(2, 6, 4, generator=generator, dtype=torch.float64) * scale, -1)
    distribution[0, 0] = torch.tensor([0, 0, 1.0, 0])
    log_model = torch.log_softmax(logits, -1)
    found = kl_divergence(distribution, log_model)
    assert (found > -1e-9).all()
    assert torch.isfinite(found).all()
    same = kl_divergence(log_model.exp()[..., :4], log_model)
    assert same.abs().max() < 1e-9


def test_a_token_that_distribution_and_model_exclude_adds_nothing_to_the_divergence():
    distribution, log_model = torch.tensor([[[0.5, 0.5, 0.0]]]), torch.tensor([[[0.5, 0.5, 0.0]]]).log()
    assert kl_divergence(distribution, log_model).item() == 0
    assert kl_divergence(torch.tensor([[[0.5, 0.25, 0.25]]]), log_model).item() == math.inf


def test_a_probability_that_underflows_adds_nothing_to_the_divergence():
    policy = torch.tensor([0.0, -800.0], dtype=torch.float64)
    assert kl_divergence(policy.exp(), torch.tensor([1.0, 0.0]).double().log()).item() == 0
