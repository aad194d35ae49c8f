import os
import pickle

import numpy as np
import pytest
import torch
from datasets import Dataset
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments, default_data_collator
from trl import pack_dataset

from hmm_datasets.data import packing
from hmm_datasets.data.packing import PackedWindows, best_fit, count_tokens, repeated_windows
from hmm_datasets.data.windows import IGNORED
from hmm_datasets.errors import InputError
from hmm_datasets.text.stream import TokenStream, write_tokens

EOS, VOCAB = 99, 100

# Of the lengths of stories, in tokens: most around 200, some long.
SIZES = np.random.default_rng(0).lognormal(5.2, 0.6, 4000).astype(int) + 1


def write(folder, sizes, seed=0, shard_tokens=1000) -> TokenStream:
    random = np.random.default_rng(seed)
    documents = [random.integers(0, EOS, size) for size in sizes]
    settings = {"vocab_size": VOCAB, "eos_id": EOS, "tokenizer_hash": "none", "corpus": "test"}
    write_tokens(documents, folder, shard_tokens=shard_tokens, **settings)
    return TokenStream(folder)


@pytest.fixture
def stream(tmp_path) -> TokenStream:
    """Documents of 2 to 90 tokens. None leaves EOS alone when cut at 64: pieces that hold nothing else are padding."""
    sizes = np.random.default_rng(1).integers(1, 90, 300)
    return write(tmp_path / "tokens", np.where(sizes == 64, 63, sizes))


@pytest.fixture
def packed(stream, tmp_path) -> PackedWindows:
    return PackedWindows(stream, 64, cache_dir=tmp_path / "cache")


def message(function, *args, **settings) -> str:
    with pytest.raises(InputError) as caught:
        function(*args, **settings)
    assert "\n" not in str(caught.value)
    return str(caught.value)


# Best fit


def rooms_by_brute_force(lengths, capacity) -> list[int]:
    """The room left in each window when every piece, longest first, goes where it leaves least."""
    rooms: list[int] = []
    for length in sorted(lengths, reverse=True):
        fitting = [room for room in rooms if room >= length]
        if fitting:
            rooms.remove(min(fitting))
        rooms.append((min(fitting) if fitting else capacity) - length)
    return sorted(rooms)


@pytest.mark.thorough
@settings(deadline=None)
@given(st.integers(1, 70).flatmap(lambda c: st.tuples(st.just(c), st.lists(st.integers(1, c), max_size=60))))
def test_every_piece_goes_where_it_leaves_the_minimum_space(case):
    capacity, lengths = case
    windows = best_fit(np.array(lengths, dtype=np.int64), capacity)
    rooms = capacity - np.bincount(windows, weights=lengths)
    assert sorted(rooms.tolist()) == rooms_by_brute_force(lengths, capacity)
    first = [windows.tolist().index(window) for window in range(len(rooms))]
    assert first == sorted(first), "windows are numbered by their first pieces"


def first_fit(lengths, capacity) -> int:
    """Windows taken when pieces, as they come, go to the first window that has room."""
    rooms = np.zeros(0, dtype=np.int64)
    for length in lengths:
        fitting = np.flatnonzero(rooms >= length)
        if fitting.size:
            rooms[fitting[0]] -= length
        else:
            rooms = np.append(rooms, capacity - length)
    return len(rooms)


@pytest.mark.thorough
def test_as_many_windows_as_trl_takes_and_no_more_than_first_fit(tmp_path):
    stream = write(tmp_path / "tokens", SIZES, shard_tokens=10**5)
    ours = PackedWindows(stream, 512, cache_dir=tmp_path / "cache")
    documents = Dataset.from_dict({"input_ids": [stream.document(number).tolist() for number in range(len(SIZES))]})
    theirs = pack_dataset(documents, 512, strategy="bfd_split", map_kwargs={"batch_size": len(SIZES)})
    assert ours.num_windows == len(theirs)
    starts, lengths = packing._cut(*stream.bounds(np.arange(stream.num_documents)), 512)
    assert ours.num_pieces == len(starts)
    assert ours.fill_rate > 0.99 > stream.num_tokens / (first_fit(lengths, 512) * 512)


# Rows


def pieces(row) -> list[list[int]]:
    tokens, positions = row["input_ids"].tolist(), row["position_ids"].tolist()
    begins = [index for index, position in enumerate(positions) if position == 0]
    size = int(count_tokens(row))  # padding stands behind
    assert positions[size:] == [len(tokens) - 1] * (len(tokens) - size)
    assert set(tokens[size:]) <= {EOS}
    return [tokens[begin:end] for begin, end in zip(begins, [*begins[1:], size], strict=True)]


@pytest.mark.thorough
def test_an_epoch_holds_every_document_once_cut_only_where_it_must_be(packed, stream):
    expected = []
    for number in range(stream.num_documents):
        document = stream.document(number).tolist()
        expected += [document[begin : begin + 64] for begin in range(0, len(document), 64)]
    found, padding = [], 0
    for row in packed:
        found += pieces(row)
        padding += 64 - sum(map(len, pieces(row)))
    assert sorted(found) == sorted(expected)
    assert packed.num_pieces == len(expected)
    assert packed.num_padding == padding == len(packed) * 64 - stream.num_tokens
    assert packed.fill_rate == pytest.approx(1 - padding / (len(packed) * 64))
    assert packed.tokens_per_row == stream.num_tokens / len(packed)
    assert packed.tokens_between(len(packed), 4 * len(packed)) == 3 * stream.num_tokens


def test_labels_are_the_tokens_but_for_first_ones_and_padding(packed, stream):
    rows = packed.__getitems__(range(len(packed)))
    counted = sum(int((row["labels"] != IGNORED).sum()) for row in rows)
    assert counted == stream.num_tokens - packed.num_pieces
    for row in rows:
        chosen = row["labels"] != IGNORED
        assert (row["labels"][chosen] == row["input_ids"][chosen]).all()
        assert not chosen[row["position_ids"] == 0].any()
        assert {name: column.dtype for name, column in row.items()} == dict.fromkeys(row, torch.int64)


@pytest.mark.thorough
def test_items_together_are_the_items_one_by_one_in_an_order_of_every_epoch(packed, stream):
    windows = PackedWindows(stream, 64, seed=4, epochs=3, cache_dir=packed.cache_dir)
    together = windows.__getitems__(range(len(windows)))
    assert all(torch.equal(row[name], windows[i][name]) for i, row in enumerate(together) for name in row)
    epochs = [
        [row["input_ids"].tolist() for row in together[e * len(packed) : (e + 1) * len(packed)]] for e in range(3)
    ]
    plain = [row["input_ids"].tolist() for row in packed]
    assert all(sorted(epoch) == sorted(plain) for epoch in epochs)
    assert epochs[0] != epochs[1] != plain


@pytest.mark.thorough
def test_workers_and_the_library_collator_give_the_same_rows_and_no_mask(packed):
    loader = DataLoader(
        packed, batch_size=8, num_workers=2, collate_fn=default_data_collator, multiprocessing_context="spawn"
    )
    batches = list(loader)
    assert {frozenset(batch) for batch in batches} == {frozenset({"input_ids", "labels", "position_ids"})}
    rows = [row.tolist() for batch in batches for row in batch["position_ids"]]
    assert rows == [row["position_ids"].tolist() for row in packed]


# The plan


def test_blocks_of_documents_are_packed_one_after_another(stream, packed, tmp_path, monkeypatch):
    monkeypatch.setattr(packing, "_BLOCK", 50)
    blocks = PackedWindows(stream, 64, cache_dir=tmp_path / "blocks")
    assert sorted(blocks.plan.starts.tolist()) == sorted(packed.plan.starts.tolist())
    assert len(packed) <= len(blocks) <= len(packed) + 6
    begins, _ = stream.bounds(np.arange(stream.num_documents))
    documents = (np.searchsorted(begins, blocks.plan.starts, side="right") - 1) // 50
    assert (np.diff(documents) >= 0).all()


def test_the_plan_is_kept_and_is_the_same_when_made_again(stream, packed):
    (path,) = packed.cache_dir.iterdir()
    before, content = path.stat().st_mtime_ns, path.read_bytes()
    PackedWindows(TokenStream(stream.folder), 64, cache_dir=packed.cache_dir)
    assert path.stat().st_mtime_ns == before
    path.unlink()
    assert pickle.loads(pickle.dumps(packed))[3]["input_ids"].tolist() == packed[3]["input_ids"].tolist()
    assert path.read_bytes() == content
    assert len(content) == 8 * (3 + len(packed) + 2 * packed.num_pieces)
    assert sorted(os.listdir(stream.folder)) == sorted(
        ["index.json", *(s.name for s in stream.index.shards), *(s.name + ".index" for s in stream.index.shards)]
    )


def test_impossible_windows_are_refused(stream, packed, tmp_path):
    assert "at least 2 tokens" in message(PackedWindows, stream, 1)
    (path,) = packed.cache_dir.iterdir()
    path.write_bytes(path.read_bytes()[:-8])
    assert message(PackedWindows, stream, 64, cache_dir=packed.cache_dir).endswith("delete the file")
    (tmp_path / "file").write_text("")
    assert "pass another cache_dir=" in message(PackedWindows, stream, 64, cache_dir=tmp_path / "file")


def test_repeated_windows_may_be_packed(stream, packed, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HOME", str(packed.cache_dir.parent / "home"))
    rows = repeated_windows(stream, 64, 2 * len(packed) + 1, seed=3, packed=True)
    assert len(rows) == 3 * len(packed)
    assert rows[0].keys() == packed[0].keys()


# What a model sees


@pytest.fixture(params=["sdpa", "eager"])
def model(request) -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        initializer_range=0.3,
        attn_implementation=request.param,
    )
    return LlamaForCausalLM(config).double().eval()


def batch_of(packed, count=4) -> dict[str, torch.Tensor]:
    rows = [row for row in packed.__getitems__(range(len(packed))) if len(pieces(row)) > 2]
    return default_data_collator(rows[:count])


def leak(model, batch, **settings) -> float:
    """How far the logits move behind the first documents of the rows when these are changed."""
    changed = {name: column.clone() for name, column in batch.items()}
    behind = (batch["position_ids"] == 0).cumsum(-1) > 1
    changed["input_ids"][~behind] = (changed["input_ids"][~behind] + 1) % EOS
    with torch.no_grad():
        before, after = (
            model(input_ids=b["input_ids"], position_ids=b["position_ids"], **settings).logits
            for b in (batch, changed)
        )
    assert (before - after)[~behind].abs().max() > 0.1
    return float((before - after)[behind].abs().max())


@pytest.mark.thorough
@pytest.mark.outside(
    "https://github.com/huggingface/trl/issues/3067",
    "know whether packed samples attend to each other",
    "they do not: changing one document leaves the logits of the others alone",
)
@pytest.mark.outside(
    "https://github.com/MeetKai/functionary/issues/132",
    "packing without cross-contamination and without flash attention",
    "works with sdpa and eager attention",
)
def test_no_document_sees_another(model, packed):
    assert leak(model, batch_of(packed), use_cache=False) == 0


def test_a_mask_of_ones_or_a_cache_would_let_documents_see_each_other(model, packed):
    # What the documentation of PackedWindows warns of; where this fails, transformers has mended it.
    batch = batch_of(packed)
    assert leak(model, batch, use_cache=False, attention_mask=torch.ones_like(batch["input_ids"])) > 0.01
    assert leak(model, batch, use_cache=True) > 0.01


def loss_of_documents(model, batch) -> tuple[float, int]:
    """The mean loss of a batch's documents, each given to the model alone, and the tokens it is taken over."""
    total, count = 0.0, 0
    for row in (dict(zip(batch, columns, strict=True)) for columns in zip(*batch.values(), strict=True)):
        for piece in pieces(row):
            if len(piece) > 1 and set(piece) != {EOS}:
                ids = torch.tensor([piece])
                with torch.no_grad():
                    total += model(input_ids=ids, labels=ids).loss.item() * (len(piece) - 1)
                count += len(piece) - 1
    return total / count, count


@pytest.mark.thorough
def test_the_loss_of_packed_rows_is_that_of_the_documents_by_their_tokens(model, packed):
    batch = batch_of(packed)
    with torch.no_grad():
        loss = model(**batch, use_cache=False).loss.item()
    expected, count = loss_of_documents(model, batch)
    assert count == (batch["labels"] != IGNORED).sum()
    assert loss == pytest.approx(expected, rel=1e-6)  # the loss is taken in float32


@pytest.mark.outside(
    "https://github.com/modelscope/ms-swift/issues/4736",
    "does packing block attention between samples in training?",
    "yes, also with the collator of transformers",
)
def test_a_trainer_with_the_library_collator_sees_no_document_from_another(model, packed, tmp_path):
    expected, _ = loss_of_documents(model, default_data_collator(packed.__getitems__(range(4))))
    arguments = TrainingArguments(
        tmp_path / "run",
        max_steps=1,
        per_device_train_batch_size=4,
        train_sampling_strategy="sequential",
        logging_steps=1,
        use_cpu=True,
        report_to="none",
        disable_tqdm=True,
        save_strategy="no",
    )
    trainer = Trainer(model=model, args=arguments, train_dataset=packed, data_collator=default_data_collator)
    trainer.train()
    assert trainer.state.log_history[0]["loss"] == pytest.approx(expected, abs=1e-4)  # it is logged to four digits
