"""Speeds of composed processes beside the HMM that a user would otherwise build: drawing, and the exact law.

    python benchmarks/factored.py [factored] [chains] [mixtures] [--threads N]

Without a part, all are measured. A rate is tokens per second, the best of three runs; a token of a factored process is
one product symbol of all factors.
"""

import argparse
import time
from collections.abc import Callable

import numpy as np
import torch
from machine import print_heading

from hmm_datasets import HMM, FactoredProcess, HMMMixture
from hmm_datasets.hmm import processes
from hmm_datasets.hmm.families.mixture import random_chain_mixture
from hmm_datasets.hmm.process import Process
from hmm_datasets.hmm.structured.markov import random_markov_chain
from hmm_datasets.report.tables import text_table

ROUNDS = 3
SECONDS = 5.0  # a measurement that takes longer is not repeated


def factored(threads: int) -> None:
    """Factors of three states (mess3), beside the filter of the joint HMM."""
    mess3 = processes.mess3(0.15, 0.6)
    joint_rates: dict[int, float] = {}
    rows = []
    for count in (1, 2, 3, 4, 5, 6, 8, 10):
        process = FactoredProcess([mess3] * count)
        tokens = process.sample(512, 64, seed=1)
        cells = [f"{count} independent", f"3^{count} = {3**count:,}", *_rates(process, tokens, threads)]
        cells.append(_rate(lambda p=process, t=tokens: p.beliefs(t), tokens.size))
        if count <= 5:
            joint = process.joint_process()
            joint_rates[count] = _per_second(lambda j=joint, t=tokens: j.log_likelihood(t), tokens.size)
            rows.append([*cells, f"{joint_rates[count]:,.0f}"])
        else:
            # The filter of an edge-emitting HMM costs 9 times as much for each further factor, and its tables no
            # longer fit in memory; so this bound is not a measurement.
            rows.append([*cells, f"({joint_rates[5] / 9 ** (count - 5):,.4g}, extrapolated)"])
    print(f"\nFactors of 3 states and 3 symbols, 512 sequences of 64, float64, {threads} threads, tokens/s\n")
    heading = ["factors", "joint states", "sample", "log-likelihood", "laws by factors", "beliefs", "joint filter"]
    print(text_table(heading, rows))


def chains(threads: int) -> None:
    """Markov chains of order k by look-up, beside the HMM over contexts."""
    rows = []
    for order, symbols in ((1, 50), (2, 10), (3, 10)):
        chain = random_markov_chain(order, symbols)
        rows += _beside_hmm(f"order {order}, {symbols} symbols", chain, chain.to_hmm(), threads)
    _print_pairs("Markov chains", rows, threads)


def mixtures(threads: int) -> None:
    """Mixtures of chains of 10 symbols, beside a mixture of their HMMs."""
    rows = []
    for count in (16, 256, 1024):
        mixture = random_chain_mixture(count, 10)
        tokens = mixture.sample(64, 256, seed=1)
        law = _per_second(lambda m=mixture, t=tokens: m.next_token_probs(t), tokens.size)
        cells = [
            f"{count:,}",
            _rate(lambda m=mixture: m.sample(4096, 256, num_threads=threads), 1 << 20),
            f"{law:,.0f}",
        ]
        hmms = HMMMixture(tuple(mixture.chain(n).to_hmm() for n in range(count)), tuple(mixture.weights))
        few = tokens[:16]
        other = _per_second(lambda h=hmms, t=few: h.next_token_probs(t), few.size)
        rows.append([*cells, f"{other:,.0f}", f"{law / other:.0f}"])
    print(f"\nMixtures of chains of 10 symbols, sequences of 256, float64, {threads} threads, tokens/s\n")
    print(text_table(["chains", "sample", "exact law", "HMMMixture's law", "times"], rows))


def _rates(process: Process, tokens: np.ndarray, threads: int) -> list[str]:
    assert isinstance(process, FactoredProcess)
    return [
        _rate(lambda: process.sample(4096, 64, num_threads=threads), 1 << 18),
        _rate(lambda: process.log_likelihood(tokens), tokens.size),
        _rate(lambda: _by_factor(process, tokens), tokens.size),
    ]


def _by_factor(process: FactoredProcess, tokens: np.ndarray) -> list[np.ndarray]:
    """The distribution of each factor's next symbol."""
    symbols = process.factor_tokens(tokens)
    return [factor.next_token_probs(symbols[k]) for k, factor in enumerate(process.factors)]


def _beside_hmm(name: str, process: Process, hmm: HMM, threads: int) -> list[list[str]]:
    tokens = process.sample(256, 128, seed=1)
    few = tokens[: max(4, 256 * 100 // max(hmm.num_states, 100))]
    rows = []
    for quantity, ours, theirs in (
        (
            "sample",
            lambda: _per_second(lambda: process.sample(4096, 128, num_threads=threads), 1 << 19),
            lambda: _per_second(lambda: hmm.sample(4096, 128, num_threads=threads), 1 << 19),
        ),
        (
            "log-likelihood",
            lambda: _per_second(lambda: process.log_likelihood(tokens), tokens.size),
            lambda: _per_second(lambda: hmm.log_likelihood(few), few.size),
        ),
        (
            "exact law",
            lambda: _per_second(lambda: process.next_token_probs(tokens), tokens.size),
            lambda: _per_second(lambda: hmm.next_token_probs(few), few.size),
        ),
    ):
        mine, other = ours(), theirs()
        rows.append([name, f"{hmm.num_states:,}", quantity, f"{mine:,.0f}", f"{other:,.0f}", f"{mine / other:.1f}"])
    return rows


def _print_pairs(title: str, rows: list[list[str]], threads: int) -> None:
    print(f"\n{title}, sequences of 128, float64, {threads} threads, tokens/s\n")
    print(text_table(["process", "states of the HMM", "quantity", "ours", "dense HMM", "times"], rows))


def _rate(work: Callable[[], object], tokens: int) -> str:
    return f"{_per_second(work, tokens):,.0f}"


def _per_second(work: Callable[[], object], tokens: int) -> float:
    work()  # tables, and compilation
    best = np.inf
    for _ in range(ROUNDS):
        begin = time.perf_counter()
        work()
        best = min(best, time.perf_counter() - begin)
        if best > SECONDS:
            break
    return tokens / best


PARTS = {"factored": factored, "chains": chains, "mixtures": mixtures}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"{', '.join(PARTS)}; by default all")
    parser.add_argument("--threads", type=int, default=1, help="threads of all measurements")
    settings = parser.parse_args()
    unknown = set(settings.parts) - PARTS.keys()
    if unknown:
        parser.error(f"unknown {', '.join(sorted(unknown))}; expected {', '.join(PARTS)}")
    torch.set_num_threads(settings.threads)
    print_heading(["hmm_datasets", "numpy", "numba", "torch"])
    for name in settings.parts or PARTS:
        PARTS[name](settings.threads)


if __name__ == "__main__":
    main()
