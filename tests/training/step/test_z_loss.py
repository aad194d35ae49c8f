"""The z-loss follows its formula, with equal weight for each predicted token; the cross-entropy is logged."""

import copy

import pytest
import torch
from tiny_runs import history, random_rows, settings, tiny_model, trainer
from torch.nn import functional

from hmm_datasets.errors import InputError

ROWS = random_rows(8, ignored=True)


def formula(model, coefficient):
    """Cross-entropy and z-loss of all rows at once: `c mean (log sum exp)^2` over all labels."""
    logits = model(torch.stack([row["input_ids"] for row in ROWS])).logits[:, :-1].double()
    labels = torch.stack([row["labels"] for row in ROWS])[:, 1:]
    counted = labels != -100
    log_z = logits.exp().sum(-1).log()[counted]
    return functional.cross_entropy(logits[counted], labels[counted]), coefficient * log_z.square().mean()


class Gradients:
    """Keeps the gradient of a run's first step."""

    def __init__(self, run):
        self.run, self.found = run, None
        run.add_callback(self)

    def on_pre_optimizer_step(self, args, state, control, model=None, **kwargs):
        if self.found is None:
            self.found = {name: parameter.grad.clone() for name, parameter in model.named_parameters()}

    def __getattr__(self, name):
        return lambda *args, **kwargs: None


@pytest.mark.thorough
@pytest.mark.parametrize("micro_batch", [8, 2])
@pytest.mark.parametrize("coefficient", [0.0, 0.3])
def test_loss_and_gradient_are_the_formulas_on_any_micro_batch(tmp_path, micro_batch, coefficient):
    """Micro-batches of two rows have from 12 to 29 labels."""
    model = tiny_model()
    loss, added = formula(copy.deepcopy(model), coefficient)
    reference = copy.deepcopy(model)
    sum(formula(reference, coefficient)).backward()
    given = {"per_device_train_batch_size": micro_batch, "max_steps": 1, "max_grad_norm": 0.0}
    run = trainer(tmp_path, model=model, rows=ROWS, z_loss=coefficient, **given)
    gradients = Gradients(run)
    run.train()
    (row,) = history(run)
    assert row["loss"] == pytest.approx(loss.item(), rel=1e-5)
    assert row.get("z_loss", 0.0) == pytest.approx(added.item(), rel=1e-5)
    assert ("z_loss" in row) == (coefficient > 0)
    for name, parameter in reference.named_parameters():
        torch.testing.assert_close(gradients.found[name], parameter.grad, rtol=1e-4, atol=1e-6, msg=name)


@pytest.mark.thorough
def test_z_loss_is_logged_as_a_mean_over_steps_and_keeps_the_normalizer_down(tmp_path):
    rows = random_rows(8) * 20
    given = {"rows": rows, "max_steps": 20, "learning_rate": 0.02, "lr_scheduler_type": "constant"}
    every = trainer(tmp_path, z_loss=0.1, **given)
    every.train()
    added = [row["z_loss"] for row in history(every)]
    assert len(added) == 20
    assert added[-1] < added[0] / 2
    seldom = trainer(tmp_path, z_loss=0.1, **given | {"logging_steps": 5})
    seldom.train()
    means = [sum(added[begin : begin + 5]) / 5 for begin in range(0, 20, 5)]
    assert [row["z_loss"] for row in history(seldom)] == pytest.approx(means, rel=1e-4)


def test_evaluations_are_the_cross_entropy_alone(tmp_path):
    evaluations = []
    for coefficient in (0.0, 1.0):
        run = trainer(tmp_path, z_loss=coefficient)
        run.model.train()  # as during training
        evaluations.append(run.evaluate(ROWS)["eval_loss"])
    assert evaluations[0] == evaluations[1]


def test_the_z_loss_is_averaged_like_the_loss_if_that_takes_no_number_of_items(tmp_path):
    """The Trainer then averages over micro-batches, and the z-loss must be averaged in the same way."""
    run = trainer(tmp_path, rows=ROWS, per_device_train_batch_size=2, max_steps=1, z_loss=0.3)
    run.model_accepts_loss_kwargs = False
    model = copy.deepcopy(run.model)
    run.train()
    labels = torch.stack([row["labels"] for row in ROWS])
    log_z = model(torch.stack([row["input_ids"] for row in ROWS])).logits[:, :-1].logsumexp(-1)
    means = [log_z[i : i + 2][labels[i : i + 2, 1:] != -100].square().mean() for i in range(0, 8, 2)]
    assert history(run)[0]["z_loss"] == pytest.approx(0.3 * sum(means).item() / 4, rel=1e-5)


def test_a_negative_coefficient_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"z_loss is -0.1; expected 0 or more"):
        settings(tmp_path, z_loss=-0.1)
