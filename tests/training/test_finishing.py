"""What follows from a finished run: each part is done again by the next start if it was killed before its end."""

import re

import pytest
from tiny_runs import trainer

from hmm_datasets.errors import InputError
from hmm_datasets.files import file_digest, read_json, read_jsonl, write_digests, write_json
from hmm_datasets.operations.run_state import RunObserver
from hmm_datasets.training import run as module
from hmm_datasets.training.run import train_and_save

PARTS = ("draw_run", "write_run_card", "_push")


class Killed(BaseException):
    """Stands for the end of a process."""


@pytest.fixture
def train(tmp_path, monkeypatch):
    """A function that trains to the end, and pushes, in a folder; as if killed before one of the parts."""
    pushed, push = [], module._push
    monkeypatch.setattr(module, "_push", lambda trainer: pushed.append(sorted(p.name for p in tmp_path.iterdir())))
    monkeypatch.setattr("hmm_datasets.training.trainer.StepTrainer.init_hf_repo", lambda *args, **given: None)

    def killed(*arguments, **given):
        raise Killed

    def train(killed_before=None, **given):
        one = trainer(tmp_path, save_strategy="steps", save_steps=2, push_to_hub=True, hub_strategy="end", **given)
        with monkeypatch.context() as patch:
            if killed_before is not None:
                patch.setattr(module, killed_before, killed)
            train_and_save(one, settings={}, data={"rows": 200})
        return pushed

    assert push is not module._push
    return train


@pytest.mark.thorough
@pytest.mark.outside(
    "https://github.com/facebookresearch/ParlAI/pull/1419",
    "after kill -9 at any moment the same command again does what is left to do",
    "so it is: also card, plots and push of a run whose training was finished",
)
@pytest.mark.parametrize("part", PARTS)
def test_a_run_killed_after_its_summary_is_drawn_described_and_pushed_by_the_next_start(
    tmp_path, train, part, monkeypatch, capsys
):
    with pytest.raises(Killed):
        train(killed_before=part)
    weights = file_digest(tmp_path / "model.safetensors")
    assert (tmp_path / "summary.json").exists()
    assert RunObserver(tmp_path).look().state != "finished", "so that a batch job goes back into its queue"
    drawn = []
    monkeypatch.setattr(module, "draw_run", lambda folder, **given: drawn.append(folder))
    (names,) = train()
    assert "README.md" in names
    assert drawn == [str(tmp_path)]
    assert "already finished, at step 6; what was left to do then is done now" in capsys.readouterr().out
    assert file_digest(tmp_path / "model.safetensors") == weights, "not the weights of the new start"
    assert not (tmp_path / ".finishing").exists()
    assert RunObserver(tmp_path).look().state == "finished"
    assert len(train()) == 1, "a complete run is not pushed again"
    assert "already finished, at step 6; nothing to do" in capsys.readouterr().out


@pytest.mark.thorough
def test_a_run_killed_between_its_last_step_and_its_summary_has_one_row_about_the_whole_run(tmp_path, train):
    with pytest.raises(Killed):
        train(killed_before="_summary")
    train()
    rows = read_jsonl(tmp_path / "history.jsonl")
    assert [row["step"] for row in rows if "train_loss" in row] == [6]
    assert [row["step"] for row in rows if "loss" in row] == [1, 2, 3, 4, 5, 6]


@pytest.mark.thorough
def test_a_run_that_consumed_other_tokens_than_planned_is_refused_at_each_start(tmp_path, train):
    train()
    summary = read_json(tmp_path / "summary.json")
    write_json(tmp_path / "summary.json", summary | {"planned_tokens": summary["tokens"] + 1})
    write_digests(tmp_path, ["summary.json"], into=tmp_path)
    for _ in range(2):
        with pytest.raises(InputError, match=re.escape("do not rely on its token counts")):
            train()


@pytest.mark.thorough
def test_a_run_that_failed_before_its_first_step_does_not_pin_its_folder(tmp_path, monkeypatch):
    def fails(*arguments, **given):
        raise Killed

    monkeypatch.setattr("hmm_datasets.training.trainer.StepTrainer.training_step", fails)
    with pytest.raises(Killed):
        train_and_save(trainer(tmp_path, max_steps=2), settings={}, data={"rows": 7})
    monkeypatch.undo()
    train_and_save(
        trainer(tmp_path, max_steps=2, save_strategy="steps", save_steps=2), settings={}, data={"rows": 200}
    )
    with pytest.raises(InputError, match=r"of another run: data\.rows was 200 and is 7"):
        train_and_save(trainer(tmp_path, max_steps=4), settings={}, data={"rows": 7})
