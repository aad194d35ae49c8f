"""Sequences in files and by name: what users of other tools have at hand."""

import hypothesis
import numpy as np
import pandas as pd
import pytest
from hypothesis import strategies as st

from hmm_datasets import HMM, InputError, fit_hmm
from hmm_datasets.hmm.generalized import GeneralizedHMM
from hmm_datasets.hmm.named_tokens import symbols_of_names
from hmm_datasets.hmm.token_files import is_token_file, read_token_rows

ROWS = [[0, 1, 2], [2, 0], [1, 1, 0, 2]]
WEATHER = ("rain", "snow", "sun")


def as_lists(rows) -> list[list[int]]:
    lengths = [rows.tokens.shape[1]] * len(rows.tokens) if rows.lengths is None else rows.lengths
    return [row[:length].tolist() for row, length in zip(rows.tokens, lengths, strict=True)]


@pytest.mark.parametrize(
    "text",
    ["0 1 2\n2 0\n1 1 0 2\n", "0,1,2\r\n2,0\r\n\r\n1, 1, 0, 2", "\ufeff0\t1\t2\n2;0\n 1 1 0 2 "],
    ids=["spaces", "commas", "tabs"],
)
@pytest.mark.parametrize("suffix", ["txt", "csv"])
def test_a_line_of_integers_is_a_sequence(text, suffix, tmp_path):
    path = tmp_path / f"tokens.{suffix}"
    path.write_text(text, encoding="utf-8", newline="")
    assert is_token_file(path)
    assert as_lists(read_token_rows(path)) == ROWS


def test_a_story_is_no_file_of_symbols_and_a_wrong_line_is_named(tmp_path):
    path = tmp_path / "story.txt"
    path.write_text("In 1998 there were 3 cats.\n12 of them sat.\n")
    assert not is_token_file(path)
    path.write_text("0 1\n" * 200 + "0 x 1\n")
    assert is_token_file(path)
    with pytest.raises(InputError, match=r"story\.txt, line 201: 'x' is no symbol; expected a sequence of integers"):
        read_token_rows(path)
    path.write_text(f"0 1\n1 {10**30}\n")
    with pytest.raises(InputError, match=r"line 2: '1000000"):
        read_token_rows(path)


def test_archives_have_tokens_and_lengths_in_either_form(tmp_path):
    path, lengths = tmp_path / "tokens.npz", np.array([3, 2, 4])
    np.savez(path, tokens=np.concatenate(ROWS), lengths=lengths)
    assert as_lists(read_token_rows(path)) == ROWS
    padded = np.array([[0, 1, 2, 9], [2, 0, 9, 9], [1, 1, 0, 2]])
    np.savez(path, tokens=padded, lengths=lengths)
    assert as_lists(read_token_rows(path)) == ROWS
    np.savez(path, tokens=padded)
    assert read_token_rows(path).lengths is None
    np.savez(path, x=padded)
    with pytest.raises(InputError, match=r"has the arrays x; expected tokens, and lengths if needed"):
        read_token_rows(path)
    np.savez(path, tokens=padded, lengths=lengths[:2])
    with pytest.raises(InputError, match=r"int64 of shape \(3, 4\), lengths \(2,\); expected integers of shape"):
        read_token_rows(path)
    np.savez(path, tokens=np.array([np.array(row) for row in ROWS], dtype=object))
    with pytest.raises(InputError, match=r"array of objects, .* write numpy\.savez\(file, tokens=numpy\.concatenate"):
        read_token_rows(path)


@pytest.mark.outside(
    "https://github.com/hmmlearn/hmmlearn/issues/381",
    "observations of different lengths, which an array of lists could not hold",
    "a line for each in a text, `.npz` with `lengths`, or hmmlearn's column with `--lengths`",
)
def test_a_column_of_hmmlearn_has_its_lengths_in_another_file(tmp_path):
    tokens, lengths = tmp_path / "x.npy", tmp_path / "lengths.npy"
    np.save(tokens, np.concatenate(ROWS)[:, None])
    np.save(lengths, [3, 2, 4])
    assert as_lists(read_token_rows(tokens, lengths)) == ROWS
    np.save(lengths, [3, 2, 5])
    with pytest.raises(InputError, match=r"x\.npy: lengths sum to 10; expected 9"):
        read_token_rows(tokens, lengths)


@pytest.mark.outside(
    "https://github.com/hmmlearn/hmmlearn/issues/79",
    "sequences of words, and what comes after a part of one",
    "an HMM with a vocabulary takes names as tokens",
)
def test_names_are_tokens_of_an_hmm_with_a_vocabulary():
    hmm = HMM(transition=[[0.9, 0.1], [0.2, 0.8]], emission=[[0.7, 0.1, 0.2], [0.1, 0.1, 0.8]], vocabulary=WEATHER)
    names = [["sun", "rain", "sun"], ["snow", "sun", "sun"]]
    tokens = np.array([[2, 0, 2], [1, 2, 2]])
    for given in (names, np.array(names), pd.DataFrame(names), np.array(names, dtype=object)):
        assert np.array_equal(hmm.log_likelihood(given), hmm.log_likelihood(tokens))
    assert np.array_equal(hmm.viterbi(names).states, hmm.viterbi(tokens).states)
    assert np.array_equal(hmm.next_token_probs(names), hmm.next_token_probs(tokens))
    assert np.array_equal(hmm.sample(2, 4, prefix=names), hmm.sample(2, 4, prefix=tokens))
    assert np.array_equal(hmm.sample(2, 4, prefix=["sun", "rain"]), hmm.sample(2, 4, prefix=[2, 0]))
    assert np.array_equal(hmm.posteriors([["sun", None, "sun"]]), hmm.posteriors([[2, -1, 2]]))
    with pytest.raises(InputError, match=r"tokens\[0, 1\] is 'rian', no name in the vocabulary; did you mean rain\?"):
        hmm.log_likelihood([["sun", "rian"]])
    with pytest.raises(InputError, match=r"tokens are ragged; expected rows of equal length, padded with None"):
        hmm.log_likelihood([["sun", "rain"], ["sun"]])
    with pytest.raises(InputError, match=r"tokens\[0, 1\] is 3 beside names; expected a name"):
        hmm.log_likelihood([["sun", 3]])
    assert symbols_of_names([["sun", float("nan"), pd.NA]], WEATHER).tolist() == [[2, -1, -1]]


@pytest.mark.outside(
    "https://github.com/hmmlearn/hmmlearn/pull/501",
    "sequences without some of the symbols, so that the alphabet has to be declared",
    "`vocabulary=` or `num_symbols=`",
)
def test_a_vocabulary_declares_symbols_that_do_not_occur():
    names = [["sun", "rain", "sun", "sun"], ["rain", "rain", "sun", "sun"]]
    known = {"num_states": 2, "max_epochs": 3, "show_progress": False}
    result = fit_hmm(names, vocabulary=WEATHER, test_tokens=[["sun", "sun"]], **known)
    assert (result.hmm.num_symbols, result.hmm.vocabulary) == (3, WEATHER)
    numbers = fit_hmm([[2, 0, 2, 2], [0, 0, 2, 2]], num_symbols=3, test_tokens=[[2, 2]], **known)
    assert result.hmm == numbers.hmm
    assert fit_hmm(names, initial=result.hmm, max_epochs=1, show_progress=False).hmm.vocabulary == WEATHER


def test_labels_from_1_are_answered_where_the_alphabet_is_declared():
    for given in ({"num_symbols": 6}, {"vocabulary": "abcdef"}, {"num_symbols": 6, "lengths": [3, 2]}):
        with pytest.raises(
            InputError, match=r"\] is 6; the symbols of this HMM are 0\.\.5, .*; subtract 1 from labels"
        ):
            fit_hmm([[1, 2, 6], [3, 4, 0 if "lengths" in given else 5]], num_states=2, **given)


@pytest.mark.parametrize(
    ("tokens", "lengths", "message"),
    [
        (
            [[1, 2, 6], [6, 1, 2]],
            None,
            "tokens are 1..6, but symbols are numbered from 0; subtract 1 from labels that",
        ),
        ([[1, 2, 2], [2, 1, 0]], [3, 2], "or give num_symbols=3 if 0 is a symbol that does not occur"),
        ([[1001, 5_000_000], [1001, 1002]], None, "number the symbols without gaps, as numpy.unique(tokens, return_"),
    ],
)
def test_labels_that_are_no_symbols_are_answered_with_a_remedy_that_works(tokens, lengths, message):
    with pytest.raises(InputError) as caught:
        fit_hmm(tokens, num_states=2, lengths=lengths, show_progress=False)
    assert message in str(caught.value)
    symbols = np.subtract(tokens, 1)
    if symbols.max() > 100:
        symbols = np.unique(tokens, return_inverse=True)[1].reshape(np.shape(tokens))
    fit_hmm(symbols, num_states=2, lengths=lengths, max_epochs=1, show_progress=False)


@hypothesis.settings(max_examples=60, deadline=None)
@hypothesis.given(st.lists(st.sampled_from("abcde"), min_size=2, max_size=5))
@pytest.mark.outside(
    "https://github.com/PaddlePaddle/PaddleNLP/issues/5974",
    "a vocabulary with the same token in two lines, of which an id is lost",
    "two equal names of symbols are refused by their places, in HMMs, words and files of tokenizers",
)
def test_two_equal_symbols_of_a_vocabulary_are_refused_wherever_one_is_given(names):
    symbols = len(names)
    table = np.full((2, symbols), 1 / symbols)
    takers = (
        lambda: HMM(transition=np.full((2, 2), 0.5), emission=table, vocabulary=names),
        lambda: GeneralizedHMM(np.full((symbols, 1, 1), 1 / symbols), vocabulary=names),
        lambda: fit_hmm([names], num_states=1, vocabulary=names, max_epochs=1, show_progress=False),
    )
    for take in takers:
        if len(set(names)) == symbols:
            take()
            continue
        with pytest.raises(InputError, match=r"vocabulary\[\d\] and vocabulary\[\d\] are both '[a-e]'"):
            take()
