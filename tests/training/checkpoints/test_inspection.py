import json
import os
import pickle
import re
import shutil
import struct

import pytest
import torch
from safetensors.torch import save_file

from hmm_datasets.errors import InputError
from hmm_datasets.foreign.tensors import tensor_names
from hmm_datasets.operations.checkpoints.weights import read_weights
from hmm_datasets.training.checkpoints import inspection
from hmm_datasets.training.checkpoints.inspection import (
    good_checkpoints,
    list_checkpoints,
    verify_checkpoint,
)


def write_checkpoint(output_dir, step: int):
    folder = output_dir / f"checkpoint-{step}"
    folder.mkdir()
    save_file({"a": torch.zeros(10, 3), "b": torch.zeros(4, dtype=torch.bfloat16)}, folder / "model.safetensors")
    torch.save({"state": torch.zeros(20)}, folder / "optimizer.pt")
    torch.save({"cpu": torch.zeros(2)}, folder / "rng_state.pth")
    (folder / "config.json").write_text("{}")
    (folder / "trainer_state.json").write_text(json.dumps({"global_step": step}))
    return folder


def cut(path, missing: int = 1) -> None:
    os.truncate(path, path.stat().st_size - missing)


def test_a_complete_checkpoint_is_good_and_its_bytes_are_counted(tmp_path):
    folder = write_checkpoint(tmp_path, 10)
    report = verify_checkpoint(folder)
    assert report.ok
    assert report.step == 10
    assert report.tensor_bytes == 10 * 3 * 4 + 4 * 2
    assert report.total_bytes == sum(path.stat().st_size for path in folder.iterdir())


@pytest.mark.parametrize("name", ["model.safetensors", "optimizer.pt", "rng_state.pth", "trainer_state.json"])
@pytest.mark.parametrize("missing", [1, 17])
def test_a_truncated_file_is_named(tmp_path, name, missing):
    folder = write_checkpoint(tmp_path, 10)
    cut(folder / name, missing)
    (problem,) = verify_checkpoint(folder).problems
    assert problem.startswith(f"{name}: ")


@pytest.mark.parametrize("name", ["model.safetensors", "optimizer.pt", "trainer_state.json"])
def test_an_empty_file_is_named(tmp_path, name):
    folder = write_checkpoint(tmp_path, 10)
    cut(folder / name, (folder / name).stat().st_size)
    problems = verify_checkpoint(folder).problems
    assert any(problem.startswith(f"{name}: ") for problem in problems)


@pytest.mark.outside(
    "https://github.com/Comfy-Org/ComfyUI/issues/15602",
    "a checkpoint with bytes after its last tensor, which one reader takes and another refuses",
    "is no whole safetensors file, whoever reads it: the library compares header and length",
)
def test_bytes_after_the_last_tensor_are_noticed(tmp_path):
    folder = write_checkpoint(tmp_path, 10)
    with (folder / "model.safetensors").open("ab") as file:
        file.write(b"x")
    assert "file not fully covered" in verify_checkpoint(folder).problems[0]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"\x01", "header too small"),
        (struct.pack("<Q", 1 << 62) + b"{}", "header too large"),
        (struct.pack("<Q", 2) + b"[]", "invalid type: sequence"),
        (struct.pack("<Q", 9) + b'{"a": {}}', "missing field"),
        (struct.pack("<Q", 2) + b"{!", "invalid JSON in header"),
    ],
)
def test_a_malformed_header_is_refused(tmp_path, content, message):
    path = tmp_path / "x.safetensors"
    path.write_bytes(content)
    with pytest.raises(InputError, match=f"not a whole safetensors file .*{message}"):
        tensor_names(path)


def test_the_step_in_the_state_is_that_of_the_folder(tmp_path):
    folder = write_checkpoint(tmp_path, 10)
    (folder / "trainer_state.json").write_text('{"global_step": 9}')
    assert verify_checkpoint(folder).problems == ("trainer_state.json: global_step is 9, the folder's name says 10",)
    (folder / "trainer_state.json").unlink()
    assert verify_checkpoint(folder).problems == ("trainer_state.json: missing",)


def test_a_file_without_tensors_is_whole(tmp_path):
    (tmp_path / "none.safetensors").write_bytes((2).to_bytes(8, "little") + b"{}")
    assert tensor_names(tmp_path / "none.safetensors") == ([], 0)


def test_a_checkpoint_without_weights_is_incomplete(tmp_path):
    folder = write_checkpoint(tmp_path, 10)
    (folder / "model.safetensors").unlink()
    assert verify_checkpoint(folder).problems[0].startswith("no weights")


def test_every_shard_in_the_index_must_exist_and_contain_its_tensors(tmp_path):
    folder = write_checkpoint(tmp_path, 10)
    (folder / "model.safetensors").rename(folder / "model-1.safetensors")
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"a": "model-1.safetensors", "b": "model-1.safetensors"}}))
    assert verify_checkpoint(folder).ok
    index.write_text(json.dumps({"weight_map": {"a": "model-1.safetensors", "c": "model-1.safetensors"}}))
    assert verify_checkpoint(folder).problems == (
        "model-1.safetensors: has no c, which model.safetensors.index.json lists",
    )
    index.write_text(json.dumps({"weight_map": {"a": "model-1.safetensors", "c": "model-2.safetensors"}}))
    assert verify_checkpoint(folder).problems == (
        "model-2.safetensors: missing, but model.safetensors.index.json lists it",
    )
    index.write_text("{}")
    assert "object missing required field weight_map" in verify_checkpoint(folder).problems[0]


def test_a_checkpoint_names_nothing_outside_it(tmp_path):
    folder = write_checkpoint(tmp_path, 10)
    index = folder / "model.safetensors.index.json"
    shutil.copy(folder / "model.safetensors", tmp_path / "x.safetensors")
    index.write_text(json.dumps({"weight_map": {"a": "../x.safetensors"}}))
    (problem,) = verify_checkpoint(folder).problems
    assert problem.startswith("model.safetensors.index.json: names '../x.safetensors', expected the name of something")
    with pytest.raises(InputError, match=re.escape(f"{index}: names '../x.safetensors'")):
        read_weights(folder)
    index.unlink()
    for pointer in ("latest", "latest_universal"):
        for content in (b"../..", b"\xff\xfe", b""):
            (folder / pointer).write_bytes(content)
            assert verify_checkpoint(folder).problems[0].startswith(f"{folder / pointer}: names ")
        (folder / pointer).unlink()


def test_weights_in_deepspeed_and_fsdp_shards_count(tmp_path):
    folder = write_checkpoint(tmp_path, 10)
    (folder / "model.safetensors").unlink()
    (folder / "latest").write_text("global_step10\n")
    assert not verify_checkpoint(folder).ok
    (folder / "global_step10").mkdir()
    torch.save({}, folder / "global_step10" / "zero_pp_rank_0_mp_rank_00_model_states.pt")
    report = verify_checkpoint(folder)
    assert report.ok
    assert report.tensor_bytes == 0
    cut(folder / "global_step10" / "zero_pp_rank_0_mp_rank_00_model_states.pt")
    assert not verify_checkpoint(folder).ok

    other = write_checkpoint(tmp_path, 20)
    (other / "model.safetensors").unlink()
    (other / "pytorch_model_fsdp_0").mkdir()
    (other / "pytorch_model_fsdp_0" / "__0_0.distcp").write_bytes(b"x")
    assert verify_checkpoint(other).ok


def test_a_view_saved_with_its_whole_storage_shows_in_the_ratio(tmp_path):
    folder = write_checkpoint(tmp_path, 10)
    save_file({"a": torch.zeros(1000)}, folder / "model.safetensors")
    torch.save({"a": torch.zeros(100_000)[:1000]}, folder / "optimizer.pt")
    report = verify_checkpoint(folder)
    assert report.total_bytes > 10 * report.tensor_bytes
    torch.save({"a": torch.zeros(100_000)[:1000].clone()}, folder / "optimizer.pt")
    report = verify_checkpoint(folder)
    assert report.total_bytes < 10 * report.tensor_bytes


class Mine:
    def __reduce__(self):
        return (open, (os.environ["MARK"], "w"))


def test_no_pickle_is_opened(tmp_path, monkeypatch):
    mark = tmp_path / "mark"
    monkeypatch.setenv("MARK", str(mark))
    folder = write_checkpoint(tmp_path, 10)
    (folder / "training_args.bin").write_bytes(pickle.dumps(Mine()))
    torch.save(Mine(), folder / "optimizer.pt")
    assert verify_checkpoint(folder).ok
    assert not mark.exists()
    torch.load(folder / "optimizer.pt", weights_only=False)
    assert mark.exists()


def test_the_newest_good_checkpoint_is_found_behind_incomplete_ones(tmp_path):
    for step in (5, 10, 100, 20):
        write_checkpoint(tmp_path, step)
    (tmp_path / "checkpoint-best").mkdir()
    (tmp_path / "checkpoint-999").write_text("a file, not a folder")
    assert [report.step for report in list_checkpoints(tmp_path)] == [100, 20, 10, 5]
    assert next(good_checkpoints(tmp_path)) == tmp_path / "checkpoint-100"
    cut(tmp_path / "checkpoint-100" / "model.safetensors")
    (tmp_path / "checkpoint-20" / "trainer_state.json").unlink()
    assert next(good_checkpoints(tmp_path)) == tmp_path / "checkpoint-10"
    for step in (5, 10):
        (tmp_path / f"checkpoint-{step}" / "trainer_state.json").write_text("{")
    assert list(good_checkpoints(tmp_path)) == []


def test_a_checkpoint_that_its_run_deletes_meanwhile_is_left_out(tmp_path, monkeypatch):
    for step in (1, 2):
        write_checkpoint(tmp_path, step)

    def sizes(path):
        if path.parent.name == "checkpoint-1":
            shutil.rmtree(path.parent)
        return tensor_names(path)

    monkeypatch.setattr(inspection, "tensor_names", sizes)
    assert [report.step for report in list_checkpoints(tmp_path)] == [2]


@pytest.mark.thorough
def test_a_checkpoint_of_the_trainer_itself_is_good(tmp_path):
    from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

    config = LlamaConfig(
        vocab_size=8, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2
    )
    arguments = TrainingArguments(
        str(tmp_path), max_steps=2, save_steps=1, use_cpu=True, report_to=[], disable_tqdm=True, logging_steps=1
    )
    rows = [{"input_ids": torch.arange(8), "labels": torch.arange(8)}] * 16
    Trainer(LlamaForCausalLM(config), arguments, train_dataset=rows).train()
    reports = list_checkpoints(tmp_path)
    assert [report.step for report in reports] == [2, 1]
    assert all(report.ok for report in reports), reports


def test_bad_input_gives_an_error_of_one_line(tmp_path):
    with pytest.raises(InputError, match="not named checkpoint-N"):
        verify_checkpoint(tmp_path)
    with pytest.raises(InputError, match="checkpoint-3: no such folder"):
        verify_checkpoint(tmp_path / "checkpoint-3")
    for function in (good_checkpoints, list_checkpoints):
        with pytest.raises(InputError, match="nowhere: no such folder"):
            function(tmp_path / "nowhere")
