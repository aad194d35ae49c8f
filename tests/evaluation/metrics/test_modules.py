import json
import math
import subprocess
import sys

import evaluate
import numpy as np
import pytest
import torch
from transformers import LlamaConfig

from hmm_datasets.data.sequences import HMMSequences
from hmm_datasets.data.windows import TokenWindows
from hmm_datasets.errors import InputError
from hmm_datasets.evaluation.metrics import NAMES, metric_path
from hmm_datasets.evaluation.optimum import measure_optimum
from hmm_datasets.evaluation.text import measure_text
from hmm_datasets.hmm import processes
from hmm_datasets.report.tables import optimum_table, text_table
from hmm_datasets.statistics import clustered_mean
from hmm_datasets.text.stream import TokenStream, write_tokens

RANDOM = np.random.default_rng(0)


def load(name: str) -> evaluate.EvaluationModule:
    return evaluate.load(metric_path(name), keep_in_memory=True)


def compute(name: str, **inputs) -> dict:
    return load(name).compute(**inputs)


def error(function, *arguments, **settings) -> str:
    with pytest.raises(InputError) as caught:
        function(*arguments, **settings)
    assert "\n" not in str(caught.value)
    return str(caught.value)


# Loading

CHILD = """
import doctest
import json
import evaluate
import numpy as np
from hmm_datasets.evaluation.metrics import NAMES, metric_path
found = {}
for name in NAMES:
    inputs = evaluate.load(metric_path(name)).inputs_description
    names = {"evaluate": evaluate, "metric_path": metric_path, "np": np}
    found[name] = doctest.DocTestRunner().run(doctest.DocTestParser().get_doctest(inputs, names, name, None, 0))
print(json.dumps(found))
"""


@pytest.mark.thorough
def test_every_metric_loads_and_runs_its_example_without_a_network(child_environment, tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", CHILD],
        env={**child_environment, "HF_HUB_OFFLINE": "1", "HF_EVALUATE_OFFLINE": "1", "HF_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert sorted(found) == sorted(NAMES)
    for name, (failed, attempted) in found.items():
        assert failed == 0, f"{name}: {done.stdout}"
        assert attempted >= 2


def test_an_unknown_metric_is_refused_by_name():
    assert error(metric_path, "accuracy") == f"metric 'accuracy' is unknown; expected one of {', '.join(NAMES)}"


# Values


def test_token_cross_entropy_by_hand():
    found = compute("token_cross_entropy", predictions=[[-1.0, -2.0], [-1.0, -3.0]])
    # Sequence means 1.5 and 2: their standard deviation is 0.5 / sqrt(2), over sqrt(2) sequences.
    assert found["cross_entropy"] == 1.75
    assert found["standard_error"] == pytest.approx(0.25, rel=1e-14)
    assert found["perplexity"] == pytest.approx(math.exp(1.75), rel=1e-14)
    assert found["by_position"] == [1.0, 2.5]
    assert found["by_position_error"] == pytest.approx([0.0, 0.5], rel=1e-14)


def test_bayes_gap_by_hand():
    found = compute("bayes_gap", predictions=[[-1.0, -2.0], [-1.0, -3.0]], references=[[-1.0, -1.5], [-0.5, -3.0]])
    assert found["bayes_gap"] == 0.25
    assert found["standard_error"] == 0
    assert (found["model"], found["optimum"]) == (1.75, 1.5)
    assert found["by_position"] == [0.25, 0.25]
    assert found["by_position_error"] == pytest.approx([0.25, 0.25], rel=1e-14)


def test_predictor_kl_by_hand():
    model, distribution = [[[0.5, 0.25, 0.25]]], [[[0.25, 0.75, 0.0]]]
    found = compute("predictor_kl", predictions=np.log(model), references=distribution)
    assert found["kl"] == pytest.approx(0.25 * math.log(0.5) + 0.75 * math.log(3), rel=1e-14)
    assert found["standard_error"] is None, "one sequence has no standard error"
    assert found["by_position_error"] == [None]


def test_probability_given_to_special_tokens_increases_the_divergence():
    distribution = [[[0.5, 0.5]]]
    with np.errstate(divide="ignore"):
        found = compute("predictor_kl", predictions=np.log([[[0.4, 0.4, 0.2]]]), references=distribution)
    assert found["kl"] == pytest.approx(math.log(0.5 / 0.4), rel=1e-13)


def test_predictor_kl_is_infinite_if_the_model_excludes_a_possible_token():
    found = compute("predictor_kl", predictions=[[[0.0, -np.inf]]], references=[[[0.5, 0.5]]])
    assert found["kl"] == math.inf


def test_metrics_agree_with_a_loop_over_tokens():
    count, length, symbols = 7, 5, 4
    distributions, models = RANDOM.dirichlet(np.ones(symbols), (2, count, length))
    tokens = RANDOM.integers(0, symbols, (count, length))
    logs = np.log(np.take_along_axis(models, tokens[..., None], -1)[..., 0])
    optimum = np.log(np.take_along_axis(distributions, tokens[..., None], -1)[..., 0])
    divergences = [
        [
            sum(p * math.log(p / q) for p, q in zip(distribution, model, strict=True))
            for distribution, model in zip(*rows, strict=True)
        ]
        for rows in zip(distributions, models, strict=True)
    ]
    found = compute("predictor_kl", predictions=np.log(models), references=distributions)
    assert found["kl"] == pytest.approx(np.mean(divergences), rel=1e-12)
    assert found["by_position"] == pytest.approx(np.mean(divergences, axis=0), rel=1e-12)
    means = np.mean(divergences, axis=1)
    assert found["standard_error"] == pytest.approx(math.sqrt(means.var(ddof=1) / count), rel=1e-12)
    gap = compute("bayes_gap", predictions=logs, references=optimum)
    assert gap["bayes_gap"] == pytest.approx(gap["model"] - gap["optimum"], abs=1e-14)
    assert gap["model"] == pytest.approx(-sum(map(sum, logs)) / (count * length), rel=1e-13)
    assert gap["model"] == compute("token_cross_entropy", predictions=logs)["cross_entropy"]


def test_bits_per_byte_by_hand():
    # 4 bits for 2 bytes, and 2 bits for 4.
    found = compute("bits_per_byte", predictions=[-4 * math.log(2), -2 * math.log(2)], references=[2, 4])
    assert found["bits_per_byte"] == pytest.approx(1.0, rel=1e-14)
    assert found["bytes"] == 6
    # Residuals 2 and -2: standard deviation sqrt(8), times sqrt(2), over 6 bytes.
    assert found["standard_error"] == pytest.approx(4 / 6, rel=1e-14)
    single = compute("bits_per_byte", predictions=[-1.0], references=[3])
    assert [single[key] for key in ("standard_error", "bits_per_byte_low", "bits_per_byte_high")] == [None] * 3


def test_the_error_of_bits_per_byte_is_that_of_repeating_the_measurement():
    def draw(count):
        size = RANDOM.integers(50, 150, count)
        return -size * RANDOM.normal(0.8, 0.2, count), size

    ratios = [bits.sum() / math.log(2) / -size.sum() for bits, size in (draw(100) for _ in range(2000))]
    bits, size = draw(100)
    found = compute("bits_per_byte", predictions=bits, references=size)
    # Four times the relative error of an estimate from 100 texts, 1 / sqrt(200).
    assert found["standard_error"] == pytest.approx(np.std(ratios), rel=0.3)


def test_the_clustered_error_is_that_of_repeating_the_measurement_with_dependent_tokens():
    def draw(count):
        return RANDOM.normal(0, 1, (count, 1)) + RANDOM.normal(0, 1, (count, 20))

    spread = np.std([draw(50).mean() for _ in range(2000)])
    found = clustered_mean(draw(50))
    assert found.standard_error == pytest.approx(spread, rel=0.45)
    naive = draw(50).std() / math.sqrt(1000)
    assert naive < 0.4 * spread, "as if tokens were independent"


def test_batches_add_up_to_the_whole():
    predictions, references = -RANDOM.exponential(1, (2, 9, 6))
    whole = compute("bayes_gap", predictions=predictions, references=references)
    metric = load("bayes_gap")
    for rows in (slice(0, 4), slice(4, 5), slice(5, 9)):
        metric.add_batch(predictions=predictions[rows], references=references[rows])
    assert metric.compute() == whole


# Bad input


@pytest.mark.parametrize(
    ("name", "inputs", "message"),
    [
        ("token_cross_entropy", {"predictions": [[-1.0], [-1.0, -2.0]]}, "predictions are ragged"),
        ("token_cross_entropy", {"predictions": [[-1.0, math.nan]]}, "values[0, 1] is NaN; expected a number"),
        ("token_cross_entropy", {"predictions": [[], []]}, "predictions have shape (2, 0)"),
        (
            "bayes_gap",
            {"predictions": [[-1.0, -2.0]], "references": [[-1.0]]},
            "predictions have shape (1, 2), references (1, 1); expected the same",
        ),
        ("bayes_gap", {"predictions": [[-math.inf]], "references": [[-math.inf]]}, "values[0, 0] is NaN"),
        (
            "predictor_kl",
            {"predictions": [[[0.0]]], "references": [[[0.5, 0.5]]]},
            "predictions have shape (1, 1, 1), references (1, 1, 2); expected (N, T, V) and (N, T, E), E at most V",
        ),
        (
            "predictor_kl",
            {"predictions": [[[0.0, 0.0]]], "references": [[[0.5, 0.5], [0.5, 0.5]]]},
            "references (1, 2, 2)",
        ),
        ("bits_per_byte", {"predictions": [-1.0], "references": [0]}, "expected counts of bytes, not all zero"),
        ("bits_per_byte", {"predictions": [-1.0], "references": [-3]}, "expected counts of bytes"),
        ("bits_per_byte", {"predictions": [-1.0, math.nan], "references": [1, 1]}, "predictions[1] is NaN"),
    ],
)
def test_wrong_inputs_are_refused(name, inputs, message):
    assert message in error(compute, name, **inputs)


# Measuring a model


class Oracle(torch.nn.Module):
    """Predicts by a table or an HMM; the beginning token is the last token of the vocabulary."""

    def __init__(self, hmm, sharpness=1.0):
        super().__init__()
        self.hmm = hmm
        self.sharpness = sharpness
        self.config = type("Config", (), {"vocab_size": hmm.num_symbols + 1})
        self.sizes = []

    def forward(self, input_ids, use_cache):
        self.sizes.append(len(input_ids))
        logs = self.hmm.next_token_probs(input_ids[:, 1:]).log() * self.sharpness
        logits = torch.cat([logs, torch.full_like(logs[..., :1], -torch.inf)], dim=-1)
        return type("Output", (), {"logits": logits})


@pytest.fixture(scope="module")
def accelerator():
    from accelerate import Accelerator

    return Accelerator(cpu=True)


@pytest.mark.parametrize("hmm", [processes.mess3(0.15, 0.6), processes.golden_mean()], ids=["mess3", "golden mean"])
def test_a_model_that_predicts_as_the_hmm_does_has_no_gap_and_no_divergence(hmm, accelerator):
    rows = HMMSequences(hmm, 20, first=1 << 63, num_sequences=30)
    found = measure_optimum(Oracle(hmm), hmm, rows, accelerator, batch_size=8)
    assert found["bayes_gap"]["bayes_gap"] == pytest.approx(0, abs=1e-6)
    assert found["bayes_gap"]["standard_error"] < 1e-6
    assert found["kl"]["bayes"]["kl"] == pytest.approx(0, abs=1e-6)
    model, floor = (found["cross_entropy"][name]["cross_entropy"] for name in ("model", "bayes"))
    assert model == pytest.approx(floor, abs=1e-6)
    assert len(found["bayes_gap"]["by_position"]) == 20
    tokens = hmm.sample(30, 20, first=1 << 63)
    assert found["cross_entropy"]["bayes"]["cross_entropy"] == pytest.approx(
        -hmm.log_likelihood(tokens).sum() / tokens.size, rel=1e-12
    )
    assert (found["num_sequences"], found["length"]) == (30, 20)
    assert found["fingerprint"] == hmm.fingerprint()


def test_every_measure_shows_an_overconfident_model(accelerator):
    hmm = processes.mess3(0.15, 0.6)
    rows = HMMSequences(hmm, 20, first=1 << 63, num_sequences=200)
    found = measure_optimum(Oracle(hmm, sharpness=3.0), hmm, rows, accelerator)
    gap, divergence = found["bayes_gap"], found["kl"]["bayes"]
    assert gap["bayes_gap"] > 0.03
    # Two estimates of the same expectation.
    error = math.hypot(gap["standard_error"], divergence["standard_error"])
    assert abs(gap["bayes_gap"] - divergence["kl"]) < 4 * error
    assert divergence["standard_error"] < gap["standard_error"], "the divergence is free of the tokens' noise"


def test_results_do_not_depend_on_the_batch_size(accelerator):
    hmm = processes.mess3(0.15, 0.6)
    rows = HMMSequences(hmm, 10, num_sequences=13)
    first, second = (measure_optimum(Oracle(hmm, 2.0), hmm, rows, accelerator, batch_size=size) for size in (4, 13))
    assert first["kl"] == second["kl"]
    assert first["cross_entropy"] == second["cross_entropy"]


def test_a_model_that_does_not_know_the_symbols_is_refused(accelerator):
    rows = HMMSequences(processes.random(2, 9), 10, num_sequences=4)
    message = error(measure_optimum, Oracle(processes.mess3(0.15, 0.6)), processes.random(2, 9), rows, accelerator)
    assert message.startswith("the model has 4 tokens, but the data have 10 symbols")


class Uniform(torch.nn.Module):
    config = LlamaConfig(vocab_size=16)

    def forward(self, input_ids, use_cache):
        return type("Output", (), {"logits": torch.zeros(*input_ids.shape, 16)})


def test_bits_per_byte_on_text_counts_the_bytes_of_the_tokens_predicted(accelerator, tmp_path, monkeypatch):
    from hmm_datasets.evaluation import text

    # Token k has k bytes.
    for name in ("token_bytes", "token_characters"):
        monkeypatch.setattr(text, name, lambda tokenizer: np.arange(16))
    document = RANDOM.integers(1, 15, 99).tolist()
    write_tokens([document], tmp_path, vocab_size=16, eos_id=15, tokenizer_hash="", corpus="numbers")
    windows = TokenWindows(TokenStream(tmp_path), 10)
    found = measure_text(Uniform(), None, windows, accelerator, batch_size=3)
    predicted = [int(token) for row in windows.__getitems__(range(10)) for token in row["input_ids"][1:]]
    assert found["num_tokens"] == 90
    assert found["nats_per_token"] == pytest.approx(math.log(16), rel=1e-12)
    assert found["bytes"] == sum(predicted)
    assert found["bits_per_byte"] == pytest.approx(90 * 4 / sum(predicted), rel=1e-12)


# Tables


def measured(**cross_entropies) -> dict:
    names = ("model", "uniform", "unigram", "bigram", "process_unigram", "process_bigram", "bayes")
    return {
        "cross_entropy": {n: {"cross_entropy": cross_entropies[n], "standard_error": 0.01} for n in names},
        "kl": {n: {"kl": 0.5, "standard_error": 0.125} for n in names if n != "model"},
        "bayes_gap": {"bayes_gap": cross_entropies["model"] - cross_entropies["bayes"], "standard_error": 0.002},
        "floor": "bayes",
        "num_sequences": 1200,
        "length": 64,
    }


GOOD = {"bayes": 0.9, "model": 0.95, "process_bigram": 0.96, "process_unigram": 0.97} | {
    "bigram": 1.0,
    "unigram": 1.05,
    "uniform": 1.1,
}


def test_the_table_of_a_model_shows_its_gap_and_order():
    lines = optimum_table(measured(**GOOD)).text().splitlines()
    assert lines[0].split() == ["predictor", "nats/token", "+-", "KL(predictor", "||", "model)", "+-"]
    assert lines[2].split() == ["Bayes-optimal", "0.9000", "0.0100", "0.5000", "0.1250"]
    assert lines[3].split() == ["model", "0.9500", "0.0100"]
    firsts = ["Bayes-optimal", "model", "bigram", "unigram", "bigram,", "unigram,", "uniform"]
    assert [line.split()[0] for line in lines[2:9]] == firsts
    assert "0.0500 +- 0.0020 nats per token (1,200 held-out sequences of 64)" in lines[9]


def test_rounding_is_no_finding_and_an_infinite_loss_is_one():
    own = measured(**{**GOOD, "model": 0.9})
    own["bayes_gap"] = {"bayes_gap": -2.7e-17, "standard_error": 4e-18}
    assert "BELOW" not in optimum_table(own).text()
    assert "excess over the optimal loss: 0.0000 +- 0.0000" in optimum_table(own).text()
    own["bayes_gap"] = {"bayes_gap": -1e-5, "standard_error": 0.0}
    assert "BELOW the optimal loss" in optimum_table(own).text()
    infinite = measured(**{**GOOD, "model": np.inf})
    infinite["cross_entropy"]["model"]["standard_error"] = np.nan
    assert "excess over the optimal loss: inf +- 0.0020" in optimum_table(infinite).text()


def test_a_table_aligns_numbers_to_the_right():
    assert text_table(["a", "bb"], [["ccc", 1], ["d", 22]]).splitlines() == [
        "a    bb",
        "---  --",
        "ccc   1",
        "d    22",
    ]


@pytest.mark.outside(
    "https://github.com/huggingface/huggingface_hub/issues/4946",
    "columns of tables that stay aligned beside characters of two columns",
    "tables of this package count columns of the terminal",
)
def test_a_table_aligns_characters_of_two_columns():
    assert text_table(["name", "n"], [["日本", "小"], ["abc", "12"]]).splitlines() == [
        "name   n",
        "----  --",
        "日本  小",
        "abc   12",
    ]
