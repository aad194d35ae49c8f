"""Probes of parts of a belief, and by checkpoint, and beliefs of Markov order k as a control."""

import itertools

import numpy as np
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedConfig

from hmm_datasets import HMM, HMMSequences, processes
from hmm_datasets.cli import main
from hmm_datasets.evaluation.beliefs import Starts, probe_beliefs, row_of
from hmm_datasets.evaluation.linear_probes import split_sequences
from hmm_datasets.files import read_json, write_json
from hmm_datasets.hmm.causal_lm import HMMForCausalLM
from hmm_datasets.hmm.process import Process
from hmm_datasets.hmm.sampling import checked_draw

MESS3 = processes.mess3(x=0.05, a=0.85)
NONUNIFILAR = processes.simple_nonunifilar()


@pytest.fixture(scope="module")
def accelerator():
    from accelerate import Accelerator

    return Accelerator(cpu=True)


class Pair(Process):
    """Two independent HMMs; a symbol is a pair of theirs, a belief one belief beside the other."""

    stored_name = "Pair"

    def __init__(self, one: HMM, other: HMM):
        self.one, self.other = one, other

    def parts(self):
        return self.one, self.other

    @property
    def num_symbols(self):
        return self.one.num_symbols * self.other.num_symbols

    @property
    def belief_width(self):
        return self.one.num_states + self.other.num_states

    def belief_parts(self):
        return {"one": slice(0, self.one.num_states), "other": slice(self.one.num_states, self.belief_width)}

    def sample(self, num_sequences, length, seed=0, first=0, *, step=1, out=None, num_threads=None):
        seed, first, step, out = checked_draw(self.num_symbols, num_sequences, length, seed, first, step, out)
        one = self.one.sample(len(out), length, seed, first, step=step).astype(int)
        out[:] = one * self.other.num_symbols + self.other.sample(len(out), length, seed ^ 1, first, step=step)
        return out

    def beliefs(self, tokens):
        count = self.other.num_symbols
        return torch.cat([self.one.beliefs(tokens // count), self.other.beliefs(tokens % count)], dim=-1)


class Vectors(Process):
    """Mess3 whose beliefs are given in other coordinates, as predictive vectors that are no distributions."""

    stored_name = "Vectors"
    num_symbols = 3
    belief_width = 4
    frame = torch.tensor([[1.0, 2.0, 0.0, -1.0], [0.0, -3.0, 1.0, 0.5], [2.0, 0.0, 0.0, 1.0]], dtype=torch.float64)

    def beliefs(self, tokens):
        return MESS3.beliefs(tokens) @ self.frame


class Showing(torch.nn.Module):
    """A model of two layers: a function of the symbols, the same at every position, and what remains of it.

    Args:
        first, second (callable): turn symbols (B, T) into hidden states (B, T + 1, D).
        num_symbols (`int`): `E`; the beginning token is the next one.
    """

    def __init__(self, first, second, num_symbols: int):
        super().__init__()
        self.functions = first, second
        self.config = PreTrainedConfig(vocab_size=num_symbols + 1)

    def forward(self, input_ids, **settings):
        hidden = [function(input_ids[:, 1:]).float() for function in self.functions]
        return type("Output", (), {"hidden_states": hidden})


def rows_of(process, count=200, length=16) -> HMMSequences:
    return HMMSequences(process, length, seed=3, first=1 << 63, num_sequences=count)


# Parts


def test_each_part_of_a_belief_is_found_where_it_is(accelerator):
    pair = Pair(MESS3, processes.even())
    of_one, of_other = (
        lambda tokens, part=part: pair.beliefs(tokens)[..., part] for part in pair.belief_parts().values()
    )
    found = probe_beliefs(Showing(of_one, of_other, 6), pair, rows_of(pair), accelerator, controls=False)
    assert list(found["parts"]) == ["one", "other"]
    one, other = found["parts"].values()
    for layers, at in ((one, "0"), (other, "1")):
        for name in (at, "all"):
            assert layers[name]["r2"] == pytest.approx(1, abs=1e-9)
            assert layers[name]["rmse"] < 1e-5
        assert layers["1" if at == "0" else "0"]["r2"] < 0.1
    # The whole: the errors of both parts over all numbers.
    whole = found["layers"]
    for name in whole:
        squares = 3 * one[name]["rmse"] ** 2 + 2 * other[name]["rmse"] ** 2
        assert whole[name]["rmse"] == pytest.approx((squares / 5) ** 0.5, rel=1e-9, abs=1e-9)
    assert row_of(found) == {
        f"belief{part}_{key}": figures["all"][key]
        for part, figures in (("", whole), ("_one", one), ("_other", other))
        for key in ("r2", "rmse")
    }
    assert "markov" not in found
    assert "untrained_r2" not in whole["all"]
    assert (found["num_states"], found["belief_width"]) == (None, 5)


def test_predictive_vectors_are_found_from_beliefs_and_drawn(accelerator):
    process = Vectors()
    process.sample = MESS3.sample
    found = probe_beliefs(
        Showing(MESS3.beliefs, MESS3.beliefs, 3), process, rows_of(process), accelerator, controls=False
    )
    assert found["layers"]["all"]["r2"] == pytest.approx(1, abs=1e-9)
    assert {len(item["belief"]) for item in found["items"]} == {4}


# Markov order k


@pytest.mark.parametrize("order", [1, 2, 3])
def test_beliefs_of_order_k_are_the_conditional_means_of_the_beliefs(order):
    """Enumerated: the mean of the exact beliefs over all words with the same last k symbols, by probability."""
    hmm = HMM(**{**NONUNIFILAR.tables(), "start": NONUNIFILAR.stationary()})
    words = np.array(list(itertools.product(range(2), repeat=6)))
    probability = np.exp(hmm.log_likelihood(words))
    exact = hmm.beliefs(words)[:, -1]
    found = Starts(NONUNIFILAR).markov_beliefs(torch.from_numpy(words), order)[:, -1].numpy()
    for end in itertools.product(range(2), repeat=order):
        own = (words[:, -order:] == end).all(1)
        if probability[own].sum() > 0:
            mean = probability[own] @ exact[own] / probability[own].sum()
            np.testing.assert_allclose(found[own], np.broadcast_to(mean, found[own].shape), atol=1e-12)


def test_beliefs_of_order_k_are_exact_until_there_are_more_symbols():
    tokens = torch.from_numpy(MESS3.sample(5, 9).astype(np.int64))
    exact = MESS3.beliefs(tokens)
    for order in (1, 2, 3, 9, 12):
        found = Starts(MESS3).markov_beliefs(tokens, order)
        assert found.shape == exact.shape
        np.testing.assert_allclose(found[:, : order + 1], exact[:, : order + 1], atol=1e-12)
    assert (found - exact).abs().max() < 1e-12


def test_a_process_of_order_one_is_known_from_its_last_symbol(accelerator):
    model = HMMForCausalLM.from_hmm(processes.golden_mean(), bos_token_id=2)
    found = probe_beliefs(model, processes.golden_mean(), rows_of(processes.golden_mean(), 40), accelerator)
    for order in ("1", "2", "3"):
        assert found["markov"][order]["r2"] == pytest.approx(1, abs=1e-12)


@pytest.mark.thorough
def test_the_control_of_order_k_is_better_with_more_symbols_and_worse_than_the_whole_past(accelerator):
    model = HMMForCausalLM.from_hmm(MESS3, bos_token_id=3)
    rows = rows_of(MESS3, 400)
    found = probe_beliefs(model, MESS3, rows, accelerator)
    markov = found["markov"]
    assert list(markov) == ["1", "2", "3"]
    rmses = [markov[order]["rmse"] for order in markov]
    assert rmses[0] > rmses[1] > rmses[2] > 100 * found["layers"]["all"]["rmse"]
    # By hand, on the half that is tested on.
    _, tested = split_sequences(400, 0)
    tokens = torch.stack([row["input_ids"][1:] for row in rows.__getitems__(tested)])
    exact, approximate = MESS3.beliefs(tokens), Starts(MESS3).markov_beliefs(tokens, 2)
    assert rmses[1] == pytest.approx((exact - approximate).square().mean().sqrt().item(), rel=1e-9)
    spread = (exact - exact.mean((0, 1))).square().mean().item()
    assert markov["2"]["r2"] == pytest.approx(1 - rmses[1] ** 2 / spread, rel=1e-9)
    # The model's hidden states are the exact beliefs, which give those of order k less well.
    assert all(0 < markov[order]["probe_r2"] < 0.999 for order in markov)


# Checkpoints


@pytest.mark.thorough
def test_beliefs_are_probed_at_every_checkpoint_and_shown(tmp_path):
    MESS3.save_pretrained(tmp_path / "hmm")
    sizes = {"hidden_size": 8, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    for step, name in ((2, "checkpoint-2"), (10, "checkpoint-10"), (10, ".")):
        torch.manual_seed(step)
        LlamaForCausalLM(LlamaConfig(vocab_size=4, **sizes)).save_pretrained(tmp_path / "run" / name)
        write_json(
            tmp_path / "run" / name / "trainer_state.json", {"global_step": step, "num_input_tokens_seen": step}
        )
    command = ["evaluate", str(tmp_path / "run"), "--targets", str(tmp_path / "hmm"), "--length", "8"]
    command += ["--num_sequences", "24", "--checkpoint_sequences", "24", "--checkpoints", "true"]
    assert main([*command, "--tasks", "beliefs", "training", "--output_dir", str(tmp_path / "out")]) == 0
    report = read_json(tmp_path / "out" / "report.json")
    rows = report["training"]["rows"]
    assert [row["step"] for row in rows] == [2, 10]
    # The last checkpoint is the model itself, probed on the same rows.
    assert rows[1]["belief_r2"] == pytest.approx(report["beliefs"]["layers"]["all"]["r2"], abs=1e-6)
    page = (tmp_path / "out" / "report.html").read_text()
    for title in ("Linear probes of all layers by checkpoint", "Beliefs of Markov order k"):
        assert title in page
    assert (tmp_path / "out" / "plots" / "beliefs_training.png").exists()
    assert main([*command, "--tasks", "training", "--output_dir", str(tmp_path / "other")]) == 0
    assert "belief_r2" not in read_json(tmp_path / "other" / "report.json")["training"]["rows"][0]
