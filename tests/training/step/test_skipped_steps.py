"""A step whose gradient is not finite changes no weight and is counted; many in a row end the run."""

import itertools
import math

import pytest
import torch
from tiny_runs import random_rows, trainer
from transformers import TrainerCallback

from hmm_datasets.errors import InputError
from hmm_datasets.files import read_jsonl
from hmm_datasets.training.run import train_and_save
from hmm_datasets.training.trainer import Pretrainer


def logged_rows(folder) -> list[dict]:
    return [row for row in read_jsonl(folder / "history.jsonl") if "loss" in row]


class Overflowing(Pretrainer):
    """Multiplies the gradient of some steps by infinity; their loss stays finite."""

    bad_steps = ()

    def training_step(self, *args, **kwargs):
        loss = super().training_step(*args, **kwargs)
        if self.state.global_step + 1 in self.bad_steps:
            next(self.model.parameters()).grad.fill_(float("inf"))
        return loss


def weights(model) -> torch.Tensor:
    return torch.cat([weight.detach().flatten().clone() for weight in model.parameters()])


class Snapshots(TrainerCallback):
    def __init__(self):
        self.taken = []

    def on_step_end(self, args, state, control, model=None, **kwargs):
        self.taken.append(weights(model))


@pytest.mark.parametrize("bf16", [False, True])
def test_a_step_with_an_infinite_gradient_changes_no_weight_and_is_counted(tmp_path, bf16, capsys):
    run = trainer(tmp_path, kind=Overflowing, bf16=bf16)
    run.bad_steps, snapshots = (3, 5), Snapshots()
    run.add_callback(snapshots)
    train_and_save(run, settings={}, data={})
    moved = [not torch.equal(a, b) for a, b in itertools.pairwise(snapshots.taken)]
    assert moved == [True, False, True, False, True]
    assert torch.isfinite(snapshots.taken[-1]).all()
    assert [row["skipped_steps"] for row in logged_rows(tmp_path)] == [0, 0, 1, 1, 2, 2]
    assert [math.isfinite(row["grad_norm"]) for row in logged_rows(tmp_path)] == [True, True, False, True, False, True]
    assert "step 3: the norm of the gradient is inf; skipped (1 so far)" in capsys.readouterr().out


@pytest.mark.thorough
def test_skipped_steps_and_cost_are_added_up_over_a_resume(tmp_path):
    for steps in (3, 6):
        run = trainer(
            tmp_path,
            kind=Overflowing,
            max_steps=steps,
            price_per_hour=3600.0,
            save_strategy="steps",
            save_steps=3,
        )
        run.bad_steps = (2, 5)
        train_and_save(run, settings={}, data={})
    logged = logged_rows(tmp_path)
    assert [row["skipped_steps"] for row in logged] == [0, 1, 1, 1, 2, 2]
    assert logged[-1]["cost"] == pytest.approx(sum(row["step_seconds"] for row in logged))


@pytest.mark.thorough
def test_many_infinite_gradients_in_a_row_end_the_run(tmp_path):
    run = trainer(tmp_path, kind=Overflowing, rows=random_rows(320), max_steps=40)
    run.bad_steps = (2, *range(4, 40))
    with pytest.raises(
        InputError, match=r"^step 23: the gradient was not finite for 20 steps in a row since step 4; no "
    ):
        train_and_save(run, settings={}, data={})
