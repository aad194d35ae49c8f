"""Files of `torch.save` with storage that no tensor uses are written anew, and nothing else changes."""

import pytest
import torch

from hmm_datasets.errors import InputError
from hmm_datasets.files import digest_problems, write_digests
from hmm_datasets.operations.checkpoints.slim import slim
from hmm_datasets.runtime.set_aside import list_set_aside, restore, set_aside
from hmm_datasets.training.checkpoints.frameworks import FRAMEWORKS, reads
from hmm_datasets.training.checkpoints.inspection import verify_checkpoint


def test_views_are_saved_without_their_whole_storage_and_shared_tensors_stay_shared(run):
    folder = run / "checkpoint-6"
    whole = torch.randn(1000, 1000)
    tied = torch.randn(300_000)
    saved = {"view": whole[3:5], "column": whole[:, 7], "list": [tied, tied], "step": 6, "both": (whole[3:5], "x")}
    torch.save(saved, folder / "optimizer.pt")
    write_digests(folder)
    before = folder.joinpath("optimizer.pt").stat().st_size
    ((done,), _) = slim([folder], resumable=[folder])
    assert done.rewritten == ["optimizer.pt"]
    assert before > 5_000_000
    assert folder.joinpath("optimizer.pt").stat().st_size < 1_230_000
    assert done.before - done.after == before - folder.joinpath("optimizer.pt").stat().st_size
    found = torch.load(folder / "optimizer.pt", weights_only=True)
    assert torch.equal(found["view"], whole[3:5])
    assert torch.equal(found["column"], whole[:, 7])
    assert found["list"][0].data_ptr() == found["list"][1].data_ptr()
    assert found["both"][1] == "x"
    assert verify_checkpoint(folder).ok
    assert digest_problems(folder) == []
    (entry,) = list_set_aside(run)
    restore(entry)
    assert folder.joinpath("optimizer.pt").stat().st_size == before
    assert digest_problems(folder) == []


def test_shards_of_deepspeed_are_read_and_written_anew_too(run):
    pytest.importorskip("deepspeed")
    from deepspeed.runtime.fp16.loss_scaler import LossScaler
    from deepspeed.runtime.zero.config import ZeroStageEnum
    from deepspeed.utils.tensor_fragment import fragment_address

    folder = run / "checkpoint-6"
    others = {"stage": ZeroStageEnum.gradients, "scaler": LossScaler(2.0), "at": fragment_address(numel=3, start=5)}
    tensor = torch.randn(1_000_000)
    torch.save(others | {"flat": tensor[5:1000]}, folder / "optimizer.pt")
    write_digests(folder)
    assert slim([folder], resumable=[folder])[0][0].rewritten == ["optimizer.pt"]
    assert folder.joinpath("optimizer.pt").stat().st_size < 10_000
    found = torch.load(folder / "optimizer.pt", weights_only=False)
    assert torch.equal(found["flat"], tensor[5:1000])
    assert (found["stage"], found["at"], found["scaler"].cur_scale) == (others["stage"], others["at"], 2.0)


def test_what_has_no_spare_storage_is_left_wherever_its_tensors_are(run):
    folder = run / "checkpoint-6"
    torch.save({"list": [torch.randn(200_000), (torch.randn(100_000),)]}, folder / "optimizer.pt")
    write_digests(folder)
    assert slim([folder], resumable=[folder])[0][0].rewritten == []


def test_a_file_with_more_than_data_is_left_and_named(run):
    folder = run / "checkpoint-6"
    torch.save({"a": torch.zeros(500_000)[:9], "code": print, "path": folder}, folder / "optimizer.pt")
    write_digests(folder)
    ((done,), _) = slim([folder], resumable=[folder])
    assert (done.rewritten, done.unread) == ([], ["optimizer.pt"])


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
        slim(
            [run / "checkpoint-6", run / "checkpoint-4"],
            resumable=[run / "checkpoint-6"],
            pruned=[run / "checkpoint-2"],
        )
    assert {path: path.stat().st_mtime_ns for path in run.rglob("*") if path.is_file()} == before
