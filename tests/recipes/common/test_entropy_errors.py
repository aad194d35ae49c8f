"""Entropy errors agree with closed forms, and models are read where the tasks are scored."""

import numpy as np
import pytest
import torch
from entropy_errors import entropy_errors, task_log_probs
from recurrent import RecurrentConfig, RecurrentForCausalLM

from hmm_datasets.hmm.families.episodic_tasks import AssociativeRecall, Bijection


def test_exact_predictions_have_no_error():
    exact = torch.tensor([[[0.5, 0.25, 0.25], [0.0, 1.0, 0.0]]], dtype=torch.float64)
    errors = entropy_errors(exact.log(), exact)
    for figures in (errors.of_each, errors.of_means, errors.divergence):
        np.testing.assert_allclose(figures, [0.0, 0.0], atol=1e-12)


@pytest.mark.thorough
def test_the_uniform_prediction_of_a_bijection_errs_by_the_logarithm_of_what_is_left():
    task = Bijection(8)
    exact = torch.from_numpy(task.next_token_probs(task.sample(5, 16))[:, 1:-1:2, 8:])
    errors = entropy_errors(torch.full((5, 8, 8), -np.log(8.0)), exact)
    np.testing.assert_allclose(errors.of_each, 3 - np.log2(np.arange(8, 0, -1)), atol=1e-6)
    np.testing.assert_allclose(errors.divergence, errors.of_each, atol=1e-6)


def test_errors_of_opposite_sign_cancel_only_if_entropies_are_averaged_first():
    half, sure = [0.5, 0.5], [1.0, 0.0]
    predicted, exact = torch.tensor([[half], [sure]]), torch.tensor([[sure], [half]])
    errors = entropy_errors(predicted.clamp(min=1e-30).log(), exact)
    assert errors.of_each == pytest.approx([1.0])
    assert errors.of_means == pytest.approx([0.0], abs=1e-6)


@pytest.mark.thorough
def test_predictions_are_those_before_the_scored_tokens():
    task = AssociativeRecall(6, 4, num_pairs=3)
    torch.manual_seed(0)
    model = RecurrentForCausalLM(RecurrentConfig(vocab_size=11, hidden_size=8)).eval()
    log_probs, episodes = task_log_probs(model, task, 7, batch_size=3)
    assert log_probs.shape == (7, 3, 11)
    rows = torch.nn.functional.pad(torch.from_numpy(episodes), (1, 0), value=10)
    expected = model(rows[:, :8]).logits[:, -1].double().log_softmax(-1)  # the first value recalled is token 7
    torch.testing.assert_close(log_probs[:, 0], expected, rtol=1e-5, atol=1e-6)
