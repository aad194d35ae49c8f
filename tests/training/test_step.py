"""The order in which an optimizer step calls the methods of the components, and the device that it takes."""

from functools import cached_property

import torch
from tiny_runs import LENGTH, random_rows, trainer
from transformers import TrainingArguments

from hmm_datasets.training.run import train_and_save
from hmm_datasets.training.step.component import Component


class Recorded(Component):
    """Records its calls."""

    def __init__(self, trainer, name, calls):
        super().__init__(trainer)
        self.name, self.calls = name, calls

    def _note(self, moment):
        self.calls.append((moment, self.name))

    def before_batches(self):
        self._note("before_batches")

    def after_batches(self):
        self._note("after_batches")

    def before_micro_batch(self, inputs):
        self._note("before_micro_batch")

    def before_forward(self, inputs):
        self._note("before_forward")

    def after_forward(self, model, labels, scores, loss, num_items):
        self._note("after_forward")
        return loss

    def after_micro_batch(self, loss):
        self._note("after_micro_batch")
        return loss

    def after_gradient(self, model, norm):
        self._note("after_gradient")

    def before_optimizer(self):
        self._note("before_optimizer")

    def after_optimizer(self):
        self._note("after_optimizer")

    def before_log(self, row):
        self._note("before_log")


def test_the_calls_of_a_step_of_two_micro_batches(tmp_path):
    calls = []
    run = trainer(tmp_path, rows=random_rows(8), max_steps=1, global_batch_size=8, per_device_train_batch_size=4)
    run.components += [Recorded(run, "first", calls), Recorded(run, "second", calls)]
    run.train()

    def forwards(moment):
        return [(moment, "first"), (moment, "second")]

    def backwards(moment):
        return [(moment, "second"), (moment, "first")]

    micro_batch = forwards("before_micro_batch") + forwards("before_forward") + backwards("after_forward")
    micro_batch += backwards("after_micro_batch")
    expected = forwards("before_batches") + backwards("after_batches") + 2 * micro_batch
    expected += (
        backwards("after_gradient")
        + forwards("before_optimizer")
        + backwards("after_optimizer")
        + forwards("before_log")
    )
    assert calls == expected


def test_a_process_that_sees_several_gpus_takes_one(tmp_path, monkeypatch, capsys):
    """transformers would copy the model to all eight, and read eight micro-batches for each that the plan has."""

    of_transformers = TrainingArguments.__dict__["_setup_devices"].func

    def devices(args):
        device = of_transformers(args)
        args._n_gpu = 8
        return device

    found = cached_property(devices)
    found.__set_name__(TrainingArguments, "_setup_devices")
    monkeypatch.setattr(TrainingArguments, "_setup_devices", found)
    run = trainer(tmp_path, max_steps=2, global_batch_size=8, per_device_train_batch_size=4)
    summary = train_and_save(run, settings={}, data={})
    assert (run.args.n_gpu, run.args.train_batch_size, run.args.eval_batch_size) == (1, 4, 8)
    assert summary["tokens"] == 2 * 8 * LENGTH
    assert not isinstance(run.model_wrapped, torch.nn.DataParallel)
    assert "trains on one of 8 GPUs; --launch ddp takes them all" in capsys.readouterr().out


def test_the_list_of_components(tmp_path):
    """Throughput is last, closest to the computation, so that it measures only forward and backward."""
    assert [type(component).__name__ for component in trainer(tmp_path).components] == [
        "PhaseReporter",
        "RestoredRandomState",
        "SkippedSteps",
        "LossSpikes",
        "FiniteLoss",
        "StepLoss",
        "LoggedRows",
        "HeldOutLoss",
        "HeldOutMeasures",
        "ZLoss",
        "Throughput",
    ]
