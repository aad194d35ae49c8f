"""The divergence between distributions of the next token, at zeros and infinities too."""

import math

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hmm_datasets.hmm import processes
from hmm_datasets.hmm.analysis.divergence import kl_divergence, log_probabilities
from hmm_datasets.hmm.causal_lm import HMMForCausalLM


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


def test_a_model_that_excludes_a_token_is_infinitely_far_from_a_process_that_emits_it():
    source, model = processes.coin(0.5), HMMForCausalLM.from_hmm(processes.coin(1.0), bos_token_id=2)
    tokens = torch.tensor([[2, 0, 0]])
    log_model = log_probabilities(model(input_ids=tokens).logits)
    assert log_model[0].tolist() == [[0, -math.inf, -math.inf]] * 3
    assert kl_divergence(source.next_token_probs(tokens[:, 1:]), log_model).tolist() == [[math.inf] * 3]
    # After a token that the model excludes nothing is known, and nothing is infinite.
    after = log_probabilities(model(input_ids=torch.tensor([[2, 1, 0]])).logits)[0, 1:]
    assert torch.isfinite(after).all()


def test_logits_are_left_as_they_are():
    for dtype in (torch.float64, torch.float32, torch.bfloat16, torch.float16):
        logits = torch.tensor([0.0, 1.0, torch.finfo(dtype).min], dtype=dtype)
        kept = logits.clone()
        assert log_probabilities(logits)[2] == -math.inf
        assert torch.equal(logits, kept)
