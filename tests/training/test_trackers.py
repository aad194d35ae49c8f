import importlib.util

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from hmm_datasets.data.sequences import HMMSequences
from hmm_datasets.errors import InputError
from hmm_datasets.evaluation.baselines import BaselineComparison
from hmm_datasets.files import read_jsonl
from hmm_datasets.hmm import processes
from hmm_datasets.training.run import train_and_save
from hmm_datasets.training.settings import PretrainSettings, SFTSettings
from hmm_datasets.training.trackers import check_trackers
from hmm_datasets.training.trainer import Pretrainer


@pytest.mark.parametrize("kind", [PretrainSettings, SFTSettings])
def test_nothing_is_sent_anywhere_by_default(kind, tmp_path):
    assert kind(str(tmp_path), max_steps=1, per_device_train_batch_size=8).report_to == []


@pytest.mark.thorough
def test_every_value_of_a_row_arrives_in_tensorboard_at_its_step(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    mess3 = processes.mess3(0.15, 0.6)
    settings = PretrainSettings(
        str(tmp_path),
        max_steps=4,
        global_batch_size=8,
        per_device_train_batch_size=8,
        logging_steps=1,
        evaluations_per_doubling=1,
        report_to="tensorboard",
    )
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=8, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32
    )
    baselines = BaselineComparison(mess3)
    trainer = Pretrainer(
        model=LlamaForCausalLM(config),
        args=settings,
        train_dataset=HMMSequences(mess3, 15),
        eval_dataset=HMMSequences(mess3, 15, first=1 << 40, num_sequences=8),
        compute_metrics=baselines.summarize,
        preprocess_logits_for_metrics=baselines.reduce_logits,
    )
    train_and_save(trainer, settings={}, data={})
    (folder,) = (tmp_path / "runs").iterdir()
    events = EventAccumulator(str(folder)).Reload()
    rows = read_jsonl(tmp_path / "history.jsonl")
    names = ("loss", "grad_norm", "tokens_per_second", "flops", "fraction", "eval_bayes_gap", "eval_kl_unigram")
    for name in names:
        tag = f"eval/{name.removeprefix('eval_')}" if name.startswith("eval_") else f"train/{name}"
        written = {row["step"]: row[name] for row in rows if name in row}
        assert len(written) >= 3
        assert {event.step: event.value for event in events.Scalars(tag)} == pytest.approx(written, rel=1e-6)


@pytest.mark.parametrize("name", ["tensorboard", "trackio", "wandb"])
def test_a_tracker_that_is_not_installed_is_refused_in_one_line(name, monkeypatch, tmp_path):
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda wanted, *rest: None if wanted == name else find(wanted))
    with pytest.raises(InputError) as caught:
        PretrainSettings(str(tmp_path), max_steps=1, per_device_train_batch_size=8, report_to=[name])
    assert str(caught.value) == f"report_to: {name} is not installed; pip install {name}, or leave it out"


def test_an_unknown_tracker_is_refused_with_the_nearest_name():
    with pytest.raises(InputError, match=r"^report_to: tensorbord is not a tracker; did you mean tensorboard\?$"):
        check_trackers("tensorbord")
    with pytest.raises(InputError, match=r"^report_to: xyz is not a tracker; expected one of none, all, "):
        check_trackers(["xyz"])


@pytest.mark.parametrize("names", [None, "none", "all", [], ["none"], "mlflow"])
def test_the_values_of_transformers_are_accepted(names):
    check_trackers(names)
