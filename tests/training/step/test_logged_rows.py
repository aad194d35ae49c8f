import pytest
from tiny_runs import random_rows, trainer

from hmm_datasets.files import read_jsonl
from hmm_datasets.training.run import train_and_save


def recorded(folder):
    steps = {}
    for row in read_jsonl(folder / "indices-0.jsonl"):
        steps.setdefault(row["step"], []).extend(row["indices"])
    return steps


@pytest.mark.thorough
def test_the_rows_of_every_step_are_logged_once_also_after_a_resume(tmp_path):
    """A growing global batch, two rows per micro-batch; the second start resumes at step 3 of 5."""
    given = {
        "global_batch_size": 8,
        "per_device_train_batch_size": 2,
        "batch_ramp": ["2:2", "4:2"],
        "log_indices": True,
        "save_strategy": "steps",
        "save_steps": 3,
    }
    for max_steps in (5, 6):
        train_and_save(trainer(tmp_path, max_steps=max_steps, **given), settings={}, data={})
        for path in tmp_path.glob("checkpoint-[56]"):
            path.rename(tmp_path / f"away-{path.name}")
    starts = [0, 2, 4, 8, 12, 20, 28]
    assert recorded(tmp_path) == {step + 1: list(range(starts[step], starts[step + 1])) for step in range(6)}


@pytest.mark.thorough
def test_nothing_is_logged_by_default_and_losses_are_the_same(tmp_path):
    rows = random_rows(40)
    curves = []
    for name, asked in (("with", True), ("without", False)):
        run = trainer(tmp_path / name, rows=rows, max_steps=3, log_indices=asked)
        train_and_save(run, settings={}, data={})
        curves.append([row["loss"] for row in read_jsonl(tmp_path / name / "history.jsonl") if "loss" in row])
    assert curves[0] == curves[1]
    assert (tmp_path / "with" / "indices-0.jsonl").exists()
    assert not (tmp_path / "without" / "indices-0.jsonl").exists()
