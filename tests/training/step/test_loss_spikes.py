"""A spike of the loss is found before the optimizer steps, logged with what explains it, and skipped if so asked."""

import itertools
import math
import socket

import pytest
import torch
from bad_rows import WithBadRows, losses, settings, train, trainer
from transformers import TrainerCallback

from hmm_datasets.errors import InputError
from hmm_datasets.files import read_jsonl
from hmm_datasets.runtime.events import read_events
from hmm_datasets.training.run import train_and_save
from hmm_datasets.training.settings import GRPOSettings

BAD = range(130, 136)
"""Six of the eight rows of step 17."""


def spikes(folder) -> list[dict]:
    return [event for event in read_events(folder) if event["kind"] == "spike"]


class Weights(TrainerCallback):
    def __init__(self):
        self.taken = []

    def on_step_end(self, args, state, control, model=None, **kwargs):
        self.taken.append(torch.cat([weight.detach().flatten().clone() for weight in model.parameters()]))


@pytest.fixture(scope="module")
def warned(tmp_path_factory):
    """A run of 30 steps with a spike in step 17, which trains on."""
    folder = tmp_path_factory.mktemp("warned")
    train(folder, WithBadRows(BAD), lr_scheduler_type="constant", save_steps=14)
    return folder


@pytest.mark.thorough
def test_a_spike_is_logged_with_its_rows_host_and_gradients(warned):
    (spike,) = spikes(warned)
    history = read_jsonl(warned / "history.jsonl")[16]
    assert (spike["step"], spike["loss"]) == (17, history["loss"]), "the loss of the global batch, as it is logged"
    assert spike["measures"]["loss"]["value"] == history["loss"]
    assert spike["measures"]["loss"]["deviations"] > 8
    assert spike["highest"]["rows"] in ([130, 131], [132, 133], [134, 135])
    assert (spike["rank"], spike["host"]) == (0, socket.gethostname())
    parts = spike["ranks"][0]["micro_batches"]
    assert [part["rows"] for part in parts] == [[128, 129], [130, 131], [132, 133], [134, 135]]
    assert sum(part["loss"] for part in parts) / 4 == pytest.approx(spike["loss"])
    assert parts[0]["loss"] < 2 < 6 < parts[1]["loss"]
    gradients = spike["gradients"]
    assert gradients["norm"] == pytest.approx(history["grad_norm"])
    assert math.hypot(*gradients["layers"].values()) == pytest.approx(gradients["norm"], rel=1e-4)
    assert set(gradients["layers"]) == {
        "model.embed_tokens",
        "model.layers.0",
        "model.layers.1",
        "model.norm",
        "lm_head",
    }
    assert list(gradients["layers"].values()) == sorted(gradients["layers"].values(), reverse=True)
    assert gradients["not_finite"] == 0
    assert spike["message"].startswith(f"step 17: the loss is {spike['loss']:.4g}, ")


@pytest.mark.thorough
def test_an_ordinary_run_has_no_spike(tmp_path):
    train(tmp_path, WithBadRows(), max_steps=60, save_steps=1000)
    assert losses(tmp_path)[-1] < 1
    assert not spikes(tmp_path)


@pytest.mark.thorough
def test_a_resumed_run_decides_as_an_undisturbed_one(warned, tmp_path):
    """Stopped after 14 steps: three later it could not know a spike from the losses since then alone."""
    for steps in (14, 30):
        train(tmp_path, WithBadRows(BAD), lr_scheduler_type="constant", save_steps=14, max_steps=steps)
    assert losses(tmp_path) == losses(warned)
    (expected,), (found,) = spikes(warned), spikes(tmp_path)
    assert found["measures"] == expected["measures"]


@pytest.mark.thorough
def test_a_skipped_spike_changes_no_weight_and_is_counted(tmp_path, capsys):
    run, weights = trainer(tmp_path, WithBadRows(BAD), on_spike="skip", save_steps=1000), Weights()
    run.add_callback(weights)
    train_and_save(run, settings={}, data={})
    moved = [not torch.equal(a, b) for a, b in itertools.pairwise(weights.taken)]
    assert [step + 2 for step, moves in enumerate(moved) if not moves] == [17]
    assert "step 17: skipped (1 so far)" in capsys.readouterr().out
    assert [row["skipped_steps"] for row in read_jsonl(tmp_path / "history.jsonl")[15:18]] == [0, 1, 1]
    assert [(event["kind"], event["step"]) for event in read_events(tmp_path)] == [("spike", 17), ("skipped", 17)]


@pytest.mark.thorough
def test_a_high_gradient_alone_is_warned_of_but_not_rolled_back(tmp_path):
    """The gradient of one step is multiplied by 100; its loss is as before."""

    class Steep(TrainerCallback):
        def on_step_begin(self, args, state, control, **kwargs):
            self.factor = 100.0 if state.global_step + 1 == 20 else 1.0

    steep = Steep()
    run = trainer(tmp_path, WithBadRows(), on_spike="rollback", save_steps=1000)
    for weight in run.model.parameters():
        weight.register_hook(lambda gradient: gradient * steep.factor)
    run.add_callback(steep)
    assert train_and_save(run, settings={}, data={})["steps"] == 30
    (spike,) = spikes(tmp_path)
    assert spike["step"] == 20
    assert list(spike["measures"]) == ["gradient norm"]
    assert spike["measures"]["gradient norm"]["value"] == pytest.approx(spike["gradients"]["norm"])


@pytest.mark.thorough
def test_ignored_spikes_are_not_logged(tmp_path):
    train(tmp_path, WithBadRows(BAD), on_spike="ignore", max_steps=18, save_steps=1000)
    assert not read_events(tmp_path)


def test_a_policy_that_is_not_possible_is_refused_when_it_is_set(tmp_path, monkeypatch):
    with pytest.raises(InputError, match="on_spike is 'stop'; expected one of warn, skip, rollback, ignore"):
        settings(tmp_path, on_spike="stop")
    with pytest.raises(InputError, match="spike_margin is -1; expected 0 or more"):
        settings(tmp_path, spike_margin=-1)
    with pytest.raises(InputError, match="train_sampling_strategy is random; rows can be skipped only in their"):
        settings(tmp_path, on_spike="rollback", train_sampling_strategy="random")
    with pytest.raises(InputError, match="resume is false, so a run that goes back would begin anew"):
        settings(tmp_path, on_spike="rollback", resume=False)
    with pytest.raises(InputError, match="save_only_model leaves nothing to go back to"):
        settings(tmp_path, on_spike="rollback", save_only_model=True)
    with pytest.raises(InputError, match="rollouts are drawn anew, not skipped; set warn or skip"):
        GRPOSettings(str(tmp_path), on_spike="rollback", per_device_train_batch_size=8, report_to="none")
    monkeypatch.setenv("ACCELERATE_USE_DEEPSPEED", "true")
    with pytest.raises(InputError, match="on_spike is skip, but DeepSpeed steps within the backward pass"):
        settings(tmp_path, on_spike="skip")
