"""Training on a GPU: half precision, exact resuming, and packed documents under every attention there is."""

import math

import numpy as np
import pytest
import torch
from test_packed_rows import EOS, LENGTH, loss_of_pieces, pieces
from tiny_runs import history, losses, random_rows, tiny_model, trainer
from transformers.data.data_collator import default_data_collator

from hmm_datasets.data.packing import PackedWindows
from hmm_datasets.text.stream import TokenStream, write_tokens
from hmm_datasets.training.precision import has_bfloat16
from hmm_datasets.training.settings import PretrainSettings

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]

DEVICE = torch.device("cuda")


@pytest.fixture(scope="module")
def stream(tmp_path_factory):
    """Documents of 2 to 40 tokens, EOS among them."""
    random = np.random.default_rng(0)
    documents = [np.append(random.integers(0, EOS, size - 1), EOS) for size in random.integers(2, 40, 80)]
    folder = tmp_path_factory.mktemp("tokens") / "stream"
    write_tokens(documents, folder, vocab_size=101, eos_id=EOS, tokenizer_hash="none", corpus="numbers")
    return TokenStream(folder)


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_a_run_in_half_precision_learns_and_keeps_float32_weights(tmp_path, precision):
    given = {"rows": random_rows(8) * 30, "max_steps": 20, "learning_rate": 0.02}
    plain = losses(trainer(tmp_path / "float32", bf16=False, **given))
    run = trainer(tmp_path / precision, **{precision: True}, **given)
    kinds = set()
    run.model.model.layers[0].mlp.down_proj.register_forward_hook(lambda layer, inputs, out: kinds.add(out.dtype))
    halved = losses(run)
    assert next(run.model.parameters()).device.type == DEVICE.type
    assert kinds == {torch.bfloat16 if precision == "bf16" else torch.float16}
    assert all(map(math.isfinite, halved))
    assert halved[-1] < halved[0] - 2
    assert {parameter.dtype for parameter in run.model.parameters()} == {torch.float32}
    if precision == "bf16":
        assert halved == pytest.approx(plain, abs=0.05)
    else:  # the first steps may be skipped, until the scale fits
        assert all(row["loss_scale"] >= 1 for row in history(run))
        assert history(run)[-1]["skipped_steps"] < 10


def test_bfloat16_is_the_default_of_a_gpu_that_has_it(tmp_path):
    found = PretrainSettings(str(tmp_path), max_steps=1, report_to="none")
    assert (found.bf16, found.mixed_precision) == ((True, "bf16") if has_bfloat16() else (False, "no"))
    assert found.precision_origin == f"the default on {torch.cuda.get_device_name()}"


@pytest.mark.parametrize("precision", [{}, {"bf16": True}, {"fp16": True}], ids=["float32", "bf16", "fp16"])
def test_a_resumed_run_ends_with_the_bits_of_an_undisturbed_one(tmp_path, precision):
    given = {"save_strategy": "steps", "save_steps": 3, "learning_rate": 0.02, **precision}

    def run(folder):
        # Of the attentions this one has a backward pass whose sums are always in the same order.
        return trainer(folder, model=tiny_model(layers=2, attn_implementation="eager"), **given)

    whole = run(tmp_path)
    whole.train()
    resumed = run(tmp_path)
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-3"))
    assert [row["loss"] for row in history(resumed)] == [row["loss"] for row in history(whole)]
    for (name, one), other in zip(whole.model.named_parameters(), resumed.model.parameters(), strict=True):
        assert torch.equal(one, other), name


@pytest.mark.parametrize("attention", ["eager", "sdpa", "flex_attention"])
def test_the_loss_and_gradient_of_packed_rows_are_those_of_separate_documents(stream, tmp_path, padded_to, attention):
    packed = PackedWindows(stream, LENGTH, seed=3, cache_dir=tmp_path / "cache")
    rows = [packed[index] for index in range(8)]
    assert max(len(pieces(row)) for row in rows) > 1
    # Without the padding of the output layer, which a GPU has by default, so that weights can be copied.
    padded_to(1)
    model = tiny_model(layers=2, attn_implementation=attention)
    run = trainer(tmp_path, model=model, rows=rows)
    apart = tiny_model(layers=2, attn_implementation="eager")
    apart.load_state_dict(run.model.state_dict())
    batch = {name: column.to(DEVICE) for name, column in default_data_collator(rows).items()}
    labels = (batch["labels"][:, 1:] != -100).sum()
    run.model.train()
    loss = run.compute_loss(run.model, batch, num_items_in_batch=labels)
    expected = loss_of_pieces(apart, rows)
    assert loss.item() == pytest.approx(expected.item(), abs=1e-4)
    loss.backward()
    expected.backward()
    for (name, mine), other in zip(run.model.named_parameters(), apart.named_parameters(), strict=True):
        torch.testing.assert_close(mine.grad.cpu(), other[1].grad, rtol=5e-3, atol=1e-4, msg=name)


@pytest.mark.parametrize("attention", ["flash_attention_2", "flash_attention_3"])
def test_flash_attention_reads_the_bounds_of_documents_from_the_positions_of_one_row(stream, tmp_path, attention):
    packed = PackedWindows(stream, LENGTH, seed=3, cache_dir=tmp_path / "cache")
    try:
        model = tiny_model(layers=2, attn_implementation=attention)
    except (ImportError, ValueError) as error:
        pytest.skip(f"{attention} is not installed: {str(error).splitlines()[0]}")
    plain = tiny_model(layers=2, attn_implementation="eager")
    plain.load_state_dict(model.state_dict())
    model, plain = model.to(DEVICE, torch.bfloat16), plain.to(DEVICE, torch.bfloat16)
    several = [index for index in range(packed.num_windows) if len(pieces(packed[index])) > 1][:8]
    assert several
    for index in several:
        batch = {name: column.to(DEVICE) for name, column in default_data_collator([packed[index]]).items()}
        found, expected = (one(**batch, use_cache=False).loss for one in (model, plain))
        assert found.item() == pytest.approx(expected.item(), abs=0.03)
