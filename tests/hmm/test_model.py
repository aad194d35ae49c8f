import copy
import json
import pickle

import numpy as np
import pytest
import torch
from brute_force import random_edges
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file, save_file

from hmm_datasets.errors import InputError
from hmm_datasets.hmm import processes
from hmm_datasets.hmm.model import HMM

TRANSITION = [[0.9, 0.1], [0.2, 0.8]]
EMISSION = [[0.5, 0.5, 0.0], [0.0, 0.25, 0.75]]
EDGES = processes.mess3(0.15, 0.6).edges


def error(function, *arguments, **settings) -> str:
    with pytest.raises(InputError) as caught:
        function(*arguments, **settings)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def changed(table, index, value):
    table = np.array(table, dtype=float)
    table[index] = value
    return table


# Checks


@pytest.mark.parametrize(
    ("tables", "message"),
    [
        ({}, "an HMM takes either transition= and emission=, or edges= alone; found none of them"),
        ({"transition": TRANSITION}, "found transition"),
        ({"edges": EDGES, "transition": TRANSITION, "emission": EMISSION}, "found transition and emission and edges"),
        ({"edges": EDGES, "emission": EMISSION}, "found emission and edges"),
        (
            {"transition": changed(TRANSITION, (1, 0), 0.17), "emission": EMISSION},
            "transition[1] sums to 0.97, not 1; pass normalize=True to rescale rows",
        ),
        ({"transition": TRANSITION, "emission": changed(EMISSION, (0, 2), 0.5)}, "emission[0] sums to 1.5, not 1"),
        (
            {"transition": changed(TRANSITION, (0, 1), -0.1), "emission": EMISSION},
            "transition[0, 1] is -0.1; expected a probability",
        ),
        (
            {"transition": TRANSITION, "emission": changed(EMISSION, (1, 2), np.nan)},
            "emission[1, 2] is nan; expected a probability",
        ),
        ({"transition": changed(TRANSITION, (0, 0), np.inf), "emission": EMISSION}, "transition[0, 0] is inf"),
        ({"transition": TRANSITION, "emission": EMISSION, "start": [0.5, 0.4]}, "start sums to 0.9, not 1"),
        (
            {"transition": TRANSITION, "emission": EMISSION, "start": [0.5, 0.5, 0.0]},
            "start has shape (3,); expected (2,), one entry per state",
        ),
        ({"transition": TRANSITION, "emission": EMISSION, "start": [[1.0, 0.0]]}, "start has shape (1, 2)"),
        (
            {"transition": TRANSITION, "emission": np.full((3, 2), 0.5)},
            "transition has shape (2, 2) and emission (3, 2); expected (H, H) and (H, E) with the same H",
        ),
        ({"transition": np.full((2, 3), 1 / 3), "emission": EMISSION}, "transition has shape (2, 3)"),
        ({"transition": np.empty((0, 0)), "emission": np.empty((0, 2))}, "transition has shape (0, 0); expected"),
        ({"transition": [[1.0], [0.5, 0.5]], "emission": EMISSION}, "transition is not an array of numbers"),
        ({"transition": "abc", "emission": EMISSION}, "transition is not an array of numbers"),
        ({"edges": changed(EDGES, (1, 0, 2), -1)}, "edges[1, 0, 2] is -1.0; expected a probability"),
        ({"edges": changed(EDGES, (1, 2, 0), 0.5)}, "edges[:, 2] sums to"),
        ({"edges": np.full((2, 2, 3), 1 / 6)}, "edges has shape (2, 2, 3); expected (E, H, H)"),
        ({"edges": TRANSITION}, "edges has shape (2, 2); expected 3 axes"),
        (
            {"transition": TRANSITION, "emission": EMISSION, "vocabulary": ["a", "b"]},
            "vocabulary has 2 names; expected 3, one per symbol",
        ),
        (
            {"transition": TRANSITION, "emission": changed(EMISSION, 1, 0), "normalize": True},
            "emission[1] sums to 0, not 1; give it a positive entry",
        ),
    ],
)
def test_a_table_that_is_not_a_distribution_is_refused_by_name_and_row(tables, message):
    assert message in error(HMM, **tables)


def test_normalize_rescales_rows_and_keeps_zeros():
    hmm = HMM(start=[2, 6], transition=[[9, 1], [1, 4]], emission=[[2, 2, 0], [0, 1, 3]], normalize=True)
    np.testing.assert_array_equal(hmm.start, [0.25, 0.75])
    np.testing.assert_allclose(hmm.transition, TRANSITION, rtol=1e-15)
    np.testing.assert_allclose(hmm.emission, EMISSION, rtol=1e-15)
    edges = HMM(edges=EDGES * [[[2], [3], [5]]], normalize=True).edges
    np.testing.assert_allclose(edges, EDGES, rtol=1e-14)


def test_rows_off_by_float32_rounding_are_taken_and_rescaled():
    hmm = HMM(transition=np.float32(TRANSITION) * np.float32(1.000001), emission=EMISSION)
    np.testing.assert_allclose(hmm.transition.sum(1), 1, rtol=0, atol=1e-15)
    assert "sums to" in error(HMM, transition=np.array(TRANSITION) * 1.0001, emission=EMISSION)


def test_tables_are_read_only_and_do_not_follow_the_arrays_they_came_from():
    transition = np.array(TRANSITION)
    hmm = HMM(transition=transition, emission=EMISSION)
    transition[0, 0] = 0
    np.testing.assert_array_equal(hmm.transition, TRANSITION)
    for one in (hmm, pickle.loads(pickle.dumps(hmm)), copy.deepcopy(hmm), HMM(edges=EDGES)):
        for name, table in one.tables().items():
            with pytest.raises(ValueError, match="read-only"):
                table[0] = 0
            assert table.dtype == np.float64, name


def test_marginal_tables_of_edges_are_the_distributions_of_next_state_and_symbol():
    hmm = random_edges(3, 4, seed=0)
    for state in range(3):
        np.testing.assert_allclose(hmm.transition[state], sum(hmm.edges[x, state] for x in range(4)), rtol=1e-15)
        for symbol in range(4):
            assert hmm.emission[state, symbol] == pytest.approx(sum(hmm.edges[symbol, state]), rel=1e-15)
    assert (hmm.num_states, hmm.num_symbols) == (3, 4)
    assert repr(hmm) == "HMM(3 states, 4 symbols, edge-emitting)"


def test_equality_and_fingerprint_are_of_the_tables():
    hmm = HMM(transition=TRANSITION, emission=EMISSION)
    same = HMM(transition=TRANSITION, emission=EMISSION, vocabulary="abc")
    other = HMM(transition=TRANSITION, emission=EMISSION, start=[1, 0])
    assert hmm == same
    assert hmm.fingerprint() == same.fingerprint()
    assert hmm != other
    assert hmm.fingerprint() != other.fingerprint()
    assert hmm != HMM(edges=EDGES)
    assert hmm != "hmm"
    # A literal: if it moves, caches and checkpoints made before are refused.
    assert processes.umbrella().fingerprint() == "df63993d189c01d9d29bdd57d031f521"


# Long-run distributions


def eigenvector_distribution(transition: np.ndarray) -> np.ndarray:
    values, vectors = np.linalg.eig(transition.T)
    vector = np.real(vectors[:, np.argmin(np.abs(values - 1))])
    return vector / vector.sum()


@given(seed=st.integers(0, 10_000), states=st.integers(1, 12), alpha=st.sampled_from([0.1, 1.0, 10.0]))
@settings(deadline=None, derandomize=True, max_examples=40)
def test_the_stationary_distribution_is_the_eigenvector_of_the_transition_matrix(seed, states, alpha):
    hmm = processes.random(states, 2, alpha=alpha, seed=seed)
    distribution = hmm.stationary()
    np.testing.assert_allclose(distribution @ hmm.transition, distribution, rtol=0, atol=1e-13)
    np.testing.assert_allclose(distribution, eigenvector_distribution(hmm.transition), rtol=0, atol=1e-8)
    np.testing.assert_allclose(hmm.start, distribution, rtol=0, atol=1e-14)


def test_the_stationary_distribution_of_two_states_is_its_closed_form():
    for up, down in [(0.1, 0.2), (1e-9, 3e-9), (1.0, 1.0), (0.5, 1e-12)]:
        hmm = HMM(start=[1, 0], transition=[[1 - up, up], [down, 1 - down]], emission=[[1, 0], [0, 1]])
        np.testing.assert_allclose(hmm.stationary(), [down / (up + down), up / (up + down)], rtol=1e-6)


def test_a_periodic_chain_has_its_long_run_shares_whatever_its_start():
    cycle = np.roll(np.eye(4), 1, axis=1)
    hmm = HMM(start=[0, 1, 0, 0], transition=cycle, emission=np.eye(4))
    np.testing.assert_allclose(hmm.stationary(), np.full(4, 0.25), atol=1e-15)
    np.testing.assert_allclose(HMM(transition=cycle, emission=np.eye(4)).start, np.full(4, 0.25), atol=1e-15)


def test_a_reducible_chain_goes_where_its_start_leads():
    # State 0 leaves for the class {1} with 1/3, for the class {2, 3} with 2/3.
    transition = [[0.4, 0.2, 0.4, 0], [0, 1, 0, 0], [0, 0, 0.5, 0.5], [0, 0, 0.25, 0.75]]
    hmm = HMM(start=[1, 0, 0, 0], transition=transition, emission=np.eye(4))
    np.testing.assert_allclose(hmm.stationary(), [0, 1 / 3, 2 / 9, 4 / 9], atol=1e-14)
    inside = HMM(start=[0, 0, 1, 0], transition=transition, emission=np.eye(4))
    np.testing.assert_allclose(inside.stationary(), [0, 0, 1 / 3, 2 / 3], atol=1e-14)


# Files


@pytest.mark.parametrize("hmm", [processes.random(5, 7, seed=1), processes.even(), random_edges(3, 2, seed=4)])
def test_an_hmm_comes_back_from_disk_bit_for_bit(hmm, tmp_path):
    hmm = HMM(**hmm.tables(), vocabulary=[f"wörd {x}\n" for x in range(hmm.num_symbols)])
    hmm.save_pretrained(tmp_path / "a" / "b")
    back = HMM.from_pretrained(tmp_path / "a" / "b")
    for name, table in hmm.tables().items():
        assert back.tables()[name].tobytes() == table.tobytes()
    assert back.vocabulary == hmm.vocabulary
    assert back.fingerprint() == hmm.fingerprint()
    np.testing.assert_array_equal(back.sample(20, 30, seed=1), hmm.sample(20, 30, seed=1))
    back.save_pretrained(tmp_path / "again")
    files = ["config.json", "digests.json", "model.safetensors", "modeling_hmm.py"]
    files += ["tokenizer.json", "tokenizer_config.json"]
    for name in files:
        assert (tmp_path / "again" / name).read_bytes() == (tmp_path / "a" / "b" / name).read_bytes()
    assert sorted(path.name for path in (tmp_path / "again").iterdir()) == files


@pytest.fixture
def folder(tmp_path):
    processes.umbrella().save_pretrained(tmp_path / "hmm")
    return tmp_path / "hmm"


def test_a_torn_model_file_is_refused_at_any_length(folder):
    path = folder / "model.safetensors"
    whole = path.read_bytes()
    for size in (0, 4, 100, len(whole) - 1):
        path.write_bytes(whole[:size])
        message = error(HMM.from_pretrained, folder)
        assert message.startswith(f"{path}: not a complete safetensors file")


def test_missing_files_and_folders_are_named(folder, tmp_path):
    (folder / "model.safetensors").unlink()
    assert error(HMM.from_pretrained, folder) == f"{folder / 'model.safetensors'}: no such file"
    (folder / "config.json").unlink()
    assert error(HMM.from_pretrained, folder) == f"{folder / 'config.json'}: no such file"
    missing = tmp_path / "no" / "such"
    assert error(HMM.from_pretrained, missing).startswith(f"{missing}: neither a folder nor an HMM on the Hub")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format_version": 2}, "model_type 'hmm', format_version 2; expected 'hmm' and 1"),
        ({"format_version": None}, "format_version None; expected 'hmm' and 1"),
        ({"model_type": "llama"}, "model_type 'llama', format_version 1; expected 'hmm' and 1"),
        ({"fingerprint": "0" * 32}, f"config.json expects {'0' * 32}; the two files belong to different HMMs"),
        ({"vocabulary": ["a"]}, "vocabulary has 1 names; expected 2, one per symbol"),
    ],
)
def test_a_config_of_another_format_or_hmm_is_refused(folder, change, message):
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    found = error(HMM.from_pretrained, folder)
    assert message in found
    assert str(folder) in found


@pytest.mark.parametrize(
    ("text", "message"), [("{", "config.json:1: not JSON"), ("[1]", "config.json: contains a list; expected")]
)
def test_a_malformed_config_is_refused(folder, text, message):
    (folder / "config.json").write_text(text)
    assert message in error(HMM.from_pretrained, folder)


def test_the_tables_of_another_hmm_are_refused(folder):
    other = HMM(**{**processes.umbrella().tables(), "start": np.array([1.0, 0.0])})
    save_file(dict(other.tables()), folder / "model.safetensors")
    message = error(HMM.from_pretrained, folder)
    assert processes.umbrella().fingerprint() in message
    assert other.fingerprint() in message
    assert "copy both again" in message


def test_a_file_that_has_other_content_is_refused_by_its_path(folder):
    path = folder / "model.safetensors"
    save_file({"weight": np.zeros(3)}, path)
    assert error(HMM.from_pretrained, folder) == f"{path}: contains 'weight'; expected only the tables of an HMM"
    save_file({"start": np.ones(1)}, path)
    assert error(HMM.from_pretrained, folder).startswith(f"{path}: an HMM takes either transition= and emission=")
    save_file({"transition": np.full((2, 2), 0.4), "emission": np.eye(2)}, path)
    assert error(HMM.from_pretrained, folder).startswith(f"{path}: transition[0] sums to 0.8, not 1")


def test_the_model_file_holds_float64_tables_alone(folder):
    tables = load_file(folder / "model.safetensors")
    assert sorted(tables) == ["emission", "start", "transition"]
    assert all(table.dtype == np.float64 for table in tables.values())


def test_the_vocabulary_names_the_symbols():
    hmm = HMM(transition=TRANSITION, emission=EMISSION, vocabulary=("sun", 1, None))
    assert hmm.vocabulary == ("sun", "1", "None")
    assert HMM(transition=TRANSITION, emission=EMISSION).vocabulary is None


def test_parameters_have_the_type_asked_for():
    parameters = processes.umbrella().parameters(torch.float32)
    assert parameters.start.dtype == torch.float32
    assert parameters.edges is None
    assert processes.mess3(0.15, 0.6).parameters().edges.dtype == torch.float64
