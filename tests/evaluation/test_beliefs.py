"""Linear probes: against other libraries' least squares on the same split, and where the answer is known."""

import functools
import json

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.linear_model import LinearRegression
from sklearn.metrics import r2_score
from transformers import LlamaConfig, LlamaForCausalLM

from hmm_datasets.data.sequences import HMMSequences
from hmm_datasets.errors import InputError
from hmm_datasets.evaluation.beliefs import probe_beliefs
from hmm_datasets.evaluation.linear_probes import Moments, partners, shuffled_positions, split_sequences
from hmm_datasets.hmm import processes
from hmm_datasets.hmm.causal_lm import HMMForCausalLM
from hmm_datasets.hmm.families import PermutedSymbols

MESS3 = processes.mess3(x=0.05, a=0.85)
FIGURES = ["r2", "rmse", "shuffled_r2", "shuffled_rmse", "untrained_r2", "untrained_rmse"]


@pytest.fixture(scope="module")
def accelerator():
    from accelerate import Accelerator

    return Accelerator(cpu=True)


def llama(vocab_size: int = 4, seed: int = 1) -> LlamaForCausalLM:
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=vocab_size,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        # With the default an untrained model almost ignores earlier tokens.
        initializer_range=0.5,
    )
    return LlamaForCausalLM(config).eval()


def rows_of(hmm, count=31, length=12, bos=True) -> HMMSequences:
    return HMMSequences(hmm, length, seed=3, first=1 << 63, num_sequences=count, bos=bos)


# A model


@pytest.mark.outside(
    "https://github.com/huggingface/transformers/pull/48087",
    "hidden states before the final norm, for models whose config says so",
    "`probe_beliefs` takes the hidden states that the model returns, or with `layers=` those after the norm",
)
@pytest.mark.parametrize("tied", [True, False])
def test_the_last_layer_is_what_the_model_returns(tied):
    model, rows = llama(), rows_of(MESS3)
    model.config.tie_last_hidden_states = tied
    tokens = torch.stack([row["input_ids"] for row in rows.__getitems__(range(31))])
    with torch.no_grad():
        states = model(tokens, output_hidden_states=True).hidden_states
        normed = model.model(tokens).last_hidden_state
    probe = functools.partial(probe_beliefs, process=MESS3, rows=rows, controls=False)
    found = probe(model)["layers"]
    for name, table in zip(["0", "1", "2"], states, strict=True):
        assert found[name] == pytest.approx(probe(table)["layers"]["0"], rel=1e-4)
    after = probe(model, layers=["model.norm"])["layers"]["model.norm"]
    assert after == pytest.approx(probe(normed)["layers"]["0"], rel=1e-4)


@pytest.mark.thorough
@pytest.mark.parametrize("bos", [True, False], ids=["bos", "no bos"])
def test_figures_are_those_of_scikit_learn_on_the_same_split(bos, accelerator):
    model, rows = llama(), rows_of(MESS3, bos=bos)
    found = probe_beliefs(model, MESS3, rows, accelerator, batch_size=4, seed=5)
    tokens = torch.stack([row["input_ids"] for row in rows.__getitems__(range(31))])
    with torch.no_grad():
        hidden = [layer.double().numpy() for layer in model(tokens, output_hidden_states=True).hidden_states]
    beliefs = MESS3.beliefs(tokens[:, 1:]).numpy() if bos else MESS3.beliefs(tokens).numpy()[:, 1:]
    fitted, tested = split_sequences(31, 5)
    assert sorted([*fitted, *tested]) == list(range(31))
    shuffled = np.empty_like(beliefs)
    for half in (fitted, tested):
        for sequence, partner in zip(half, partners(half), strict=True):
            assert sequence != partner
            shuffled[sequence] = beliefs[partner][shuffled_positions(sequence, beliefs.shape[1], 5)]
    assert list(found["layers"]) == ["0", "1", "2", "all"]
    for name, layer in zip(found["layers"], [*hidden, np.concatenate(hidden, -1)], strict=True):
        assert list(found["layers"][name]) == FIGURES
        for control, target in (("", beliefs), ("shuffled_", shuffled)):
            x, y = (np.concatenate(table[fitted]) for table in (layer, target))
            predicted = LinearRegression().fit(x, y).predict(np.concatenate(layer[tested]))
            true = np.concatenate(target[tested])
            close = {"rel": 1e-6, "abs": 1e-6}
            r2 = r2_score(true, predicted, multioutput="variance_weighted")
            assert found["layers"][name][f"{control}r2"] == pytest.approx(r2, **close), (name, control)
            rmse = np.sqrt(np.mean((true - predicted) ** 2))
            assert found["layers"][name][f"{control}rmse"] == pytest.approx(rmse, **close), (name, control)
    assert (found["num_sequences"], found["fitted_on"], found["tested_on"]) == (31, 15, 16)


@pytest.mark.parametrize("bos", [True, False], ids=["bos", "no bos"])
def test_beliefs_that_are_hidden_states_are_found_completely(bos, accelerator):
    """The model is the HMM itself, whose hidden states are its beliefs; an error of one position would show."""
    hmm = processes.random(4, 5, alpha=0.5, seed=1)
    model = HMMForCausalLM.from_hmm(hmm, bos_token_id=5 if bos else None)
    found = probe_beliefs(model, hmm, rows_of(hmm, bos=bos), accelerator)
    for name in ("0", "all"):
        assert found["layers"][name]["r2"] == pytest.approx(1, abs=1e-12)
        assert found["layers"][name]["rmse"] < 1e-9
        assert found["layers"][name]["shuffled_r2"] < 0.1
        # Initial tables are uniform, so the belief does not change and only the mean is predicted.
        assert found["layers"][name]["untrained_r2"] == pytest.approx(0, abs=0.05)
    # Beliefs over four states are drawn too.
    items = [np.array([item[name] for item in found["items"]]) for name in ("belief", "probed")]
    np.testing.assert_allclose(*items, atol=1e-5)


def test_the_untrained_control_has_initial_weights(accelerator):
    model, rows = llama(seed=9), rows_of(MESS3)
    state = torch.get_rng_state()
    found = probe_beliefs(model, MESS3, rows, accelerator, seed=9)["layers"]
    assert torch.equal(torch.get_rng_state(), state)
    other = probe_beliefs(llama(seed=4), MESS3, rows, accelerator, seed=9)["layers"]
    for name, figures in found.items():
        # Matrix products may round by where in memory their arguments lie, so equal weights give equal figures nearly.
        assert figures["untrained_r2"] == pytest.approx(figures["r2"], abs=1e-9), "fresh weights of the same seed"
        assert figures["untrained_rmse"] == pytest.approx(other[name]["untrained_rmse"], abs=1e-9)
        if name != "0":
            assert other[name]["r2"] != pytest.approx(figures["r2"], abs=1e-6)


def test_figures_do_not_depend_on_the_batch_size_and_are_json(accelerator):
    model, rows = llama(), rows_of(MESS3)
    one, two = (probe_beliefs(model, MESS3, rows, accelerator, batch_size=size) for size in (3, 16))
    json.dumps(one, allow_nan=False)
    for name, figures in one["layers"].items():
        assert figures == pytest.approx(two["layers"][name], rel=1e-6, abs=1e-6)
    assert one["layers"] != probe_beliefs(model, MESS3, rows, accelerator, seed=1)["layers"], "another split"


@pytest.mark.thorough
def test_three_states_come_with_points_to_draw(accelerator):
    rows = rows_of(MESS3, count=700)
    found = probe_beliefs(llama(), MESS3, rows, accelerator, batch_size=350)
    assert len(found["items"]) == 4000
    belief, probed = (np.array([item[name] for item in found["items"]]) for name in ("belief", "probed"))
    np.testing.assert_allclose(belief.sum(1), 1, atol=2e-6)
    # Predictions of targets that sum to one also sum to one.
    np.testing.assert_allclose(probed.sum(1), 1, atol=2e-6)
    # All 350 of the half: 4,550 positions.
    assert np.sqrt(np.mean((belief - probed) ** 2)) == pytest.approx(found["layers"]["all"]["rmse"], rel=0.05)
    _, tested = split_sequences(700, 0)
    first = rows[int(tested[0])]["input_ids"][1:]
    np.testing.assert_allclose(belief[:13], MESS3.beliefs(first.unsqueeze(0))[0], atol=1e-6)


class Silent(torch.nn.Module):
    config = type("Config", (), {"vocab_size": 4})

    def forward(self, input_ids, **settings):
        return type("Output", (), {"hidden_states": None})


@pytest.mark.parametrize(
    ("model", "source", "count", "message"),
    [
        (
            Silent(),
            PermutedSymbols(MESS3),
            9,
            "PermutedSymbols has no beliefs; expected an HMM or another process with beliefs",
        ),
        (Silent(), MESS3, 9, "Silent returns no hidden states; there is nothing to probe"),
        (Silent(), MESS3, 3, "3 sequences to probe; expected 4 or more, two of them in each half"),
        (Silent(), processes.random(2, 9), 9, "the model has 4 tokens, but the data have 10 symbols"),
    ],
    ids=["family", "silent", "few", "vocabulary"],
)
def test_what_cannot_be_probed_is_refused(model, source, count, message, accelerator):
    with pytest.raises(InputError) as caught:
        probe_beliefs(model, source, rows_of(source, count=count), accelerator)
    assert str(caught.value).startswith(message)


# Moments


@given(sizes=st.lists(st.integers(1, 9), min_size=1, max_size=6), offset=st.sampled_from([0.0, 1e6]))
@settings(deadline=None, derandomize=True, max_examples=30)
def test_moments_of_batches_are_those_of_the_whole(sizes, offset):
    rows = np.random.default_rng(sum(sizes)).normal(size=(sum(sizes), 3)) + offset
    moments = Moments()
    for batch in np.split(rows, np.cumsum(sizes)[:-1]):
        moments.add(torch.from_numpy(batch))
    assert moments.count == len(rows)
    np.testing.assert_allclose(moments.mean, rows.mean(0), rtol=1e-12, atol=1e-12)
    deviation = rows - rows.mean(0)
    np.testing.assert_allclose(moments.scatter, deviation.T @ deviation, rtol=1e-7, atol=1e-7)


def test_linearly_dependent_features_get_the_minimum_norm_solution():
    generator = np.random.default_rng(0)
    base = generator.normal(size=(200, 3))
    features, targets = base @ generator.normal(size=(3, 7)), base @ generator.normal(size=(3, 2)) + 5
    moments = Moments()
    moments.add(torch.from_numpy(np.concatenate([features, targets], 1)))
    weights, intercept = moments.regress(slice(0, 7), slice(7, 9))
    centered = features - features.mean(0), targets - targets.mean(0)
    np.testing.assert_allclose(weights, np.linalg.lstsq(*centered, rcond=1e-9)[0], rtol=1e-7, atol=1e-9)
    np.testing.assert_allclose(features @ weights.numpy() + intercept.numpy(), targets, rtol=1e-7)
