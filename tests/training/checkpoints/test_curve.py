"""Every setting is compared when a run is continued, but for those that cannot change its losses."""

from dataclasses import dataclass, fields

import pytest
from tiny_runs import random_rows, tiny_model
from transformers.data.data_collator import default_data_collator

from hmm_datasets.errors import InputError
from hmm_datasets.files import read_json, write_digests, write_json
from hmm_datasets.training.checkpoints.curve import WITHOUT_EFFECT
from hmm_datasets.training.run import train_and_save
from hmm_datasets.training.settings import DPOSettings, GRPOSettings, PretrainSettings, SFTSettings
from hmm_datasets.training.trainer import Pretrainer

LISTED = ("global_batch_size", "learning_rate", "weight_decay", "seed", "bf16", "fp16", "z_loss")
"""Some of the names that identities had when they were listed."""


@dataclass
class NewerSettings(PretrainSettings):
    """Settings of a later version."""

    new_setting: float = 0.0


def train(folder, max_steps, kind=PretrainSettings, **given):
    """Train up to a step, and return the checkpoint that the run was continued from."""
    defaults = {"save_steps": 1, "global_batch_size": 4, "per_device_train_batch_size": 4, "report_to": "none"}
    args = kind(str(folder), max_steps=max_steps, **defaults | given)
    trainer = Pretrainer(
        model=tiny_model(), args=args, train_dataset=random_rows(40), data_collator=default_data_collator
    )
    return train_and_save(trainer, settings={}, data={"rows": 40})["resumed_from"]


def as_if_listed(checkpoint, **changes):
    """Make the identity of a checkpoint one of a version that listed what it compared."""
    identity = read_json(checkpoint / "identity.json")
    del identity["scope"]
    identity["settings"] = {name: identity["settings"][name] for name in LISTED} | changes
    write_json(checkpoint / "identity.json", identity)
    write_digests(checkpoint)


def test_all_exceptions_are_settings():
    known = {one.name for kind in (PretrainSettings, SFTSettings, DPOSettings, GRPOSettings) for one in fields(kind)}
    newer = {"dataloader_multiprocessing_context", "log_multimodal"}  # than transformers 5.12 and older TRL
    assert WITHOUT_EFFECT - known <= newer


@pytest.mark.thorough
def test_a_new_setting_is_compared_without_being_listed(tmp_path):
    train(tmp_path, 1)
    assert train(tmp_path, 2, NewerSettings) == "checkpoint-1", "an older run had its default"
    with pytest.raises(InputError, match=r"of another run: settings.new_setting was 0.0 and is 1.0; choose"):
        train(tmp_path, 3, NewerSettings, new_setting=1.0)
    accepted = ["settings.new_setting"]
    assert train(tmp_path, 3, NewerSettings, new_setting=1.0, allow_changed=accepted) == "checkpoint-2"
    assert train(tmp_path, 4, NewerSettings, new_setting=1.0) == "checkpoint-3"
    assert train(tmp_path, 5) == "checkpoint-4", "a setting that does not exist any more cannot be compared"


@pytest.mark.thorough
def test_what_changes_the_loss_is_refused_and_what_only_rounds_it_is_not(tmp_path):
    train(tmp_path, 1)
    with pytest.raises(InputError, match=r"settings.z_loss was 0.0 and is 0.1"):
        train(tmp_path, 2, z_loss=0.1)
    other = {"per_device_train_batch_size": 2, "chunked_loss": True, "logging_steps": 1, "on_spike": "rollback"}
    assert train(tmp_path, 2, **other) == "checkpoint-1"


@pytest.mark.thorough
def test_a_checkpoint_that_names_few_settings_is_continued_and_those_are_compared(tmp_path):
    train(tmp_path, 1, z_loss=0.1)
    as_if_listed(tmp_path / "checkpoint-1")
    with pytest.raises(InputError, match=r"of another run: settings.weight_decay was 0.1 and is 0.2; choose"):
        train(tmp_path, 2, z_loss=0.1, weight_decay=0.2)
    assert train(tmp_path, 2, z_loss=0.1) == "checkpoint-1"
    with pytest.raises(InputError, match=r"settings.z_loss was 0.1 and is 0.0"):
        train(tmp_path, 3)


@pytest.mark.thorough
def test_the_precision_of_the_launcher_is_in_every_record_and_is_compared(tmp_path, monkeypatch):
    on_cpu = {"use_cpu": True}
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "bf16")
    train(tmp_path, 1, **on_cpu)
    assert read_json(tmp_path / "run.json")["settings"]["bf16"] is True
    assert read_json(tmp_path / "checkpoint-1" / "identity.json")["settings"]["bf16"] is True
    assert "| Precision | bf16; weights and moments in float32 |" in (tmp_path / "README.md").read_text()
    monkeypatch.delenv("ACCELERATE_MIXED_PRECISION")
    with pytest.raises(InputError, match=r"settings\.bf16 was True and is False; choose another .* settings\.bf16$"):
        train(tmp_path, 2, **on_cpu)
    assert train(tmp_path, 2, **on_cpu, bf16=True) == "checkpoint-1"
    assert train(tmp_path, 3, **on_cpu, allow_changed=["settings.bf16"]) == "checkpoint-2"
    assert read_json(tmp_path / "checkpoint-3" / "identity.json")["settings"]["bf16"] is False


@pytest.mark.thorough
@pytest.mark.parametrize("own", [True, False])
def test_a_run_whose_precision_was_not_recorded_is_continued_in_any(tmp_path, monkeypatch, own):
    """Versions that listed settings wrote `bf16: false` also where the launcher was asked for bf16."""
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "bf16")
    train(tmp_path, 1, use_cpu=True)
    as_if_listed(tmp_path / "checkpoint-1", bf16=own)
    assert train(tmp_path, 2, use_cpu=True) == "checkpoint-1"
    monkeypatch.delenv("ACCELERATE_MIXED_PRECISION")
    as_if_listed(tmp_path / "checkpoint-2", bf16=own)
    if own:
        with pytest.raises(InputError, match=r"settings\.bf16 was True and is False"):
            train(tmp_path, 3, use_cpu=True)
    else:
        assert train(tmp_path, 3, use_cpu=True) == "checkpoint-2"
