import importlib.util
import subprocess
import sys

import numpy as np
import pytest
import torch

from hmm_datasets.errors import InputError
from hmm_datasets.hmm import processes
from hmm_datasets.hmm.convert import (
    from_hmmlearn,
    from_pomegranate,
    to_hmmlearn,
    to_pomegranate,
)
from hmm_datasets.hmm.model import HMM

# pomegranate keeps float32 tables: 6e-8 relative a factor, two factors a token, over 50 tokens.
FLOAT32 = {"rtol": 0, "atol": 1e-4}


@pytest.fixture
def hmm() -> HMM:
    return processes.random(7, 5, alpha=0.7, seed=3)


@pytest.fixture
def tokens(hmm) -> np.ndarray:
    return hmm.sample(6, 50, seed=4).astype(np.int64)


def as_pomegranate(tokens: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(tokens)[:, :, None]


def pomegranate_dense(hmm: HMM, ends, transition=None):
    from pomegranate.distributions import Categorical
    from pomegranate.hmm import DenseHMM

    rows = [Categorical(probs=[row.tolist()]) for row in hmm.emission]
    edges = hmm.transition if transition is None else transition
    return DenseHMM(rows, edges=edges.tolist(), starts=hmm.start.tolist(), ends=ends)


def pomegranate_sparse(hmm: HMM, ends):
    from pomegranate.distributions import Categorical
    from pomegranate.hmm import SparseHMM

    nodes = [Categorical(probs=[row.tolist()]) for row in hmm.emission]
    edges = [(nodes[i], nodes[j], float(p)) for (i, j), p in np.ndenumerate(hmm.transition) if p > 0]
    return SparseHMM(nodes, edges=edges, starts=hmm.start.tolist(), ends=ends)


def assert_float32_copy(copy: HMM, hmm: HMM) -> None:
    for name, table in hmm.tables().items():
        np.testing.assert_allclose(copy.tables()[name], table, rtol=0, atol=1e-6, err_msg=name)
        np.testing.assert_array_equal(copy.tables()[name] == 0, table == 0, err_msg=name)


def test_pomegranate_gives_the_same_log_likelihoods_and_posteriors(hmm, tokens):
    model = to_pomegranate(hmm)
    np.testing.assert_allclose(
        model.log_probability(as_pomegranate(tokens)).numpy(), hmm.log_likelihood(tokens), **FLOAT32
    )
    np.testing.assert_allclose(model.predict_proba(as_pomegranate(tokens)).numpy(), hmm.posteriors(tokens), **FLOAT32)


def test_pomegranate_finds_a_path_of_the_same_probability(hmm, tokens):
    model = to_pomegranate(hmm)
    states = model.viterbi(as_pomegranate(tokens)).numpy().astype(np.int64)
    rows = np.log(hmm.start[states[:, 0]])
    rows += np.log(hmm.emission[states, tokens]).sum(axis=1)
    rows += np.log(hmm.transition[states[:, :-1], states[:, 1:]]).sum(axis=1)
    np.testing.assert_allclose(rows, hmm.viterbi(tokens).log_probability, rtol=0, atol=1e-9)


def test_a_round_trip_through_pomegranate_costs_float32(hmm):
    assert_float32_copy(from_pomegranate(to_pomegranate(hmm)), hmm)


def test_zeros_survive_the_trip_through_pomegranate():
    hmm = HMM(start=[1, 0], transition=[[0.5, 0.5], [1, 0]], emission=[[1, 0, 0], [0, 0.25, 0.75]])
    assert_float32_copy(from_pomegranate(to_pomegranate(hmm)), hmm)


def test_a_sparse_model_gives_the_same_hmm_as_a_dense_one():
    hmm = HMM(start=[1, 0], transition=[[0.25, 0.75], [1, 0]], emission=[[0.5, 0.5], [0, 1]])
    assert_float32_copy(from_pomegranate(pomegranate_sparse(hmm, ends=None)), hmm)
    assert_float32_copy(from_pomegranate(pomegranate_dense(hmm, ends=[0.0, 0.0])), hmm)


def test_a_model_made_without_ends_converts_and_differs_by_a_constant(hmm, tokens):
    model = pomegranate_dense(hmm, ends=None)
    theirs = model.log_probability(as_pomegranate(tokens)).numpy()
    assert model.ends is not None  # filled in with 1 / H by that call
    ours = from_pomegranate(model).log_likelihood(tokens)
    np.testing.assert_allclose(theirs, ours - np.log(hmm.num_states), **FLOAT32)


def test_a_fitted_model_is_refused_for_its_ends_unless_they_are_dropped(hmm, tokens):
    model = to_pomegranate(hmm)
    model.max_iter = 1
    model.fit(as_pomegranate(tokens))
    with pytest.raises(InputError, match=r'end probabilities .* pass ends="drop"'):
        from_pomegranate(model)
    edges = model.edges.detach().exp().double().numpy()
    assert edges.sum(axis=1).max() < 0.999
    dropped = from_pomegranate(model, ends="drop")
    np.testing.assert_allclose(dropped.transition, edges / edges.sum(axis=1, keepdims=True), rtol=0, atol=1e-6)


def test_unequal_ends_are_refused_even_beside_whole_rows(hmm):
    with pytest.raises(InputError, match="end probabilities"):
        from_pomegranate(pomegranate_dense(hmm, ends=np.linspace(0.1, 0.4, hmm.num_states).tolist()))


def test_equal_ends_that_take_from_the_rows_are_refused(hmm):
    model = pomegranate_dense(hmm, ends=[0.1] * hmm.num_states, transition=0.9 * hmm.transition)
    with pytest.raises(InputError, match="end probabilities"):
        from_pomegranate(model)
    np.testing.assert_allclose(from_pomegranate(model, ends="drop").transition, hmm.transition, atol=1e-6)


def test_other_pomegranate_models_are_refused(hmm):
    from pomegranate.distributions import Categorical, Normal
    from pomegranate.hmm import DenseHMM

    with pytest.raises(InputError, match="HMM; expected a pomegranate DenseHMM"):
        from_pomegranate(hmm)
    with pytest.raises(InputError, match=r"distributions\[1\] is a Normal; expected"):
        from_pomegranate(DenseHMM([Categorical(probs=[[1.0]]), Normal([0.0], [1.0], covariance_type="diag")]))
    with pytest.raises(InputError, match=r"distributions\[0\] has no probabilities yet; fit"):
        from_pomegranate(DenseHMM([Categorical()]))
    with pytest.raises(InputError, match=r"emits 2 features"):
        from_pomegranate(DenseHMM([Categorical(probs=[[0.5, 0.5], [0.5, 0.5]])]))
    with pytest.raises(InputError, match="no distributions or no edges"):
        from_pomegranate(DenseHMM([Categorical(probs=[[0.5, 0.5]])]))
    with pytest.raises(InputError, match="no distributions or no edges"):
        from_pomegranate(DenseHMM())
    with pytest.raises(InputError, match="ends is 'keep'"):
        from_pomegranate(to_pomegranate(hmm), ends="keep")


def test_hmmlearn_gives_the_same_log_likelihoods_posteriors_and_paths(hmm, tokens):
    model = to_hmmlearn(hmm)
    paths = hmm.viterbi(tokens)
    posteriors = hmm.posteriors(tokens)
    for row, sequence in enumerate(tokens):
        log_probability, gamma = model.score_samples(sequence[:, None])
        assert log_probability == pytest.approx(hmm.log_likelihood(sequence[None])[0], abs=1e-9)
        np.testing.assert_allclose(gamma, posteriors[row], rtol=0, atol=1e-9)
        log_best, states = model.decode(sequence[:, None])
        assert log_best == pytest.approx(paths.log_probability[row], abs=1e-9)
        np.testing.assert_array_equal(states, paths.states[row])


def test_a_round_trip_through_hmmlearn_changes_nothing(hmm):
    assert from_hmmlearn(to_hmmlearn(hmm)) == hmm


def test_hmmlearn_continues_fitting_from_the_converted_tables(hmm, tokens):
    model = to_hmmlearn(hmm)
    model.n_iter = 3
    before = hmm.log_likelihood(tokens).sum()
    model.fit(tokens.reshape(-1, 1), lengths=[tokens.shape[1]] * len(tokens))
    assert from_hmmlearn(model).log_likelihood(tokens).sum() > before


def test_other_hmmlearn_models_are_refused():
    from hmmlearn.hmm import CategoricalHMM, GaussianHMM

    with pytest.raises(InputError, match="GaussianHMM; expected an hmmlearn CategoricalHMM"):
        from_hmmlearn(GaussianHMM(2))
    with pytest.raises(InputError, match="no startprob_; fit it first"):
        from_hmmlearn(CategoricalHMM(2))


# In a process of its own: JAX starts threads, and tests that fork after that may hang.
DYNAMAX = """
import sys
import jax
import numpy as np
from dynamax.hidden_markov_model import CategoricalHMM
from hmm_datasets import HMM

given = np.load(sys.argv[1])
hmm = HMM(**{name: given[name] for name in ("start", "transition", "emission")})
def converted(hmm):
    model = CategoricalHMM(hmm.num_states, 1, hmm.num_symbols)
    return model, *model.initialize(
        initial_probs=jax.numpy.asarray(hmm.start),
        transition_matrix=jax.numpy.asarray(hmm.transition),
        emission_probs=jax.numpy.asarray(hmm.emission[:, None]),
    )

def of(params):
    tables = params.initial.probs, params.transitions.transition_matrix, params.emissions.probs[:, 0]
    return HMM(**dict(zip(("start", "transition", "emission"), tables)))

model, params, props = converted(hmm)
rows = jax.numpy.asarray(given["tokens"])[:, :, None]
scores = [model.marginal_log_prob(params, row) for row in rows]
fitted = of(model.fit_em(params, props, rows, num_iters=1, verbose=False)[0])
single = of(params).tables()
with jax.enable_x64(True):
    double = of(converted(hmm)[1]).tables()
tables = {f"{name} {kind}": found[name] for kind, found in (("1e-6", single), ("1e-15", double)) for name in found}
np.savez(sys.argv[2], scores=scores, fitted=fitted.log_likelihood(given["tokens"]), **tables)
"""


@pytest.mark.thorough
def test_the_tables_of_dynamax_are_those_of_an_hmm_both_ways(hmm, tokens, tmp_path):
    """It computes in float32 by default, as above, and in float64 where that is enabled."""
    if importlib.util.find_spec("dynamax") is None:
        pytest.skip("dynamax is not installed")
    given, found = tmp_path / "given.npz", tmp_path / "found.npz"
    np.savez(given, tokens=tokens, **hmm.tables())
    subprocess.run([sys.executable, "-c", DYNAMAX, given, found], check=True, timeout=500)
    theirs = np.load(found)
    np.testing.assert_allclose(theirs["scores"], hmm.log_likelihood(tokens), **FLOAT32)
    for name, table in hmm.tables().items():
        for tolerance in ("1e-6", "1e-15"):
            np.testing.assert_allclose(theirs[f"{name} {tolerance}"], table, rtol=0, atol=float(tolerance))
    assert theirs["fitted"].sum() > hmm.log_likelihood(tokens).sum()


@pytest.mark.parametrize("convert", [to_pomegranate, to_hmmlearn])
def test_edge_emitting_hmms_are_refused(convert):
    with pytest.raises(InputError, match=r"edge-emitting\) cannot be converted to"):
        convert(processes.even())


def test_the_methods_of_hmm_convert(hmm):
    assert HMM.from_hmmlearn(hmm.to_hmmlearn()) == hmm
    assert HMM.from_pomegranate(hmm.to_pomegranate(), ends="drop").num_states == hmm.num_states


def test_a_model_fitted_by_either_library_becomes_a_stream_in_one_line(hmm, tokens):
    from hmmlearn.hmm import CategoricalHMM

    from hmm_datasets import HMMSequences

    learned = CategoricalHMM(3, n_iter=2, random_state=0).fit(tokens.reshape(-1, 1), [50] * 6)
    rows = HMM.from_hmmlearn(learned).sample(4, 9, seed=1)
    assert rows.shape == (4, 9)
    np.testing.assert_array_equal(HMMSequences(HMM.from_hmmlearn(learned), 9, seed=1)[3]["input_ids"][1:], rows[3])

    fitted = pomegranate_dense(hmm, ends=[0.1] * 7, transition=0.9 * hmm.transition)
    fitted.max_iter = 2
    fitted.fit(as_pomegranate(tokens))
    rows = HMM.from_pomegranate(fitted, ends="drop").sample(4, 9, seed=1)
    stream = HMMSequences(HMM.from_pomegranate(fitted, ends="drop"), 9, seed=1)
    np.testing.assert_array_equal(stream[3]["input_ids"][1:], rows[3])
    with pytest.raises(InputError, match="has end probabilities"):
        HMM.from_pomegranate(fitted)


@pytest.mark.thorough
def test_pomegranate_leaves_torch_as_many_threads_as_it_had(child_environment):
    """Its own import takes all cores; small products then wait for each other, tens of times as long."""
    pytest.importorskip("pomegranate")
    script = (
        "import torch; from hmm_datasets.hmm import processes; before = torch.get_num_threads();"
        "processes.random(3, 4, alpha=1.0).to_pomegranate(); print(before, torch.get_num_threads())"
    )
    environment = {**child_environment, "OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "2"}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True)
    assert done.stdout == "1 1\n", done.stderr
