"""A profile records the steps it says, in files that can be opened, and changes nothing."""

import gzip
import json

import pytest
from tiny_runs import history, losses, trainer

from hmm_datasets.errors import InputError
from hmm_datasets.training.callbacks.profile import Profile


def profiled(folder, **given):
    run = trainer(folder, **given)
    run.add_callback(Profile(run))
    return run


@pytest.mark.thorough
@pytest.mark.parametrize(("profile_steps", "span"), [(2, "4 to 5"), (10, "4 to 6")], ids=["", "longer than the run"])
def test_the_steps_after_the_third_are_recorded(profile_steps, span, tmp_path, capsys):
    run = profiled(tmp_path, profile_steps=profile_steps)
    assert losses(run) == losses(trainer(tmp_path / "plain"))
    with gzip.open(tmp_path / "profile" / "rank-0.json.gz") as file:
        events = json.load(file)["traceEvents"]
    count = sum(event.get("name") == "aten::cross_entropy_loss" for event in events)
    first, last = map(int, span.split(" to "))
    assert count == 2 * (last - first + 1), "one for each micro-batch"
    text = (tmp_path / "profile" / "operations.txt").read_text()
    assert text.startswith(f"Steps {span} on rank 0")
    assert "aten::mm" in text
    assert f"Steps {span} on rank 0" in capsys.readouterr().out
    assert sorted(path.name for path in (tmp_path / "profile").iterdir()) == ["operations.txt", "rank-0.json.gz"]


def test_a_run_that_is_too_short_is_not_recorded(tmp_path):
    losses(profiled(tmp_path, profile_steps=2, max_steps=3))
    assert not (tmp_path / "profile").exists()


def test_every_row_has_the_global_batch(tmp_path):
    run = trainer(tmp_path, batch_ramp=["4:2"])
    run.train()
    assert [row["global_batch_size"] for row in history(run)] == [4, 4, 8, 8, 8, 8]
    assert "loss_scale" not in history(run)[0]


def test_wrong_settings_are_named(tmp_path):
    with pytest.raises(InputError, match="profile_steps is -1; expected 0 or more"):
        trainer(tmp_path, profile_steps=-1)
    with pytest.raises(InputError, match="but has no effect without task_steps"):
        trainer(tmp_path, core_data="questions")
