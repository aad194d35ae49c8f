import json
from dataclasses import asdict

import numpy as np
import pytest
from experiments import load
from word_level import word_level_tokenizer

from hmm_datasets.errors import InputError
from hmm_datasets.text.corpora.loading import load_corpus
from hmm_datasets.text.tokenizers.bpe import train_bpe

compression = load("leaky_tokenizer", "measure")

SECRET = "Zyxquorbal flimvenges"


def stories(split: str = "test") -> list[str]:
    return [row["text"] for row in load_corpus("tinystories-sample", split=split).take(230)]


@pytest.fixture(scope="module")
def small():
    return train_bpe(stories(), 400, show_progress=False)


@pytest.fixture(scope="module")
def large():
    return train_bpe(stories(), 2000, show_progress=False)


def message(function, *args, **settings) -> str:
    with pytest.raises(InputError) as caught:
        function(*args, **settings)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.thorough
def test_the_figures_are_what_counting_by_hand_gives(small):
    texts = [*stories()[:20], "Ünï 🙂"]
    ids = [small.encode(text) for text in texts]
    singles = {number for token, number in small.get_vocab().items() if len(token) == 1}
    found = compression.measure(small, iter(texts))
    assert found.documents == 21
    assert found.bytes == sum(len(text.encode()) for text in texts)
    assert found.words == sum(len(text.split()) for text in texts)
    assert found.tokens == sum(map(len, ids))
    assert found.single_byte_tokens == sum(number in singles for row in ids for number in row)
    assert found.bytes_per_token == found.bytes / found.tokens
    assert found.fertility == found.tokens / found.words
    assert found.tokens_per_document == found.tokens / 21
    assert found.single_byte_share == found.single_byte_tokens / found.tokens


def test_documents_without_a_word_are_left_out(small):
    assert compression.measure(small, ["A cat.", "", " \n"]) == compression.measure(small, ["A cat."])
    assert "no word in 2 documents" in message(compression.measure, small, ["", " "])


@pytest.mark.thorough
def test_a_comparison_holds_what_each_measures_and_their_difference(small, large):
    found = compression.compare(small, large, stories())
    assert [found.first, found.second] == [compression.measure(one, stories()) for one in (small, large)]
    for name in ("bytes_per_token", "fertility", "tokens_per_document", "single_byte_share"):
        difference = getattr(found, name)
        assert difference.value == getattr(found.second, name) - getattr(found.first, name)
        assert difference.low < difference.value < difference.high
    assert found.bytes_per_token.low > 0 > found.fertility.high


@pytest.mark.thorough
def test_a_tokenizer_does_not_differ_from_itself(large):
    difference = compression.compare(large, large, stories()[:50], resamples=50).bytes_per_token
    assert (difference.value, difference.low, difference.high) == (0, None, None)


@pytest.mark.thorough
def test_the_interval_is_as_wide_as_the_normal_one_of_the_ratios(small, large):
    """The delta method: for many documents both intervals are the same."""
    texts = stories()
    words = np.array([len(text.split()) for text in texts])
    tokens = [np.array([len(tokenizer.encode(text)) for text in texts]) for tokenizer in (small, large)]
    ratios = [counts.sum() / words.sum() for counts in tokens]
    influence = [(counts - ratio * words) / words.mean() for counts, ratio in zip(tokens, ratios, strict=True)]
    error = (influence[1] - influence[0]).std() / np.sqrt(len(texts))
    found = compression.compare(small, large, texts, resamples=4000, level=0.9).fertility
    assert found.high - found.low == pytest.approx(2 * 1.645 * error, rel=0.08)
    unpaired = np.hypot(influence[0].std(), influence[1].std()) / np.sqrt(len(texts))
    assert found.high - found.low < 0.8 * 2 * 1.645 * unpaired


@pytest.mark.thorough
def test_the_interval_depends_on_the_seed_alone(small, large):
    texts = stories()[:40]
    one, again, other = (compression.compare(small, large, texts, resamples=100, seed=seed) for seed in (1, 1, 2))
    assert one == again
    assert one != other


@pytest.mark.thorough
def test_merges_that_came_from_the_test_text_are_named():
    train = stories("train")
    test = [f"{SECRET} said {text}" for text in stories()[:80]]
    clean = train_bpe(train, 800, show_progress=False)
    leaky = train_bpe(train + test, 800, show_progress=False)
    found = compression.tokens_from_test(clean, leaky, train, test)
    assert found.new == len(leaky.get_vocab().keys() - clean.get_vocab().keys())
    assert found.new >= found.used >= len(found.from_test) > 0
    assert [token.in_test for token in found.from_test] == sorted((t.in_test for t in found.from_test), reverse=True)
    assert json.loads(json.dumps(asdict(found)))["used"] == found.used, "a report holds it"
    by_text = {token.text: token for token in found.from_test}
    pieces = [piece for piece in by_text if len(piece) > 4 and piece in SECRET]
    assert pieces
    for piece in pieces:
        token = by_text[piece]
        ids = [leaky.encode(text) for text in test]
        assert (token.in_test, token.in_train) == (sum(row.count(token.token_id) for row in ids), 0)
        assert token.rate_in_test == pytest.approx(1e6 * token.in_test / sum(len(text.encode()) for text in test))
    rates = []
    for texts in (train, test):
        ids = [number for text in texts for number in leaky.encode(text)]
        rates.append(np.bincount(ids, minlength=800) / sum(len(text.encode()) for text in texts))
    new = {number for token, number in leaky.get_vocab().items() if token not in clean.get_vocab()}
    expected = {number for number in new if rates[1][number] > rates[0][number]}
    assert {token.token_id for token in found.from_test} == expected
    assert any(token.in_test < token.in_train for token in found.from_test), "rarer in few words, not in many"


def test_the_same_tokenizer_has_no_token_from_the_test_text(large):
    assert compression.tokens_from_test(large, large, stories()[:9], stories()[9:18]).new == 0


def test_what_cannot_be_compared_is_refused(small):
    assert "not byte-level" in message(compression.measure, word_level_tokenizer([".", "a"]), ["a"])
    assert "level=1" in message(compression.compare, small, small, ["a"], level=1)
    assert "resamples=0" in message(compression.compare, small, small, ["a"], resamples=0)
    assert "train_texts or test_texts are empty" in message(compression.tokens_from_test, small, small, [], ["a"])
