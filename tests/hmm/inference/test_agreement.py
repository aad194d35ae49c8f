"""Inference agrees with hmmlearn and dynamax in float64, and with pomegranate, which computes in float32."""

import importlib.util
import subprocess
import sys

import numpy as np
import pytest
import torch

from hmm_datasets.hmm import processes
from hmm_datasets.hmm.model import HMM

RTOL = 1e-8
HMMS = {
    "10 states": processes.random(10, 15, alpha=0.5, seed=1),
    "60 states": processes.random(60, 25, alpha=0.2, seed=2),
    "casino": HMM(**{**processes.dishonest_casino().tables(), "start": np.array([0.75, 0.25])}),
}
hmms = pytest.mark.parametrize("hmm", HMMS.values(), ids=HMMS)
LENGTHS = [120, 1, 57, 120]


def sample(hmm: HMM) -> list[np.ndarray]:
    tokens = hmm.sample(len(LENGTHS), max(LENGTHS), seed=2).astype(int)
    return [row[:length] for row, length in zip(tokens, LENGTHS, strict=True)]


def padded(rows: list[np.ndarray]) -> np.ndarray:
    return np.stack([np.pad(row, (0, max(LENGTHS) - len(row)), constant_values=-1) for row in rows])


def path_score(hmm: HMM, states, word) -> float:
    steps = np.log(hmm.transition[states[:-1], states[1:]])
    return float(np.log(hmm.start[states[0]]) + steps.sum() + np.log(hmm.emission[states, word]).sum())


def em_step(hmm: HMM, rows: list[np.ndarray]) -> dict[str, np.ndarray]:
    """The tables after one step without a prior."""
    counts = hmm.expected_counts(padded(rows), lengths=LENGTHS)
    tables = {name: getattr(counts, name) for name in ("start", "transition", "emission")}
    return {name: table / table.sum(-1, keepdims=True) for name, table in tables.items()}


@pytest.mark.thorough
@hmms
def test_hmmlearn_gives_the_same_scores_posteriors_and_paths(hmm):
    pytest.importorskip("hmmlearn")
    model = hmm.to_hmmlearn()
    rows = sample(hmm)
    scores = hmm.log_likelihood(padded(rows), lengths=LENGTHS)
    posteriors = hmm.posteriors(padded(rows), lengths=LENGTHS)
    paths = hmm.viterbi(padded(rows), lengths=LENGTHS)
    for row, word in enumerate(rows):
        column = word[:, None]
        assert scores[row] == pytest.approx(model.score(column), rel=RTOL)
        np.testing.assert_allclose(posteriors[row, : len(word)], model.predict_proba(column), rtol=RTOL, atol=1e-12)
        log_probability, states = model.decode(column, algorithm="viterbi")
        assert paths.log_probability[row] == pytest.approx(log_probability, rel=RTOL)
        # Paths that take the same steps in another order tie: compare what each is worth.
        ours = paths.states[row, : len(word)]
        assert path_score(hmm, ours, word) == pytest.approx(path_score(hmm, states, word), rel=RTOL)
        assert (ours == states).mean() > 0.9


@hmms
def test_hmmlearn_takes_the_same_em_step(hmm):
    pytest.importorskip("hmmlearn")
    model = hmm.to_hmmlearn()
    model.n_iter = 1
    rows = sample(hmm)
    model.fit(np.concatenate(rows)[:, None], LENGTHS)
    found = em_step(hmm, rows)
    for name, theirs in (
        ("start", model.startprob_),
        ("transition", model.transmat_),
        ("emission", model.emissionprob_),
    ):
        np.testing.assert_allclose(found[name], theirs, rtol=RTOL, atol=1e-12, err_msg=name)
    assert np.abs(found["transition"] - hmm.transition).max() > 1e-3, "the step has to move"


# In a process of its own: JAX starts threads, and tests that fork after that may hang.
DYNAMAX = """
import sys
import jax
import numpy as np
jax.config.update("jax_enable_x64", True)
from dynamax.hidden_markov_model.inference import hmm_posterior_mode, hmm_smoother

given, found = np.load(sys.argv[1]), {}
for name in given["names"]:
    start, transition, emission = (given[f"{name} {table}"] for table in ("start", "transition", "emission"))
    for row, length in enumerate(given["lengths"]):
        likelihoods = np.log(emission.T[given[f"{name} tokens"][row, :length]])
        smoothed = hmm_smoother(start, transition, likelihoods)
        found[f"{name} {row} score"] = smoothed.marginal_loglik
        found[f"{name} {row} beliefs"] = smoothed.predicted_probs
        found[f"{name} {row} posteriors"] = smoothed.smoothed_probs
        found[f"{name} {row} moves"] = smoothed.trans_probs
        found[f"{name} {row} states"] = hmm_posterior_mode(start, transition, likelihoods)
np.savez(sys.argv[2], **found)
"""


@pytest.fixture(scope="module")
def dynamax(tmp_path_factory) -> dict[str, np.ndarray]:
    """What dynamax finds, in float64."""
    if importlib.util.find_spec("dynamax") is None:
        pytest.skip("dynamax is not installed")
    given, found = (tmp_path_factory.mktemp("dynamax") / name for name in ("given.npz", "found.npz"))
    tables = {f"{name} {key}": table for name, hmm in HMMS.items() for key, table in hmm.tables().items()}
    tokens = {f"{name} tokens": padded(sample(hmm)) for name, hmm in HMMS.items()}
    np.savez(given, names=list(HMMS), lengths=LENGTHS, **tables, **tokens)
    subprocess.run([sys.executable, "-c", DYNAMAX, given, found], check=True, timeout=500)
    return dict(np.load(found))


@pytest.mark.thorough
@pytest.mark.parametrize("name", HMMS)
def test_dynamax_gives_the_same_likelihoods_beliefs_posteriors_paths_and_counts(name, dynamax):
    hmm = HMMS[name]
    rows = sample(hmm)
    scores = hmm.log_likelihood(padded(rows), lengths=LENGTHS)
    beliefs = hmm.beliefs(padded(rows), lengths=LENGTHS)
    posteriors = hmm.posteriors(padded(rows), lengths=LENGTHS)
    paths = hmm.viterbi(padded(rows), lengths=LENGTHS)
    moves = np.zeros_like(hmm.transition)
    for row, word in enumerate(rows):
        theirs = {key: dynamax[f"{name} {row} {key}"] for key in ("score", "beliefs", "posteriors", "moves", "states")}
        assert theirs["posteriors"].dtype == np.float64
        assert scores[row] == pytest.approx(float(theirs["score"]), rel=RTOL)
        np.testing.assert_allclose(beliefs[row, : len(word)], theirs["beliefs"], rtol=RTOL, atol=1e-12)
        np.testing.assert_allclose(posteriors[row, : len(word)], theirs["posteriors"], rtol=RTOL, atol=1e-12)
        assert paths.log_probability[row] == pytest.approx(path_score(hmm, theirs["states"], word), rel=RTOL)
        if len(word) > 1:
            moves += theirs["moves"]
    counts = hmm.expected_counts(padded(rows), lengths=LENGTHS)
    np.testing.assert_allclose(counts.transition, moves, rtol=RTOL, atol=1e-12)


# float32 over 100 tokens: some hundred roundings of 6e-8, of logarithms that add up to some hundreds.
FLOAT32 = {"rtol": 2e-4, "atol": 2e-5}


@pytest.mark.thorough
@hmms
def test_pomegranate_gives_the_same_to_float32(hmm):
    pytest.importorskip("pomegranate")
    model = hmm.to_pomegranate()
    tokens = hmm.sample(4, 100, seed=2).astype(np.int64)
    theirs = torch.from_numpy(tokens[..., None])
    np.testing.assert_allclose(model.log_probability(theirs).numpy(), hmm.log_likelihood(tokens), rtol=2e-6)
    np.testing.assert_allclose(model.predict_proba(theirs).numpy(), hmm.posteriors(tokens), **FLOAT32)
    for row, states in enumerate(model.viterbi(theirs).numpy().astype(int)):
        best = hmm.viterbi(tokens[row : row + 1]).log_probability[0]
        assert path_score(hmm, states, tokens[row]) == pytest.approx(best, rel=1e-5)


@pytest.mark.thorough
@hmms
def test_pomegranate_takes_the_same_em_step_its_ends_accounted_for(hmm):
    pytest.importorskip("pomegranate")
    model = hmm.to_pomegranate()
    tokens = hmm.sample(16, 100, seed=2).astype(np.int64)
    model.summarize(torch.from_numpy(tokens[..., None]))
    model.from_summaries()
    counts = hmm.expected_counts(tokens)
    # Its states may end a sequence: a row of `edges` and the state's end share what leaves the state.
    ended = hmm.posteriors(tokens)[:, -1].sum(0)
    left = counts.transition.sum(1) + ended
    np.testing.assert_allclose(model.starts.exp().numpy(), counts.start / len(tokens), **FLOAT32)
    np.testing.assert_allclose(model.edges.exp().numpy(), counts.transition / left[:, None], **FLOAT32)
    np.testing.assert_allclose(model.ends.exp().numpy(), ended / left, **FLOAT32)
    emission = np.concatenate([node.probs.numpy() for node in model.distributions])
    np.testing.assert_allclose(emission, counts.emission / counts.emission.sum(1, keepdims=True), **FLOAT32)
