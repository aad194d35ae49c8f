"""`measure_optimum` on models whose distance from the distribution of the data is known."""

import json
import math

import numpy as np
import pytest
import torch

from hmm_datasets.data.sequences import HMMSequences
from hmm_datasets.errors import InputError
from hmm_datasets.evaluation.metrics import load_metric
from hmm_datasets.evaluation.optimum import measure_optimum
from hmm_datasets.hmm import processes
from hmm_datasets.hmm.analysis.predictors import cross_entropy, predictors_of
from hmm_datasets.hmm.causal_lm import HMMConfig, HMMForCausalLM
from hmm_datasets.hmm.model import HMM

MESS3 = processes.mess3(x=0.05, a=0.85)


@pytest.fixture(scope="module")
def accelerator():
    from accelerate import Accelerator

    return Accelerator(cpu=True)


def rows_of(hmm: HMM, count: int = 40, length: int = 16, bos: bool = True) -> HMMSequences:
    return HMMSequences(hmm, length, seed=7, first=1 << 63, num_sequences=count, bos=bos)


def perturbed(hmm: HMM, share: float, seed: int) -> HMM:
    """An HMM whose tables are those of `hmm` mixed with a share of noise."""
    generator = np.random.default_rng([seed, 1])

    def mixed(table):
        return (1 - share) * table + share * generator.dirichlet(np.ones(table.shape[1]), len(table))

    return HMM(start=hmm.start, transition=mixed(hmm.transition), emission=mixed(hmm.emission), normalize=True)


# Known distances


@pytest.mark.parametrize("bos", [True, False], ids=["bos", "no bos"])
@pytest.mark.parametrize("hmm", [MESS3, processes.golden_mean(), processes.random(5, 7, seed=1)], ids=["3", "2", "5"])
def test_the_hmm_itself_has_no_gap(hmm, bos, accelerator):
    model = HMMForCausalLM.from_hmm(hmm, bos_token_id=hmm.num_symbols if bos else None)
    found = measure_optimum(model, hmm, rows_of(hmm, bos=bos), accelerator, batch_size=16)
    assert abs(found["bayes_gap"]["bayes_gap"]) < 1e-6
    assert np.abs(found["bayes_gap"]["by_position"]).max() < 1e-6
    assert found["bayes_gap"]["standard_error"] < 1e-6
    assert abs(found["kl"]["bayes"]["kl"]) < 1e-6
    assert len(found["bayes_gap"]["by_position"]) == (16 if bos else 15)


def test_a_uniform_model_is_the_uniform_predictor(accelerator):
    model = HMMForCausalLM(HMMConfig(num_states=2, num_symbols=3, bos_token_id=3))
    found = measure_optimum(model, MESS3, rows_of(MESS3), accelerator)
    assert abs(found["kl"]["uniform"]["kl"]) < 1e-12
    assert found["cross_entropy"]["model"]["cross_entropy"] == pytest.approx(math.log(3), rel=1e-12)
    assert found["kl"]["bayes"]["kl"] > 0.1


@pytest.mark.parametrize("seed", range(50))
def test_no_model_is_better_than_the_optimum(seed, accelerator):
    """For the exact model and a slightly wrong one, gap and divergence are two estimates of the same number."""
    hmm = processes.random(2 + seed % 5, 2 + seed % 7, alpha=(0.5, 1.0, 5.0)[seed % 3], seed=seed)
    # So many sequences that symbols with probability 1e-4 occur; otherwise the standard error would miss them.
    rows = rows_of(hmm, count=400)
    exact = measure_optimum(HMMForCausalLM.from_hmm(hmm, hmm.num_symbols), hmm, rows, accelerator, batch_size=200)
    exact = exact["bayes_gap"]
    assert abs(exact["bayes_gap"]) < 1e-9
    near = perturbed(hmm, (0.003, 0.03, 0.3)[seed // 3 % 3], seed)
    found = measure_optimum(HMMForCausalLM.from_hmm(near, hmm.num_symbols), hmm, rows, accelerator, batch_size=200)
    gap, divergence = found["bayes_gap"], found["kl"]["bayes"]
    assert divergence["kl"] > 0
    assert gap["bayes_gap"] >= -3 * gap["standard_error"]
    error = math.hypot(gap["standard_error"], divergence["standard_error"])
    assert abs(gap["bayes_gap"] - divergence["kl"]) < 4 * error


# Other results


@pytest.mark.thorough
def test_divergences_are_those_of_the_metric_module_on_the_whole_distributions(accelerator):
    near, rows = perturbed(processes.random(4, 5, seed=2), 0.2, seed=0), rows_of(processes.random(4, 5, seed=2))
    hmm, model = rows.source, HMMForCausalLM.from_hmm(near, 5)
    found = measure_optimum(model, hmm, rows, accelerator, batch_size=7, order=3)
    tokens = torch.stack([row["input_ids"] for row in rows.__getitems__(range(len(rows)))])
    with torch.no_grad():
        log_model = torch.log_softmax(model(tokens).logits[:, :-1], -1).numpy()
    for name, predictor in predictors_of(hmm, order=3).items():
        distribution = predictor(tokens[:, 1:])[:, :-1].numpy()
        expected = load_metric("predictor_kl").compute(predictions=log_model, references=distribution)
        for key, value in expected.items():
            assert found["kl"][name][key] == pytest.approx(value, rel=1e-9, abs=1e-13), (name, key)


def test_n_grams_up_to_the_given_order_are_measured(accelerator):
    found = measure_optimum(HMMForCausalLM.from_hmm(MESS3, 3), MESS3, rows_of(MESS3), accelerator, order=4)
    assert [name for name in found["kl"] if "gram" in name and "process" not in name] == [
        "unigram",
        "bigram",
        "3-gram",
        "4-gram",
    ]
    tokens = MESS3.sample(40, 16, seed=7, first=1 << 63)
    expected = cross_entropy(predictors_of(MESS3, order=4)["4-gram"], tokens)
    np.testing.assert_allclose(found["cross_entropy"]["4-gram"]["by_position"], expected.nats, rtol=1e-12)


def test_the_last_token_is_scored_separately(accelerator):
    found = measure_optimum(HMMForCausalLM.from_hmm(MESS3, 3), MESS3, rows_of(MESS3), accelerator)
    tokens = MESS3.sample(40, 16, seed=7, first=1 << 63)
    before, after = (MESS3.log_likelihood(part) for part in (tokens[:, :-1], tokens))
    nats = before - after
    for name in ("bayes", "model"):
        assert found["final_token"][name]["cross_entropy"] == pytest.approx(nats.mean(), rel=1e-9)
        assert found["final_token"][name]["standard_error"] == pytest.approx(
            nats.std(ddof=1) / math.sqrt(40), rel=1e-9
        )
    assert found["final_token"]["uniform"]["cross_entropy"] == pytest.approx(math.log(3), rel=1e-12)


def test_every_sequence_has_an_item_and_the_result_is_json(accelerator):
    near = HMMForCausalLM.from_hmm(processes.mess3(0.1, 0.7), 3)
    found = measure_optimum(near, MESS3, rows_of(MESS3), accelerator, batch_size=9)
    json.dumps(found, allow_nan=False)
    tokens = MESS3.sample(40, 16, seed=7, first=1 << 63)
    assert [item["sequence"] for item in found["items"]] == list(range(40))
    np.testing.assert_allclose([item["floor_nats"] for item in found["items"]], -MESS3.log_likelihood(tokens))
    nats = [item["nats"] for item in found["items"]]
    np.testing.assert_allclose(nats, -processes.mess3(0.1, 0.7).log_likelihood(tokens))
    assert sum(nats) / 640 == pytest.approx(found["cross_entropy"]["model"]["cross_entropy"], rel=1e-12)
    told = {name: found[name] for name in ("seed", "first", "source", "num_states", "num_symbols", "length")}
    assert told == {
        "seed": 7,
        "first": 1 << 63,
        "source": "HMM",
        "num_states": 3,
        "num_symbols": 3,
        "length": 16,
    }


def test_one_sequence_is_too_few(accelerator):
    with pytest.raises(InputError, match="1 sequence to measure on; expected 2 or more"):
        measure_optimum(HMMForCausalLM.from_hmm(MESS3, 3), MESS3, rows_of(MESS3, count=1), accelerator)
