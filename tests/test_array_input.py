"""Arrays of users: what was observed is read, what is missing is named, in every method of every kind of process."""

import contextlib
import itertools
from fractions import Fraction

import datasets
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch

from hmm_datasets import HMM, FitSettings, GeneralizedHMM, TiltedHMM, processes
from hmm_datasets.array_input import integer_array, integers_with_gaps, numbers
from hmm_datasets.data.interleaving import InterleavedRows
from hmm_datasets.errors import InputError
from hmm_datasets.evaluation.metrics import load_metric
from hmm_datasets.hmm.analysis.losses import window_losses
from hmm_datasets.hmm.analysis.predictors import cross_entropy, predictors_of
from hmm_datasets.hmm.arrays import rows_of_column
from hmm_datasets.hmm.fitting.fit import fit_hmm
from hmm_datasets.hmm.integers import integer
from hmm_datasets.paired_differences import paired_difference, ratio_interval
from hmm_datasets.statistics import clustered_mean
from hmm_datasets.text.stream import write_tokens

HIDDEN = HMM(start=[0.6, 0.4], transition=[[0.7, 0.3], [0.2, 0.8]], emission=[[0.5, 0.3, 0.2], [0.1, 0.2, 0.7]])
TOKENS = np.array([[0, 1, 2, 0], [2, 2, 1, 0]])
MASK = np.zeros((2, 4), bool)
MASK[1, 2] = True


def nullable(missing: bool) -> pd.DataFrame:
    columns = {name: pd.array(TOKENS[:, name], "Int64") for name in range(4)}
    if missing:
        columns[2] = pd.array([2, pd.NA], "Int64")
    return pd.DataFrame(columns)


OBSERVED = {
    "a list": TOKENS.tolist(),
    "bytes": TOKENS.astype(np.uint8),
    "signed bytes": TOKENS.astype(np.int8),
    "big-endian": TOKENS.astype(">i4"),
    "64 unsigned bits": TOKENS.astype(np.uint64),
    "objects": TOKENS.astype(object),
    "a mask without entries": np.ma.masked_array(TOKENS, np.zeros((2, 4))),
    "rows with such masks": [np.ma.masked_array(row) for row in TOKENS],
    "pandas": pd.DataFrame(TOKENS),
    "nullable pandas": nullable(False),
    "a column of lists": pd.Series(TOKENS.tolist()),
    "Arrow": pa.array(TOKENS.tolist()),
    "a column of datasets": datasets.Dataset.from_dict({"tokens": TOKENS.tolist()})["tokens"],
    "tensors": [torch.tensor(row) for row in TOKENS],
}
TENSORS = {
    str(dtype): torch.tensor(TOKENS).to(dtype)
    for dtype in (torch.uint8, torch.int8, torch.int16, torch.int32, torch.uint64, torch.int64)
}
MISSING = {
    "a masked array": np.ma.masked_array(TOKENS, MASK),
    "masked rows": [np.ma.masked_array(row, mask) for row, mask in zip(TOKENS, MASK, strict=True)],
    "masked objects": np.ma.masked_array(TOKENS.astype(object), MASK),
    "None": np.where(MASK, None, TOKENS.astype(object)).tolist(),
    "objects with None": np.where(MASK, None, TOKENS.astype(object)),
    "NA": nullable(True),
    "NaN": np.where(MASK, np.nan, TOKENS),
    "Arrow's nulls": pa.array(np.where(MASK, None, TOKENS.astype(object)).tolist()),
    "the constant of numpy": [[0, 1, 2, 0], [2, 2, np.ma.masked, 0]],
}
OTHERS = {
    "booleans": (TOKENS > 0, "tokens have type bool"),
    "boolean tensors": (torch.tensor(TOKENS > 0), "tokens have type bool"),
    "a boolean beside numbers": ([[0, True, 2, 0]], "booleans beside numbers"),
    "whole floats": (TOKENS * 1.0, r"tokens have type float64; expected integers; convert them with .astype\(int\)"),
    "fractions": (TOKENS * 0.5, r"tokens\[0, 1\] is 0.5"),
    "tensors of floats": (torch.tensor(TOKENS).half(), "tokens have type float16"),
    "complex numbers": (TOKENS + 0j, "tokens have type complex128"),
    "strings": (TOKENS.astype(str), "tokens have type <U"),
    "huge numbers": ([[0, 2**70]], r"tokens\[0, 1\] is 1180591620717411303424"),
    "numbers beyond 63 bits": (np.array([[0, 2**64 - 1]], np.uint64), r"tokens\[0, 1\] is 18446744073709551615"),
    "sparse tensors": (torch.tensor(TOKENS).to_sparse(), "expected a dense one"),
}


@pytest.mark.parametrize("given", (OBSERVED | TENSORS).values(), ids=OBSERVED | TENSORS)
def test_what_was_observed_is_read(given):
    expected = HIDDEN.log_likelihood(TOKENS)
    np.testing.assert_array_equal(np.asarray(HIDDEN.log_likelihood(given)), expected)
    np.testing.assert_array_equal(
        np.asarray(HIDDEN.log_likelihood(given, lengths=pd.Series([4, 4], dtype="Int64"))), expected
    )


@pytest.mark.outside(
    "https://github.com/probml/dynamax/issues/430",
    "NumPy's masked arrays for missing observations",
    "masked tokens are summed over in inference and in fits",
)
@pytest.mark.outside(
    "https://github.com/hmmlearn/hmmlearn/issues/327",
    "NaN and None as missing values in a fit",
    "the fit is to the observed tokens",
)
@pytest.mark.outside(
    "https://github.com/jmschrei/pomegranate/issues/23",
    "NaN sprinkled into observations",
    "every tenth may be NaN; the likelihood is that of the others",
)
@pytest.mark.parametrize("given", MISSING.values(), ids=MISSING)
def test_what_is_missing_is_summed_over_or_named_by_its_index(given):
    gap = np.where(MASK, -1, TOKENS)
    np.testing.assert_array_equal(HIDDEN.log_likelihood(given), HIDDEN.log_likelihood(gap))
    np.testing.assert_array_equal(HIDDEN.viterbi(given).states, HIDDEN.viterbi(gap).states)
    settings = FitSettings(num_states=2, max_epochs=2)
    fits = [fit_hmm(tokens, settings, test_tokens=tokens, show_progress=False) for tokens in (given, gap)]
    assert fits[0].hmm == fits[1].hmm
    assert fits[0].test_log_likelihood == fits[1].test_log_likelihood
    calls = [
        lambda: window_losses(HIDDEN, given),
        lambda: cross_entropy(predictors_of(HIDDEN)["bayes"], given),
    ]
    for call in calls:
        with pytest.raises(InputError, match=r"tokens\[1, 2\] is missing"):
            call()
    with pytest.raises(InputError, match=r"tokens\[1, 2\] is -1"):
        cross_entropy(HIDDEN.next_token_probs, gap)


@pytest.mark.parametrize(("given", "message"), OTHERS.values(), ids=OTHERS)
def test_what_is_no_symbol_is_refused(given, message):
    with pytest.raises(InputError, match=message):
        HIDDEN.log_likelihood(given)
    with pytest.raises(InputError):
        fit_hmm(given, num_states=2, num_symbols=3, show_progress=False)


def test_missing_tokens_beyond_the_length_of_a_row_are_padding():
    padded = np.ma.masked_array(TOKENS, [[0, 0, 1, 1], [0, 0, 0, 1]])
    expected = HIDDEN.log_likelihood(TOKENS, lengths=[2, 3])
    np.testing.assert_array_equal(HIDDEN.log_likelihood(padded, lengths=[2, 3]), expected)
    np.testing.assert_array_equal(
        HIDDEN.log_likelihood([[0, 1, None, None], [2, 2, 1, None]], lengths=[2, 3]), expected
    )
    gap = np.where(np.ma.getmaskarray(padded), -1, TOKENS)
    np.testing.assert_array_equal(
        HIDDEN.log_likelihood(padded, lengths=[2, 4]), HIDDEN.log_likelihood(gap, lengths=[2, 4])
    )


@pytest.mark.parametrize(
    ("lengths", "message"),
    [
        ([True, True], "lengths have type bool"),
        (torch.tensor([True, True]), "lengths have type bool"),
        ([2.0, 3.0], "lengths have type float64; expected integers, one for each of the 2 rows"),
        ([2, None], r"lengths\[1\] is missing"),
        (np.ma.masked_array([2, 3], [0, 1]), r"lengths\[1\] is missing"),
        (["2", "3"], "lengths have type <U1"),
        (np.array([2, 2**64 - 1], np.uint64), r"lengths\[1\] is 18446744073709551615; expected 0..4"),
        (4, r"lengths have shape \(\)"),
    ],
)
def test_lengths_are_integers(lengths, message):
    for call in (HIDDEN.posteriors, lambda tokens, **given: fit_hmm(tokens, num_states=2, **given)):
        with pytest.raises(InputError, match=message):
            call(TOKENS, lengths=lengths)


def test_lengths_of_a_column_are_not_cut_off():
    for lengths in ([1.5, 2.5], [True, 2], np.ma.masked_array([1, 2], [0, 1])):
        with pytest.raises(InputError):
            rows_of_column([[0], [1], [1]], lengths)
    rows, lengths = rows_of_column(np.ma.masked_array([[0], [1], [1]], [[0], [1], [0]]), [2, 1])
    assert (rows.tolist(), lengths.tolist()) == ([[0, -1], [1, 0]], [2, 1])


TABLE = np.array([[0.75, 0.25], [0.25, 0.75]])


@pytest.mark.parametrize(
    ("table", "message"),
    [
        (np.ma.masked_array(TABLE, [[0, 0], [1, 0]]), r"\[1, 0\] is missing"),
        ([[0.75, None], [0.25, 0.75]], r"\[0, 1\] is missing"),
        (pd.DataFrame([[0.75, pd.NA], [0.25, 0.75]]), r"\[0, 1\] is missing"),
        (TABLE + 0j, "not an array of numbers, but complex128"),
        (TABLE.astype(str), "not an array of numbers, but <U"),
        (np.where(TABLE > 0.5, np.nan, TABLE), r"\[0, 0\] is nan"),
    ],
)
def test_tables_are_complete(table, message):
    for made in (
        lambda: HMM(transition=table, emission=TABLE),
        lambda: HMM(transition=TABLE, emission=table),
        lambda: HMM(edges=[table, TABLE]),
        lambda: TiltedHMM(processes.golden_mean(), table, 1.0, 4),
        lambda: GeneralizedHMM([table, TABLE]),
    ):
        with pytest.raises(InputError):
            made()
    with pytest.raises(InputError, match=message):
        HMM(transition=table, emission=TABLE)


def test_tables_of_other_libraries_are_read():
    expected = HMM(transition=TABLE, emission=TABLE)
    tensor = torch.tensor(TABLE, dtype=torch.bfloat16)
    fractions = [[Fraction(3, 4), 0.25], [0.25, Fraction(3, 4)]]
    given = tensor, torch.tensor(TABLE, requires_grad=True), np.ma.masked_array(TABLE), pd.DataFrame(TABLE), fractions
    for table in given:
        assert HMM(transition=table, emission=table) == expected


@pytest.mark.parametrize("value", [True, np.True_, torch.tensor(True), np.ma.masked_array(3, True), 3.0, None])
def test_sizes_are_no_booleans_and_not_masked(value):
    with pytest.raises(InputError, match="expected an integer"):
        integer("size", value, 0, 31)
    with pytest.raises(InputError):
        HIDDEN.sample(value, 4)


def test_measures_refuse_missing_values():
    masked = np.ma.masked_array([[1.0, 2.0], [3.0, 4.0]], [[1, 0], [0, 0]])
    for call in (
        lambda: clustered_mean(masked),
        lambda: paired_difference(masked[0], [1, 2], [1, 1]),
        lambda: ratio_interval([1, 2], masked[0]),
        lambda: ratio_interval([1, np.nan], [1, 1]),
        lambda: clustered_mean([[1.0, None]]),
        lambda: load_metric("token_cross_entropy").compute(predictions=masked),
        lambda: load_metric("token_cross_entropy").add_batch(predictions=masked),
        lambda: load_metric("bayes_gap").compute(predictions=[[-1.0, None]], references=[[-1.0, -1.0]]),
    ):
        with pytest.raises(InputError, match=r"missing|is NaN"):
            call()


def test_streams_and_mixtures_refuse_what_is_missing(tmp_path):
    settings = {"vocab_size": 8, "eos_id": 0, "tokenizer_hash": "", "corpus": "test"}
    documents = {
        "masked": np.ma.masked_array([5, 6], [0, 1]),
        "None": [5, None],
        "booleans": np.array([True, False]),
        "floats": [5.0, 6.5],
    }
    for name, ids in documents.items():
        with pytest.raises(InputError, match="document 1: token ids"):
            write_tokens([[5], ids], tmp_path / name, **settings)
        assert not (tmp_path / name).exists()
    with pytest.raises(InputError, match=r"weights\[1\] is missing"):
        InterleavedRows([range(3), range(3)], np.ma.masked_array([1.0, 2.0], [0, 1]))


def test_an_array_of_numbers_is_not_copied():
    table, tokens = np.ones((3, 2)), np.ones((3, 2), np.uint16)
    assert numbers("table", table) is table
    assert integer_array("tokens", tokens) is tokens


def test_every_combination_of_entries_is_read_or_named():
    """All rows of three of seven kinds of entries, against the rule itself."""
    entries = [1, np.int8(2), True, 1.5, None, float("nan"), np.ma.masked]
    for row in itertools.product(entries, repeat=3):
        lost = [entry is None or entry is np.ma.masked or entry != entry for entry in row]
        whole = all(type(entry) in (int, np.int8) for entry in row)
        with contextlib.nullcontext() if whole else pytest.raises(InputError):
            assert integer_array("row", list(row)).tolist() == [int(entry) for entry in row]
        if any(lost) and True not in [entry is True for entry in row]:
            with contextlib.suppress(InputError):
                found = numbers("row", list(row))
                assert np.isnan(found[lost]).all()


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize(
    ("kind", "bits"),
    [
        (np.float64, 53),
        (np.float32, 24),
        (np.float16, 11),
        (torch.float64, 53),
        (torch.float32, 24),
        (torch.bfloat16, 8),
    ],
)
def test_beside_gaps_floats_are_integers_up_to_2_to_the_53(kind, bits, sign):
    """From there on a float may have been rounded from another integer: 2**53 + 1 is 2**53, and in float32 2**24 + 1
    is 2**24."""

    def convert(number: int):
        row = [float(sign * number), float("nan"), 0.0]
        return np.array(row, kind) if isinstance(kind, type) else torch.tensor(row, dtype=kind)

    values, missing = integers_with_gaps("tokens", convert(2**bits - 1))
    assert [int(values[0]), bool(missing[1]), int(values[2])] == [sign * (2**bits - 1), True, 0]
    assert float(convert(2**bits + 1)[0]) == sign * 2.0**bits, "two integers are this float"
    with pytest.raises(InputError, match=r"tokens have type b?float"):
        integers_with_gaps("tokens", convert(2**bits))
