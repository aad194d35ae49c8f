"""Going back at a spike: rows, losses, tokens and checkpoints are those of a run without the rows around it."""

import pytest
from bad_rows import GLOBAL_BATCH, LENGTH, WithBadRows, Without, losses, rows_by_step, train, train_through
from tiny_runs import conversations
from transformers import LlamaForCausalLM

from hmm_datasets.data.skipped_rows import SkippedRows
from hmm_datasets.errors import InputError, RolledBack
from hmm_datasets.files import read_json
from hmm_datasets.runtime.events import read_events
from hmm_datasets.runtime.run_identity import write_identity
from hmm_datasets.text.tokenizers.bpe import train_bpe
from hmm_datasets.training.checkpoints import rollback
from hmm_datasets.training.checkpoints.skipped_rows import Rollback, left_out_the_same, rows_identity
from hmm_datasets.training.model_configs import model_config
from hmm_datasets.training.post_training.trainers import FineTuner
from hmm_datasets.training.run import train_and_save
from hmm_datasets.training.settings import SFTSettings

FIRST = tuple(range(130, 136))
BAD = (*FIRST, *range(192, 200))
LEFT_OUT = {*range(120, 144), *range(184, 208)}
"""Rows of steps 16 to 18, around step 17; and 21 to 23, around row 192, which is then in step 22."""


@pytest.fixture(scope="module")
def rolled_back(tmp_path_factory):
    """A run of 30 steps with two different spikes, and a start in between."""
    folder = tmp_path_factory.mktemp("rolled back")
    rows = WithBadRows(BAD)
    with pytest.raises(RolledBack) as first:
        train(folder, rows, on_spike="rollback")
    with pytest.raises(RolledBack) as second:
        train(folder, rows, on_spike="rollback")
    return folder, train(folder, rows, on_spike="rollback"), [str(first.value), str(second.value)]


def expected_rows(steps=30):
    kept = [row for row in range(1000) if row not in LEFT_OUT]
    return {step + 1: kept[step * GLOBAL_BATCH : (step + 1) * GLOBAL_BATCH] for step in range(steps)}


@pytest.mark.thorough
def test_the_rows_around_two_spikes_are_left_out_and_all_others_are_in_order(rolled_back):
    folder, summary, said = rolled_back
    assert rows_by_step(folder) == expected_rows()
    assert "goes back to checkpoint-15 and skips rows 120 to 143 of the data set" in said[0]
    assert "goes back to checkpoint-20 and skips rows 184 to 207 of the data set" in said[1]
    assert summary["tokens"] == 30 * GLOBAL_BATCH * (LENGTH + 1)


@pytest.mark.thorough
def test_the_losses_are_those_of_a_run_that_was_never_given_these_rows(rolled_back, tmp_path):
    train(tmp_path, Without(WithBadRows(), LEFT_OUT), on_spike="warn")
    assert losses(rolled_back[0]) == losses(tmp_path)
    weights = [(folder / "model.safetensors").read_bytes() for folder in (rolled_back[0], tmp_path)]
    assert weights[0] == weights[1]


def test_a_checkpoint_that_does_not_know_its_rows_has_left_out_the_same_only_if_all_are(tmp_path):
    assert left_out_the_same(tmp_path, None, SkippedRows([]))
    assert not left_out_the_same(tmp_path, None, SkippedRows([(3, 5)]))
    assert left_out_the_same(tmp_path, 3, SkippedRows([(3, 5)]))
    assert not left_out_the_same(tmp_path, 4, SkippedRows([(3, 5)]))


def test_every_later_checkpoint_and_the_summary_name_the_rows_left_out(rolled_back):
    folder, summary, _ = rolled_back
    first = {"step": 17, "checkpoint": 15, "first": 120, "end": 144}
    second = {"step": 22, "checkpoint": 20, "first": 184, "end": 208}

    def named(name):
        return read_json(folder / name / "identity.json").get("rows", {}).get("passed_over")

    assert named(".") == summary["passed_over"] == [first, second]
    assert [named(f"checkpoint-{step}") for step in (15, 20, 25)] == [None, [first], [first, second]]
    events = [(event["kind"], event["step"]) for event in read_events(folder)]
    assert [event for event in events if event[0] == "rollback"] == [("rollback", 17), ("rollback", 22)]


@pytest.mark.thorough
def test_a_later_resume_honours_the_rows_left_out_even_without_the_record_of_the_run(rolled_back, tmp_path):
    """Extended from the last checkpoint, after the identity in the run's folder was lost."""
    folder, rows = rolled_back[0], WithBadRows(BAD)
    kept = (folder / "identity.json").read_bytes()
    (folder / "identity.json").unlink()
    train(folder, rows, max_steps=33, on_spike="rollback")
    assert rows_by_step(folder) == expected_rows(33)
    assert (folder / "identity.json").read_bytes() == kept


@pytest.mark.thorough
def test_conversations_are_passed_over_too(tmp_path):
    """Rows 3 to 8 of their shuffled order, after step 1 of 2 rows; an epoch of 22 ends within the run."""
    write_identity(tmp_path, rows_identity([Rollback(step=3, checkpoint=1, first=3, end=9)]))
    tokenizer = train_bpe([message["content"] for row in conversations() for message in row["messages"]], 400)
    settings = SFTSettings(
        str(tmp_path),
        **{"max_steps": 9, "global_batch_size": 2, "per_device_train_batch_size": 2, "max_length": 48},
        **{"log_indices": True, "save_strategy": "no", "report_to": "none", "activation_checkpointing": False},
    )
    net = LlamaForCausalLM(model_config("d1", vocab_size=len(tokenizer), max_length=48))
    tuner = FineTuner(model=net, args=settings, train_dataset=conversations(), processing_class=tokenizer)
    summary = train_and_save(tuner, settings={}, data={})
    kept = [0, 1, 2, *range(9, 24)]
    assert rows_by_step(tmp_path) == {step + 1: kept[2 * step : 2 * step + 2] for step in range(9)}
    assert summary["tokens"] == summary["planned_tokens"]


@pytest.mark.thorough
def test_a_run_killed_while_it_goes_back_does_not_continue_from_what_it_gave_up(tmp_path):
    """Checkpoint 16 has trained on rows that are skipped, for a margin of 2; it is moved aside."""
    rows = WithBadRows(FIRST)
    with pytest.raises(RolledBack):
        train(tmp_path, rows, on_spike="rollback", save_steps=8, spike_margin=2)
    assert (tmp_path / "checkpoint-16").is_dir()
    summary = train(tmp_path, rows, on_spike="rollback", save_steps=8, spike_margin=2, save_total_limit=1)
    assert summary["resumed_from"] == "checkpoint-8"
    assert len(list(tmp_path.glob("set_aside/*/checkpoint-16/model.safetensors"))) == 1
    assert rows_by_step(tmp_path)[15] == list(range(152, 160))
    assert sorted(path.name for path in tmp_path.glob("checkpoint-*")) == ["checkpoint-30"]


@pytest.mark.thorough
def test_without_a_checkpoint_a_run_goes_back_to_its_beginning(tmp_path):
    summary = train_through(tmp_path, WithBadRows(FIRST), on_spike="rollback", save_steps=100)
    assert summary["resumed_from"] is None
    assert rows_by_step(tmp_path)[15] == list(range(112, 120))
    assert rows_by_step(tmp_path)[16] == list(range(144, 152))


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("given", "count", "reason"),
    [
        ({"save_total_limit": 1, "save_steps": 2}, 1000, "no checkpoint is from before step 16: keep more of them"),
        ({}, 256, "the 240 rows that the run needs would no longer be there: 232 would be left"),
    ],
)
def test_where_it_cannot_go_back_it_says_why_and_trains_on(given, count, reason, tmp_path, capsys):
    summary = train(tmp_path, WithBadRows(FIRST, count), on_spike="rollback", **given)
    assert summary["passed_over"] == []
    assert f"step 17: not rolled back: {reason}" in capsys.readouterr().out


@pytest.mark.thorough
def test_going_back_too_often_to_one_checkpoint_ends_the_run(tmp_path, monkeypatch):
    """Rows of a whole epoch are bad, so the cause is not in a few rows."""
    monkeypatch.setattr(rollback, "MAX_ROLLBACKS", 2)
    with pytest.raises(InputError, match="step 14 the run would go back to checkpoint-10 once more, after 2 times"):
        train_through(tmp_path, WithBadRows(range(130, 400)), on_spike="rollback")
