"""A loss that is not finite ends the run before the optimizer uses its gradient."""

import pytest
import torch
from tiny_runs import tiny_model, trainer

from hmm_datasets.errors import RankError


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_loss_that_is_not_finite_ends_the_run_and_changes_no_weight(tmp_path, value):
    model = tiny_model()
    before = {name: weight.clone() for name, weight in model.named_parameters()}
    run = trainer(tmp_path, model=model)
    model.register_forward_hook(lambda module, inputs, output: setattr(output, "loss", output.loss * value))
    with pytest.raises(RankError, match=r"^step 1: the loss is (nan|inf); the newest checkpoint is from before it"):
        run.train()
    assert all(torch.equal(weight, before[name]) for name, weight in model.named_parameters())
