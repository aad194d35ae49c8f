import logging

import pytest
import torch

from hmm_datasets.compat.torch import _adds_wide, add_product

ON_GPU = pytest.param(
    "cuda", marks=[pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]
)


@pytest.mark.parametrize("device", ["cpu", ON_GPU])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_products_of_any_type_are_added_in_float32(dtype, device):
    generator = torch.Generator().manual_seed(0)
    left, right = (torch.randn(shape, generator=generator).to(dtype) for shape in ((30, 50), (50, 20)))
    total = torch.full((30, 20), 1e3)
    expected = total.double() + left.double() @ right.double()
    total = total.to(device)
    add_product(total, left.to(device), right.to(device))
    # Rounding to half precision would be wrong by up to 0.25 at 1,000.
    torch.testing.assert_close(total.cpu().double(), expected, rtol=0, atol=2e-3)


@pytest.mark.parametrize("adds", [False, True])
def test_how_products_are_added_is_logged_once(monkeypatch, caplog, adds):
    def addmm(total, left, right, *, out_dtype, out):
        if not adds:
            raise RuntimeError("no such kernel\nat some line")
        return total.addmm_(left.float(), right.float())

    monkeypatch.setattr(torch, "addmm", addmm)
    _adds_wide.cache_clear()
    with caplog.at_level(logging.INFO, "hmm_datasets"):
        assert [_adds_wide(torch.device("cpu"), torch.bfloat16) for _ in range(3)] == [adds] * 3
    _adds_wide.cache_clear()
    (record,) = caplog.records
    assert record.levelname == ("INFO" if adds else "WARNING")
    assert ("here (no such kernel): the" in record.getMessage()) != adds


@pytest.mark.outside(
    "https://github.com/SeungjunNah/DeepDeblur-PyTorch/issues/28",
    "the state of an optimizer to be read to `cpu:0`, the device of a distributed process without a GPU",
    "torch does not know that device for files; here it does",
)
def test_a_file_is_read_to_the_device_of_a_rank_on_a_cpu(tmp_path):
    """Which transformers asks for when a run of several ranks is resumed, before 5.18."""
    torch.save({"step": torch.arange(3)}, tmp_path / "optimizer.pt")
    state = torch.load(tmp_path / "optimizer.pt", map_location=torch.device("cpu:0"), weights_only=True)
    assert state["step"].tolist() == [0, 1, 2]
