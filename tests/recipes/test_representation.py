"""Dimensions and subspaces of hidden states against closed forms."""

import numpy as np
import pytest
import torch
from experiments import load
from transformers import LlamaConfig, LlamaForCausalLM

from hmm_datasets import FactoredProcess, processes

factored = load("factored_beliefs", "measure")
representation = load("factored_beliefs", "representation")

RNG = np.random.default_rng(0)
PAIR = FactoredProcess([processes.mess3(x=0.05, a=0.85), processes.bloch_walk(alpha=2, beta=1)])


def model(vocab_size: int) -> LlamaForCausalLM:
    torch.manual_seed(0)
    shape = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2}
    return LlamaForCausalLM(LlamaConfig(vocab_size=vocab_size, **shape)).eval()


def test_variance_lies_in_as_many_components_as_rows_have_dimensions():
    rows = RNG.normal(size=(500, 3)) @ RNG.normal(size=(3, 10)) + 5
    explained = representation.explained_variance(rows)
    assert explained.shape == (10,)
    assert explained[2] == pytest.approx(1, abs=1e-12)
    assert representation.effective_dimension(explained, 0.999999) == 3
    assert representation.effective_dimension(np.array([0.95, 1.0]), 0.95) == 1


@pytest.mark.thorough
def test_the_subspace_of_a_factor_is_that_in_which_its_belief_is_written():
    beliefs = [factor.beliefs(factor.sample(300, 12))[:, 1:].reshape(-1, 3) for factor in PAIR.factors]
    written = [RNG.normal(size=(3, 12)), RNG.normal(size=(3, 12))]
    noise = 1e-6 * RNG.normal(size=(len(beliefs[0]), 12))
    found = representation.factor_subspaces(beliefs[0] @ written[0] + beliefs[1] @ written[1] + noise, beliefs)
    # Distributions over three states differ in two dimensions; the first entry of the Bloch walk's vector is constant.
    differences = [written[0][1:] - written[0][0], written[1][1:]]
    for basis, directions in zip(found, differences, strict=True):
        assert basis.shape == (12, 2)
        assert representation.principal_angles(basis, np.linalg.qr(directions.T)[0]).max() < 0.01


def test_angles_and_overlaps_of_known_subspaces():
    axes = np.eye(8)
    assert representation.subspace_overlap(axes[:, :2], axes[:, 2:4]) == 0
    assert representation.subspace_overlap(axes[:, :2], axes[:, 1:3]) == pytest.approx(0.5)
    turned = np.stack([axes[0] * np.cos(0.3) + axes[4] * np.sin(0.3), axes[5]], axis=1)
    assert representation.principal_angles(axes[:, :2], turned) == pytest.approx([np.degrees(0.3), 90])
    bases = [np.linalg.qr(RNG.normal(size=(8, 2)))[0] for _ in range(400)]
    overlaps = [representation.subspace_overlap(*pair) for pair in zip(bases[::2], bases[1::2], strict=True)]
    # 2 / 8 on average; four standard errors.
    assert np.mean(overlaps) == pytest.approx(0.25, abs=4 * np.std(overlaps) / np.sqrt(200))


def test_what_is_linear_in_the_features_is_explained_and_chance_is_not():
    features = torch.from_numpy(RNG.normal(size=(200, 10, 4)))
    targets = {"linear": features @ torch.ones(4, 2, dtype=torch.float64), "chance": torch.randn(200, 10, 3)}
    found = representation.regression_r2(features, targets)
    assert found["linear"] == pytest.approx(1, abs=1e-9)
    assert abs(found["chance"]) < 0.05


def test_the_residual_stream_ends_before_the_final_norm():
    llama, tokens = model(13), torch.randint(0, 13, (5, 7))
    states, losses = representation.residual_stream(llama, tokens, batch_size=2)
    with torch.no_grad():
        found = llama(input_ids=tokens, labels=tokens, output_hidden_states=True)
        normed = llama.model.norm(states[-1])
    assert states.shape == (3, 5, 7, 16)
    torch.testing.assert_close(normed, found.hidden_states[-1])
    torch.testing.assert_close(states[:2], torch.stack(found.hidden_states[:2]))
    assert float(losses.mean() / 6) == pytest.approx(float(found.loss), abs=1e-5)


def test_exact_beliefs_have_the_dimensions_of_both_predictions():
    measure = factored.FactoredMeasure(PAIR, length=6, num_sequences=400)
    exact = measure.exact()
    assert (exact["sum"], exact["product"]) == (4, 8)
    assert representation.effective_dimension(np.array(exact["factors"]["explained"]), 1 - 1e-6) == 4
    assert representation.effective_dimension(np.array(exact["joint"]["explained"]), 1 - 1e-6) == 8
    assert 0.3 < exact["joint_r2_of_factors"] < 1
    # Held-out sequences of their own, so five standard errors of their mean.
    losses = -PAIR.log_likelihood(PAIR.sample(400, 6)) / 6
    assert exact["floor"] == pytest.approx(PAIR.optimal_loss(6).nats.mean(), abs=5 * losses.std() / 20)


def test_an_untrained_model_is_far_from_the_floor():
    found = factored.FactoredMeasure(PAIR, length=6, num_sequences=100)(model(13))
    assert found["excess"] > 0.05
    assert set(found["r2"]) == {"factor_0", "factor_1", "joint"}
    assert len(found["layers"]) == 3
    assert found["chance_overlap"] == 2 / 16
