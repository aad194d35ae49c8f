"""A fit on a GPU has the likelihoods of the same fit on the CPU."""

import pytest
import torch

from hmm_datasets.hmm import processes
from hmm_datasets.hmm.fitting.fit import fit_hmm
from hmm_datasets.hmm.fitting.settings import FitSettings

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]

DEVICE = "cuda"
TRUTH = processes.random(12, 9, alpha=0.3, seed=1)


@pytest.mark.parametrize(("dtype", "within"), [("float64", 1e-9), ("float32", 1e-5)])
def test_every_epoch_has_the_likelihood_that_it_has_on_the_cpu(dtype, within):
    tokens = TRUTH.sample(300, 40, seed=2)
    settings = FitSettings(12, max_epochs=4, tolerance=0, dtype=dtype)
    given = {"num_symbols": 9, "show_progress": False}
    here, there = (fit_hmm(tokens, settings, device=device, **given) for device in ("cpu", DEVICE))
    assert len(here.history) == len(there.history) == 4
    for one, other in zip(here.history, there.history, strict=True):
        assert other["train_log_likelihood"] == pytest.approx(one["train_log_likelihood"], rel=within)
    assert there.hmm.emission == pytest.approx(here.hmm.emission, abs=100 * within)
