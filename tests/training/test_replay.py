"""A step computed again has the logged loss, and names the rows that made it."""

import hashlib
import shutil
from dataclasses import asdict

import numpy as np
import pytest
import torch
from transformers import default_data_collator, set_seed

from hmm_datasets.cli import main
from hmm_datasets.data.interleaving import InterleavedRows
from hmm_datasets.data.packing import PackedWindows
from hmm_datasets.data.sequences import HMMSequences
from hmm_datasets.data.windows import TokenWindows
from hmm_datasets.errors import InputError, RolledBack
from hmm_datasets.files import read_json, read_jsonl, write_digests, write_json
from hmm_datasets.hmm import processes
from hmm_datasets.operations.replay import origins, replay
from hmm_datasets.runtime.events import read_events
from hmm_datasets.text.stream import TokenStream, write_tokens
from hmm_datasets.text.tokenizers.bpe import train_bpe
from hmm_datasets.training.model_configs import ModelSettings, new_model
from hmm_datasets.training.run import train_and_save
from hmm_datasets.training.settings import PretrainSettings
from hmm_datasets.training.sources import DataSettings
from hmm_datasets.training.trainer import Pretrainer

LENGTH = 16
BAD = range(130, 136)
"""Six of the eight rows of step 18."""


@pytest.fixture(scope="module", autouse=True)
def bad_labels():
    """The labels of some rows are the beginning token, which never follows another."""
    view = HMMSequences.__getitems__

    def rows_of(self, indices):
        rows = view(self, indices)
        for index, row in zip(indices, rows, strict=True):
            if index in BAD:
                row["labels"] = torch.full_like(row["labels"], 4)
        return rows

    HMMSequences.__getitems__ = rows_of
    yield
    HMMSequences.__getitems__ = view


def pretrain(folder, data_settings, **given):
    """What recipes/pretrain.py does, in one process."""
    defaults = {
        **{"max_steps": 20, "global_batch_size": 8, "per_device_train_batch_size": 2, "logging_steps": 1},
        **{"learning_rate": 1e-2, "save_steps": 5, "report_to": "none", "disable_tqdm": True},
        **({"spike_margin": 1} if given.get("on_spike") == "rollback" else {}),
    }
    settings = PretrainSettings(str(folder), **defaults | given)
    set_seed(settings.seed)
    model_settings = ModelSettings("d1")
    data = data_settings.load()
    model = new_model(model_settings.config(data))
    plan = settings.plan(data, model)
    trainer = Pretrainer(
        model=model, args=settings, plan=plan, processing_class=data.tokenizer, data_collator=default_data_collator
    )
    return train_and_save(trainer, settings={**asdict(data_settings), **asdict(model_settings)}, data=data.identity)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run with a growing global batch that went back from step 18 to checkpoint 15."""
    folder = tmp_path_factory.mktemp("replay")
    processes.random(3, 4, alpha=0.2, seed=1).save_pretrained(folder / "hmm")
    hmm = DataSettings(hmm=str(folder / "hmm"), length=LENGTH)
    given = {"on_spike": "rollback", "batch_ramp": ["4:2"], "z_loss": 1e-4}
    with pytest.raises(RolledBack):
        pretrain(folder / "run", hmm, **given)
    assert pretrain(folder / "run", hmm, **given)["tokens"] == (4 * 2 + 8 * 18) * (LENGTH + 1)
    return folder / "run"


def logged(run):
    return {row["step"]: row["loss"] for row in read_jsonl(run / "history.jsonl") if "loss" in row}


def digests(run):
    return {path: hashlib.sha256(path.read_bytes()).hexdigest() for path in run.rglob("*") if path.is_file()}


@pytest.mark.parametrize(("step", "start"), [(2, 0), (16, 15), (18, 15)])
def test_the_loss_of_a_step_is_the_logged_one_bit_for_bit(run, step, start):
    before = digests(run)
    found = replay(run, step)
    assert (found.start, found.loss) == (start, found.logged)
    assert found.logged == logged(run)[step]
    assert found.mean == pytest.approx(found.loss, rel=1e-6)
    assert digests(run) == before, "nothing is written into the run"


def test_its_rows_are_those_of_the_step_with_their_optimum(run):
    """Steps 1 and 2 have four rows; rows 120 to 143, of steps 17 to 19, are passed over."""
    found = replay(run, 17)
    assert [row.index for row in found.rows] == list(range(144, 152))
    hmm = DataSettings(hmm=str(run.parent / "hmm"), length=LENGTH).load().source
    rows = hmm.sample(8, LENGTH, first=144)
    assert [row.optimum for row in found.rows] == pytest.approx((-hmm.log_likelihood(rows) / LENGTH).tolist())
    assert [row.tokens for row in found.rows] == [LENGTH] * 8
    assert all(row.origin is None for row in found.rows)


@pytest.mark.thorough
def test_a_step_is_printed_and_the_rows_of_a_spike_are_in_its_event(run, capsys):
    (spike,) = [event for event in read_events(run) if event["kind"] == "spike"]
    assert set(BAD) <= {index for part in spike["ranks"][0]["micro_batches"] for index in part["rows"]}
    assert set(spike["highest"]["rows"]) <= set(BAD)
    found = replay(run, spike["step"])
    ordered = sorted(found.rows, key=lambda row: -row.loss)
    assert main(["watch", str(run), "--replay", str(spike["step"])]) == 0
    told = capsys.readouterr().out.splitlines()
    assert told[0] == f"step {spike['step']}, computed from checkpoint-15; losses in nats per token"
    assert told[2].split() == ["row", "loss", "optimum", "above", "tokens"]
    assert told[4].split()[0] == str(ordered[0].index)
    assert told[-1] == f"the run logged {found.logged:.8g}: the same"


@pytest.mark.thorough
def test_a_step_is_replayed_in_the_precision_that_the_launcher_was_asked_for(run, tmp_path, monkeypatch):
    hmm = DataSettings(hmm=str(run.parent / "hmm"), length=LENGTH)
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "bf16")
    pretrain(tmp_path / "run", hmm, max_steps=3, use_cpu=True)
    monkeypatch.delenv("ACCELERATE_MIXED_PRECISION")
    assert replay(tmp_path / "run", 3).loss == logged(tmp_path / "run")[3]


def test_what_cannot_be_replayed_is_refused(run, tmp_path):
    with pytest.raises(InputError, match="has no step 21; expected 1 to 20"):
        replay(run, 21)
    copy = tmp_path / "run"
    shutil.copytree(run, copy)
    for path in copy.glob("checkpoint-*/identity.json"):
        write_json(path, read_json(path) | {"written_by": {"framework": "DeepSpeed ZeRO 2", "processes": 1}})
        write_digests(path.parent)
    with pytest.raises(InputError, match="written under DeepSpeed ZeRO 2, so one process cannot read its optimizer"):
        replay(copy, 16)
    with pytest.raises(InputError, match=r"run\.json: no such file"):
        replay(tmp_path, 1)


@pytest.mark.thorough
def test_a_step_on_packed_documents_with_a_loss_in_chunks(tmp_path):
    tokenizer = train_bpe(["one two three four"] * 9, 270)
    tokenizer.save_pretrained(tmp_path / "tokenizer")
    random = np.random.default_rng(0)
    for split, count in (("train", 90), ("test", 9)):
        documents = [random.integers(0, 255, random.integers(1, 40)) for _ in range(count)]
        write_tokens(documents, tmp_path / split, vocab_size=270, eos_id=256, tokenizer_hash="none", corpus="numbers")
    text = DataSettings(tokens=str(tmp_path), tokenizer=str(tmp_path / "tokenizer"), packed=True, length=32)
    pretrain(tmp_path / "run", text, max_steps=5, save_steps=3, chunked_loss=True)
    found = replay(tmp_path / "run", 5)
    assert found.loss == found.logged == logged(tmp_path / "run")[5]
    assert found.mean == pytest.approx(found.loss, rel=1e-6)
    assert len({row.tokens for row in found.rows}) > 1
    assert all(row.origin.startswith("document") for row in found.rows)


def test_rows_of_text_are_named_by_their_documents(tmp_path):
    """Documents of 7 tokens with their EOS, in windows of 10 tokens."""
    documents = [np.arange(6) for _ in range(40)]
    write_tokens(documents, tmp_path / "a" / "train", vocab_size=10, eos_id=9, tokenizer_hash="none", corpus="numbers")
    stream = TokenStream(tmp_path / "a" / "train")
    windows = TokenWindows(stream, 10)
    assert origins(windows, [0, 2]) == ["documents 0 to 1", "documents 2 to 4"]
    packed = PackedWindows(stream, 14, cache_dir=tmp_path)
    assert origins(packed, [0, 3]) == ["documents 0, 1", "documents 6, 7"]
    write_tokens(documents, tmp_path / "b" / "train", vocab_size=10, eos_id=9, tokenizer_hash="none", corpus="numbers")
    other = TokenWindows(TokenStream(tmp_path / "b" / "train"), 10)
    mixture = InterleavedRows([windows, other], [0.5, 0.5], by="examples", num_rows=10)
    assert origins(mixture, [0, 1]) == ["a: documents 0 to 1", "b: documents 0 to 1"]
