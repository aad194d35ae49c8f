"""The collector looks at no lasting object during a run, and at all again after it."""

import gc

import pytest
from tiny_runs import tiny_model, trainer
from transformers import TrainerCallback

from hmm_datasets.training.run import train_and_save


class Counts(TrainerCallback):
    """Numbers of frozen objects, and of those that a full collection looks at, at the end of every step."""

    def __init__(self):
        self.frozen, self.looked_at = [], []

    def on_step_end(self, args, state, control, **kwargs):
        self.frozen.append(gc.get_freeze_count())
        self.looked_at.append(len(gc.get_objects()))


@pytest.fixture
def thawed():
    """The objects of the tests, which are frozen (see `conftest`), take part again."""
    gc.unfreeze()
    yield
    gc.unfreeze()
    gc.freeze()


def trained(folder):
    run, counts = trainer(folder, model=tiny_model(), max_steps=3), Counts()
    run.add_callback(counts)
    train_and_save(run, settings={}, data={})
    return counts


def test_lasting_objects_are_frozen_from_the_first_step_to_the_end(thawed, tmp_path):
    counts = trained(tmp_path)
    assert counts.frozen[0] == 0, "the callback comes after this one"
    assert min(counts.frozen[1:]) > 100_000
    assert max(counts.looked_at[1:]) < counts.looked_at[0] / 10
    assert gc.get_freeze_count() == 0


def test_a_run_that_fails_leaves_nothing_frozen(thawed, tmp_path):
    class Fails(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            if state.global_step == 2:
                raise KeyError(gc.get_freeze_count())

    run = trainer(tmp_path, model=tiny_model(), max_steps=3)
    run.add_callback(Fails())
    with pytest.raises(KeyError) as error:
        train_and_save(run, settings={}, data={})
    assert error.value.args[0] > 100_000
    assert gc.get_freeze_count() == 0


def test_objects_that_the_program_has_frozen_stay_so(tmp_path):
    before = gc.get_freeze_count()
    counts = trained(tmp_path)
    assert before >= max(counts.frozen)
    assert gc.get_freeze_count() > 0.9 * before > 0
