"""Drawing sequences from an HMM: this package beside hmmlearn and pomegranate, in one run.

    python benchmarks/sampling.py [--states 200 --symbols 200 --length 100 --seconds 3]

Prints machine, versions, tokens a second, and each one's ratio to ours. Run it on a quiet machine.
"""

import argparse
import importlib.metadata
import os
import platform
import time
from collections.abc import Callable

from hmm_datasets.hmm import processes
from hmm_datasets.hmm.model import HMM
from hmm_datasets.report.tables import text_table


def main() -> None:
    """Time each and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--states", type=int, default=200)
    parser.add_argument("--symbols", type=int, default=200)
    parser.add_argument("--length", type=int, default=100)
    parser.add_argument("--seconds", type=float, default=3.0, help="time given to each at least")
    settings = parser.parse_args()
    hmm = processes.random(settings.states, settings.symbols, seed=0)
    rates = {
        f"hmm-datasets, {len(os.sched_getaffinity(0))} threads": _rate(_ours(hmm, None), settings, 100_000),
        "hmm-datasets, 1 thread": _rate(_ours(hmm, 1), settings, 100_000),
        "hmmlearn": _rate(_hmmlearn(hmm), settings, 100),
        "pomegranate": _rate(_pomegranate(hmm), settings, 2),
    }
    ours = next(iter(rates.values()))
    packages = {name: importlib.metadata.version(name) for name in ("numpy", "numba", "hmmlearn", "pomegranate")}
    print(f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}")
    print(", ".join(f"{name} {version}" for name, version in packages.items()))
    print(f"H={settings.states}, E={settings.symbols}, sequences of {settings.length}\n")
    rows = [[name, f"{rate:,.0f}", f"{ours / rate:,.1f}"] for name, rate in rates.items()]
    print(text_table(["library", "tokens/s", "ours is times faster"], rows))


def _rate(draw: Callable[[int, int], None], settings: argparse.Namespace, sequences: int) -> float:
    """Tokens a second of `draw(num_sequences, length)`, after a warm-up, over at least the time given."""
    draw(sequences, settings.length)
    drawn, began = 0, time.perf_counter()
    while time.perf_counter() - began < settings.seconds:
        draw(sequences, settings.length)
        drawn += sequences * settings.length
    return drawn / (time.perf_counter() - began)


def _ours(hmm: HMM, num_threads: int | None) -> Callable[[int, int], None]:
    return lambda count, length: hmm.sample(count, length, num_threads=num_threads)


def _hmmlearn(hmm: HMM) -> Callable[[int, int], None]:
    model = hmm.to_hmmlearn()

    def draw(count: int, length: int) -> None:
        for _ in range(count):
            model.sample(length)

    return draw


def _pomegranate(hmm: HMM) -> Callable[[int, int], None]:
    from pomegranate.distributions import Categorical
    from pomegranate.hmm import DenseHMM

    # Its sampler needs rows and ends that sum to one, and a length of its own.
    def model(length: int) -> DenseHMM:
        return DenseHMM(
            [Categorical([row.tolist()]) for row in hmm.emission],
            edges=(hmm.transition * (1 - 1e-7)).tolist(),
            starts=hmm.start.tolist(),
            ends=[1e-7] * hmm.num_states,
            sample_length=length,
        )

    models: dict[int, DenseHMM] = {}

    def draw(count: int, length: int) -> None:
        if length not in models:
            models[length] = model(length)
        models[length].sample(count)

    return draw


if __name__ == "__main__":
    main()
