"""A run in the folder that training starts in is not lost: what the new start cannot use is moved aside."""

import os
import shutil

import pytest
from tiny_runs import trainer

from hmm_datasets.cli import main
from hmm_datasets.errors import InputError
from hmm_datasets.files import digest_problems, read_json, read_jsonl, write_digests, write_json
from hmm_datasets.runtime.events import read_events
from hmm_datasets.training.checkpoints.resuming import possible_starts
from hmm_datasets.training.run import train_and_save


def train(folder, max_steps, **given):
    one = trainer(folder, max_steps=max_steps, save_strategy="steps", save_steps=1, **given)
    return train_and_save(one, settings={}, data={"stream": 1})


def steps(folder):
    return sorted(int(path.name.split("-")[1]) for path in folder.glob("checkpoint-*"))


@pytest.mark.thorough
def test_a_run_started_anew_moves_the_one_before_aside(tmp_path, capsys):
    train(tmp_path, 4)
    history = (tmp_path / "history.jsonl").read_bytes()
    weights = (tmp_path / "model.safetensors").read_bytes()
    summary = train(tmp_path, 2, resume=False, save_total_limit=1)
    assert summary["resumed_from"] is None
    assert steps(tmp_path) == [2], "the limit counts the checkpoints of this start only"
    (aside,) = (tmp_path / "set_aside").iterdir()
    assert steps(aside) == [1, 2, 3, 4]
    assert (aside / "history.jsonl").read_bytes() == history
    assert (aside / "model.safetensors").read_bytes() == weights
    assert len({row["step"] for row in read_jsonl(tmp_path / "history.jsonl")}) == 2
    told = capsys.readouterr()
    assert "moved aside to" in told.out + told.err
    assert train(tmp_path, 3, save_total_limit=1)["resumed_from"] == "checkpoint-2"


@pytest.mark.thorough
def test_a_run_that_was_stopped_and_one_without_checkpoints_are_moved_aside_whole_too(tmp_path):
    train(tmp_path / "stopped", 2)
    (tmp_path / "stopped" / "summary.json").unlink()
    train(tmp_path / "bare", 2)
    for step in (1, 2):
        shutil.rmtree(tmp_path / "bare" / f"checkpoint-{step}")
    for name in ("stopped", "bare"):
        train(tmp_path / name, 1, resume=False)
        (aside,) = (tmp_path / name / "set_aside").iterdir()
        assert {row["step"] for row in read_jsonl(aside / "history.jsonl")} == {1, 2}
        assert {row["step"] for row in read_jsonl(tmp_path / name / "history.jsonl")} == {1}


def test_a_torn_checkpoint_does_not_push_out_the_whole_one_before_it(tmp_path):
    train(tmp_path, 4)
    os.truncate(tmp_path / "checkpoint-4" / "model.safetensors", 90)
    os.truncate(tmp_path / "checkpoint-3" / "model.safetensors", 90)
    assert train(tmp_path, 3, save_total_limit=1)["resumed_from"] == "checkpoint-2"
    assert steps(tmp_path) == [3]
    (aside,) = (tmp_path / "set_aside").iterdir()
    assert steps(aside) == [3, 4]
    told = [event["message"] for event in read_events(tmp_path) if event["kind"] == "torn"]
    assert len(told) == 2
    assert told[0].startswith(f"{tmp_path}/checkpoint-4 is damaged (model.safetensors: not a whole safetensors file")
    assert told[0].endswith(f"): the run continues from {tmp_path}/checkpoint-2")


@pytest.mark.thorough
def test_a_smaller_budget_by_mistake_loses_neither_checkpoints_nor_history(tmp_path, capsys):
    train(tmp_path, 4)
    history = (tmp_path / "history.jsonl").read_bytes()
    assert train(tmp_path, 2)["resumed_from"] == "checkpoint-2"
    (aside,) = (tmp_path / "set_aside").iterdir()
    assert steps(aside) == [3, 4]
    assert (aside / "history.jsonl").read_bytes() == history
    shorter = (tmp_path / "history.jsonl").read_bytes()
    assert main(["checkpoint", "restore", str(tmp_path)]) == 0
    assert "brought back checkpoint-3, checkpoint-4 from" in capsys.readouterr().out
    assert steps(tmp_path) == [1, 2, 3, 4]
    assert (tmp_path / "history.jsonl").read_bytes() == shorter
    (tmp_path / "history.jsonl").unlink()
    assert main(["checkpoint", "restore", str(tmp_path)]) == 0
    assert (tmp_path / "history.jsonl").read_bytes() == history
    assert not (tmp_path / "set_aside").exists()


@pytest.mark.thorough
@pytest.mark.parametrize("steps_before", [0, 2])
def test_a_run_that_loses_nothing_moves_nothing(tmp_path, steps_before):
    if steps_before:
        train(tmp_path, steps_before)
    train(tmp_path, 3, resume=steps_before > 0)
    assert not (tmp_path / "set_aside").exists()


@pytest.mark.thorough
def test_a_summary_that_has_changed_is_not_taken_for_that_of_the_run(run, go_on):
    content = (run / "summary.json").read_bytes()
    (run / "summary.json").write_bytes(content.replace(b'"steps": 6', b'"steps": 7'))
    with pytest.raises(InputError, match=r"summary\.json: SHA-256 is .* and the same command writes it anew"):
        go_on(run, 6)
    (run / "summary.json").unlink()
    assert go_on(run, 6)["steps"] == 6
    assert digest_problems(run) == []


def test_a_state_without_its_steps_is_no_place_to_go_on_from(run):
    for path in (run / "checkpoint-6" / "trainer_state.json", run / "checkpoint-4" / "trainer_state.json"):
        state = read_json(path)
        del state["max_steps"]
        write_json(path, state)
        write_digests(path.parent)
    assert [start.folder.name for start in possible_starts(str(run))] == ["checkpoint-2"]
