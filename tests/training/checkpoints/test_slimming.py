"""What a checkpoint loses is moved aside and can be brought back, and nothing else changes."""

import pytest
import torch

from hmm_datasets.errors import InputError
from hmm_datasets.files import write_digests
from hmm_datasets.operations.checkpoints.slim import slim
from hmm_datasets.runtime.set_aside import list_set_aside, restore, set_aside
from hmm_datasets.training.checkpoints.frameworks import FRAMEWORKS, reads


def test_deepspeed_leaves_out_storage_that_no_tensor_uses(tmp_path):
    """What the changelog names in place of a feature of `slim`."""
    pytest.importorskip("deepspeed")
    from deepspeed.checkpoint.utils import clone_tensors_for_torch_save

    path, whole = tmp_path / "optimizer.pt", torch.randn(1000, 1000)
    torch.save({"view": whole[3:5]}, path)
    assert path.stat().st_size > 4_000_000
    torch.save(clone_tensors_for_torch_save(torch.load(path)), path)
    assert path.stat().st_size < 20_000
    assert torch.equal(torch.load(path)["view"], whole[3:5])


def test_a_damaged_checkpoint_and_one_without_a_model_are_refused(run):
    folder = run / "checkpoint-4"
    (folder / "config.json").write_text('{"a": 1}')
    with pytest.raises(InputError, match="a damaged checkpoint is not made smaller"):
        slim([folder])
    folder = run / "checkpoint-6"
    (folder / "model.safetensors").unlink()
    (folder / "latest").write_text("global_step6")
    (folder / "global_step6").mkdir()
    torch.save({}, folder / "global_step6" / "zero_pp_rank_0_mp_rank_00_model_states.pt")
    torch.save({}, folder / "global_step6" / "zero_pp_rank_0_mp_rank_00_optim_states.pt")
    write_digests(folder)
    with pytest.raises(InputError, match="weights are only in the shards that resuming needs"):
        slim([folder])


def test_what_is_moved_aside_from_deep_in_a_run_comes_back(run):
    (run / "a" / "b").mkdir(parents=True)
    (run / "a" / "b" / "notes.txt").write_text("mine")
    entry = set_aside(run, ["a/b/notes.txt"], "a test")
    assert not (run / "a" / "b" / "notes.txt").exists()
    assert restore(entry) == ["a/b/notes.txt"]
    assert (run / "a" / "b" / "notes.txt").read_text() == "mine"


def test_a_framework_reads_what_it_wrote_and_any_stage_of_zero_reads_what_was_converted_for_zero():
    zero = FRAMEWORKS["zero"]
    assert reads(FRAMEWORKS["fsdp"], FRAMEWORKS["fsdp"])
    assert reads(f"{zero} stage 2", zero)
    assert not reads(f"{zero} stage 2", f"{zero} stage 3")
    assert not reads(FRAMEWORKS["fsdp"], zero)
    assert not reads(FRAMEWORKS["plain"], FRAMEWORKS["fsdp"])


@pytest.mark.outside(
    "https://github.com/huggingface/transformers/issues/26961",
    "checkpoints ordered by the times of their files: the newest one was deleted",
    "what was moved aside last is restored first, by a number that is saved, whatever the clock said",
)
def test_what_was_moved_aside_last_is_the_newest_after_the_clock_went_back(run, monkeypatch):
    dates = iter(["2026-11-26_12-00-00", "2026-11-26_11-00-00"])
    monkeypatch.setattr("hmm_datasets.runtime.set_aside.time.strftime", lambda form: next(dates))
    set_aside(run, ["checkpoint-2"], "first")
    set_aside(run, ["checkpoint-4"], "second")
    assert [entry.reason for entry in list_set_aside(run)] == ["second", "first"]


def test_a_change_that_fails_moves_everything_back(run, monkeypatch):
    before = {path: path.stat().st_mtime_ns for path in run.rglob("*") if path.is_file()}
    monkeypatch.setattr("hmm_datasets.operations.checkpoints.slim.write_digests", lambda folder: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        slim([run / "checkpoint-6", run / "checkpoint-4"], pruned=[run / "checkpoint-2"])
    assert {path: path.stat().st_mtime_ns for path in run.rglob("*") if path.is_file()} == before
