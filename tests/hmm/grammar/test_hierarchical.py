import math

import numpy as np
import pytest

from hmm_datasets import InputError
from hmm_datasets.hmm.grammar import physics_of_language_models, random_hierarchy

# Published nowhere to this precision; sampled sentences agree with them below.
MEAN_LENGTHS = {"cfg3b": 275.625, "cfg3i": 308.09375, "cfg3f": 249.86029}


@pytest.mark.thorough
@pytest.mark.parametrize("name", MEAN_LENGTHS)
def test_published_grammars_have_sentences_of_hundreds_of_words(name):
    grammar = physics_of_language_models(name)
    assert grammar.mean_sentence_length == pytest.approx(MEAN_LENGTHS[name], abs=1e-4)
    rows = grammar.sample(300, 3000, seed=2)
    ends = [np.flatnonzero(row == grammar.end) for row in rows]
    lengths = np.concatenate([np.diff(places) - 1 for places in ends])
    assert lengths.min() >= 2**6
    assert lengths.max() <= 3**6
    # Complete sentences in a row are shorter than the average by the one that is cut off.
    assert lengths.mean() == pytest.approx(MEAN_LENGTHS[name], rel=0.03)


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["cfg3b", "cfg3i", "cfg3h", "cfg3g", "cfg3f", "cfg3j", "cfg3k"])
def test_published_grammars_have_seven_or_eight_levels_of_three(name):
    grammar = physics_of_language_models(name)
    levels = 7 if name in ("cfg3j", "cfg3k") else 6
    named = [name for name in grammar.nonterminals if name.isdigit()]
    assert len(named) == 1 + 3 * (levels - 1)
    assert grammar.vocabulary == ("1", "2", "3", "end")
    assert np.abs(grammar.next_token_probs(grammar.sample(1, 50))[0].sum(axis=-1) - 1).max() < 1e-13


def test_a_first_rule_of_cfg3f_is_the_published_one():
    grammar = physics_of_language_models("cfg3f")
    top = {
        tuple(grammar.nonterminals[x] for x in rule[1:]): probability
        for rule, probability in zip(grammar.rules, grammar.rule_probs, strict=True)
        if rule[0] == 0
    }
    expected = [("20", "21"), ("20", "<19 21>"), ("21", "<19 19>"), ("20", "20")]
    assert top == dict.fromkeys(expected, 0.25)


def test_every_sentence_of_the_random_hierarchy_model_is_equally_likely():
    """One derivation per sentence: `ln(classes) + ln(m) (s^L - 1) / (s - 1)` nats, for every sentence."""
    grammar = random_hierarchy(6, 3, branching=3, depth=3, num_classes=4, seed=5)
    rows = grammar.sample(20, 28, seed=1)
    assert (rows[:, -1] == grammar.end).all()
    expected = -(math.log(4) + math.log(3) * (27 - 1) / 2)
    assert grammar.log_likelihood(rows) == pytest.approx(np.full(20, expected), abs=1e-10)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: physics_of_language_models("cfg3x"), "name is 'cfg3x'; expected one of cfg3b, cfg3f"),
        (lambda: random_hierarchy(3, 4), "num_rules is 4: a level needs 12 different right sides, and there are 9"),
        (lambda: random_hierarchy(3, 0), "num_rules is 0"),
    ],
)
def test_impossible_shapes_are_refused(make, message):
    with pytest.raises(InputError, match=message):
        make()
