"""The law of grammars against the enumeration of all sentences, against other algorithms, and against closed forms."""

import itertools
import math

import numpy as np
import pytest
import torch
from grammar_by_enumeration import next_word_probs, sentences
from scipy import stats

from hmm_datasets import HMM, PCFG, InputError, load_source
from hmm_datasets.hmm.grammar import physics_of_language_models, random_hierarchy

FINITE = {
    "S": {"A B A": 0.4, "B": 0.3, "A": 0.2, "A y B y": 0.1},
    "A": {"B": 0.4, "x y": 0.35, "x": 0.25},
    "B": {"A": 0.3, "y x": 0.5, "C": 0.2},
    "C": {"C": 0.25, "x x y": 0.75},
}
LEFT_RECURSIVE = {"S": {"S S": 0.001, "S y": 0.001, "x": 0.798, "y x": 0.2}}
NESTED = {"S": {"x S y": 0.001, "x S z": 0.001, "x y": 0.598, "T": 0.4}, "T": {"S": 0.05, "z": 0.95}}
LANGUAGES = {"FINITE": FINITE, "LEFT_RECURSIVE": LEFT_RECURSIVE, "NESTED": NESTED}
LONGEST = {"FINITE": 12, "LEFT_RECURSIVE": 10, "NESTED": 21}
"""All sentences of the finite language, and of the others all but 1e-15 of them, or less than 1e-11 after any prefix
of four words."""


@pytest.mark.thorough
@pytest.mark.parametrize("name", LANGUAGES)
def test_the_law_of_the_next_token_is_that_of_all_sentences(name):
    grammar = PCFG.from_rules(LANGUAGES[name])
    language = sentences(LANGUAGES[name], "S", LONGEST[name])
    assert sum(language.values()) == pytest.approx(1, abs=1e-14)
    rows = list(itertools.product(range(grammar.num_symbols), repeat=4))
    if name == "FINITE":
        rows = np.concatenate([np.pad(rows, ((0, 0), (0, 10))), grammar.sample(60, 14, seed=4)])
    for row, found in zip(rows, grammar.next_token_probs(rows), strict=True):
        expected = next_word_probs(language, grammar.vocabulary, [grammar.vocabulary[x] for x in row])
        assert np.abs(found - expected).max() < 1e-10


@pytest.mark.thorough
@pytest.mark.parametrize("name", LANGUAGES)
def test_the_likelihood_of_a_sentence_is_its_probability(name):
    grammar = PCFG.from_rules(LANGUAGES[name])
    for sentence, probability in sentences(LANGUAGES[name], "S", 6).items():
        tokens = [[grammar.vocabulary.index(word) for word in (*sentence, "end")]]
        assert grammar.log_likelihood(tokens)[0] == pytest.approx(math.log(probability), abs=1e-10)


@pytest.mark.thorough
@pytest.mark.parametrize("name", LANGUAGES)
def test_the_expected_length_is_that_of_all_sentences(name):
    mean = sum(len(sentence) * p for sentence, p in sentences(LANGUAGES[name], "S", LONGEST[name]).items())
    assert PCFG.from_rules(LANGUAGES[name]).mean_sentence_length == pytest.approx(mean, abs=1e-12)


@pytest.mark.thorough
def test_a_right_linear_grammar_is_an_hmm_and_long_sentences_do_not_underflow():
    """Sentences of about 2,000 words with probabilities below 1e-600."""
    stop = 1 / 2000
    grammar = PCFG.from_rules(
        {
            "S": {"a S": 0.5 * (1 - stop), "b T": 0.3 * (1 - stop), "c T": 0.2 * (1 - stop), "a": stop},
            "T": {"a S": 0.1 * (1 - stop), "b T": 0.4 * (1 - stop), "c S": 0.5 * (1 - stop), "a": stop},
        },
        terminals=["a", "b", "c"],
    )
    edges = np.zeros((4, 3, 3))
    edges[0, 0, 0], edges[1, 0, 1], edges[2, 0, 1], edges[0, 0, 2] = *(np.array([0.5, 0.3, 0.2]) * (1 - stop)), stop
    edges[0, 1, 0], edges[1, 1, 1], edges[2, 1, 0], edges[0, 1, 2] = *(np.array([0.1, 0.4, 0.5]) * (1 - stop)), stop
    edges[3, 2, 0] = 1
    hmm = HMM(start=[1, 0, 0], edges=edges)
    tokens = grammar.sample(2, 2000, seed=2)
    assert grammar.log_likelihood(tokens) == pytest.approx(hmm.log_likelihood(tokens), rel=1e-12)
    assert grammar.log_likelihood(tokens).max() < -1400
    assert np.abs(grammar.next_token_probs(tokens) - hmm.next_token_probs(tokens)).max() < 1e-12


def dense_prefix_law(grammar: PCFG, tokens: list[int]) -> np.ndarray:
    """The law after `tokens`, within a sentence: inside probabilities of all spans, then of all prefixes of spans.

    As Jelinek and Lafferty (1991) give it, with dense tables and without scaling; independent of how PCFG does it.
    """
    size, length = grammar.num_nonterminals, len(tokens) + 1
    table = np.zeros((size, size, size))
    table[tuple(grammar.rules.T)] = grammar.rule_probs
    lexical = np.zeros((size, grammar.end))
    lexical[tuple(grammar.words.T)] = grammar.word_probs
    corner = np.linalg.inv(np.eye(size) - table.sum(axis=2))
    law = np.zeros(grammar.num_symbols)
    inside = np.zeros((length, length + 1, size))
    for end in range(1, length):
        inside[end - 1, end] = lexical[:, tokens[end - 1]]
        for begin in range(end - 2, -1, -1):
            pairs = np.einsum("jb,jc->bc", inside[begin, begin + 1 : end], inside[begin + 1 : end, end])
            inside[begin, end] = np.einsum("abc,bc->a", table, pairs)
    for word in range(grammar.end):
        # P(A derives a string that begins with tokens[begin:] and the word).
        prefix = np.zeros((length, size))
        for begin in range(length - 1, -1, -1):
            split = np.zeros((size, size))
            for middle in range(begin + 1, length):
                split += np.outer(inside[begin, middle], prefix[middle])
            own = np.einsum("abc,bc->a", table, split)
            prefix[begin] = corner @ (own + (lexical[:, word] if begin == length - 1 else 0))
        law[word] = prefix[0, 0]
    law[grammar.end] = inside[0, length - 1, 0]
    return law / law.sum()


@pytest.mark.parametrize("name", ["cfg3b", "cfg3f"])
def test_the_law_of_published_grammars_is_that_of_a_dense_chart(name):
    grammar = physics_of_language_models(name)
    row = grammar.sample(1, 60, seed=3)[0]
    found = grammar.next_token_probs(row[None])[0]
    for t in (1, 7, 30, 60):
        assert np.abs(found[t] - dense_prefix_law(grammar, row[:t].tolist())).max() < 1e-12


@pytest.mark.parametrize("seed", range(5))
def test_the_law_of_random_recursive_grammars_is_that_of_a_dense_chart(seed):
    """Every nonterminal has rules with all pairs of nonterminals, so that left corners are circles."""
    generator = np.random.default_rng(seed)
    size, words = 4, 3
    rules = np.array(list(itertools.product(range(size), repeat=3)))
    emitted = np.array(list(itertools.product(range(size), range(words))))
    rule_probs = 0.4 * generator.dirichlet(np.full(size * size, 0.2), size).clip(1e-12).ravel()
    word_probs = 0.6 * generator.dirichlet(np.ones(words), size).ravel()
    grammar = PCFG(rules, rule_probs, emitted, word_probs)
    for tokens in grammar.sample(4, 12, seed=seed):
        within = tokens[: int(np.argmax(np.append(tokens, grammar.end) == grammar.end))]
        found = grammar.next_token_probs(within[None])[0]
        for t in range(len(within) + 1):
            assert np.abs(found[t] - dense_prefix_law(grammar, within[:t].tolist())).max() < 1e-12


def test_distributions_of_long_hierarchical_sentences_sum_to_one():
    grammar = physics_of_language_models("cfg3f")
    tokens = grammar.sample(6, 1000, seed=1)
    probs = grammar.next_token_probs(tokens)
    assert np.abs(probs.sum(axis=-1) - 1).max() < 1e-12
    assert (tokens == grammar.end).any(axis=1).all()


def test_after_an_impossible_token_all_probabilities_are_zero():
    grammar = PCFG.from_rules("S -> a S b [0.5] | a b [0.5]")
    probs = grammar.next_token_probs([[0, 1, 0, 1], [0, 1, 2, 0]])
    assert probs[0, 2].tolist() == [0, 0, 1]
    assert (probs[0, 3:] == 0).all()
    assert probs[1].sum(axis=-1).tolist() == [1, 1, 1, 1, 1]
    assert grammar.log_likelihood([[0, 1, 0], [1, 0, 1]]).tolist() == [-math.inf] * 2


def test_tensors_give_tensors_and_threads_change_nothing():
    grammar = physics_of_language_models("cfg3b")
    tokens = grammar.sample(5, 80, seed=9)
    probs = grammar.next_token_probs(tokens, num_threads=1)
    assert np.array_equal(grammar.next_token_probs(tokens, num_threads=3), probs)
    tensor = grammar.next_token_probs(torch.from_numpy(tokens.astype(np.int64)))
    assert isinstance(tensor, torch.Tensor)
    assert np.array_equal(tensor.numpy(), probs)
    assert np.array_equal(grammar.next_token_probs(tokens[:, :40]), probs[:, :41])


GOLDEN = {
    "cfg3b": [[0, 1, 2, 2, 0, 1, 1, 0, 1, 0, 0, 1], [2, 0, 1, 2, 0, 2, 1, 0, 2, 1, 2, 1]],
    "cfg3f": [[2, 0, 1, 2, 2, 2, 2, 2, 2, 2, 0, 1], [2, 2, 2, 1, 0, 1, 0, 2, 1, 0, 1, 0]],
}


@pytest.mark.parametrize("name", GOLDEN)
def test_golden_sequences(name):
    assert physics_of_language_models(name).sample(2, 12, seed=7, first=5).tolist() == GOLDEN[name]


def test_a_row_depends_on_seed_and_index_alone():
    grammar = physics_of_language_models("cfg3h")
    rows = grammar.sample(9, 400, seed=11, first=3)
    for j in range(9):
        assert np.array_equal(grammar.sample(1, 400, seed=11, first=3 + j)[0], rows[j])
    assert np.array_equal(grammar.sample(3, 400, seed=11, first=3, step=4), rows[::4])
    assert np.array_equal(grammar.sample(9, 400, seed=11, first=3, num_threads=3), rows)
    assert np.array_equal(grammar.sample(9, 77, seed=11, first=3), rows[:, :77])
    assert np.array_equal(grammar.sample(2, 9, seed=11, first=2**64 - 1)[1], grammar.sample(1, 9, seed=11)[0])
    assert len({tuple(row) for row in rows.tolist()}) == 9


def test_deep_recursion_outgrows_the_first_stack():
    grammar = PCFG.from_rules("S -> S x [0.999] | x [0.001]")
    row = grammar.sample(1, 5000, seed=1)[0]
    assert set(row.tolist()) == {0, 1}
    assert np.array_equal(grammar.sample(1, 20, seed=1)[0], row[:20])


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["FINITE", "NESTED"])
def test_sentences_are_drawn_with_their_probabilities(name):
    """Chi-square test of the first and the second sentence of 20,000 rows, each with p above 1e-4."""
    grammar = PCFG.from_rules(LANGUAGES[name])
    language = sentences(LANGUAGES[name], "S", LONGEST[name])
    rows = grammar.sample(20000, 64, seed=5).tolist()
    common = sorted(language, key=language.get, reverse=True)[:40]
    common = [sentence for sentence in common if language[sentence] * len(rows) > 5]
    for which in range(2):
        counts = dict.fromkeys(common, 0)
        for row in rows:
            text = " ".join(grammar.vocabulary[x] for x in row)
            sentence = tuple(text.split("end")[which].split())
            if sentence in counts:
                counts[sentence] += 1
        observed = [*counts.values(), len(rows) - sum(counts.values())]
        expected = [language[sentence] for sentence in common]
        expected.append(1 - sum(expected))
        assert stats.chisquare(observed, np.array(expected) * len(rows)).pvalue > 1e-4


def test_the_next_token_is_drawn_from_its_distribution():
    """Draws fall into ten equally likely bins of the probability below them (randomized), with p above 1e-4."""
    grammar = physics_of_language_models("cfg3g")
    rows = grammar.sample(40, 500, seed=8)
    probs = grammar.next_token_probs(rows)[:, :-1]
    below = np.cumsum(probs, axis=-1)
    own = np.take_along_axis(probs, rows[..., None].astype(int), -1)[..., 0]
    upper = np.take_along_axis(below, rows[..., None].astype(int), -1)[..., 0]
    assert (own > 0).all()
    uniform = upper - own * np.random.default_rng(0).random(own.shape)
    counts = np.histogram(uniform, bins=10, range=(0, 1))[0]
    assert stats.chisquare(counts).pvalue > 1e-4


@pytest.mark.parametrize("text", ["S -> a S b [0.3] | c [0.7]", "S -> a [0.5] | b [0.5]"])
def test_a_saved_grammar_comes_back_with_the_same_stream(text, tmp_path):
    grammar = PCFG.from_rules(text)
    grammar.save_pretrained(tmp_path / "grammar")
    loaded = load_source(tmp_path / "grammar")
    assert isinstance(loaded, PCFG)
    assert (loaded.fingerprint(), loaded.vocabulary) == (grammar.fingerprint(), grammar.vocabulary)
    assert loaded.nonterminals == grammar.nonterminals
    assert np.array_equal(loaded.sample(4, 30, seed=3), grammar.sample(4, 30, seed=3))
    assert PCFG.from_rules("S -> a [0.4] | b [0.6]").fingerprint() != grammar.fingerprint()


def test_probabilities_that_are_wrong_by_rounding_are_rescaled():
    given = {"rules": [[0, 1, 0]], "words": [[0, 0], [1, 1]]}
    rounded = PCFG(**given, rule_probs=[0.4 * (1 + 1e-6)], word_probs=[0.6 * (1 + 1e-6), 1.0 - 1e-6])
    exact = PCFG(**given, rule_probs=[0.4], word_probs=[0.6, 1.0])
    tokens = [[1, 0, 2], [0, 2, 2]]
    np.testing.assert_allclose(rounded.log_likelihood(tokens), exact.log_likelihood(tokens), rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rule_probs": [0.5]}, "nonterminal 0 have probabilities that sum to 1.1, not 1"),
        ({"rules": [[0, 1, 2]]}, "nonterminal 2 have probabilities that sum to 0, not 1"),
        ({"rules": [[0, 1]]}, r"rules is int64 of shape \(1, 2\); expected integers, 3 per rule"),
        ({"rules": [[0, -1, 1]]}, r"rules\[0\] is \[0, -1, 1\]; expected numbers of 0 or more"),
        ({"word_probs": [0.6, 0.0]}, r"word_probs\[1\] is 0.0; expected a positive probability"),
        ({"word_probs": [0.6]}, "word_probs has 1 entries; expected 2"),
        ({"words": []}, "words is empty"),
        ({"num_symbols": 2}, "num_symbols is 2; expected 3 or more"),
        ({"vocabulary": ["a", "b"]}, "vocabulary has 2 names; expected 3"),
        ({"nonterminals": ["A"]}, "nonterminals has 1 names; expected 2"),
        ({"words": [[0, 0], [0, 0], [1, 1]], "word_probs": [0.3, 0.3, 1]}, r"words has \[0, 0\] more than once"),
    ],
)
def test_what_is_not_a_grammar_is_refused(changes, message):
    given = {"rules": [[0, 1, 0]], "rule_probs": [0.4], "words": [[0, 0], [1, 1]], "word_probs": [0.6, 1.0]}
    assert PCFG(**given).mean_sentence_length == pytest.approx(5 / 3)
    with pytest.raises(InputError, match=message):
        PCFG(**given | changes)


@pytest.mark.parametrize("probability", [0.5, 0.6])
def test_sentences_of_infinite_expected_length_are_refused(probability):
    with pytest.raises(InputError, match=r"infinite: .* spectral radius 1.* nonterminal 'S' derives itself"):
        PCFG.from_rules({"S": {"S S": probability, "x": 1 - probability}})


def test_optimal_loss_is_the_entropy_of_the_law():
    grammar = PCFG.from_rules(FINITE)
    loss = grammar.optimal_loss(3, num_sequences=4000, seed=1)
    language = sentences(FINITE, "S", 12)
    first = np.array(next_word_probs(language, grammar.vocabulary, [])[0])
    assert loss.nats[0] == pytest.approx(-(first[first > 0] * np.log(first[first > 0])).sum(), abs=1e-10)
    assert not grammar.is_stationary


def test_grammars_with_other_rules_have_other_laws():
    assert len({random_hierarchy(4, 2, seed=seed).fingerprint() for seed in range(5)}) == 5
