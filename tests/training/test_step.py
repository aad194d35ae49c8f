"""One optimizer step calls the components of the trainer at its moments, in the order of the list and back."""

from tiny_runs import random_rows, trainer

from hmm_datasets.training.components.component import Component


class Recorded(Component):
    """Writes down when it is called."""

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

    def after_forward(self, model, labels, logits, loss, num_items):
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


def test_a_step_of_two_micro_batches_is_this(tmp_path):
    calls = []
    run = trainer(tmp_path, rows=random_rows(8), max_steps=1, global_batch_size=8, per_device_train_batch_size=4)
    run.components += [Recorded(run, "first", calls), Recorded(run, "second", calls)]
    run.train()

    def there(moment):
        return [(moment, "first"), (moment, "second")]

    def back(moment):
        return [(moment, "second"), (moment, "first")]

    micro_batch = there("before_micro_batch") + there("before_forward") + back("after_forward")
    micro_batch += back("after_micro_batch")
    expected = there("before_batches") + back("after_batches") + 2 * micro_batch
    expected += back("after_gradient") + there("before_optimizer") + back("after_optimizer") + there("before_log")
    assert calls == expected


def test_the_list_of_a_trainer_is_this(tmp_path):
    """What is closest to the computation comes last: the clock runs for forward and backward alone."""
    assert [type(component).__name__ for component in trainer(tmp_path).components] == [
        "CheckedStreams",
        "RestoredRandomState",
        "LoggedRows",
        "FiniteLoss",
        "HeldOutLoss",
        "ZLoss",
        "SkippedSteps",
        "Throughput",
    ]
