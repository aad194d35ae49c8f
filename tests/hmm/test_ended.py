"""Sequences that end: their distribution, their rows, and that nothing counts the padding."""

import itertools
import json

import numpy as np
import pytest
import torch
from datasets import load_dataset

from hmm_datasets import HMMSequences, InputError, PermutedSymbols, load_source, measure_optimum, processes
from hmm_datasets.cli import main
from hmm_datasets.data.builders import registration  # noqa: F401
from hmm_datasets.evaluation.baselines import BaselineComparison
from hmm_datasets.hmm.model import HMM
from hmm_datasets.hmm.structured.ended import EndedProcess
from hmm_datasets.statistics import clustered_mean
from hmm_datasets.training.sources import DataSettings

BASES = {"HMM": (processes.mess3(0.15, 0.6), 2), "family": (PermutedSymbols(processes.mess3(0.15, 0.6)), 0)}
ENDED = EndedProcess(processes.mess3(0.15, 0.6), 2)


@pytest.mark.parametrize("name", BASES)
def test_the_distribution_is_the_sum_over_all_rows_that_end_alike(name):
    base, end = BASES[name]
    process, length = EndedProcess(base, end), 4
    expected: dict[tuple[int, ...], float] = {}
    for word in itertools.product(range(3), repeat=length):
        cut = word.index(end) + 1 if end in word else length
        row = (*word[:cut], *[3] * (length - cut))
        expected[row] = expected.get(row, 0.0) + float(np.exp(base.log_likelihood([word])[0]))
    every = np.array(list(itertools.product(range(4), repeat=length)))
    likelihood = np.exp(process.log_likelihood(every))
    np.testing.assert_allclose(likelihood, [expected.get(tuple(row), 0.0) for row in every.tolist()], atol=1e-10)
    tokens = base.sample(50, 20, seed=3, first=7)
    rows = process.sample(50, 20, seed=3, first=7)
    after = np.cumsum(tokens == end, axis=1) - (tokens == end) > 0
    np.testing.assert_array_equal(rows, np.where(after, 3, tokens))


@pytest.mark.outside(
    "https://github.com/tensorflow/probability/issues/1373",
    "train on padded sequences of different lengths without that the padded values affect the log-probability",
    "padding after the end of a sequence is a symbol of probability one with the label -100, counted nowhere",
)
def test_padding_has_the_label_that_losses_leave_out_and_no_attention(tmp_path):
    rows = HMMSequences(ENDED, 12, seed=1, num_sequences=64)
    drawn, total = ENDED.sample(64, 12, seed=1).astype(int), 0
    for row, tokens in zip(rows, drawn, strict=False):
        padding = np.concatenate([[False], tokens == 3])
        assert row["input_ids"].tolist() == [4, *tokens.tolist()]
        assert row["labels"].tolist() == [-100, *np.where(tokens == 3, -100, tokens).tolist()]
        assert row["attention_mask"].tolist() == (~padding).astype(int).tolist()
        total += int((~padding).sum())
    assert rows.tokens_of(64) == total == pytest.approx(64 * rows.tokens_per_row)
    data = DataSettings(hmm="ended(mess3(0.15, 0.6), 2)", length=12, data_seed=1).load()
    assert data.tokens_of(64) == total
    ENDED.save_pretrained(tmp_path / "ended")
    assert load_source(tmp_path / "ended").fingerprint() == ENDED.fingerprint()
    table = load_dataset(
        *("hmm", str(tmp_path / "ended")), length=12, seed=1, num_sequences=64, cache_dir=str(tmp_path), split="train"
    )
    assert table["input_ids"][:] == [[4, *tokens[tokens != 3].tolist()] for tokens in drawn]
    with pytest.raises(InputError, match="EndedProcess has rows that end, without log_probs"):
        load_dataset("hmm", "ended(mess3, 2)", length=12, streaming=True, columns=["log_probs"], split="train")


def test_evaluations_leave_the_padding_out_of_every_mean():
    rows = HMMSequences(ENDED, 12, first=2**63, num_sequences=200)
    tokens = ENDED.sample(200, 12, first=2**63)
    exact = measure_optimum(lambda batch: ENDED.next_token_probs(batch[:, 1:]).log(), ENDED, rows)
    assert abs(exact["bayes_gap"]["bayes_gap"]) < 1e-12
    # A model that is uniform over the symbols and the padding.
    uniform = measure_optimum(lambda batch: torch.zeros(*batch.shape, 5), ENDED, rows)
    kept = tokens != 3
    probs = np.take_along_axis(ENDED.next_token_probs(tokens)[:, :-1], tokens[..., None].astype(np.int64), -1)[..., 0]
    nats = np.where(kept, -np.log(probs), 0.0)
    assert uniform["cross_entropy"]["model"]["cross_entropy"] == pytest.approx(np.log(5), abs=1e-10)
    assert uniform["bayes_gap"]["optimum"] == pytest.approx(nats.sum() / kept.sum(), abs=1e-10)
    assert sum(item["tokens"] for item in uniform["items"]) == kept.sum()
    assert uniform["items"][0]["floor_nats"] == pytest.approx(nats[0].sum(), abs=1e-10)
    last = nats[np.arange(200), kept.sum(1) - 1].mean()
    assert uniform["final_token"]["bayes"]["cross_entropy"] == pytest.approx(last, abs=1e-10)
    baselines = BaselineComparison(ENDED)
    labels = torch.stack([row["labels"] for row in (rows[index] for index in range(200))])
    scores = baselines.reduce_logits(torch.zeros(200, 13, 5), labels)
    from transformers import EvalPrediction

    means = baselines.summarize(EvalPrediction(scores.numpy(), labels.numpy()))
    assert means["cross_entropy_bayes"] == pytest.approx(nats.sum() / kept.sum(), rel=1e-5)


def test_the_error_of_a_mean_over_rows_of_different_lengths_is_that_of_repeated_draws():
    generator = np.random.default_rng(0)
    means, errors = [], []
    for _ in range(400):
        lengths = generator.integers(1, 8, 60)
        table = generator.normal(size=(60, 7)) + generator.normal(size=(60, 1)) + lengths[:, None] / 7
        table[np.arange(7) >= lengths[:, None]] = np.nan
        result = clustered_mean(table, padded=True)
        means.append(result.mean)
        errors.append(result.standard_error)
    assert np.mean(errors) == pytest.approx(np.std(means), rel=0.12)
    whole = generator.normal(size=(20, 5))
    for found, expected in zip(clustered_mean(whole, padded=True), clustered_mean(whole), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-12)


@pytest.mark.thorough
def test_a_model_is_trained_on_sequences_that_end_and_its_tokens_are_those_planned(tmp_path, capsys):
    data = ["--hmm", "ended(mess3(0.15, 0.6), 2)", "--length", "12", "--model", "1m", "--report_to", "none"]
    sizes = ["--max_steps", "3", "--global_batch_size", "4", "--per_device_train_batch_size", "2"]
    assert (
        main(["pretrain", *data, *sizes, "--output_dir", str(tmp_path / "run"), "--evaluations_per_doubling", "1"])
        == 0
    )
    history = [json.loads(line) for line in (tmp_path / "run" / "history.jsonl").read_text().splitlines()]
    assert history[-1]["tokens"] == HMMSequences(ENDED, 12).tokens_of(12)
    targets = ["--targets", "ended(mess3(0.15, 0.6), 2)", "--length", "12", "--num_sequences", "32"]
    assert main(["evaluate", str(tmp_path / "run"), *targets, "--tasks", "optimum"]) == 0
    report = json.loads((tmp_path / "run" / "evaluation" / "report.json").read_text())
    assert report["optimum"]["bayes_gap"]["bayes_gap"] > 0
    capsys.readouterr()
    assert main(["describe", "ended(mess3(0.15, 0.6), 2)", "--length", "8", "--num_sequences", "32"]) == 0
    assert "whose sequences end with symbol 2" in capsys.readouterr().out


def test_what_cannot_end_is_refused():
    with pytest.raises(InputError, match="end is 3; expected a symbol of HMM"):
        EndedProcess(processes.mess3(), 3)
    with pytest.raises(InputError, match="expected a process whose sequences do not end yet"):
        EndedProcess(ENDED, 1)
    with pytest.raises(InputError, match="end is 'z'; expected a number"):
        EndedProcess(processes.mess3(), "z")
    named = EndedProcess(processes.matching_parentheses(), ")")
    assert (named.end, named.vocabulary) == (1, ("(", ")", "<pad>"))


def test_after_a_token_that_the_process_cannot_emit_nothing_is_possible():
    ended = EndedProcess(HMM(transition=[[0, 1], [1, 0]], emission=[[1, 0, 0], [0, 0.5, 0.5]], start=[1, 0]), end=1)
    probs = ended.next_token_probs([[0, 0, 1, 3], [0, 1, 3, 3]])
    assert not probs[0, 2:].any()
    assert probs[1, 2:].tolist() == [[0, 0, 0, 1]] * 3
