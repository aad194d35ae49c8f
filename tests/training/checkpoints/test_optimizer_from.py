"""A later stage can start with the optimizer state of the one before, and then trains as its continuation would."""

import pytest
from tiny_runs import history, random_rows, tiny_model, trainer
from torch.utils.data import Subset
from transformers import LlamaForCausalLM

from hmm_datasets.errors import InputError
from hmm_datasets.training.run import train_and_save

ROWS = random_rows(64)
HOW = {"lr_scheduler_type": "constant", "warmup_steps": 0, "learning_rate": 3e-3, "save_strategy": "steps"}


def run(folder, *, rows, model=None, base=None, **given):
    one = trainer(folder, model=model, rows=rows, **HOW | {"save_steps": 4} | given)
    train_and_save(one, settings={}, data={}, base=base)
    return one


@pytest.fixture(scope="module")
def first(tmp_path_factory):
    folder = tmp_path_factory.mktemp("first")
    run(folder, rows=ROWS, max_steps=4)
    return folder


def later(folder, first, **given):
    model = LlamaForCausalLM.from_pretrained(first)
    model.config.use_cache = False
    return run(folder, rows=Subset(ROWS, range(32, 64)), model=model, base=str(first), max_steps=4, **given)


@pytest.mark.thorough
@pytest.mark.parametrize("optimizer", [{}, {"optimizer": "muon"}], ids=["AdamW", "Muon"])
def test_the_next_stage_trains_as_a_longer_run_would(optimizer, first, tmp_path):
    if optimizer:
        first = tmp_path / "first"
        run(first, rows=ROWS, max_steps=4, **optimizer)
    whole = history(run(tmp_path / "whole", rows=ROWS, max_steps=8, **optimizer))[4:]
    carried = history(later(tmp_path / "carried", first, optimizer_from=str(first), **optimizer))
    anew = history(later(tmp_path / "anew", first, **optimizer))
    assert [row["loss"] for row in carried] == pytest.approx([row["loss"] for row in whole], rel=1e-6)
    assert carried[3]["loss"] != pytest.approx(anew[3]["loss"], rel=1e-4)


@pytest.mark.thorough
def test_the_learning_rate_is_that_of_the_new_stage_and_is_warmed_up_again(first, tmp_path):
    how = {"learning_rate": 1e-4, "lr_scheduler_type": "linear", "warmup_steps": 2}
    one = later(tmp_path, first, optimizer_from=str(first / "checkpoint-4"), **how)
    assert [row["learning_rate"] for row in history(one)] == pytest.approx([0, 5e-5, 1e-4, 5e-5])
    (state,) = {int(value["step"]) for value in one.optimizer.state.values()}
    assert state == 8


@pytest.mark.thorough
def test_a_run_with_a_carried_optimizer_resumes_from_its_own_checkpoints(first, tmp_path):
    whole = history(later(tmp_path / "whole", first, optimizer_from=str(first)))
    folder = tmp_path / "run"
    model = LlamaForCausalLM.from_pretrained(first)
    model.config.use_cache = False
    rows = Subset(ROWS, range(32, 64))
    given = {"optimizer_from": str(first), "save_steps": 2, "base": str(first)}
    run(folder, rows=rows, model=model, max_steps=2, **given)
    resumed = run(folder, rows=rows, model=LlamaForCausalLM.from_pretrained(first), max_steps=4, **given)
    assert [row["loss"] for row in history(resumed)] == pytest.approx([row["loss"] for row in whole], rel=1e-6)


@pytest.mark.thorough
def test_the_state_of_another_optimizer_or_model_is_refused(first, tmp_path):
    with pytest.raises(InputError, match="no checkpoint with an optimizer state"):
        later(tmp_path / "none", first, optimizer_from=str(tmp_path))
    with pytest.raises(InputError, match="has other weights than the model that training starts from, a new one"):
        run(tmp_path / "new", rows=ROWS, optimizer_from=str(first))
    with pytest.raises(InputError, match="optimizer has other parameters or another type"):
        later(tmp_path / "muon", first, optimizer_from=str(first), optimizer="muon")
    other = tmp_path / "other"
    run(other, rows=ROWS, model=tiny_model(seed=1), max_steps=4)
    with pytest.raises(InputError, match="checkpoint-4: has other weights than the model"):
        later(tmp_path / "wrong", first, optimizer_from=str(other))
