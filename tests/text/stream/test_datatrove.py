"""Token streams and datatrove read each other's shards."""

import json
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from datatrove.data import Document
from datatrove.executor import LocalPipelineExecutor
from datatrove.pipeline.tokens import DocumentTokenizer, DocumentTokenizerMerger
from datatrove.utils.dataset import DatatroveFolderDataset

from hmm_datasets.errors import InputError
from hmm_datasets.text.corpora.loading import load_corpus, read_splits
from hmm_datasets.text.stream import INDEX_NAME, TokenStream, adopt_datatrove, tokenize_corpus, write_tokens
from hmm_datasets.text.stream.datatrove_steps import PlainTextTokenizer, read_corpus, write_index
from hmm_datasets.text.tokenizers.bpe import train_bpe


def message(function, *args, **settings) -> str:
    with pytest.raises(InputError) as caught:
        function(*args, **settings)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def documents_of(stream: TokenStream) -> list[tuple[int, ...]]:
    return [tuple(stream.document(number).tolist()) for number in range(stream.num_documents)]


@pytest.fixture(scope="module")
def texts() -> list[str]:
    return [row["text"] for row in load_corpus("tinystories-sample", split="test")]


@pytest.fixture(scope="module")
def tokenizer(texts, tmp_path_factory):
    tokenizer, folder = train_bpe(texts, 700, show_progress=False), tmp_path_factory.mktemp("tokenizer")
    tokenizer.save_pretrained(folder)
    return type(tokenizer).from_pretrained(folder)


@pytest.fixture(scope="module")
def ours(texts, tokenizer, tmp_path_factory) -> TokenStream:
    folder = tmp_path_factory.mktemp("ours") / "a"
    tokenize_corpus(texts, tokenizer, folder, "stories", shard_tokens=20_000, show_progress=False)
    return TokenStream(folder)


def tokenize(texts, tokenizer, folder, **settings) -> None:
    """Let datatrove tokenize texts in three parts."""
    path = str(Path(tokenizer.name_or_path) / "tokenizer.json")
    for rank in range(3):
        step = DocumentTokenizer(str(folder), path, **{"eos_token": tokenizer.eos_token, "seed": 0} | settings)
        step.run((Document(text=text, id=str(n)) for n, text in enumerate(texts[rank::3])), rank=rank, world_size=3)


@pytest.mark.thorough
def test_what_datatrove_tokenized_is_read_after_one_call(tmp_path, texts, tokenizer, ours):
    tokenize(texts, tokenizer, tmp_path / "a", shuffle_documents=False)
    assert "write their index with adopt_datatrove" in message(TokenStream, tmp_path / "a")
    index = adopt_datatrove(tmp_path / "a", tokenizer, "stories")
    stream = TokenStream(tmp_path / "a")
    stream.verify()
    expected = documents_of(ours)
    assert documents_of(stream) == [*expected[0::3], *expected[1::3], *expected[2::3]]
    assert [shard.name for shard in index.shards] == [f"0000{n}_unshuffled.ds" for n in range(3)]
    for name in ("num_documents", "num_tokens", "num_bytes", "tokenizer_hash", "vocab_size", "eos_id", "dtype"):
        assert getattr(index, name) == getattr(ours.index, name)
    assert (index.shard_tokens, index.num_empty) == (None, 0)


@pytest.mark.thorough
def test_what_datatrove_shuffled_and_merged_holds_the_same_documents(tmp_path, texts, tokenizer, ours):
    tokenize(texts, tokenizer, tmp_path / "parts")
    merger = DocumentTokenizerMerger(
        str(tmp_path / "parts"), str(tmp_path / "a"), "stories", max_tokens_per_file=30_000, seed=1, progress=False
    )
    merger.run()
    index = adopt_datatrove(tmp_path / "a", tokenizer, "stories")
    stream = TokenStream(tmp_path / "a")
    stream.verify()
    assert len(index.shards) > 1
    assert documents_of(stream) != documents_of(ours)
    assert sorted(documents_of(stream)) == sorted(documents_of(ours))


@pytest.mark.outside(
    "https://github.com/huggingface/datatrove/issues/108",
    "tokens of DocumentTokenizer read in nanotron",
    "shards of both packages have one layout, and the data set of datatrove that nanotron's Nanoset wraps reads ours",
)
def test_datatroves_data_set_reads_our_shards(ours):
    length = 64
    dataset = DatatroveFolderDataset(str(ours.folder), length - 1, filename_pattern="*.ds", return_positions=True)
    starts, first = [], 0
    for shard in ours.index.shards:
        starts.extend(range(first, first + shard.num_tokens - length + 1, length))
        first += shard.num_tokens
    windows = ours.gather(np.array(starts), length)
    assert len(dataset) == len(windows) > 1000
    rows = [dataset[number] for number in range(len(dataset))]
    assert np.array_equal(np.stack([row["input_ids"] for row in rows]), windows)
    # Positions restart where our index says that documents end.
    bounds, _ = ours.bounds(np.arange(ours.num_documents))
    for start, row in zip(starts, rows, strict=True):
        begins = bounds[(bounds > start) & (bounds < start + length)] - start
        assert np.array_equal(np.flatnonzero(row["positions"] == 0), [0, *begins])


def test_datatroves_merger_reads_our_shards(tmp_path, tokenizer, ours):
    merger = DocumentTokenizerMerger(str(ours.folder), str(tmp_path / "a"), "all", shuffle=False, progress=False)
    merger.run()
    adopt_datatrove(tmp_path / "a", tokenizer, "stories")
    stream = TokenStream(tmp_path / "a")
    assert len(stream.index.shards) == 1
    assert np.array_equal(stream.read(0, stream.num_tokens), ours.read(0, ours.num_tokens))


def test_vocabularies_above_65536_are_four_bytes_wide_for_both(tmp_path, tokenizer):
    write_tokens([[70_000, 1], [2]], tmp_path / "a", vocab_size=80_000, eos_id=0, tokenizer_hash="none", corpus="wide")
    dataset = DatatroveFolderDataset(str(tmp_path / "a"), 4, filename_pattern="*.ds", token_size=4)
    assert [row["input_ids"].tolist() for row in dataset] == [[70_000, 1, 0, 2, 0]]


@pytest.mark.thorough
def test_a_pipeline_of_several_tasks_ends_in_a_token_stream(tmp_path, tokenizer, ours):
    folder = tmp_path / "a"
    steps = [
        partial(read_corpus, "tinystories-sample", {"split": "test", "max_documents": 1000}),
        PlainTextTokenizer(str(folder), str(Path(tokenizer.name_or_path) / "tokenizer.json"), tokenizer.eos_token),
    ]
    tokens = LocalPipelineExecutor(steps, tasks=3, workers=1, logging_dir=str(tmp_path / "logs" / "tokens"))
    index = partial(write_index, folder, tokenizer.name_or_path, "stories")
    LocalPipelineExecutor([index], logging_dir=str(tmp_path / "logs" / "index"), depends=tokens, workers=1).run()
    count = sum(split == "test" for split, _ in read_splits("tinystories-sample", kind="text", max_documents=1000))
    assert 70 < count < 130, "of the rows that are read, those that are held out"
    expected = documents_of(ours)[:count]
    assert documents_of(TokenStream(folder)) == [*expected[0::3], *expected[1::3], *expected[2::3]]


def test_a_task_without_documents_leaves_no_shard(tmp_path, texts, tokenizer):
    tokenize(texts[:2], tokenizer, tmp_path, shuffle_documents=False)
    assert (tmp_path / "00002_unshuffled.ds").stat().st_size == 0
    adopt_datatrove(tmp_path, tokenizer, "stories")
    assert TokenStream(tmp_path).num_documents == 2


def test_special_tokens_named_in_a_text_are_text_to_our_step_and_refused_from_datatroves(tmp_path, tokenizer):
    texts = ["A cat.", "A <|endoftext|> B"]
    tokenize(texts, tokenizer, tmp_path / "theirs", shuffle_documents=False)
    told = message(adopt_datatrove, tmp_path / "theirs", tokenizer, "forged")
    assert "00001_unshuffled.ds: by its .index file document 0 should end" in told
    assert "PlainTextTokenizer" in told
    assert not (tmp_path / "theirs" / INDEX_NAME).exists()
    path = str(Path(tokenizer.name_or_path) / "tokenizer.json")
    step = PlainTextTokenizer(str(tmp_path / "ours"), path, tokenizer.eos_token)
    step.run(Document(text=text, id="") for text in texts)
    adopt_datatrove(tmp_path / "ours", tokenizer, "forged")
    assert tokenizer.decode(TokenStream(tmp_path / "ours").document(1)[:-1].tolist()) == texts[1]


@pytest.mark.parametrize(
    ("harm", "told"),
    [
        (
            lambda folder: (folder / "00001_unshuffled.ds.index").unlink(),
            "00001_unshuffled.ds.index: missing or empty",
        ),
        (
            lambda folder: (folder / "00001_unshuffled.ds").write_bytes(b"12"),
            "by 00001_unshuffled.ds.index and 700 token ids of uint16; pass the tokenizer",
        ),
        (lambda folder: [path.unlink() for path in folder.glob("*.ds")], "no shards (*.ds) with tokens"),
    ],
)
def test_shards_that_are_not_whole_are_not_adopted(tmp_path, texts, tokenizer, harm, told):
    tokenize(texts[:9], tokenizer, tmp_path, shuffle_documents=False)
    harm(tmp_path)
    assert told in message(adopt_datatrove, tmp_path, tokenizer, "stories")
    assert not (tmp_path / INDEX_NAME).exists()


def test_shards_of_another_tokenizer_or_without_eos_are_not_adopted(tmp_path, texts, tokenizer):
    tokenize(texts[:9], tokenizer, tmp_path / "a", shuffle_documents=False)
    small = train_bpe(texts, 300, show_progress=False)
    assert "is outside the vocabulary of 300; pass the tokenizer" in message(
        adopt_datatrove, tmp_path / "a", small, "stories"
    )
    tokenize(texts[:9], tokenizer, tmp_path / "b", shuffle_documents=False, eos_token=None)
    assert "found no further EOS" in message(adopt_datatrove, tmp_path / "b", tokenizer, "stories")


def test_adopting_twice_writes_the_same_index(tmp_path, texts, tokenizer):
    tokenize(texts[:9], tokenizer, tmp_path, shuffle_documents=False)
    indices = [adopt_datatrove(tmp_path, tokenizer, "stories") for _ in range(2)]
    assert indices[0] == indices[1] == TokenStream(tmp_path).index
    assert json.loads((tmp_path / INDEX_NAME).read_text())["shard_tokens"] is None
