"""Columns of what is known of sequences: equal to the HMM's own methods, streamed, prepared and resumed alike."""

from itertools import islice

import numpy as np
import pytest
from datasets import load_dataset

from hmm_datasets.data.builders.columns import KNOWN_COLUMNS, TOKEN_COLUMNS
from hmm_datasets.data.sequences import TEST_FIRST
from hmm_datasets.errors import InputError
from hmm_datasets.hmm import processes
from hmm_datasets.hmm.families import Family, HMMMixture, PermutedEmissions, PermutedSymbols, RandomChains
from hmm_datasets.hmm.model import HMM

NAMES = ("the", "cat", "sat", "on")
NAMED = HMM(**processes.random(3, 4, alpha=0.5, seed=2).tables(), vocabulary=NAMES)
SOURCES = {
    "states emit": NAMED,
    "edges emit": processes.zero_one_random(),
    "symbols permuted": PermutedSymbols(NAMED, group=3),
    "emissions permuted": PermutedEmissions(NAMED, group=2),
    "mixture": HMMMixture((processes.golden_mean(), processes.even()), (0.25, 0.75), group=2),
    "chains": RandomChains(3, alpha=0.7, group=2),
}
LENGTH, SEED = 6, 4


@pytest.fixture(params=SOURCES)
def source(request):
    return SOURCES[request.param]


@pytest.fixture
def load(tmp_path):
    def load(source, columns, **settings):
        folder = tmp_path / source.fingerprint()
        source.save_pretrained(folder)
        settings = {"length": LENGTH, "seed": SEED, "split": "train", "streaming": True, **settings}
        cache = str(tmp_path / "cache")
        return load_dataset("hmm", data_dir=str(folder), columns=list(columns), cache_dir=cache, **settings)

    return load


def columns_of(source) -> list[str]:
    """All columns that a source has."""
    is_hmm = isinstance(source, HMM)
    (named, *_) = (source,) if is_hmm else (*source.parts(), processes.mess3(0.15, 0.6))
    without = set() if is_hmm else {"beliefs"}
    without |= set() if named.vocabulary else {"text"}
    return [name for name in (*TOKEN_COLUMNS, *KNOWN_COLUMNS) if name not in without]


def hmm_of(source, index) -> HMM:
    return source if isinstance(source, HMM) else source.hmm_at(SEED, index)


# States


@pytest.mark.thorough
def test_drawing_states_changes_no_symbol(source):
    symbols, states = source.sample_with_states(500, 40, SEED, first=9, step=3)
    np.testing.assert_array_equal(symbols, source.sample(500, 40, SEED, first=9, step=3))
    parts = [source.sample_with_states(1, 40, SEED, first=9 + 3 * row)[1][0] for row in (0, 7, 499)]
    np.testing.assert_array_equal(states[[0, 7, 499]], parts)


def test_a_family_without_tables_of_its_own_is_drawn_from_the_hmm_of_each_row(monkeypatch):
    expected = SOURCES["chains"].sample_with_states(9, 20, SEED, first=5, step=3)
    monkeypatch.setattr(type(SOURCES["chains"]), "_own_tables", Family._own_tables)
    np.testing.assert_array_equal(SOURCES["chains"].sample_with_states(9, 20, SEED, first=5, step=3), expected)


def test_states_emit_their_symbols_and_follow_one_another(source):
    symbols, states = source.sample_with_states(200, 30, SEED)
    for index in range(200):
        tables = hmm_of(source, index).tables()
        here, there, seen = states[index, :-1], states[index, 1:], symbols[index]
        assert (tables["start"][states[index, 0]] > 0).all()
        if "edges" in tables:
            assert (tables["edges"][seen[:-1], here, there] > 0).all()
        else:
            assert (tables["emission"][states[index], seen] > 0).all()
            assert (tables["transition"][here, there] > 0).all()


@pytest.mark.thorough
def test_given_the_symbols_states_are_distributed_as_the_posterior_says():
    """Sums of indicator minus posterior, per state, position and symbol, within five standard errors of zero."""
    for hmm in (NAMED, processes.zero_one_random()):
        symbols, states = hmm.sample_with_states(20_000, 8, SEED)
        posteriors = hmm.posteriors(symbols)
        rest = np.eye(hmm.num_states)[states] - posteriors
        error = np.sqrt((posteriors * (1 - posteriors)).sum(0))
        assert (np.abs(rest.sum(0)) <= 5 * error + 1e-6).all()
        for symbol in range(hmm.num_symbols):
            chosen = (symbols == symbol)[..., None]
            error = np.sqrt((posteriors * (1 - posteriors) * chosen).sum((0, 1)))
            assert (np.abs((rest * chosen).sum((0, 1))) <= 5 * error + 1e-6).all()


# Columns


@pytest.mark.thorough
def test_columns_are_what_the_process_itself_computes(source, load):
    columns = columns_of(source)
    rows = list(islice(load(source, columns), 50))
    assert list(rows[0]) == columns
    symbols, states = source.sample_with_states(50, LENGTH, SEED)
    found = {name: np.array([row[name] for row in rows]) for name in columns if name not in ("own_hmm", "text")}
    assert (found["input_ids"][:, 0] == source.num_symbols).all()
    np.testing.assert_array_equal(found["input_ids"][:, 1:], symbols)
    np.testing.assert_array_equal(found["labels"][:, 1:], symbols)
    assert (found["labels"][:, 0] == -100).all()
    assert (found["attention_mask"] == 1).all()
    np.testing.assert_array_equal(found["states"], states)
    probs = source.next_token_probs(symbols)
    np.testing.assert_allclose(found["next_token_probs"], probs, atol=1e-6)
    np.testing.assert_allclose(found["log_probs"].sum(1), source.log_likelihood(symbols), atol=1e-5)
    entropies = -np.where(probs > 0, probs * np.log(np.where(probs > 0, probs, 1)), 0).sum(-1)
    np.testing.assert_allclose(found["entropies"], entropies[:, :-1], atol=1e-6)
    own = [float(hmm_of(source, index).log_likelihood(symbols[index : index + 1])[0]) for index in range(50)]
    np.testing.assert_allclose(found["oracle_log_probs"].sum(1), own, atol=1e-5)
    if isinstance(source, HMM):
        np.testing.assert_allclose(found["beliefs"], source.beliefs(symbols), atol=1e-6)
        np.testing.assert_array_equal(found["oracle_entropies"], found["entropies"])
    else:
        assert found["oracle_entropies"].mean() < found["entropies"].mean()
    for index, row in enumerate(rows):
        tables = {name: np.array(table) for name, table in row["own_hmm"].items() if table is not None}
        assert HMM(**tables) == HMM(**hmm_of(source, index).tables())
    if "text" in columns:
        assert rows[3]["text"] == " ".join(NAMES[symbol] for symbol in symbols[3])


@pytest.mark.thorough
def test_a_stream_a_resumed_one_and_a_prepared_data_set_have_the_same_rows(source, load):
    columns = columns_of(source)
    settings = {"num_sequences": 300, "num_test_sequences": 4, "bos": False, "split": None}
    stream, table = load(source, columns, **settings), load(source, columns, streaming=False, **settings)
    rows = list(stream["train"])
    assert stream["train"].features == table["train"].features
    assert table["train"].to_list() == rows
    assert list(stream["test"]) == table["test"].to_list()
    test = source.sample(4, LENGTH, SEED, first=TEST_FIRST)
    np.testing.assert_array_equal([row["input_ids"] for row in stream["test"]], test)
    first = load(source, columns, **settings)["train"]
    assert list(islice(first, 130)) == rows[:130]
    resumed = load(source, columns, **settings)["train"]
    resumed.load_state_dict(first.state_dict())
    assert list(resumed) == rows[130:]
    shards = [list(stream["train"].shard(3, index)) for index in range(3)]
    assert [shards[number % 3][number // 3] for number in range(300)] == rows


def test_arrow_batches_have_the_rows_of_the_list(load):
    columns = ["states", "log_probs", "input_ids"]
    rows = list(islice(load(NAMED, columns), 20))
    batch = next(iter(load(NAMED, columns).with_format("numpy").batch(20)))
    assert list(batch) == columns
    for name in columns:
        np.testing.assert_array_equal(batch[name], np.array([row[name] for row in rows]))


@pytest.mark.thorough
def test_large_distributions_are_computed_in_small_tables(load):
    hmm = processes.random(40, 500, seed=1)
    (row,) = islice(load(hmm, ["next_token_probs"], length=64), 1)
    np.testing.assert_allclose(np.sum(row["next_token_probs"], axis=-1), np.ones(65), atol=1e-4)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("source", "columns", "message"),
    [
        (NAMED, ["input_ids", "state"], "columns are input_ids, state; expected some of input_ids, labels"),
        (NAMED, ["states", "states"], "columns are states, states; expected some of"),
        (NAMED, [], "columns are empty; expected some of"),
        (SOURCES["chains"], ["beliefs"], "RandomChains has no beliefs, since its rows are of different HMMs"),
        (
            PermutedSymbols(processes.random(2, 9, seed=0)),
            ["log_probs", "entropies"],
            "PermutedSymbols cannot compute entropies, log_probs for so many possible HMMs; choose oracle_log_probs",
        ),
        (processes.mess3(0.15, 0.6), ["text"], "no text, since the symbols have no names; give the HMM a vocabulary"),
    ],
)
def test_columns_that_cannot_be_are_refused_in_one_line(source, columns, message, load):
    with pytest.raises(InputError) as caught:
        load(source, columns)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
