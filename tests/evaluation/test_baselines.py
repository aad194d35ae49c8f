import math

import numpy as np
import pytest
import torch
from accelerate import Accelerator
from transformers import (
    EvalPrediction,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    Trainer,
    TrainingArguments,
)

from hmm_datasets.data.sequences import HMMSequences
from hmm_datasets.errors import InputError
from hmm_datasets.evaluation.baselines import BaselineComparison
from hmm_datasets.evaluation.optimum import measure_optimum
from hmm_datasets.hmm import processes
from hmm_datasets.hmm.analysis.predictors import predictors_of
from hmm_datasets.hmm.causal_lm import HMMForCausalLM
from hmm_datasets.hmm.model import HMM
from hmm_datasets.report.evaluation_tables import summary
from hmm_datasets.report.tables import optimum_table

SOURCES = {
    "mess3": processes.mess3(0.15, 0.6),
    "golden mean": processes.golden_mean(),
    "states": processes.random(3, 5, seed=1),
}
COIN = processes.coin(0.5)
NAMES = ["uniform", "unigram", "bigram", "process_unigram", "process_bigram", "bayes"]
# Numbers of some 1.0 kept as float32.
FLOAT32 = {"rtol": 1e-6, "atol": 1e-6}


def labels_of(hmm: HMM, bos: bool, count=4, length=7) -> torch.Tensor:
    rows = HMMSequences(hmm, length, bos=bos).__getitems__(range(count))
    return torch.stack([row["labels" if bos else "input_ids"] for row in rows])


def own_logits(hmm: HMM, labels: torch.Tensor, bos: bool) -> torch.Tensor:
    """The HMM's distribution in the form of a model's logits: entry `t` predicts token `t + 1`."""
    symbols = labels[:, 1:] if bos else labels
    logs = hmm.next_token_probs(symbols).log()
    logs = logs if bos else logs[:, 1:]
    return torch.cat([logs, torch.full_like(logs[..., :1], -torch.inf)], dim=-1) if bos else logs


@pytest.mark.parametrize("bos", [True, False])
@pytest.mark.parametrize("name", SOURCES)
def test_reduced_logits_are_those_of_a_loop_over_tokens(name, bos):
    hmm = SOURCES[name]
    labels = labels_of(hmm, bos)
    logits = torch.randn(*labels.shape, hmm.num_symbols + bos, generator=torch.Generator().manual_seed(0))
    found = BaselineComparison(hmm, bos=bos).reduce_logits(logits, labels)
    symbols = labels[:, 1:] if bos else labels
    distributions = {key: distribution(symbols).tolist() for key, distribution in predictors_of(hmm).items()}
    positions = range(symbols.shape[1]) if bos else range(1, symbols.shape[1])
    assert found.shape == (4, len(positions), 1 + 2 * len(NAMES))
    for row in range(4):
        for column, position in enumerate(positions):
            before = labels.shape[1] - symbols.shape[1] + position - 1
            weights = [math.exp(x) for x in logits[row, before].tolist()]
            model = [weight / sum(weights) for weight in weights]
            symbol = int(symbols[row, position])
            expected = [-math.log(model[symbol])]
            expected += [-math.log(distributions[key][row][position][symbol]) for key in NAMES]
            for key in NAMES:
                distribution = distributions[key][row][position]
                expected.append(sum(p * math.log(p / q) for p, q in zip(distribution, model, strict=False) if p > 0))
            np.testing.assert_allclose(found[row, column], expected, **FLOAT32)


@pytest.mark.parametrize("bos", [True, False])
@pytest.mark.parametrize("name", SOURCES)
def test_the_hmms_own_distribution_has_no_gap_and_no_divergence(name, bos):
    hmm = SOURCES[name]
    labels = labels_of(hmm, bos, count=50, length=30)
    baselines = BaselineComparison(hmm, bos=bos)
    reduced = baselines.reduce_logits(own_logits(hmm, labels, bos), labels)
    assert not torch.isnan(reduced).any()
    found = baselines.summarize(EvalPrediction(predictions=reduced.numpy(), label_ids=labels.numpy()))
    assert found["bayes_gap"] == pytest.approx(0, abs=1e-6)
    assert found["kl_bayes"] == pytest.approx(0, abs=1e-6)
    assert found["kl_uniform"] > 1e-3
    assert found["cross_entropy_uniform"] == pytest.approx(math.log(hmm.num_symbols), rel=1e-6)


def test_without_a_beginning_token_a_trainer_gives_the_tokens(tmp_path):
    hmm = processes.mess3(0.15, 0.6)
    rows = HMMSequences(hmm, 7, num_sequences=8, bos=False)
    baselines, sizes = BaselineComparison(hmm, bos=False), {"n_embd": 8, "n_layer": 1, "n_head": 1}
    found = {}
    for names in (["labels"], ["input_ids"]):
        trainer = Trainer(
            GPT2LMHeadModel(GPT2Config(vocab_size=3, **sizes)),
            TrainingArguments(str(tmp_path), label_names=names, report_to="none", use_cpu=True),
            eval_dataset=rows,
            preprocess_logits_for_metrics=baselines.reduce_logits,
            compute_metrics=baselines.summarize,
        )
        if names == ["labels"]:
            with pytest.raises(InputError, match=r"pass label_names=\['input_ids'\] to TrainingArguments"):
                trainer.evaluate()
        else:
            found = trainer.evaluate()
    assert found["eval_cross_entropy"] == pytest.approx(found["eval_loss"], rel=1e-5)


def test_a_model_that_is_a_predictor_has_no_divergence_from_that_one():
    hmm = HMM(transition=[[0.95, 0.05], [0.1, 0.9]], emission=[[0.7, 0.2, 0.1], [0.05, 0.15, 0.8]])
    labels = labels_of(hmm, bos=True, count=20, length=40)
    baselines = BaselineComparison(hmm)
    for name, distribution in predictors_of(hmm).items():
        reduced = baselines.reduce_logits(distribution(labels[:, 1:]).log(), labels)
        found = baselines.summarize(EvalPrediction(predictions=reduced.numpy(), label_ids=labels.numpy()))
        divergences = {key: found[f"kl_{key}"] for key in NAMES}
        assert divergences.pop(name) == pytest.approx(0, abs=1e-6)
        assert min(divergences.values()) > 1e-3
        assert found["cross_entropy"] == pytest.approx(found[f"cross_entropy_{name}"], abs=1e-6)


def test_half_precision_logits_are_reduced_in_double():
    hmm = processes.mess3(0.15, 0.6)
    labels = labels_of(hmm, bos=True)
    logits = torch.randn(4, 8, 4, generator=torch.Generator().manual_seed(1)).bfloat16()
    baselines = BaselineComparison(hmm)
    torch.testing.assert_close(
        baselines.reduce_logits(logits, labels), baselines.reduce_logits(logits.double(), labels), rtol=0, atol=0
    )


def test_the_trainer_reports_what_the_metrics_do(tmp_path):
    hmm = processes.mess3(0.15, 0.6)
    torch.manual_seed(0)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=4,
            hidden_size=16,
            intermediate_size=32,
            num_hidden_layers=1,
            num_attention_heads=2,
            use_cache=False,
        )
    ).eval()
    rows = HMMSequences(hmm, 12, first=1 << 63, num_sequences=13)
    baselines = BaselineComparison(hmm)
    trainer = Trainer(
        model=model,
        args=TrainingArguments(str(tmp_path), use_cpu=True, per_device_eval_batch_size=5, report_to="none"),
        eval_dataset=rows,
        compute_metrics=baselines.summarize,
        preprocess_logits_for_metrics=baselines.reduce_logits,
    )
    found = trainer.evaluate()
    expected = measure_optimum(model, hmm, rows, Accelerator(cpu=True))
    assert found["eval_cross_entropy"] == pytest.approx(expected["cross_entropy"]["model"]["cross_entropy"], rel=1e-5)
    assert found["eval_loss"] == pytest.approx(found["eval_cross_entropy"], rel=1e-5)
    assert found["eval_bayes_gap"] == pytest.approx(expected["bayes_gap"]["bayes_gap"], abs=1e-5)
    for name in NAMES:
        assert found[f"eval_kl_{name}"] == pytest.approx(expected["kl"][name]["kl"], abs=1e-5)
        entropy = expected["cross_entropy"][name]["cross_entropy"]
        assert found[f"eval_cross_entropy_{name}"] == pytest.approx(entropy, rel=1e-5)


def test_an_hmm_is_not_below_itself_and_infinitely_far_from_symbols_that_it_excludes():
    for model, source in ((SOURCES["golden mean"],) * 2, (SOURCES["mess3"],) * 2, (processes.golden_mean(), COIN)):
        own = HMMForCausalLM.from_hmm(model, bos_token_id=model.num_symbols).eval()
        found = measure_optimum(own, source, HMMSequences(source, 12, num_sequences=50), Accelerator(cpu=True))
        text, sentence = optimum_table(found).text(), summary({"optimum": found})[0]
        assert "BELOW" not in text
        if source is COIN:
            assert found["kl"]["bayes"]["kl"] == math.inf
            assert "excess over the optimal loss: inf nats" in text
            assert sentence.startswith("The model excludes symbols that occur, so that its loss is infinitely far")
        else:
            assert abs(found["bayes_gap"]["bayes_gap"]) < 1e-12
            assert "excess over the optimal loss: 0.0000 +- 0.0000 nats" in text
            assert sentence.startswith("The model is 0.0000 +- 0.0000 nats per token (95% interval 0.0000 .. 0.0000)")
