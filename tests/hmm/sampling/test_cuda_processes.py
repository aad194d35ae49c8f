"""Every named process is drawn on a GPU with the bits of the CPU, from any first index and by any step."""

import inspect

import numpy as np
import pytest
import torch

from hmm_datasets.hmm import processes
from hmm_datasets.hmm.model import HMM

DEVICE = "cuda"
ARGUMENTS = {"left_right": (12, 30), "random": (70, 300), "dyck": (3,)}
NAMED = {
    name: function
    for name, function in vars(processes).items()
    if inspect.isfunction(function) and function.__annotations__.get("return") in (HMM, "HMM")
}


def test_all_processes_are_among_these_and_have_their_arguments():
    assert {"mess3", "rrxor", "left_right", "random"} <= NAMED.keys()
    assert len(NAMED) >= 12
    for name, function in NAMED.items():
        assert function(*ARGUMENTS.get(name, ())).num_states > 0


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("name", NAMED)
@pytest.mark.parametrize(("first", "step"), [(0, 1), (2**40 + 3, 5)])
def test_a_gpu_draws_the_bits_of_the_cpu(name, first, step):
    hmm = NAMED[name](*ARGUMENTS.get(name, ()))
    expected = hmm.sample(1000, 33, seed=4, first=first, step=step)
    out = torch.empty(expected.shape, dtype=getattr(torch, str(expected.dtype)), device=DEVICE)
    hmm.sample(1000, 33, seed=4, first=first, step=step, out=out)
    assert np.array_equal(out.cpu().numpy(), expected)
