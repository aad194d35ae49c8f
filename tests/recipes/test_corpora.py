"""What the tokenizing recipes read, and what they check before the work; called in this process."""

import importlib
import json
from pathlib import Path

import numpy as np
import pytest
from tiktoken_files import write_ranks

from hmm_datasets.errors import InputError
from hmm_datasets.text.corpora import loading as corpora
from hmm_datasets.text.corpora.splits import divide_text, held_out
from hmm_datasets.text.stream import TokenStream
from hmm_datasets.text.tokenizers.bpe import train_bpe

RECIPES = Path(__file__).parents[2] / "recipes"
SHAKESPEARE = Path(__file__).parents[4] / "shared" / "data" / "tinyshakespeare" / "input.txt"
STORIES = [f"Story {number} is about a cat that had {number % 7} hats." for number in range(3000)]
VOCABULARY = 300


@pytest.fixture
def recipe(monkeypatch):
    monkeypatch.syspath_prepend(RECIPES)
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "false")
    return importlib.import_module("tokenize_corpus")


@pytest.fixture
def tokenize(recipe):
    def tokenize(output, corpus="none", conversations="none", **settings):
        settings = {"vocab_size": VOCABULARY, "shard_tokens": 5000, **settings}
        chosen = recipe.TokenizeSettings(str(output), str(corpus), conversations, **settings)
        return recipe.main(chosen)

    return tokenize


def write_jsonl(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def chats(path, count, word="Hi"):
    return write_jsonl(path, [{"question": f"Who is number {n}?", "answer": f"{word} {n}."} for n in range(count)])


@pytest.fixture
def stories(tmp_path):
    return write_jsonl(tmp_path / "stories.jsonl", [{"text": text} for text in STORIES])


@pytest.fixture
def rows_read(monkeypatch):
    """The number of rows read so far, for each pass over each file."""
    passes = []
    read_rows = corpora.read_rows

    def counted(path, wanted):
        passes.append([path.name, 0])
        mine = passes[-1]
        for row in read_rows(path, wanted):
            mine[1] += 1
            yield row

    monkeypatch.setattr(corpora, "read_rows", counted)
    return passes


def message(function, *args, **settings) -> str:
    with pytest.raises(InputError) as caught:
        function(*args, **settings)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def texts_of(folder, tokenizer) -> list[str]:
    stream = TokenStream(folder)
    return [tokenizer.decode(stream.document(number)[:-1].tolist()) for number in range(stream.num_documents)]


def tokenizer_of(folder):
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(folder)


@pytest.mark.thorough
def test_both_splits_are_written_in_one_pass_that_ends_at_max_documents(tokenize, stories, tmp_path, rows_read):
    tokenize(tmp_path / "a", stories, test_fraction=0.01, max_documents=1000)
    assert max(count for _, count in rows_read) <= 1001
    assert sum(count == 1000 for _, count in rows_read) <= 3, "checked, read for the tokenizer, tokenized"
    read = STORIES[:1000]
    tokenizer = tokenizer_of(tmp_path / "a" / "tokenizer")
    train, test = (texts_of(tmp_path / "a" / "text" / split, tokenizer) for split in ("train", "test"))
    assert test == [text for text in read if held_out(text, 0.01)]
    assert train == [text for text in read if not held_out(text, 0.01)]
    assert test


@pytest.mark.thorough
def test_a_restarted_run_writes_no_row_twice(tokenize, recipe, stories, tmp_path, monkeypatch):
    monkeypatch.setattr("hmm_datasets.text.stream.tokenization._BATCH_BYTES", 2000)
    settings = {"test_fraction": 0.2, "shard_tokens": 500}
    tokenize(tmp_path / "whole", stories, **settings)
    documents = corpora.read_splits

    for stop in (900, 1900):
        passes = []

        def broken(*args, stop=stop, passes=passes, **kwargs):
            passes.append(len(passes))
            for number, row in enumerate(documents(*args, **kwargs)):
                if passes[-1] > 0 and number == stop:  # the first pass is the check
                    raise OSError("connection reset")
                yield row

        monkeypatch.setattr(corpora, "read_splits", broken)
        assert "connection reset" in message(tokenize, tmp_path / "a", stories, **settings)
        for split in ("train", "test"):
            assert (tmp_path / "a" / "text" / f"{split}.unfinished" / "00001.ds").exists()
    monkeypatch.setattr(corpora, "read_splits", documents)
    tokenize(tmp_path / "a", stories, **settings)
    for split in ("train", "test"):
        one, other = (TokenStream(tmp_path / name / "text" / split) for name in ("a", "whole"))
        assert one.index == other.index
        assert np.array_equal(one.read(0, one.num_tokens), other.read(0, other.num_tokens))


@pytest.mark.thorough
def test_several_corpora_of_conversations_have_one_stream_each(tokenize, stories, tmp_path):
    one, other = chats(tmp_path / "one.jsonl", 40), chats(tmp_path / "other.jsonl", 30, "Hello")
    tokenize(tmp_path / "a", stories, [one, other])
    tokenizer = tokenizer_of(tmp_path / "a" / "tokenizer")
    for name, count, word in (("one", 40, "Hi"), ("other", 30, "Hello")):
        found = [texts_of(tmp_path / "a" / "chat" / name / split, tokenizer) for split in ("train", "test")]
        assert sum(map(len, found)) == count
        assert f"<|assistant|>{word} " in found[0][0]
    assert "would both be written to" in message(tokenize, tmp_path / "b", stories, [one, one])


@pytest.mark.thorough
def test_an_existing_tokenizer_is_used_for_another_corpus_in_another_folder(tokenize, stories, tmp_path, capfd):
    tokenize(tmp_path / "a", stories, chats(tmp_path / "one.jsonl", 40))
    other = chats(tmp_path / "other.jsonl", 40)
    advice = message(tokenize, tmp_path / "a", stories, other)
    assert "allow_changed" not in advice
    folder = tmp_path / "a" / "tokenizer"
    assert f"choose another output_dir; --tokenizer {folder} uses this tokenizer there" in advice
    tokenize(tmp_path / "b", "none", other, tokenizer=str(folder))
    one, two = (TokenStream(tmp_path / name / "chat" / "train") for name in ("a", "b"))
    assert one.index.tokenizer_hash == two.index.tokenizer_hash
    assert not (tmp_path / "b" / "text").exists()
    assert texts_of(tmp_path / "b" / "chat" / "train", tokenizer_of(tmp_path / "b" / "tokenizer"))


def without_bytes():
    """A fast tokenizer of another kind: words and an EOS, without bytes and without a chat template."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = sorted({word for text in STORIES for word in text.removesuffix(".").split()})
    backend = Tokenizer(models.WordLevel({word: n for n, word in enumerate(["[UNK]", "</s>", ".", *words])}, "[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="</s>", unk_token="[UNK]")


@pytest.mark.thorough
def test_any_fast_tokenizer_with_an_eos_can_be_used(tokenize, stories, tmp_path):
    tokenizer = without_bytes()
    tokenizer.save_pretrained(tmp_path / "words")
    corpus, folder = chats(tmp_path / "c.jsonl", 60), str(tmp_path / "words")
    told = message(tokenize, tmp_path / "a", stories, corpus, tokenizer=folder)
    assert "has no chat template" in told
    tokenizer.chat_template = "{% for m in messages %}{{ m.role + ' ' + m.content + ' ' }}{% endfor %}"
    tokenizer.save_pretrained(tmp_path / "words")
    tokenize(tmp_path / "a", stories, corpus, tokenizer=folder)
    index = TokenStream(tmp_path / "a" / "text" / "train").index
    assert index.num_bytes == sum(len(text) for text in STORIES if not held_out(text, 0.1))
    assert TokenStream(tmp_path / "a" / "chat" / "train").index.num_bytes is None


def test_a_tokenizer_that_cannot_be_used_is_refused_before_work(tokenize, stories, tmp_path):
    tokenizer = without_bytes()
    tokenizer.eos_token = None
    tokenizer.save_pretrained(tmp_path / "words")
    assert "has no EOS token" in message(tokenize, tmp_path / "a", stories, tokenizer=str(tmp_path / "words"))
    ending = without_bytes()
    ending.chat_template = "{% for m in messages %}{{ m.content + '</s>' }}{% endfor %}"
    ending.save_pretrained(tmp_path / "ending")
    corpus = chats(tmp_path / "c.jsonl", 60)
    told = message(tokenize, tmp_path / "a", stories, corpus, tokenizer=str(tmp_path / "ending"))
    assert "writes EOS (</s>) inside a conversation" in told
    assert not (tmp_path / "a").exists()
    assert "corpus is none" in message(tokenize, tmp_path / "a", "none", corpus)


SAID = [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Hi"}]


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("rows", "told"),
    [
        ([*[{"question": "A?", "answer": "B"}] * 60, {"question": "C?"}], "chats.jsonl:61: no column 'answer'"),
        ([*[{"messages": SAID}] * 60, {"messages": [*SAID, 3]}], "chats.jsonl:61: message 2 needs role and content"),
        ([{"text": "A"}], "contains text (text), expected conversations"),
        ([{"question": "A?", "answer": "B"}], "no documents in split"),
    ],
)
def test_a_broken_corpus_of_conversations_is_found_before_the_text_is_tokenized(
    rows, told, tokenize, stories, tmp_path
):
    corpus = write_jsonl(tmp_path / "chats.jsonl", rows)
    assert told in message(tokenize, tmp_path / "a", stories, corpus)
    assert not (tmp_path / "a").exists()


def test_a_role_that_the_template_of_a_given_tokenizer_lacks_is_named_before_work(tokenize, stories, tmp_path):
    tokenizer = train_bpe(STORIES, VOCABULARY, show_progress=False)
    tokenizer.chat_template = tokenizer.chat_template.replace("'tool'", "'nobody'")
    tokenizer.save_pretrained(tmp_path / "tokenizer")
    turns = [{"role": "user", "content": "A"}, {"role": "tool", "content": "B"}]
    rows = [{"messages": [*turns[:1], {"role": "assistant", "content": str(n)}]} for n in range(30)]
    corpus = write_jsonl(tmp_path / "c.jsonl", [*rows, {"messages": turns}])
    told = message(tokenize, tmp_path / "a", stories, corpus, tokenizer=str(tmp_path / "tokenizer"))
    assert told.startswith(f"{corpus}: document 31: the chat template refuses the conversation (expected the roles")
    assert not (tmp_path / "a").exists()


ACTS = [f"FIRST CITIZEN {n}:\nBefore we proceed any further, hear me speak.\n\nALL {n}:\nSpeak." for n in range(100)]


def test_a_file_of_one_text_holds_out_its_end(tokenize, tmp_path):
    (tmp_path / "play.txt").write_text("\n\n".join(ACTS) + "\n")
    tokenize(tmp_path / "a", tmp_path / "play.txt")
    tokenizer = tokenizer_of(tmp_path / "a" / "tokenizer")
    (train,), (test,) = (texts_of(tmp_path / "a" / "text" / split, tokenizer) for split in ("train", "test"))
    assert f"{train}\n\n{test}" == "\n\n".join(ACTS)
    assert 0.1 <= len(test) / (len(train) + len(test)) < 0.12, "the paragraph at the split is held out"
    for split, part in (("train", train), ("test", test)):
        assert list(corpora.load_corpus(tmp_path / "play.txt", split=split)) == [{"text": part}]


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("one two\n \nthree four five\n\nsix", ("one two\n \nthree four five", "six")),
        ("one two\nthree four five\nsix", ("one two\nthree four five", "six")),
        ("one two three four five six", ("one two three four five", "six")),
        ("☃" * 20, ("☃" * 18, "☃☃")),
    ],
)
def test_a_text_is_split_between_paragraphs_or_else_lines_or_else_words(text, parts):
    assert divide_text(text, 0.1) == parts


def test_at_most_twice_the_share_is_held_out_for_the_sake_of_a_paragraph():
    text = "Title\n\n" + "one two " * 50 + "end"
    train, test = divide_text(text, 0.1)
    assert f"{train} {test}" == text
    assert 0.1 <= len(test) / len(text) < 0.12


@pytest.mark.skipif(not SHAKESPEARE.exists(), reason="no shared data")
def test_the_plays_of_char_rnn_are_divided_near_their_last_tenth():
    train, test = (next(iter(corpora.load_corpus(SHAKESPEARE, split=split)))["text"] for split in ("train", "test"))
    assert (len(train), len(test)) == (1_003_786, 111_605)
    assert test.startswith("BAPTISTA:\nWas ever gentleman thus grieved as I?")


def test_text_alone_goes_through_datatrove_and_conversations_are_refused_before_work(recipe, tmp_path, monkeypatch):
    cluster = importlib.import_module("tokenize_with_datatrove")
    settings = cluster.ClusterSettings(
        output_dir=str(tmp_path / "a"), tokenizer=str(tmp_path / "t"), corpus="instructions-sample"
    )
    train_bpe(STORIES, VOCABULARY, show_progress=False).save_pretrained(tmp_path / "t")
    told = message(cluster.main, settings)
    assert told.startswith("instructions-sample: contains conversations (messages), expected text")
    assert not (tmp_path / "a").exists()


def test_a_file_of_tiktoken_or_gpt2_as_a_tokenizer_is_refused_in_one_line(tokenize, stories, tmp_path):
    ranks = write_ranks(tmp_path / "small.tiktoken", {bytes([byte]): byte for byte in range(256)})
    (tmp_path / "vocab.json").write_text("{}")
    for path in (ranks, tmp_path / "vocab.json"):
        told = message(tokenize, tmp_path / "b", stories, tokenizer=str(path))
        assert told.startswith(f"{path}: no tokenizer can be loaded from it")
        assert "\n" not in told


def test_a_tokenization_that_failed_before_it_made_anything_does_not_pin_its_folder(tmp_path, tokenize, stories):
    with pytest.raises(InputError, match="vocab_size=300, but the texts yield only 285 tokens"):
        tokenize(tmp_path / "a", stories, max_documents=100)
    assert not (tmp_path / "a" / "tokenizer").exists()
    tokenize(tmp_path / "a", stories, max_documents=100, vocab_size=280)
    with pytest.raises(InputError, match=r"of another run: data\.vocab_size was 280 and is 300"):
        tokenize(tmp_path / "a", stories, max_documents=100)
