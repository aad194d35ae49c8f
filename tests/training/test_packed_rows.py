"""Training on packed windows: no attention between documents, and padding is never counted."""

import copy
import functools

import numpy as np
import pytest
import torch
from needed_versions import needs
from tiny_runs import history, settings, tiny_model, trainer
from torch.nn import functional
from torch.utils.data import Subset
from transformers import (
    AutoModelForCausalLM,
    Gemma3TextConfig,
    GPT2Config,
    LlamaConfig,
    Qwen3Config,
    modeling_flash_attention_utils,
    set_seed,
)
from transformers.data.data_collator import default_data_collator
from transformers.integrations import flash_attention

from hmm_datasets.compat.transformers_models import set_config_attention
from hmm_datasets.data.packing import PackedWindows, count_tokens
from hmm_datasets.text.stream import TokenStream, write_tokens
from hmm_datasets.training.trainer import Pretrainer

EOS, LENGTH = 100, 16


@pytest.fixture(scope="module")
def stream(tmp_path_factory):
    """Documents of 1 to 40 tokens including EOS; some have only EOS, and some have a last piece of one token."""
    random = np.random.default_rng(0)
    sizes = [1, 16, 17, 33, 1, 15, 1, *random.integers(1, 40, 60).tolist()]
    documents = [np.append(random.integers(0, EOS, size - 1), EOS) for size in sizes]
    folder = tmp_path_factory.mktemp("tokens") / "stream"
    write_tokens(documents, folder, vocab_size=101, eos_id=EOS, tokenizer_hash="none", corpus="numbers")
    return TokenStream(folder)


@pytest.fixture
def packed(stream, tmp_path):
    return PackedWindows(stream, LENGTH, seed=3, epochs=4, cache_dir=tmp_path / "cache")


def pieces_of(stream) -> list[tuple[int, ...]]:
    """The content of windows: documents, cut to the length of a window."""
    documents = [stream.document(number).tolist() for number in range(stream.num_documents)]
    return [tuple(one[begin : begin + LENGTH]) for one in documents for begin in range(0, len(one), LENGTH)]


def pieces(row) -> list[torch.Tensor]:
    """The pieces of a row, separated by its positions, without padding."""
    padding = (row["labels"] == -100) & (row["position_ids"] == LENGTH - 1)
    tokens, positions = row["input_ids"][~padding], row["position_ids"][~padding]
    begins = (positions == 0).nonzero().flatten().tolist()
    return [tokens[begin:end] for begin, end in zip(begins, [*begins[1:], len(tokens)], strict=True)]


def loss_of_pieces(model, rows) -> torch.Tensor:
    """The mean loss over tokens, with each piece run through the model separately."""
    total, count = torch.zeros(()), 0
    for row in rows:
        for piece in pieces(row):
            logits = model(input_ids=piece[None], use_cache=False).logits[0, :-1]
            total = total + functional.cross_entropy(logits, piece[1:], reduction="sum")
            count += len(piece) - 1
    return total / count


TINY = {
    "vocab_size": 101,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": LENGTH,
    "initializer_range": 0.2,
    **dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0),
    **dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id")),
}


@pytest.fixture
def flash_attention_of_torch(monkeypatch):
    """The kernels of flash attention, computed by torch on a CPU, and which of them were asked for."""
    asked = set()

    def within(query, key, value):  # (T, heads, features)
        query, key, value = (part.transpose(0, 1)[None] for part in (query, key, value))
        grouped = query.shape[1] != key.shape[1]
        attend = functools.partial(functional.scaled_dot_product_attention, is_causal=True, enable_gqa=grouped)
        return attend(query, key, value, scale=scale[0])[0].transpose(0, 1)

    scale = [None]

    def settings_of(softmax_scale=None, **_):
        scale[0] = softmax_scale
        return {}

    def full(query, key, value):
        asked.add("whole rows")
        return torch.stack([within(*row) for row in zip(query, key, value, strict=True)])

    def bounded(query, key, value, cu_seqlens_q, cu_seqlens_k):
        asked.add("parts of rows")
        sizes = cu_seqlens_q.diff().tolist()
        parts = zip(*(part.split(sizes) for part in (query, key, value)), strict=True)
        return torch.cat([within(*part) for part in parts])

    monkeypatch.setattr(flash_attention, "get_target_dtype", lambda *_: None)  # the real ones take half precision only
    functions = ((full, bounded, None, None, None), (settings_of, None))
    monkeypatch.setattr(modeling_flash_attention_utils, "lazy_import_flash_attention", lambda *_: functions)
    return asked


def test_padding_is_distinguished_from_documents_that_have_only_eos(packed, stream):
    epoch = [packed[index] for index in range(packed.num_windows)]
    found = sorted(tuple(piece.tolist()) for row in epoch for piece in pieces(row))
    assert found == sorted(pieces_of(stream))
    assert (EOS,) in found
    singles = [row for row in epoch if row["labels"][-1] == -100 and row["position_ids"][-1] == 0]
    assert singles, "some row ends with a piece of one token, which looks like one token of padding"
    assert sum(int(count_tokens(row)) for row in epoch) == stream.num_tokens


@pytest.mark.parametrize("attention", ["eager", "sdpa", pytest.param("flex_attention", marks=pytest.mark.slow)])
def test_the_loss_and_gradient_of_packed_rows_are_those_of_separate_documents(packed, tmp_path, attention):
    """In training mode, with the method by which the Trainer computes the loss."""
    rows = [packed[index] for index in range(8)]
    assert max(len(pieces(row)) for row in rows) > 2
    run = trainer(tmp_path, model=tiny_model(layers=2, attn_implementation=attention), rows=rows)
    apart = tiny_model(layers=2, attn_implementation="eager")
    apart.load_state_dict(run.model.state_dict())
    batch = default_data_collator(rows)
    labels = (batch["labels"][:, 1:] != -100).sum()
    run.model.train()
    forward_alone = attention == "flex_attention" and not torch.accelerator.is_available()
    with torch.set_grad_enabled(not forward_alone):  # torch 2.13 has no backward pass for it on a CPU
        loss = run.compute_loss(run.model, batch, num_items_in_batch=labels)
    expected = loss_of_pieces(apart, rows)
    assert loss.item() == pytest.approx(expected.item(), abs=1e-5)
    if forward_alone:
        return
    loss.backward()
    expected.backward()
    for (name, mine), other in zip(run.model.named_parameters(), apart.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, other.grad, rtol=1e-3, atol=1e-5, msg=name)


ARCHITECTURES = {
    "llama": LlamaConfig,
    "gpt2": GPT2Config,
    "qwen3": Qwen3Config,
    "gemma3_text": Gemma3TextConfig,
}


@needs("transformers>=5.19")
@pytest.mark.parametrize("micro_batch", [1, 8])
@pytest.mark.parametrize("kind", ARCHITECTURES)
def test_flash_attention_keeps_the_documents_of_several_rows_apart(
    packed, tmp_path, flash_attention_of_torch, kind, micro_batch
):
    rows = [packed[index] for index in range(micro_batch)]
    config = ARCHITECTURES[kind](**TINY)
    set_seed(0)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="sdpa")
    run = trainer(tmp_path, model=model, rows=rows, global_batch_size=micro_batch, chunked_loss=False,
                  per_device_train_batch_size=micro_batch)  # fmt: skip
    batch = default_data_collator(rows)
    expected = run.compute_loss(model, batch)
    set_config_attention(model.config, "flash_attention_2")
    assert run.compute_loss(model, batch).item() == pytest.approx(expected.item(), abs=1e-5)
    assert flash_attention_of_torch == {"parts of rows"}
    assert set(batch) == {"input_ids", "labels", "position_ids"}


@pytest.mark.parametrize("counted", ["all", "non_padding"])
def test_a_run_counts_every_token_but_padding(packed, tmp_path, counted):
    given = {"rows": packed, "include_num_input_tokens_seen": counted, "batch_ramp": ["4:2"], "learning_rate": 0.01}
    run = trainer(tmp_path, **given)
    apart = copy.deepcopy(run.model)
    run.train()
    ends = [run.schedule.rows_before(step) for step in range(1, 7)]
    expected = [packed.tokens_between(0, end) if counted == "non_padding" else end * LENGTH for end in ends]
    assert [row["num_input_tokens_seen"] for row in history(run)] == expected
    with torch.no_grad():
        first = loss_of_pieces(apart, [packed[index] for index in range(4)])
    assert history(run)[0]["loss"] == pytest.approx(first.item(), abs=1e-5)


def test_the_content_of_padding_does_not_change_the_loss(tmp_path):
    documents = [np.append(np.arange(9), EOS)] * 4  # one per window of 16
    write_tokens(documents, tmp_path / "tokens", vocab_size=101, eos_id=EOS, tokenizer_hash="none", corpus="numbers")
    packed = PackedWindows(TokenStream(tmp_path / "tokens"), LENGTH, cache_dir=tmp_path / "cache")
    batch = default_data_collator([packed[index] for index in range(4)])
    changed = dict(batch)
    changed["input_ids"] = torch.where(torch.arange(LENGTH) < 10, batch["input_ids"], 7)
    assert int(count_tokens(batch)) == 40
    model = tiny_model(layers=2)
    losses = [model(**some).loss.item() for some in (batch, changed)]
    assert losses[0] == losses[1]


def test_tokens_between_are_those_of_the_rows_over_epochs_and_shuffles(packed):
    counts = [int(count_tokens(packed[index])) for index in range(len(packed))]
    windows = packed.num_windows
    for first, last in [
        (0, 0),
        (0, 5),
        (3, windows),
        (windows - 2, windows + 3),
        (5, 3 * windows + 1),
        (0, 4 * windows),
    ]:
        assert packed.tokens_between(first, last) == sum(counts[first:last]), (first, last)
    plain = PackedWindows(packed.stream, LENGTH, cache_dir=packed.cache_dir)
    assert plain.tokens_between(2, 7) == sum(int(count_tokens(plain[index])) for index in range(2, 7))


@pytest.mark.thorough
def test_rows_without_padding_count_even_if_they_contain_the_padding_token(tmp_path):
    """The Trainer's own count leaves out every occurrence of the tokenizer's padding token."""

    class Tokenizer:
        pad_token_id = EOS

    rows = [{"input_ids": torch.full((LENGTH,), EOS), "labels": torch.full((LENGTH,), EOS)}] * 8
    run = Pretrainer(
        model=tiny_model(),
        args=settings(tmp_path, max_steps=1, include_num_input_tokens_seen="non_padding"),
        train_dataset=rows,
        data_collator=default_data_collator,
    )
    run.processing_class = Tokenizer()
    run.train()
    assert run.state.num_input_tokens_seen == 8 * LENGTH


@pytest.mark.thorough
def test_a_subset_of_the_rows_is_counted_like_the_whole(packed, tmp_path):
    """A resumed run trains on such a subset."""
    run = trainer(tmp_path, rows=Subset(packed, range(8, len(packed))), include_num_input_tokens_seen="non_padding")
    run.args.max_steps = 1
    run.train()
    assert run.state.num_input_tokens_seen == packed.tokens_between(8, 16)
