"""`hmm-datasets verify`: for a changed byte in any folder of this package the file is named."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import LlamaForCausalLM

from hmm_datasets.cli import main
from hmm_datasets.data.sequences import HMMSequences
from hmm_datasets.errors import InputError
from hmm_datasets.files import DIGESTS_NAME, check_digests, digest_problems, write_digests
from hmm_datasets.hmm import processes
from hmm_datasets.hmm.families import PermutedSymbols
from hmm_datasets.operations.verification import verify
from hmm_datasets.text.stream import tokenize_corpus
from hmm_datasets.text.tokenizers.bpe import train_bpe
from hmm_datasets.training.model_configs import model_config
from hmm_datasets.training.run import train_and_save
from hmm_datasets.training.settings import PretrainSettings
from hmm_datasets.training.trainer import Pretrainer

MESS3 = processes.mess3(0.15, 0.6)


def train(folder, steps=2):
    rows = HMMSequences(MESS3, 7)
    settings = {"save_steps": 1, "logging_steps": 1, "report_to": "none", "learning_rate": 1e-3}
    args = PretrainSettings(
        str(folder), max_steps=steps, global_batch_size=4, per_device_train_batch_size=4, **settings
    )
    torch.manual_seed(0)
    model = LlamaForCausalLM(model_config("1m", vocab_size=rows.vocab_size, max_length=8))
    return train_and_save(Pretrainer(model=model, args=args, train_dataset=rows), settings={}, data={})


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """One folder of each kind."""
    folder = tmp_path_factory.mktemp("whole")
    MESS3.save_pretrained(folder / "hmm")
    PermutedSymbols(MESS3, group=2).save_pretrained(folder / "family")
    texts = ["a tale of a cat", "a tail of a cat", "no cat at all"] * 20
    tokenizer = train_bpe(texts, 270, show_progress=False)
    tokenizer.save_pretrained(folder / "corpus" / "tokenizer")
    for split in ("train", "test"):
        tokenize_corpus(texts, tokenizer, folder / "corpus" / "text" / split, "cats", show_progress=False)
    train(folder / "run")
    return folder


def flip(path, generator=None) -> None:
    generator = generator or np.random.default_rng(0)
    data = bytearray(path.read_bytes())
    data[generator.integers(len(data))] ^= 1 << generator.integers(8)
    path.write_bytes(data)


def verified(folder, capsys) -> tuple[int, list[str]]:
    code = main(["verify", str(folder)])
    return code, capsys.readouterr().out.splitlines()


@pytest.mark.thorough
def test_unchanged_folders_of_each_kind_pass(whole, capsys):
    code, lines = verified(whole, capsys)
    assert code == 0
    assert all(line.startswith("ok    ") for line in lines)
    kinds = {line.rpartition(": ")[2] for line in lines}
    assert kinds >= {"HMM", "family of HMMs", "tokenizer", "token stream", "checkpoint", "records of a run"}
    assert len(lines) == len(set(lines)) >= 9


@pytest.mark.thorough
@pytest.mark.parametrize(
    "part", ["hmm", "family", "corpus/text", "corpus/tokenizer/tokenizer.json", "run/checkpoint-1"]
)
def test_the_file_of_a_changed_byte_is_named(whole, tmp_path, capsys, part):
    generator, folder = np.random.default_rng(1), tmp_path / "copy"
    source = whole / part
    for path in [source] if source.is_file() else sorted(path for path in source.rglob("*") if path.is_file()):
        shutil.copytree(whole / Path(part).parts[0], folder / Path(part).parts[0])
        flip(folder / path.relative_to(whole), generator)
        code, lines = verified(folder, capsys)
        bad = [line for line in lines if line.startswith("BAD ")]
        assert code == 1
        assert any(str(folder / path.relative_to(whole).parent) in line and path.name in line for line in bad), path
        shutil.rmtree(folder)


@pytest.mark.thorough
def test_every_file_that_differs_has_a_line(whole, tmp_path, capsys):
    folder = shutil.copytree(whole / "run" / "checkpoint-2", tmp_path / "checkpoint-2")
    for name in ("model.safetensors", "config.json"):
        data = bytearray((folder / name).read_bytes())
        data[-2 if name == "model.safetensors" else 0] ^= 1 if name == "model.safetensors" else ord("{") ^ ord(" ")
        (folder / name).write_bytes(data)
    (folder / "scheduler.pt").unlink()
    problems = digest_problems(folder)
    assert [problem.split(":")[0] for problem in problems] == ["config.json", "model.safetensors", "scheduler.pt"]
    code, lines = verified(folder, capsys)
    assert (code, lines[0][:4]) == (1, "BAD ")


@pytest.mark.thorough
def test_a_run_does_not_resume_from_a_changed_checkpoint_if_it_is_the_only_one(whole, tmp_path):
    folder = shutil.copytree(whole / "run", tmp_path / "run")
    (folder / "summary.json").unlink()
    shutil.rmtree(folder / "checkpoint-1")
    data = bytearray((folder / "checkpoint-2" / "optimizer.pt").read_bytes())
    data[len(data) // 2] ^= 1
    (folder / "checkpoint-2" / "optimizer.pt").write_bytes(data)
    with pytest.raises(InputError) as caught:
        train(folder, steps=3)
    text = str(caught.value)
    assert text.startswith(f"{folder / 'checkpoint-2' / 'optimizer.pt'}: SHA-256 is ")
    assert text.endswith(
        "; no other checkpoint is whole: delete checkpoint-2 to start anew, or its digests.json to use it as it is"
    )
    (folder / "checkpoint-2" / "digests.json").unlink()
    assert train(folder, steps=3)["resumed_from"] == "checkpoint-2"


def test_a_folder_without_digests_passes(whole, tmp_path, capsys):
    folder = shutil.copytree(whole, tmp_path / "old")
    for path in folder.rglob(DIGESTS_NAME):
        path.unlink()
    assert verified(folder, capsys)[0] == 0
    flip(folder / "hmm" / "model.safetensors")
    code, lines = verified(folder / "hmm", capsys)
    assert code == 1
    assert str(folder / "hmm" / "model.safetensors") in lines[0]


def test_truncated_records_of_a_run_are_named(whole, tmp_path, capsys):
    folder = shutil.copytree(whole / "run", tmp_path / "run")
    (folder / "summary.json").write_text("{")
    code, lines = verified(folder, capsys)
    assert code == 1
    assert any(line.startswith(f"BAD   {folder / 'summary.json'}:1: not JSON") for line in lines)


def test_a_folder_of_unknown_kind_is_refused(tmp_path, capsys):
    for path in (tmp_path, tmp_path / "nowhere"):
        assert main_fails(path, capsys).startswith(f"error: {path}: n")


def main_fails(path, capsys) -> str:
    with pytest.raises(SystemExit) as stop:
        main(["verify", str(path)])
    assert stop.value.code == 2
    return capsys.readouterr().err


@pytest.mark.parametrize("name", ["../a", "/etc/hostname", ""])
def test_digests_name_only_files_of_their_folder(tmp_path, name):
    (tmp_path / DIGESTS_NAME).write_text(json.dumps({"sha256": {name: "0"}}))
    with pytest.raises(InputError, match="expected the name of something in"):
        digest_problems(tmp_path)


def test_only_the_first_rank_of_a_machine_hashes(tmp_path, monkeypatch):
    (tmp_path / "a").write_text("1")
    write_digests(tmp_path)
    (tmp_path / "a").write_text("2")
    with pytest.raises(InputError, match=r"a: SHA-256 is .*; mend it"):
        check_digests(tmp_path, "mend it")
    monkeypatch.setenv("LOCAL_RANK", "1")
    check_digests(tmp_path, "mend it")


def test_folders_are_verified_as_they_are_reached(whole):
    assert next(verify(whole)).ok
