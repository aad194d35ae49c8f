"""Small models are trained in this process once, and measured along the way."""

import pytest
import torch
from architectures import architecture_config
from small_runs import SmallRun, finished_trial, log_spaced_steps, measured_run, trained_model

from hmm_datasets.errors import InputError
from hmm_datasets.hmm.families.episodic_tasks import Bijection
from hmm_datasets.hmm.processes import mess3


def test_steps_are_evenly_spaced_on_a_logarithmic_axis():
    assert log_spaced_steps(8, 2) == [0, 1, 2, 3, 4, 6, 8]
    assert log_spaced_steps(0) == [0]


@pytest.mark.thorough
def test_a_finished_model_is_not_trained_again_and_other_settings_are_refused(tmp_path, capsys):
    task = Bijection(3)
    config = architecture_config("gru", vocab_size=7, length=7, width=8, layers=1, bos_token_id=6)
    budget = {"length": 6, "steps": 2, "batch_size": 4, "learning_rate": 1e-2, "only_scored": True}
    everything = trained_model(tmp_path / "all", config, task, SmallRun(**budget | {"only_scored": False}))
    first = trained_model(tmp_path, config, task, SmallRun(**budget))
    assert not torch.equal(first.lm_head.weight, everything.lm_head.weight)
    second = trained_model(tmp_path, config, task, SmallRun(**budget))
    assert "already finished" in capsys.readouterr().out
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True))
    with pytest.raises(InputError, match="batch_size"):
        trained_model(tmp_path, config, task, SmallRun(**budget | {"batch_size": 8}))


@pytest.mark.thorough
def test_measuring_changes_nothing_of_the_training_and_is_kept(tmp_path):
    process = mess3(0.15, 0.6)
    config = architecture_config("llama", vocab_size=4, length=9, width=16, layers=1, heads=2, bos_token_id=3)
    run = SmallRun(length=8, steps=6, batch_size=4, learning_rate=1e-2, seed=5, optimizer="muon")
    alone = trained_model(tmp_path / "alone", config, process, run)

    def measure(model):
        assert not model.training
        torch.rand(3)
        return {"norm": sum(one.norm().item() for one in model.parameters())}

    found = measured_run(tmp_path / "measured", config, process, run, measure, [0, 2, 6])
    assert [row["step"] for row in found["rows"]] == [0, 2, 6]
    assert len({row["norm"] for row in found["rows"]}) == 3
    assert found["rows"][-1] == {"step": 6, **measure(alone)}
    assert (found["tokens"], found["parameters"]) == (6 * 4 * 9, alone.num_parameters())

    def fail(model):
        raise AssertionError("measured again")

    assert measured_run(tmp_path / "measured", config, process, run, fail, [0, 2, 6])["rows"] == found["rows"]
    with pytest.raises(InputError, match="at"):
        measured_run(tmp_path / "measured", config, process, run, fail, [0, 3, 6])


def test_a_run_is_read_from_settings_or_a_mapping():
    given = {"length": 3, "steps": 1, "batch_size": 2, "learning_rate": 0.1, "width": 8}
    assert SmallRun.of(given, seed=4) == SmallRun(3, 1, 2, 0.1, seed=4)
    assert SmallRun.of(SmallRun(3, 1, 2, 0.1), length=5).tokens == 1 * 2 * 6


def test_a_trial_is_measured_again_only_if_its_description_changed(tmp_path, capsys):
    calls = []

    def measure():
        calls.append(1)
        return {"accuracy": len(calls) / 4}

    first = finished_trial(tmp_path / "trial.json", {"seed": 0}, measure)
    assert {key: first[key] for key in ("seed", "accuracy")} == {"seed": 0, "accuracy": 0.25}
    assert finished_trial(tmp_path / "trial.json", {"seed": 0}, measure) == first
    assert "already done" in capsys.readouterr().out
    assert finished_trial(tmp_path / "trial.json", {"seed": 1}, measure)["accuracy"] == 0.5
