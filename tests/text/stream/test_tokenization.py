"""Tokenization of texts into token streams."""

import hashlib
import subprocess
import sys
import threading

import numpy as np
import pytest

from hmm_datasets.errors import InputError
from hmm_datasets.text.corpora.loading import load_corpus, read_splits
from hmm_datasets.text.stream import TokenStream, tokenize_corpus, tokenize_splits, tokenizer_hash
from hmm_datasets.text.stream.writer import ShardWriter
from hmm_datasets.text.tokenizers.bpe import train_bpe
from hmm_datasets.text.tokenizers.encoding import Encoder


def message(function, *args, **settings) -> str:
    with pytest.raises(InputError) as caught:
        function(*args, **settings)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def files(folder) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir()}


@pytest.fixture(scope="module")
def texts() -> list[str]:
    return [row["text"] for row in load_corpus("tinystories-sample", split="test")]


@pytest.fixture(scope="module")
def tokenizer(texts):
    return train_bpe(texts, 700, show_progress=False)


@pytest.mark.thorough
def test_a_tokenized_corpus_holds_every_document_and_counts_its_bytes(tmp_path, tokenizer, texts):
    texts = [*texts[:50], "naïve ☃", *texts[50:]]
    index = tokenize_corpus(
        iter(texts), tokenizer, tmp_path / "a", "stories", batch_size=50, shard_tokens=9000, show_progress=False
    )
    stream = TokenStream(tmp_path / "a")
    stream.verify()
    assert [tokenizer.decode(stream.document(number)[:-1].tolist()) for number in range(len(texts))] == texts
    assert len(index.shards) > 3
    assert index.num_bytes == sum(len(text.encode()) for text in texts)
    assert (index.num_documents, index.corpus, index.vocab_size) == (len(texts), "stories", 700)
    assert (index.eos_id, index.tokenizer_hash) == (tokenizer.eos_token_id, tokenizer_hash(tokenizer))
    assert (stream.read(0, stream.num_tokens) == index.eos_id).sum() == len(texts)


def test_the_batch_size_changes_nothing(tmp_path, tokenizer):
    texts = [f"Cat {number}." if number % 5 else "" for number in range(20)]
    for size in (1, 7, 100):
        tokenize_corpus(
            texts, tokenizer, tmp_path / str(size), "cats", batch_size=size, shard_tokens=20, show_progress=False
        )
    assert files(tmp_path / "1") == files(tmp_path / "7") == files(tmp_path / "100")


@pytest.mark.thorough
def test_the_split_and_the_shards_of_the_bundled_stories_have_the_bytes_they_always_had(tmp_path, tokenizer):
    rows = list(read_splits("tinystories-sample", kind="text", test_fraction=0.1))
    order = hashlib.sha256(" ".join(split for split, _ in rows).encode()).hexdigest()
    assert order == "1fc20c89f6f1670f9ade22bbd85c7ba4d4ec531639224a4764a317388321be9d"
    assert tokenizer_hash(tokenizer) == "a5b28ddedadc8cfe38da8134777b57c50f73508632540828727700c119da86ee"
    texts = ((split, row["text"]) for split, row in rows)
    folders = {split: tmp_path / split for split in ("train", "test")}
    settings = {"shard_tokens": 300_000, "show_progress": False}
    indices = tokenize_splits(texts, tokenizer, folders, "stories", **settings)
    assert {split: (index.sha256, index.num_bytes) for split, index in indices.items()} == {
        "train": ("1b0fb27173b326d47802bc049a81e9e038b1ed18f5ca9d00a85604216baeb244", 1_843_032),
        "test": ("c955559a4a182c10fe7d1541f34c3eae1974da1ce9ae1ac9c0f5a95e13968030", 216_833),
    }
    held_out = [row["text"] for split, row in rows if split == "test"]
    alone = tokenize_corpus(held_out, tokenizer, tmp_path / "alone", "stories", **settings)
    assert alone == indices["test"]


@pytest.mark.thorough
def test_an_interrupted_run_resumes_where_it_stopped(tmp_path, tokenizer, texts):
    settings = {"batch_size": 10, "shard_tokens": 9000, "show_progress": False}
    tokenize_corpus(texts, tokenizer, tmp_path / "undisturbed", "stories", **settings)
    asked = []

    def documents(first):
        asked.append(first)
        yield from texts[first:100]
        if len(asked) == 1:
            raise OSError("connection reset")
        yield from texts[max(first, 100) :]

    text = message(tokenize_corpus, documents, tokenizer, tmp_path / "a", "stories", **settings)
    safe = int(text.partition("connection reset; ")[2].split()[0])
    bad = [*texts[:110], None]
    assert "document 110: expected text" in message(
        tokenize_corpus, bad, tokenizer, tmp_path / "a", "stories", **settings
    )
    tokenize_corpus(documents, tokenizer, tmp_path / "a", "stories", **settings)
    assert asked[0] == 0 < safe - 1 <= asked[1]
    assert safe > 50
    assert files(tmp_path / "a") == files(tmp_path / "undisturbed")


@pytest.mark.thorough
@pytest.mark.parametrize("batch_size", [1, 7])
def test_splits_of_a_run_that_was_stopped_are_those_of_one_that_was_not(tmp_path, tokenizer, texts, batch_size):
    texts = ["", *texts[:60]]
    splits = ["test" if number % 5 == 2 else "train" for number in range(len(texts))]
    settings = {"batch_size": batch_size, "shard_tokens": 400, "show_progress": False}
    stopped = []

    def documents(stops_at=None):
        for number, pair in enumerate(zip(splits, texts, strict=True)):
            if number == stops_at:
                stopped.append(number)
                raise OSError("connection reset")
            yield pair

    folders = {name: {split: tmp_path / name / split for split in ("train", "test")} for name in ("all", "stopped")}
    tokenize_splits(documents(), tokenizer, folders["all"], "s", **settings)
    for split, folder in folders["all"].items():
        kept = [text for text, name in zip(texts, splits, strict=True) if name == split and text]
        stream = TokenStream(folder)
        assert [tokenizer.decode(stream.document(n)[:-1].tolist()) for n in range(stream.index.num_documents)] == kept
    for stops_at in (30, 60):
        with pytest.raises(InputError, match="connection reset"):
            tokenize_splits(documents(stops_at), tokenizer, folders["stopped"], "s", **settings)
    tokenize_splits(documents(), tokenizer, folders["stopped"], "s", **settings)
    assert len(stopped) == 2
    assert all(files(folders["all"][split]) == files(folders["stopped"][split]) for split in ("train", "test"))


def test_texts_are_read_ahead_by_one_thread_that_ends_with_the_writing(tmp_path, tokenizer):
    before, threads = threading.active_count(), set()

    def documents():
        for number in range(30):
            threads.add(threading.get_ident())
            yield f"Cat {number}"

    tokenize_corpus(documents(), tokenizer, tmp_path / "a", "cats", batch_size=3, show_progress=False)
    assert len(threads) == 1
    assert threads != {threading.get_ident()}
    assert threading.active_count() == before


def test_texts_are_read_encoded_and_written_at_once_a_few_batches_ahead(tmp_path, tokenizer, monkeypatch):
    """The methods are those of the package; what is added counts their calls and notes their threads."""
    threads, read, written = {"encode": set(), "write": set()}, [], []
    encode, write = Encoder.encode_batch, ShardWriter.write

    def documents():
        for number in range(300):
            read.append(threading.get_ident())
            yield f"Cat {number}"

    def noted_encode(self, texts):
        threads["encode"].add(threading.get_ident())
        return encode(self, texts)

    def noted_write(self, batch):
        threads["write"].add(threading.get_ident())
        written.append(len(read))
        write(self, batch)

    monkeypatch.setattr(Encoder, "encode_batch", noted_encode)
    monkeypatch.setattr(ShardWriter, "write", noted_write)
    tokenize_corpus(documents(), tokenizer, tmp_path / "a", "cats", batch_size=3, show_progress=False)
    assert threads["write"] == {threading.get_ident()}
    assert len(set(read)) == len(threads["encode"]) == 1
    assert len({*read} | threads["encode"] | threads["write"]) == 3
    ahead = [count - 3 * number for number, count in enumerate(written, start=1)]
    assert max(ahead) <= 3 * 10, "batches in memory: written, encoded and eight read ahead"


@pytest.mark.thorough
def test_an_error_ends_every_thread_and_keeps_the_order_of_what_was_before_it(tmp_path, tokenizer):
    before = threading.active_count()
    texts = [f"Cat {number}." for number in range(40)]
    settings = {"batch_size": 2, "shard_tokens": 20, "show_progress": False}
    bad = [*texts[:31], "\ud83d", *texts[31:]]
    told = message(tokenize_corpus, bad, tokenizer, tmp_path / "a", "cats", **settings)
    assert told.startswith("document 31: half a surrogate pair")
    assert threading.active_count() == before
    tokenize_corpus(texts, tokenizer, tmp_path / "a", "cats", **settings)
    tokenize_corpus(texts, tokenizer, tmp_path / "whole", "cats", **settings)
    assert files(tmp_path / "a") == files(tmp_path / "whole")


def test_a_progress_bar_shows_documents_tokens_and_what_is_left(tmp_path, tokenizer, texts, capsys, monkeypatch):
    monkeypatch.setattr("hmm_datasets.runtime.progress._DELAY", 0)
    tokenize_corpus(texts, tokenizer, tmp_path / "a", "stories", batch_size=20)
    last = capsys.readouterr().err.split("\r")[-1]
    for shown in ("tokenizing stories: 100%", f"{len(texts)}/{len(texts)}", " documents/s", " tokens/s"):
        assert shown in last
    tokenize_corpus(texts, tokenizer, tmp_path / "b", "stories", show_progress=False)
    assert capsys.readouterr().err == ""


def test_a_special_token_named_in_a_text_ends_no_document(tmp_path, tokenizer):
    text = "A <|endoftext|> B <|user|>"
    tokenize_corpus([text], tokenizer, tmp_path / "a", "forged", show_progress=False)
    document = TokenStream(tmp_path / "a").document(0)
    assert not set(document[:-1].tolist()) & set(tokenizer.all_special_ids)
    assert tokenizer.decode(document[:-1].tolist()) == text


def test_the_callers_tokenizer_is_left_as_it_was_and_its_truncation_not_used(tmp_path, tokenizer):
    long = "cat " * 3000
    tokenizer("a cat", truncation=True, max_length=2, padding="max_length")
    before = tokenizer.backend_tokenizer.to_str()
    tokenize_corpus([long], tokenizer, tmp_path / "a", "long", show_progress=False)
    assert tokenizer.backend_tokenizer.to_str() == before
    assert tokenizer.decode(TokenStream(tmp_path / "a").document(0)[:-1].tolist()) == long
    assert tokenizer.encode("<|end|>") == [tokenizer.convert_tokens_to_ids("<|end|>")]


def test_the_hash_is_of_what_makes_tokens_and_of_nothing_else(tokenizer):
    before = tokenizer_hash(tokenizer)
    tokenizer("a cat", truncation=True, max_length=3, padding="max_length")
    tokenizer.chat_template, template = "other", tokenizer.chat_template
    assert tokenizer_hash(tokenizer) == before
    tokenizer.chat_template = template
    other = train_bpe(["a cat sat on a mat"] * 9, 265, show_progress=False)
    hashes = {before, tokenizer_hash(other)}
    other.add_tokens(["cat"])
    assert len(hashes | {tokenizer_hash(other)}) == 3


def test_texts_that_cannot_be_tokenized_leave_nothing(tmp_path, tokenizer):
    def told(texts, **settings):
        settings = {"show_progress": False} | settings
        return message(tokenize_corpus, texts, tokenizer, tmp_path / "a", "bad", **settings)

    assert "bad: no documents" in told([])
    assert "document 1: expected text, found {'text': 'A'}" in told(["A", {"text": "A"}])
    assert "document 2: half a surrogate pair" in told(["A", "B", "\ud83d"])
    assert "batch_size=0" in told(["A"], batch_size=0)
    tokenizer.eos_token, eos = None, tokenizer.eos_token
    try:
        assert "the tokenizer has no EOS token" in told(["A"])
    finally:
        tokenizer.eos_token = eos
    assert list(tmp_path.iterdir()) == []


def test_batches_are_bounded_by_bytes_too():
    from hmm_datasets.text.stream.tokenization import _num_bytes, _read

    numbered = enumerate(["x" * 2_800_000] * 5 + ["y"] * 5)
    sizes = [len(_read(numbered, _num_bytes, 4).documents) for _ in range(5)]
    assert sizes == [2, 2, 4, 2, 0]
    assert np.sum(sizes) == 10


@pytest.mark.thorough
def test_a_document_of_100_mb_is_one_document_and_takes_a_small_multiple_of_its_size(tmp_path, child_environment):
    program = """if True:
        import resource, sys
        from hmm_datasets.text.tokenizers.bpe import train_bpe
        from hmm_datasets.text.corpora.loading import load_corpus
        from hmm_datasets.text.stream import TokenStream, tokenize_corpus
        texts = [row["text"] for row in load_corpus("tinystories-sample", split="test")]
        tokenizer = train_bpe(texts, 2000, split_pattern="gpt4", show_progress=False)
        text = " ".join(texts)
        text *= 100_000_000 // len(text) + 1
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        index = tokenize_corpus(["A cat.", text, "A dog."], tokenizer, sys.argv[1], "long", show_progress=False)
        print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
        stream = TokenStream(sys.argv[1])
        stream.verify()
        assert (index.num_documents, index.num_bytes) == (3, len(text.encode()) + 12)
        document = stream.document(1)
        assert text.startswith(tokenizer.decode(document[:1000].tolist()))
        assert text.endswith(tokenizer.decode(document[-1000:-1].tolist()))
        assert tokenizer.decode(stream.document(2)[:-1].tolist()) == "A dog."
    """
    command = [sys.executable, "-c", program, str(tmp_path / "a")]
    result = subprocess.run(command, env=child_environment, capture_output=True, text=True, timeout=500)
    assert result.returncode == 0, result.stderr
    assert int(result.stdout) * 1024 < 8 * 100_000_000
