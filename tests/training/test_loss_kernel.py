"""The kernel that scores rows of logits gives the losses and gradients of torch: interpreted, compiled, on a GPU."""

import subprocess
import sys

import pytest
import torch
from torch.nn import functional

from hmm_datasets.training import linear_cross_entropy
from hmm_datasets.training.linear_cross_entropy import summed_loss
from hmm_datasets.training.model_configs import model_config
from hmm_datasets.training.plan.memory import peak_activations

INTERPRETED = """
import torch
from hmm_datasets.training.loss_kernel import losses_and_gradients

for size, width, with_bias, z_loss in ((5000, 5120, True, 1e-3), (300, 384, False, 0.0), (2049, 2049, True, 0.0)):
    torch.manual_seed(0)
    logits, targets = torch.randn(3, width) * 5, torch.tensor([0, size - 1, 7])
    bias = torch.randn(size) if with_bias else None
    plain = (logits[:, :size] + (bias if with_bias else 0)).requires_grad_()
    losses, normalizers = torch.empty(2, 3)
    losses_and_gradients(logits, size, bias, targets, z_loss, losses, normalizers)
    expected = torch.nn.functional.cross_entropy(plain, targets, reduction="none")
    (expected.sum() + z_loss * plain.logsumexp(1).square().sum()).backward()
    torch.testing.assert_close(losses, expected)
    torch.testing.assert_close(normalizers, plain.logsumexp(1))
    torch.testing.assert_close(logits[:, :size], plain.grad, rtol=1e-5, atol=1e-6)
    assert not logits[:, size:].any()
print("same")
"""

COMPILED = """
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, compile
from hmm_datasets.training.loss_kernel import _score_rows as kernel

types = {"logits": "*bf16", "bias": "*fp32", "targets": "*i64", "losses": "*fp32", "log_normalizers": "*fp32"}
types |= {"z_loss": "fp32", "has_bias": "constexpr", "block": "constexpr"}
source = ASTSource(kernel, {n: types.get(n, "i32") for n in kernel.arg_names}, {"has_bias": True, "block": 2048})
assert len(compile(source, target=GPUTarget("cuda", 90, 32)).asm["cubin"]) > 1000
print("compiled")
"""


@pytest.mark.thorough
@pytest.mark.parametrize(("script", "said", "interpreted"), [(INTERPRETED, "same", "1"), (COMPILED, "compiled", "0")])
def test_the_kernel_on_a_cpu(child_environment, tmp_path, script, said, interpreted):
    pytest.importorskip("triton")
    environment = child_environment | {"TRITON_INTERPRET": interpreted, "TRITON_CACHE_DIR": str(tmp_path)}
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=500)
    assert done.stdout == f"{said}\n", done.stderr[-3000:]


def test_without_a_compiler_or_a_gpu_the_loss_is_computed_by_torch_and_that_is_said(caplog):
    linear_cross_entropy._tried_kernel.cache_clear()
    assert linear_cross_entropy._tried_kernel(torch.device("cpu")) is None
    assert "Triton does not work here" in caplog.text


@pytest.mark.thorough
def test_a_plan_for_a_gpu_counts_its_chunk_which_is_in_the_type_of_the_product():
    config = model_config("d2", vocab_size=50_257, max_length=64)
    given = {"micro_batch_size": 128, "length": 64, "low_precision": True, "chunked_loss": True}
    here, there = (peak_activations(config, **given, on_gpu=on_gpu) for on_gpu in (False, True))
    rows_here, rows_there = (
        size // (4 * 50_257) for size in (linear_cross_entropy.CHUNK_BYTES, linear_cross_entropy.GPU_CHUNK_BYTES)
    )
    # Logits in bfloat16, and on a CPU once more in float32.
    assert there - here == pytest.approx(50_257 * (2 * rows_there - 6 * rows_here), rel=0.1)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize(
    ("dtype", "within"), [(torch.float32, 1e-5), (torch.bfloat16, 2e-2), (torch.float16, 2e-3)], ids=str
)
@pytest.mark.parametrize(("size", "multiple"), [(50_257, 128), (50_257, 1), (301, 1)])
@pytest.mark.parametrize("has_bias", [False, True])
def test_losses_and_gradients_on_a_gpu(monkeypatch, dtype, within, size, multiple, has_bias):
    monkeypatch.setattr(linear_cross_entropy, "GPU_CHUNK_BYTES", 40 * 4 * size)  # several chunks, the last of 20 rows
    torch.manual_seed(0)
    hidden = torch.randn(150, 64, device="cuda").to(dtype).requires_grad_()
    weight = (torch.randn(size, 64, device="cuda") / 5).requires_grad_()
    bias = torch.randn(size, device="cuda", requires_grad=True) if has_bias else None
    rows = torch.randperm(150, device="cuda")[:140].sort().values
    labels = torch.randint(size, (140,), device="cuda")
    given = [one for one in (hidden, weight, bias) if one is not None]
    total, scores = summed_loss(hidden, weight, bias, labels, rows, z_loss=1e-3, multiple=multiple)
    found = torch.autograd.grad(total, given)
    logits = functional.linear(
        hidden.double()[rows], weight.to(dtype).double(), None if bias is None else bias.double()
    )
    losses = functional.cross_entropy(logits, labels, reduction="none")
    expected = torch.autograd.grad(losses.sum() + 1e-3 * logits.logsumexp(1).square().sum(), given)
    torch.testing.assert_close(scores.losses.double(), losses, rtol=within, atol=within)
    for one, other in zip(found, expected, strict=True):
        assert (one.double() - other.double()).norm() < within * other.double().norm()
