import importlib.util
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import brute_force
import numpy as np
import pytest
import torch

from hmm_datasets.errors import InputError
from hmm_datasets.hmm import processes
from hmm_datasets.hmm.convert import to_pomegranate
from hmm_datasets.hmm.fitting.baum_welch import Statistics, Workers, add_batch, batch_rows, even_batches
from hmm_datasets.hmm.fitting.fit import fit_hmm
from hmm_datasets.hmm.fitting.initial import random_guess
from hmm_datasets.hmm.fitting.settings import FitSettings
from hmm_datasets.hmm.model import HMM

GUESS = random_guess(3, 4, seed=2)
TOKENS = processes.random(3, 4, alpha=0.4, seed=7).sample(60, 20, seed=1).astype(int)
# Stops for nothing but max_epochs.
SHORT = FitSettings(num_states=3, max_epochs=4, tolerance=0, seed=5, dtype="float64")
WIDE_GUESS = random_guess(20, 30, seed=2)
WIDE = processes.random(20, 30, alpha=0.3, seed=1).sample(40, 50, seed=2).astype(int)


def fit(tokens=TOKENS, settings=SHORT, **arguments):
    return fit_hmm(tokens, settings, show_progress=False, **arguments)


def fit_wide(max_epochs: int, dtype: str = "float64", pseudocount: float = 0) -> HMM:
    chosen = FitSettings(20, max_epochs=max_epochs, tolerance=0, pseudocount=pseudocount, dtype=dtype)
    return fit(WIDE, chosen, initial=WIDE_GUESS, num_symbols=30).hmm


# One step beside brute force and other libraries


@pytest.mark.parametrize("pseudocount", [0.0, 0.3])
@pytest.mark.parametrize("lengths", [None, [5, 1, 3, 0, 2]])
def test_one_step_is_the_expected_counts_over_all_paths(pseudocount, lengths):
    tokens = np.array([[0, 1, 2, 3, 0], [3, 0, 0, 0, 0], [1, 1, 2, 0, 0], [0, 0, 0, 0, 0], [2, 3, 1, 1, 1]])
    rows = [row[:length] for row, length in zip(tokens, lengths or [5] * 5, strict=True)]
    found = fit(
        tokens, replace(SHORT, max_epochs=1, pseudocount=pseudocount), initial=GUESS, lengths=lengths, num_symbols=4
    ).hmm
    counts = brute_force.expected_counts(GUESS, [row for row in rows if len(row) > 0])
    for name, count in zip(("start", "transition", "emission"), counts, strict=True):
        count = count + pseudocount
        # 3**5 paths of five factors: some hundred roundings.
        expected = count / count.sum(-1, keepdims=True)
        np.testing.assert_allclose(found.tables()[name], expected, rtol=1e-11, err_msg=name)


def test_one_step_is_that_of_hmmlearn():
    from hmmlearn.hmm import CategoricalHMM

    lengths = np.array([20, 7, 1, *[20] * 57])
    model = CategoricalHMM(n_components=3, n_features=4, n_iter=1, init_params="", params="ste")
    model.startprob_, model.transmat_, model.emissionprob_ = GUESS.start, GUESS.transition, GUESS.emission
    flat = np.concatenate([row[:length] for row, length in zip(TOKENS, lengths, strict=True)])
    model.fit(flat[:, None], lengths)
    found = fit(settings=replace(SHORT, max_epochs=1, pseudocount=0), initial=GUESS, lengths=lengths, num_symbols=4)
    np.testing.assert_allclose(found.hmm.start, model.startprob_, rtol=1e-9)
    np.testing.assert_allclose(found.hmm.transition, model.transmat_, rtol=1e-9)
    np.testing.assert_allclose(found.hmm.emission, model.emissionprob_, rtol=1e-9)


@pytest.mark.thorough
def test_ten_steps_end_at_the_likelihood_of_hmmlearn():
    from hmmlearn.hmm import CategoricalHMM

    model = CategoricalHMM(n_components=20, n_features=30, n_iter=10, tol=-np.inf, init_params="", params="ste")
    model.startprob_, model.transmat_, model.emissionprob_ = WIDE_GUESS.tables().values()
    model.fit(WIDE.reshape(-1, 1), [50] * 40)
    theirs = HMM(start=model.startprob_, transition=model.transmat_, emission=model.emissionprob_)
    expected = theirs.log_likelihood(WIDE).sum()
    for dtype, rtol in (("float64", 1e-12), ("float32", 1e-7)):
        assert fit_wide(10, dtype).log_likelihood(WIDE).sum() == pytest.approx(expected, rel=rtol)


# In a process of its own: JAX starts threads, and tests that fork after that may hang.
DYNAMAX = """
import sys
import jax
import numpy as np
jax.config.update("jax_enable_x64", True)
from dynamax.hidden_markov_model import CategoricalHMM

given = np.load(sys.argv[1])
# Its priors are concentrations, 1.1 unless told otherwise; ours are what is added to the counts.
priors = ("initial_probs_concentration", "transition_matrix_concentration", "emission_prior_concentration")
model = CategoricalHMM(20, 1, 30, **dict.fromkeys(priors, 1 + float(given["pseudocount"])))
start, transition, emission = (jax.numpy.array(given[name]) for name in ("start", "transition", "emission"))
parameters, properties = model.initialize(
    initial_probs=start, transition_matrix=transition, emission_probs=emission[:, None]
)
statistics = jax.vmap(lambda row: model.e_step(parameters, row))(jax.numpy.array(given["tokens"])[:, :, None])[0]
state = model.initialize_m_step_state(parameters, properties)
after, _ = model.m_step(parameters, properties, statistics, state)
tables = after.initial.probs, after.transitions.transition_matrix, after.emissions.probs[:, 0]
np.savez(sys.argv[2], **dict(zip(("start", "transition", "emission"), tables)))
"""


@pytest.mark.thorough
@pytest.mark.parametrize("pseudocount", [pytest.param(0.0, marks=pytest.mark.slow), 0.5])
def test_one_step_is_that_of_dynamax(pseudocount, tmp_path):
    if importlib.util.find_spec("dynamax") is None:
        pytest.skip("dynamax is not installed")
    given, found = tmp_path / "given.npz", tmp_path / "found.npz"
    np.savez(given, tokens=WIDE, pseudocount=pseudocount, **WIDE_GUESS.tables())
    subprocess.run([sys.executable, "-c", DYNAMAX, given, found], check=True, timeout=500)
    theirs, ours = np.load(found), fit_wide(1, pseudocount=pseudocount).tables()
    for name, table in ours.items():
        assert theirs[name].dtype == np.float64
        np.testing.assert_allclose(table, theirs[name], rtol=1e-8, err_msg=name)


@pytest.mark.thorough
def test_one_step_is_that_of_pomegranate_but_for_its_ends():
    model = to_pomegranate(WIDE_GUESS)
    model.summarize(torch.from_numpy(WIDE)[:, :, None])
    model.from_summaries()
    # A row of its edges and the end of its state sum to one: the moves are the edges over what is left.
    edges, ends = model.edges.exp().numpy(), model.ends.exp().numpy()
    np.testing.assert_allclose(edges.sum(1) + ends, 1, rtol=1e-5)
    assert ends.max() > 0.01
    found = fit_wide(1)
    emission = np.concatenate([node.probs.numpy() for node in model.distributions])
    # Sums of 2,000 float32 products and logarithms.
    np.testing.assert_allclose(found.start, model.starts.exp().numpy(), rtol=1e-4)
    np.testing.assert_allclose(found.transition, edges / edges.sum(1, keepdims=True), rtol=1e-4)
    np.testing.assert_allclose(found.emission, emission, rtol=1e-4)
    plain = HMM(start=found.start, transition=edges, emission=found.emission, normalize=True)
    assert plain.log_likelihood(WIDE).sum() == pytest.approx(found.log_likelihood(WIDE).sum(), rel=1e-6)


def test_one_step_in_float32_is_that_in_float64_to_its_rounding():
    found, expected = fit_wide(1, "float32"), fit_wide(1, "float64")
    for name, table in expected.tables().items():
        np.testing.assert_allclose(found.tables()[name], table, rtol=1e-5, err_msg=name)
    assert found != expected


def test_float32_keeps_the_likelihood_of_a_sequence_of_ten_thousand_tokens():
    tokens = processes.random(20, 30, alpha=0.3, seed=1).sample(1, 10_000, seed=3).astype(int)
    scores = [
        fit(tokens, FitSettings(20, max_epochs=1, dtype=dtype), initial=WIDE_GUESS).history[0]["train_log_likelihood"]
        for dtype in ("float32", "float64")
    ]
    assert scores[0] == pytest.approx(scores[1], rel=1e-7)
    assert scores[0] != scores[1]


# Batches, threads


def test_the_result_does_not_depend_on_the_batch_size():
    lengths = np.arange(60) % 21
    whole = fit(lengths=lengths)
    for batch_size in (1, 7, 59):
        parts = fit(settings=replace(SHORT, batch_size=batch_size), lengths=lengths)
        # Sums of some 600 counts in another order, over four steps.
        for name, table in whole.hmm.tables().items():
            np.testing.assert_allclose(parts.hmm.tables()[name], table, rtol=1e-10, err_msg=name)
        assert parts.train_log_likelihood == pytest.approx(whole.train_log_likelihood, rel=1e-12)


def test_no_number_of_threads_changes_a_bit():
    threads = torch.get_num_threads()
    found = []
    try:
        for count in (1, 2, 5):
            torch.set_num_threads(count)
            chosen = FitSettings(20, max_epochs=3, tolerance=0, batch_size=7)
            found.append(fit(WIDE, chosen, initial=WIDE_GUESS, num_symbols=30).hmm)
            with ThreadPoolExecutor(1) as pool:
                assert pool.submit(torch.get_num_threads).result() == count, "left as it was, for new threads too"
    finally:
        torch.set_num_threads(threads)
    assert found[0] == found[1] == found[2]


def test_products_in_a_worker_have_one_thread():
    with Workers(None) as workers:
        assert workers.alone(torch.get_num_threads) == 1


def test_workers_give_results_in_the_order_of_the_batches():
    def slowest_first(number):
        torch.arange(max(1, 3 - number) * 200_000).sort()
        return torch.tensor([float(number)], dtype=torch.float64)

    with Workers(None) as workers:
        assert [float(vector[0]) for vector in workers.in_order(slowest_first, range(20), 1)] == list(range(20))


@pytest.mark.parametrize(
    ("rows", "size", "expected"), [(10, 4, [4, 3, 3]), (8, 4, [4, 4]), (3, 9, [3]), (5, 1, [1] * 5)]
)
def test_batches_are_even_and_hold_every_row_once(rows, size, expected):
    batches = even_batches(np.arange(rows), size)
    assert [len(batch) for batch in batches] == expected
    np.testing.assert_array_equal(np.concatenate(batches), np.arange(rows))


def test_the_default_batch_fits_in_memory_and_suits_the_machine():
    cpu, gpu = torch.device("cpu"), torch.device("cuda")
    assert batch_rows((10**6, 100), 50, torch.float32, cpu) == 512
    assert batch_rows((10**6, 100), 500, torch.float32, cpu) == 131
    assert batch_rows((300, 100), 50, torch.float32, cpu) == 75, "four batches"
    assert batch_rows((10**6, 100), 500, torch.float32, gpu) == 10_737
    for device in (cpu, gpu):
        assert batch_rows((10**6, 10**6), 1000, torch.float64, device) == 1


# What must not go on


@pytest.mark.parametrize(("index", "table"), [(0, "start"), (3, "transition"), (12 + 11, "emission")])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_count_that_is_not_finite_stops_with_batch_and_table(index, table, value):
    total = Statistics.zeros(HMM(transition=np.eye(3), emission=np.full((3, 4), 0.25)).tables())
    vector = np.concatenate([[-7.0, -1.0], np.ones(24)])
    add_batch(total, vector, 0, np.arange(5))
    vector[2 + index] = value
    with pytest.raises(InputError, match=f"batch 4: the expected counts of {table} are not finite"):
        add_batch(total, vector, 4, np.arange(5))
    assert all(np.isfinite(counts).all() for counts in total.tables.values())


@pytest.mark.thorough
def test_likelihoods_too_small_for_float32_stop_it_and_float64_continues():
    # Two states that never meet: the second token has probability 1e-50 in the first, nothing in the other.
    far = HMM(start=[1, 0], transition=np.eye(2), emission=[[1 - 1e-50, 1e-50], [0.5, 0.5]])
    tokens = np.array([[0, 0], [0, 1]])
    chosen = FitSettings(2, max_epochs=1, pseudocount=0)
    with pytest.raises(InputError, match="batch 0, sequence 1: the HMM gives it probability 0"):
        fit(tokens, chosen, initial=far)
    assert fit(tokens, replace(chosen, dtype="float64"), initial=far).hmm.emission[0, 1] == pytest.approx(0.25)


@pytest.mark.parametrize("row", [0, 17])
@pytest.mark.parametrize("update_every", [None, 2])
def test_a_sequence_that_the_hmm_cannot_emit_is_named(update_every, row):
    cannot = HMM(transition=GUESS.transition, emission=[[0.5, 0.5, 0, 0]] * 3)
    tokens = np.zeros((30, 8), dtype=int)
    tokens[row, 3] = 2
    chosen = replace(SHORT, batch_size=5, pseudocount=0, update_every=update_every)
    with pytest.raises(InputError) as caught:
        fit(tokens, chosen, initial=cannot, num_symbols=4)
    batch, rest = str(caught.value).split(", ", 1)
    assert batch.startswith("batch ")
    assert batch == f"batch {row // 5}" or update_every is not None
    assert rest.startswith(f"sequence {row}: the HMM gives it probability 0")
