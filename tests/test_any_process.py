"""Processes that are neither HMMs nor families go wherever those go: data sets, commands, training, reports, cards."""

import json
import sys

import numpy as np
import pytest
import torch
from datasets import load_dataset
from huggingface_hub import ModelCard
from transformers import LlamaConfig, LlamaForCausalLM, TrainingArguments

from hmm_datasets import HMM, HMMSequences, InputError, load_source
from hmm_datasets.cli import main
from hmm_datasets.evaluation.baselines import BaselineComparison
from hmm_datasets.evaluation.targets import open_target
from hmm_datasets.files import read_json
from hmm_datasets.hmm import processes
from hmm_datasets.hmm.analysis.entropy import EntropyRate
from hmm_datasets.hmm.names import example_of
from hmm_datasets.hmm.process import Process
from hmm_datasets.hmm.process_storage import KINDS
from hmm_datasets.hmm.sampling import checked_draw, philox
from hmm_datasets.hub.kinds.process import write_hmm_dataset, write_process_card
from hmm_datasets.hub.kinds.recognition import detect_kind
from hmm_datasets.operations.verification import verify
from hmm_datasets.training.sources import DataSettings

MODULE = "processes_of_this_test"


class Dice(Process):
    """Independent throws of a die with given weights: no states, no beliefs, a closed form of the entropy rate."""

    stored_name = "Dice"
    is_stationary = True

    def __init__(self, weights):
        self.weights = [int(weight) for weight in weights]
        self._ends = np.cumsum(self.weights)

    @property
    def num_symbols(self):
        return len(self.weights)

    def settings(self):
        return {"weights": self.weights}

    def sample(self, num_sequences, length, seed=0, first=0, *, step=1, out=None, num_threads=None):
        seed, first, step, out = checked_draw(self.num_symbols, num_sequences, length, seed, first, step, out)
        index = np.uint64(first) + np.uint64(step) * np.arange(len(out), dtype=np.uint64)
        counter = np.zeros((len(out), length, 4), np.uint64)
        counter[..., 0], counter[..., 1] = index[:, None], np.arange(length)
        words = philox(counter.reshape(-1, 4), np.full((len(out) * length, 2), seed, np.uint64))[:, 0]
        out[:] = np.searchsorted(self._ends, words % self._ends[-1], side="right").reshape(out.shape)
        return out

    def next_token_probs(self, tokens):
        is_tensor, shape = isinstance(tokens, torch.Tensor), np.shape(tokens)
        probs = torch.tensor(self.weights, dtype=torch.float64) / sum(self.weights)
        probs = probs.expand(shape[0], shape[1] + 1, -1).clone()
        return probs if is_tensor else probs.numpy()

    def entropy_rate(self, **settings):
        probs = np.array(self.weights) / sum(self.weights)
        return EntropyRate(float(-(probs * np.log(probs)).sum()), 0.0)


class Pair(Process):
    """Two independent HMMs; a symbol is a pair of theirs. Its belief is one belief beside the other."""

    stored_name = "Pair"

    def __init__(self, one, other):
        self.one, self.other = one, other

    @classmethod
    def from_parts(cls, settings, arrays, parts):
        return cls(*parts)

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
        out[:] = self.one.sample(len(out), length, seed, first, step=step)
        out *= self.other.num_symbols
        out += self.other.sample(len(out), length, seed ^ 1, first, step=step).astype(out.dtype)
        return out

    def _split(self, tokens):
        values = torch.as_tensor(np.asarray(tokens).astype(np.int64))
        return values // self.other.num_symbols, values % self.other.num_symbols

    def next_token_probs(self, tokens):
        first, second = self._split(tokens)
        one, other = self.one.next_token_probs(first), self.other.next_token_probs(second)
        probs = (one.unsqueeze(-1) * other.unsqueeze(-2)).flatten(-2)
        return probs if isinstance(tokens, torch.Tensor) else probs.numpy()

    def beliefs(self, tokens):
        first, second = self._split(tokens)
        found = torch.cat([self.one.beliefs(first), self.other.beliefs(second)], dim=-1)
        return found if isinstance(tokens, torch.Tensor) else found.numpy()


DICE = Dice([1, 2, 5])
PAIR = Pair(processes.golden_mean(), processes.mess3(0.15, 0.6))
SOURCES = {"dice": DICE, "pair": PAIR}


@pytest.fixture(autouse=True)
def stored(monkeypatch):
    """Makes the two kinds known to `load_source`."""
    monkeypatch.setitem(sys.modules, f"hmm_datasets.hmm.{MODULE}", sys.modules[__name__])
    for kind in (Dice, Pair):
        monkeypatch.setitem(KINDS, kind.stored_name, f"{MODULE}:{kind.__name__}")


@pytest.fixture(params=SOURCES)
def source(request):
    return SOURCES[request.param]


@pytest.fixture
def folder(source, tmp_path):
    source.save_pretrained(tmp_path / "process")
    return tmp_path / "process"


def test_what_is_saved_is_loaded_verified_and_a_target(source, folder):
    assert load_source(folder).fingerprint() == source.fingerprint()
    assert open_target(str(folder)).fingerprint() == source.fingerprint()
    found = list(verify(folder))
    assert found[0].contents == "process"
    assert len(found) == 1 + len(source.parts())
    assert all(one.ok for one in found)
    (folder / "process.json").write_text((folder / "process.json").read_text().replace("fingerprint", "fingerprimt"))
    assert not next(verify(folder)).ok


def test_load_dataset_has_the_columns_that_the_process_can_compute(source, folder, tmp_path):
    columns = ["input_ids", "next_token_probs", "log_probs", "entropies", "oracle_log_probs"]
    columns += ["beliefs"] * (source.belief_width is not None)
    stream = load_dataset(
        "hmm", data_dir=str(folder), length=9, seed=3, columns=columns, split="train", streaming=True
    )
    rows = next(iter(stream.with_format("numpy").batch(5)))
    tokens = source.sample(5, 9, seed=3)
    np.testing.assert_array_equal(rows["input_ids"][:, 1:], tokens)
    np.testing.assert_allclose(rows["next_token_probs"], source.next_token_probs(tokens), atol=1e-6)
    np.testing.assert_allclose(rows["log_probs"].sum(1), source.log_likelihood(tokens), rtol=1e-5)
    np.testing.assert_array_equal(rows["oracle_log_probs"], rows["log_probs"])
    if source.belief_width is not None:
        np.testing.assert_allclose(rows["beliefs"], source.beliefs(tokens), atol=1e-6)


@pytest.mark.parametrize(
    ("column", "said"),
    [
        ("states", "Dice has no hidden states; choose others"),
        ("beliefs", "Dice has no beliefs; choose others"),
        ("own_hmm", "Dice has no own_hmm, since its rows are not drawn from HMMs; choose others"),
        ("text", "no text, since the symbols have no names"),
    ],
)
def test_a_column_that_the_process_has_not_is_refused(column, said, tmp_path):
    DICE.save_pretrained(tmp_path / "dice")
    with pytest.raises(InputError, match=said):
        load_dataset("hmm", data_dir=str(tmp_path / "dice"), columns=[column], split="train", streaming=True)


def test_what_a_process_has_not_is_refused_by_its_methods():
    for method, arguments in (
        ("sample_with_states", (1, 2)),
        ("beliefs", ([[0]],)),
        ("oracle_next_token_probs", ([[0]],)),
    ):
        with pytest.raises(InputError, match=r"Dice\(3 symbols\) has no "):
            getattr(DICE, method)(*arguments)


@pytest.mark.thorough
def test_the_commands_sample_and_describe(source, folder, tmp_path, capsys):
    tokens = tmp_path / "tokens.npy"
    assert main(["sample", str(folder), "--num_sequences", "6", "--length", "8", "--output", str(tokens)]) == 0
    np.testing.assert_array_equal(np.load(tokens), source.sample(6, 8))
    capsys.readouterr()
    assert main(["describe", str(folder), "--num_sequences", "64", "--length", "8", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["process"] == source.stored_name
    assert found["fingerprint"] == source.fingerprint()
    losses = found["cross_entropy"]
    assert losses["bayes"]["mean"] <= losses["unigram"]["mean"] <= losses["uniform"]["mean"] + 0.1
    assert main(["describe", str(folder), "--num_sequences", "64", "--length", "8"]) == 0
    text = capsys.readouterr().out
    assert "optimum: known exactly" in text
    assert ("entropy rate, nats per token: 0.900256, exact" in text) == (source is DICE)
    assert ("5 numbers in a belief" in text) == (source is PAIR)
    assert "is not an HMM, but plots show one HMM" in refused(capsys, "describe", folder, "--plot", tmp_path / "plots")
    assert main(["describe", str(folder), "rrxor"]) == 0
    rates = capsys.readouterr().out
    assert "0.462098, exact" in rates
    assert ("0.900256, exact" in rates) == (source is DICE)
    assert ("by position" in rates) == (source is PAIR)


def refused(capsys, *argv) -> str:
    with pytest.raises(SystemExit) as caught:
        main([*map(str, argv)])
    assert caught.value.code == 2
    return capsys.readouterr().err


@pytest.mark.thorough
def test_a_model_is_trained_evaluated_and_compared_with_the_floor(source, folder, tmp_path, capsys):
    data = DataSettings(hmm=str(folder), length=8, num_test_sequences=8).load()
    assert data.identity["hmm"] == source.fingerprint()
    run = train(data, tmp_path / "run")
    targets = ["--targets", str(folder), "--length", "8", "--num_sequences", "24"]
    tasks = ["optimum", *["beliefs"] * (source.belief_width is not None)]
    output = tmp_path / "evaluation"
    assert main(["evaluate", str(run), *targets, "--tasks", *tasks, "--output_dir", str(output)]) == 0
    report = read_json(output / "report.json")
    assert report["optimum"]["floor"] == "bayes"
    assert report["optimum"]["fingerprint"] == source.fingerprint()
    assert report["optimum"]["bayes_gap"]["bayes_gap"] > 0
    assert "optimal loss" in (output / "report.html").read_text()
    if source.belief_width is not None:
        assert report["beliefs"]["layers"]["all"]["rmse"] > 0
    else:
        said = refused(capsys, "evaluate", run, *targets, "--tasks", "beliefs", "--output_dir", output)
        assert "task beliefs: it needs one HMM or another process with beliefs" in said


def train(data, folder):
    """Two steps of a tiny Llama with the data of a recipe, and with its comparison as the metrics."""
    from transformers import Trainer

    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=data.vocab_size, **sizes))
    arguments = TrainingArguments(folder, max_steps=2, use_cpu=True, disable_tqdm=True, report_to=[])
    baselines = BaselineComparison(data.source)
    trainer = Trainer(
        model,
        arguments,
        train_dataset=HMMSequences(data.source, 8),
        eval_dataset=data.test_rows,
        compute_metrics=baselines.summarize,
        preprocess_logits_for_metrics=baselines.reduce_logits,
    )
    trainer.train()
    assert trainer.evaluate()["eval_bayes_gap"] > 0
    trainer.save_model(folder)
    return folder


@pytest.mark.thorough
def test_a_data_set_for_the_hub_has_a_card_with_the_floor(source, folder, tmp_path):
    sizes = {"num_sequences": 50, "num_test_sequences": 10, "length": 8}
    written = write_hmm_dataset(source, tmp_path / "data", **sizes, show_progress=False)
    card = (written / "README.md").read_text()
    assert f"a process of kind {source.stored_name} over {source.num_symbols} symbols" in card
    assert 'address = "hf://datasets/USER/NAME"\nstream = load_dataset("hmm", address, ' in card
    assert "| Optimal loss on these sequences |" in card
    assert ("| Entropy rate | 0.90026 (exact) nats per token |" in card) == (source is DICE)
    assert "States, symbols" not in card
    plain = load_dataset(str(written), "oracle", cache_dir=str(tmp_path / "cache"))["train"]
    np.testing.assert_array_equal(np.array(plain["input_ids"][:])[:, 1:], source.sample(50, 8))
    assert ("beliefs" in plain.column_names) == (source is PAIR)
    again = load_dataset("hmm", data_dir=str(written), length=8, split="train", streaming=True)
    assert next(iter(again))["input_ids"] == plain[0]["input_ids"]


def test_a_process_is_recognized_and_its_card_has_the_floor(source, folder, tmp_path):
    assert detect_kind(folder).kind == "process"
    assert detect_kind(folder, "dataset").kind == "data set of a process"
    write_process_card(source, tmp_path, name="My process")
    card = ModelCard.load(tmp_path / "README.md")
    assert 'process = load_source("USER/NAME")' in card.text
    assert f"A process of kind {source.stored_name} over {source.num_symbols} symbols." in card.text
    assert "hidden Markov" not in card.text
    assert "Hidden states" not in card.text
    floor = "| Entropy rate | 0.90026 (exact)" if source is DICE else "| Optimal loss, mean of the first 64 tokens |"
    assert floor in card.text


def test_the_optimal_loss_of_parts_adds_up():
    pair = PAIR.optimal_loss(6, num_sequences=400)
    exact = PAIR.one.optimal_loss(6).nats + PAIR.other.optimal_loss(6).nats
    assert np.all(np.abs(pair.nats - exact) < 4 * pair.standard_error + 1e-9)


def test_an_hmm_is_a_process():
    assert issubclass(HMM, Process)


# By name


NAME = "process:mess3(x=0.05, a=0.85)"
NAMED = processes.mess3(x=0.05, a=0.85)


def test_load_dataset_takes_a_name_and_keeps_prepared_rows_apart(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # an empty folder, in which `datasets` would find no files
    settings = {"length": 6, "split": "train", "cache_dir": str(tmp_path / "cache")}
    stream = load_dataset("hmm", data_dir=NAME, streaming=True, **settings)
    assert next(iter(stream))["input_ids"][1:] == NAMED.sample(1, 6)[0].tolist()
    for name in (NAME, "process:mess3(0.15,0.6)", "process:permuted_symbols(mess3)"):
        table = load_dataset("hmm", data_dir=name, num_sequences=20, bos=False, **settings)
        assert table["input_ids"][:] == load_source(name).sample(20, 6).tolist()
    with pytest.raises(InputError, match="did you mean mess3"):
        load_dataset("hmm", data_dir="process:mes3", streaming=True, **settings)


@pytest.mark.thorough
def test_commands_take_a_name(tmp_path, capsys):
    assert main(["sample", NAME, "--length", "7"]) == 0
    assert capsys.readouterr().out.split() == [str(symbol) for symbol in NAMED.sample(1, 7)[0]]
    assert main(["describe", NAME, "--num_sequences", "8", "--length", "4", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["fingerprint"] == NAMED.fingerprint()
    assert main(["push", NAME, "me/mess3", "--dry_run"]) == 0
    assert "model.safetensors" in capsys.readouterr().out
    assert "did you mean mess3?" in refused(capsys, "describe", "process:mes3")


def test_targets_and_training_data_take_a_name():
    assert open_target(NAME) == NAMED
    assert DataSettings(hmm=NAME, length=4).load().identity["hmm"] == NAMED.fingerprint()


@pytest.mark.thorough
def test_the_table_of_processes_has_closed_forms_and_bounds(capsys):
    calls = ["golden_mean(p=0.3)", "process:simple_nonunifilar", "random_chains(2, alpha=1.0)"]
    assert main(["describe", *calls, "--json"]) == 0
    golden, nonunifilar, chains = json.loads(capsys.readouterr().out)["processes"]
    entropy = -0.3 * np.log(0.3) - 0.7 * np.log(0.7)
    assert golden["entropy_rate"]["value"] == pytest.approx(entropy / 1.7, rel=1e-12)
    assert golden["source"] == "a subshift of finite type; Crutchfield and Feldman 2003"
    rate = nonunifilar["entropy_rate"]
    assert rate["lower"] <= rate["upper"] < rate["lower"] + 1e-6
    assert (chains["entropy_rate"], chains["num_states"], chains["num_symbols"]) == (None, 2, 2)
    structured = [example_of(name) for name in ("factored", "noisy", "moon")]
    assert main(["describe", *structured, "--json"]) == 0
    for rate in (row["entropy_rate"] for row in json.loads(capsys.readouterr().out)["processes"]):
        # Both bounds and the value are estimates; four standard errors of each are allowed.
        slack = 4 * (rate["standard_error"] + max(rate["lower_error"], rate["upper_error"])) + 1e-9
        assert rate["lower"] - slack <= rate["value"] <= rate["upper"] + slack
        # Exact bounds this near to each other are better than estimates, whose errors are larger than their gap.
        is_exact = rate["lower_error"] == rate["upper_error"] == 0
        assert rate["upper"] - rate["lower"] < (1e-4 if is_exact else 1e-6)
    assert main(["describe", *calls]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[2].startswith("golden_mean(p=0.3)")
    assert f"{entropy / 1.7:.6f}" in lines[2]
    assert "simple_nonunifilar(p=0.5, q=0.5)" in lines[3]
    assert " .. " in lines[3]
    assert "by position" in lines[4]
    assert "did you mean mess3?" in refused(capsys, "describe", "even", "mes3")


@pytest.mark.thorough
def test_folders_are_listed_beside_named_processes(capsys, tmp_path):
    processes.golden_mean(0.3).save_pretrained(tmp_path / "hmm")
    processes.noisy(processes.even(), 0.1).save_pretrained(tmp_path / "noisy")
    calls = ["golden_mean(p=0.3)", str(tmp_path / "hmm"), str(tmp_path / "noisy")]
    assert main(["describe", *calls, "--json"]) == 0
    named, saved, noisy = json.loads(capsys.readouterr().out)["processes"]
    assert saved["name"] == saved["call"] == calls[1]
    assert (saved["fingerprint"], saved["entropy_rate"]) == (named["fingerprint"], named["entropy_rate"])
    assert noisy["summary"] == load_source(tmp_path / "noisy").describe()
