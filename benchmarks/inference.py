"""The part `inference` of `hmm.py`: log-likelihoods, beliefs, posteriors and paths, beside dynamax in one run."""

import argparse
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from machine import CORES

from hmm_datasets.evaluation.baselines import BaselineComparison, token_scores
from hmm_datasets.hmm import inference as hmm_inference
from hmm_datasets.hmm import processes
from hmm_datasets.hmm.analysis.predictors import cross_entropy, predictors_of
from hmm_datasets.hmm.model import HMM
from hmm_datasets.report.tables import text_table

LENGTH = 64
SIZES = {3: 4096, 20: 4096, 50: 4096, 200: 512}  # sequences by number of states
ROUNDS = 5
# Matrix products of `(sequences, H)` and `(H, H)` at every step; Viterbi's maxima are no products.
PRODUCTS = {"log-likelihood": 1, "beliefs": 1, "next-token distributions": 2, "posteriors": 2}


def inference(settings: argparse.Namespace) -> None:
    """Tokens a second of every quantity in float32, and what bounds it; then the optimum of an evaluation's rows."""
    for states, count in SIZES.items():
        hmm = processes.random(states, states, alpha=0.3, seed=1)
        tokens = hmm.sample(count, LENGTH, seed=2)
        peers = _dynamax(hmm, tokens)
        products = _products(count, states)
        rows = []
        for name, ours in _ours(hmm, tokens, torch.float32).items():
            ways = {"ours": ours, "torch": _in_torch(ours), **({"dynamax": peers[name]} if name in peers else {})}
            if name == "Viterbi":  # which there are the compiled loops for alone
                del ways["torch"]
            rates = {way: tokens.size / seconds for way, seconds in _seconds(ways).items()}
            row = [name, f"{rates['ours']:,.0f}"]
            row += (
                [f"{rates['torch']:,.0f}", f"{rates['ours'] / rates['torch']:.1f}"] if "torch" in rates else [""] * 2
            )
            if name in peers:
                row += [f"{rates['dynamax']:,.0f}", f"{rates['ours'] / rates['dynamax']:.1f}"]
            if name in PRODUCTS:
                bound = products / PRODUCTS[name]
                row += [*[""] * (6 - len(row)), f"{bound:,.0f}", f"{rates['ours'] / bound:.0%}"]
            rows.append(row + [""] * (8 - len(row)))
        print(f"\nInference: H=E={states}, {count:,} sequences of {LENGTH}, float32, {CORES} threads, tokens/s\n")
        heading = ["quantity", "ours", "ours in torch", "times", "dynamax", "times", "products alone", "ours is at"]
        print(text_table(heading, rows))
    _mess3()
    _floors()


def _ours(hmm: HMM, tokens: np.ndarray, dtype: torch.dtype) -> dict[str, Callable[[], Any]]:
    gaps = np.where(np.random.default_rng(3).random(tokens.shape) < 0.1, -1, tokens.astype(np.int64))
    return {
        "log-likelihood": lambda: hmm.log_likelihood(tokens, dtype=dtype),
        "beliefs": lambda: hmm.beliefs(tokens, dtype=dtype),
        "next-token distributions": lambda: hmm.next_token_probs(tokens, dtype=dtype),
        "posteriors": lambda: hmm.posteriors(tokens, dtype=dtype),
        "Viterbi": lambda: hmm.viterbi(tokens, dtype=dtype),
        "log-likelihood, a tenth missing": lambda: hmm.log_likelihood(gaps, dtype=dtype),
        "beliefs, a tenth missing": lambda: hmm.beliefs(gaps, dtype=dtype),
    }


@contextmanager
def _torch_alone() -> Iterator[None]:
    """Compute as on a GPU, and as before there were compiled loops."""
    serves = hmm_inference.serves
    hmm_inference.serves = lambda *tables: False
    try:
        yield
    finally:
        hmm_inference.serves = serves


def _in_torch(work: Callable[[], Any]) -> Callable[[], Any]:
    def run() -> Any:
        with _torch_alone():
            return work()

    return run


def _dynamax(hmm: HMM, tokens: np.ndarray) -> dict[str, Callable[[], Any]]:
    import jax
    from dynamax.hidden_markov_model import hmm_filter, hmm_posterior_mode, hmm_smoother

    # Its functions of tables; CategoricalHMM, which calls them, scores the emissions in a slower way.
    start, transition, log_emission = map(
        jax.numpy.asarray, (hmm.start, hmm.transition, np.log(np.maximum(hmm.emission.T, 1e-38)))
    )
    emission, rows = jax.numpy.asarray(hmm.emission), jax.numpy.asarray(tokens.astype(np.int32))
    found = {
        "log-likelihood": lambda row: hmm_filter(start, transition, log_emission[row]).marginal_loglik,
        "beliefs": lambda row: hmm_filter(start, transition, log_emission[row]).predicted_probs,
        "next-token distributions": lambda row: (
            hmm_filter(start, transition, log_emission[row]).predicted_probs @ emission
        ),
        "posteriors": lambda row: hmm_smoother(start, transition, log_emission[row]).smoothed_probs,
        "Viterbi": lambda row: hmm_posterior_mode(start, transition, log_emission[row]),
    }
    jitted = {name: jax.jit(jax.vmap(function)) for name, function in found.items()}
    return {name: lambda run=run: jax.block_until_ready(run(rows)) for name, run in jitted.items()}


def _products(count: int, states: int) -> float:
    """Products of a row `(H,)` and a table `(H, H)` per second: torch's, of all sequences at once on all threads."""
    left, right, out = torch.rand(count, states), torch.rand(states, states), torch.empty(count, states)
    repeats = max(1, int(2e8 / (count * states**2)))

    def work() -> None:
        for _ in range(repeats):
            torch.mm(left, right, out=out)

    return count * repeats / _seconds({"products": work})["products"]


def _mess3() -> None:
    """Beliefs of an edge-emitting HMM, which dynamax has not: a scan written for it, jitted."""
    import jax

    hmm = processes.mess3(0.15, 0.6)
    tokens = hmm.sample(SIZES[3], LENGTH, seed=2)
    edges = jax.numpy.asarray(hmm.edges, dtype=jax.numpy.float32)
    start, rows = jax.numpy.asarray(hmm.start, dtype=jax.numpy.float32), jax.numpy.asarray(tokens.astype(np.int32))

    def beliefs(row):
        def step(belief, symbol):
            following = belief @ edges[symbol]
            following = following / following.sum()
            return following, following

        return jax.lax.scan(step, start, row)[1]

    scan = jax.jit(jax.vmap(beliefs))
    ours = lambda: hmm.beliefs(tokens, dtype=torch.float32)  # noqa: E731
    ways = {
        "hmm-datasets": ours,
        "hmm-datasets, in torch": _in_torch(ours),
        "jax, a jitted scan": lambda: jax.block_until_ready(scan(rows)),
    }
    seconds = _seconds(ways)
    table = [[w, f"{tokens.size / s:,.0f}", f"{s / seconds['hmm-datasets']:.1f}"] for w, s in seconds.items()]
    print(f"\nBeliefs of Mess3 (edge-emitting, 3 states), {len(tokens):,} sequences of {LENGTH}, float32\n")
    print(text_table(["way", "tokens/s", "ours is times faster"], table))


def _floors() -> None:
    """The Bayes-optimal loss of an evaluation's rows, and all its baselines, in float64 as an evaluation has them."""
    rows = []
    for states in (3, 50, 200):
        hmm = processes.random(states, states, alpha=0.3, seed=1)
        tokens = hmm.sample(1024, LENGTH, seed=2)
        bayes = predictors_of(hmm)["bayes"]
        baselines = BaselineComparison(hmm, bos=False)
        labels = torch.from_numpy(tokens[:128].astype(np.int64))
        logits = torch.randn(*labels.shape, states, generator=torch.Generator().manual_seed(0))
        for name, work in {
            "the optimum alone": lambda bayes=bayes, tokens=tokens: cross_entropy(bayes, tokens, show_progress=False),
            "all baselines, 128 rows": lambda b=baselines, x=logits, y=labels: token_scores(b.rows(x, y)),
        }.items():
            seconds = _seconds({"ours": work, "torch": _in_torch(work)})
            ours, before = seconds["ours"], seconds["torch"]
            rows.append([f"H=E={states}", name, f"{1e3 * ours:.1f}", f"{1e3 * before:.1f}", f"{before / ours:.1f}"])
    print(f"\nThe floors of an evaluation, 1,024 sequences of {LENGTH}, float64, milliseconds\n")
    print(text_table(["process", "floor", "ours", "in torch", "times"], rows))


def _seconds(ways: dict[str, Callable[[], Any]]) -> dict[str, float]:
    """The least seconds of each way, one after the other, each after a warm-up that compiles it.

    They do not take turns, because the threads of torch and jax keep the cores busy for a while after their work.
    """
    best = {}
    for name, work in ways.items():
        work()
        time.sleep(0.5)
        times = []
        while len(times) < ROUNDS or (sum(times) < 0.2 and len(times) < 100):
            began = time.perf_counter()
            work()
            times.append(time.perf_counter() - began)
        best[name] = min(times)
    return best
