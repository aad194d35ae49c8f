"""A change of a setting that is accepted on resuming takes effect."""

import shutil

import pytest
import torch
from tiny_runs import random_rows, tiny_model
from transformers import TrainerCallback
from transformers.data.data_collator import default_data_collator

from hmm_datasets.errors import InputError
from hmm_datasets.training.optimizers import group_options
from hmm_datasets.training.run import train_and_save
from hmm_datasets.training.settings import PretrainSettings
from hmm_datasets.training.trainer import Pretrainer


class Options(TrainerCallback):
    """Remembers with which options of the optimizer each step was taken."""

    def __init__(self):
        self.by_step = {}

    def on_pre_optimizer_step(self, args, state, control, optimizer=None, **kwargs):
        self.by_step[state.global_step + 1] = group_options(optimizer)


def train(folder, max_steps, **given):
    """Train up to a step; return the options of each step and the weights at the end."""
    batch = {"global_batch_size": 4, "per_device_train_batch_size": 4}
    defaults = {"save_steps": 3, "lr_scheduler_type": "cosine", "warmup_steps": 2, "report_to": "none", "bf16": False}
    args = PretrainSettings(str(folder), max_steps=max_steps, **batch, **defaults | given)
    options, rows = Options(), random_rows(40)
    trainer = Pretrainer(
        model=tiny_model(), args=args, train_dataset=rows, data_collator=default_data_collator, callbacks=[options]
    )
    train_and_save(trainer, settings={}, data={"rows": 40})
    return options.by_step, [parameter.detach().clone() for parameter in trainer.model.parameters()]


def same(one, other):
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


@pytest.fixture(scope="module")
def begun(tmp_path_factory):
    """A run of three steps, and the weights of its continuation without a change."""
    folder = tmp_path_factory.mktemp("begun")
    train(folder / "run", 3)
    shutil.copytree(folder / "run", folder / "continued")
    return folder / "run", train(folder / "continued", 6)[1]


@pytest.mark.thorough
@pytest.mark.parametrize(
    "changed",
    [
        {"learning_rate": 1e-5},
        {"lr_scheduler_type": "linear"},
        {"lr_scheduler_type": "warmup_stable_decay", "lr_scheduler_kwargs": {"num_decay_steps": 0.5}},
        {"lr_scheduler_kwargs": {"num_cycles": 0.3}},
        {"warmup_steps": 5},
        {"weight_decay": 0.5},
        {"adam_beta1": 0.5},
        {"adam_beta2": 0.5},
        {"adam_epsilon": 1e-2},
        {"max_grad_norm": 0.01},
        {"z_loss": 0.1},
    ],
    ids=" ".join,
)
def test_an_accepted_change_takes_effect_from_the_next_step_on(begun, tmp_path, changed):
    run, unchanged = begun
    shutil.copytree(run, tmp_path / "run")
    names = [f"settings.{name}" for name in changed]
    with pytest.raises(InputError, match=names[0]):
        train(tmp_path / "run", 6, **changed)
    options, weights = train(tmp_path / "run", 6, **changed, allow_changed=names)
    expected, _ = train(tmp_path / "anew", 6, **changed)
    assert options == {step: expected[step] for step in (4, 5, 6)}
    assert not same(weights, unchanged)


@pytest.mark.thorough
def test_what_is_accepted_but_not_changed_has_no_effect(begun, tmp_path):
    run, unchanged = begun
    shutil.copytree(run, tmp_path / "run")
    assert same(train(tmp_path / "run", 6, allow_changed=["settings.z_loss", "settings.weight_decay"])[1], unchanged)


def test_another_optimizer_cannot_be_accepted(begun):
    with pytest.raises(InputError, match="optimizer was 'adamw' and is 'muon'; this cannot be accepted"):
        train(begun[0], 6, optimizer="muon", allow_changed=["settings.optimizer"])
