"""The Triton kernel draws the same bits as the CPU: in Triton's interpreter always, and on a GPU if there is one."""

import subprocess
import sys

import numpy as np
import pytest
import torch

from hmm_datasets.errors import InputError
from hmm_datasets.hmm import processes

HMMS = {
    "states": processes.random(6, 10, seed=1),
    "edges": processes.mess3(0.15, 0.6),
    "two bytes": processes.random(3, 300, seed=2),
    "one state, one symbol": processes.random(1, 1),
    "start of its own": processes.dishonest_casino(),
}
# Sequences, length, seed, first, step: more than one block of lanes; words that wrap; the greatest of each.
DRAWS = [(200, 9, 3, 5, 1), (7, 5, 2**64 - 1, 2**64 - 3, 2**63 + 5), (3, 4, 2**33 + 1, 2**32 - 1, 1), (4, 0, 0, 0, 1)]

SCRIPT = """
import sys
import numpy as np
import torch
sys.path.insert(0, sys.argv[1])
from test_cuda import DRAWS, HMMS
from hmm_datasets.hmm.kernels import cuda

for name, hmm in HMMS.items():
    tables = [None if table is None else cuda.device_table(table, "cpu") for table in hmm._alias_tables]
    for count, length, seed, first, step in DRAWS:
        expected = hmm.sample(count, length, seed=seed, first=first, step=step)
        for dtype in (expected.dtype, np.uint32):
            out = torch.from_numpy(np.full(expected.shape, 77, dtype))
            cuda.sample_tokens(*tables, hmm.num_symbols, seed, first, step, out)
            assert np.array_equal(out.numpy(), expected), (name, count, length, seed, first, step)
print("same")
"""

COMPILE = """
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, compile
from hmm_datasets.hmm.kernels.cuda import _draw_sequences as kernel

types = {name: "*u32" for name in kernel.arg_names if name.endswith(("_thr", "_alias"))}
types |= {"seed": "u64", "first": "u64", "step": "u64", "out": "*u8", "on_edges": "constexpr", "lanes": "constexpr"}
for edges in (False, True):
    source = ASTSource(kernel, {n: types.get(n, "i32") for n in kernel.arg_names}, {"on_edges": edges, "lanes": 128})
    compiled = compile(source, target=GPUTarget("cuda", 90, 32))
    assert len(compiled.asm["cubin"]) > 1000
print("compiled")
"""


def run(script: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess:
    command = [sys.executable, "-c", script, *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=500)


@pytest.mark.thorough
def test_the_kernel_draws_the_bits_of_the_cpu(child_environment, request):
    pytest.importorskip("triton")
    done = run(SCRIPT, str(request.path.parent), **child_environment, TRITON_INTERPRET="1")
    assert done.stdout == "same\n", done.stderr[-3000:]


@pytest.mark.thorough
def test_the_kernel_compiles_for_an_h200(child_environment, tmp_path):
    pytest.importorskip("triton")
    done = run(COMPILE, **child_environment, TRITON_CACHE_DIR=str(tmp_path))
    assert done.stdout == "compiled\n", done.stderr[-3000:]


def test_a_tensor_on_the_cpu_is_filled_in_place():
    hmm = HMMS["states"]
    out = torch.empty(5, 7, dtype=torch.uint8)
    assert hmm.sample(5, 7, seed=2, first=3, out=out) is out
    assert np.array_equal(out.numpy(), hmm.sample(5, 7, seed=2, first=3))


def test_a_tensor_that_cannot_hold_the_draw_is_refused():
    for out in (torch.empty(5, 6, dtype=torch.uint8), torch.empty(5, 7, dtype=torch.bfloat16)):
        with pytest.raises(InputError, match=r"out is .*; expected unsigned, at least uint8, of shape \(5, 7\)"):
            HMMS["states"].sample(5, 7, out=out)
    with pytest.raises(InputError, match="out is on meta; expected the CPU or a CUDA device"):
        HMMS["states"].sample(5, 7, out=torch.empty(5, 7, dtype=torch.uint8, device="meta"))


def test_the_kernel_is_launched_on_the_device_of_its_output(monkeypatch):
    """Triton takes the current device, as torch does for no operation on tensors."""
    cuda = pytest.importorskip("hmm_datasets.hmm.kernels.cuda", reason="needs Triton")
    current, launched = [0], []

    class Stub:
        def __getitem__(self, grid):
            return lambda *arguments, **constants: launched.append(current[-1])

    class Output(torch.Tensor):
        is_cuda = property(lambda self: True)

        def get_device(self):
            return 3

    def exchange(index):
        if index >= 0:
            current.append(index)
        return current[-2] if index >= 0 else -1

    monkeypatch.setattr(cuda, "_draw_sequences", Stub())
    monkeypatch.setattr("torch.cuda._exchange_device", exchange)
    monkeypatch.setattr("torch.cuda._maybe_exchange_device", exchange)
    table = (torch.zeros(1, 2), torch.zeros(1, 2), 1)
    cuda.sample_tokens(table, table, None, 2, 0, 0, 1, torch.zeros(2, 3).as_subclass(Output))
    assert (launched, current[-1]) == ([3], 0)


@pytest.mark.gpu
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices")
def test_a_gpu_that_is_not_the_current_one_draws_the_same():
    expected = HMMS["states"].sample(70, 11, seed=1)
    out = torch.empty(expected.shape, dtype=torch.uint8, device="cuda:1")
    assert np.array_equal(HMMS["states"].sample(70, 11, seed=1, out=out).cpu().numpy(), expected)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("name", HMMS)
@pytest.mark.parametrize("draw", [*DRAWS, (70_000, 101, 1, 0, 1)])
def test_a_gpu_draws_the_bits_of_the_cpu(name, draw):
    hmm = HMMS[name]
    count, length, seed, first, step = draw
    expected = hmm.sample(count, length, seed=seed, first=first, step=step)
    out = torch.empty(expected.shape, dtype=getattr(torch, str(expected.dtype)), device="cuda")
    assert hmm.sample(count, length, seed=seed, first=first, step=step, out=out) is out
    assert np.array_equal(out.cpu().numpy(), expected)
