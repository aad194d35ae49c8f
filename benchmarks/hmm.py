"""HMMs: drawing and fitting, this package beside hmmlearn, pomegranate and dynamax, in one run.

    pip install -e ".[bench]"
    python benchmarks/hmm.py [--part sampling fitting epoch] [--seconds 3]

Prints machine, versions, then a table a part: rates, how many times faster ours is, and what bounds it. Everything is
timed after a warm-up that compiles it. Run it on a quiet machine. With a CUDA device its rows are added.
"""

import argparse
import importlib.metadata
import os
import platform
import sys
import time
from collections.abc import Callable

import numba
import numpy as np
import torch

from hmm_datasets.hmm import processes
from hmm_datasets.hmm.families import PermutedEmissions
from hmm_datasets.hmm.kernels import LANES, philox_block
from hmm_datasets.hmm.model import HMM
from hmm_datasets.report.tables import text_table

CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
LENGTH = 100


def main() -> None:
    """Time what was asked for; print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parts = {"sampling": sampling}
    parser.add_argument("--part", nargs="*", choices=parts, default=list(parts))
    parser.add_argument("--seconds", type=float, default=3.0, help="time given to each draw at least")
    settings = parser.parse_args()
    print(f"$ python benchmarks/{' '.join([os.path.basename(sys.argv[0]), *sys.argv[1:]])}\n")
    print(f"{_processor()}, {CORES} cores, Python {platform.python_version()}")
    if torch.cuda.is_available():
        print(f"{torch.cuda.get_device_name()}, CUDA {torch.version.cuda}")
    names = ("numpy", "numba", "torch", "hmmlearn", "pomegranate", "dynamax", "jax")
    print(", ".join(f"{name} {importlib.metadata.version(name)}" for name in names))
    for part in settings.part:
        parts[part](settings)


def sampling(settings: argparse.Namespace) -> None:
    """Tokens a second of every sampler; then of the parts of ours."""
    for states, symbols in ((200, 200), (500, 100)):
        hmm = processes.random(states, symbols, seed=0)
        draws = {
            f"hmm-datasets, {CORES} threads": (_ours(hmm, None), 200_000),
            "hmm-datasets, 1 thread": (_ours(hmm, 1), 100_000),
            f"  a permutation a sequence, {CORES} threads": (_ours(PermutedEmissions(hmm), None), 200_000),
            "hmmlearn": (_hmmlearn(hmm), 100),
            "pomegranate": (_pomegranate(hmm), 2),
            "dynamax, jitted and vmapped": (_dynamax(hmm), 1000),
        }
        if torch.cuda.is_available():
            draws["hmm-datasets, CUDA"] = (_on_cuda(hmm), 1 << 22)
        rates = {name: _rate(draw, count, settings.seconds) for name, (draw, count) in draws.items()}
        ours = next(iter(rates.values()))
        rows = [[name, f"{rate:,.0f}", f"{ours / rate:,.2f}"] for name, rate in rates.items()]
        print(f"\nDrawing: H={states}, E={symbols}, sequences of {LENGTH}, one byte a token\n")
        print(text_table(["sampler", "tokens/s", "ours is times faster"], rows))
        limits = {
            "the generator alone (Philox4x32-10)": _generator_alone,
            "the look-ups alone (words of a cheap recurrence)": _look_ups_alone(hmm),
            "the stores alone (one byte a token)": _stores_alone,
        }
        one_thread = rates["hmm-datasets, 1 thread"]
        rows = []
        for name, kernel in limits.items():
            rate = _rate(lambda count, kernel=kernel: kernel(np.empty((count, LENGTH), np.uint8)), 50_000, 1.0)
            rows.append([name, f"{rate:,.0f}", f"{one_thread / rate:.0%}"])
        print(f"\nWhat bounds one thread of ours, {one_thread:,.0f} tokens/s\n")
        print(text_table(["part", "tokens/s", "ours is at"], rows))


def _rate(draw: Callable[[int], None], sequences: int, seconds: float) -> float:
    """Tokens a second of `draw(num_sequences)`, after a warm-up, over at least the time given."""
    draw(sequences)
    drawn, began = 0, time.perf_counter()
    while time.perf_counter() - began < seconds:
        draw(sequences)
        drawn += sequences * LENGTH
    return drawn / (time.perf_counter() - began)


def _ours(source: HMM | PermutedEmissions, num_threads: int | None) -> Callable[[int], None]:
    # Into an array that is there, as a training loop would: fresh pages cost the system more than the draw.
    rooms: dict[int, np.ndarray] = {}

    def draw(count: int) -> None:
        out = rooms.setdefault(count, np.empty((count, LENGTH), np.uint8))
        source.sample(count, LENGTH, num_threads=num_threads, out=out)

    return draw


def _on_cuda(hmm: HMM) -> Callable[[int], None]:
    out = torch.empty(0, dtype=torch.uint8, device="cuda")

    def draw(count: int) -> None:
        nonlocal out
        if len(out) != count:
            out = torch.empty(count, LENGTH, dtype=torch.uint8, device="cuda")
        hmm.sample(count, LENGTH, out=out)
        torch.cuda.synchronize()

    return draw


def _hmmlearn(hmm: HMM) -> Callable[[int], None]:
    model = hmm.to_hmmlearn()

    def draw(count: int) -> None:
        for _ in range(count):
            model.sample(LENGTH)

    return draw


def _pomegranate(hmm: HMM) -> Callable[[int], None]:
    from pomegranate.distributions import Categorical
    from pomegranate.hmm import DenseHMM

    # Its sampler needs rows and ends that sum to one, and a length of its own.
    model = DenseHMM(
        [Categorical([row.tolist()]) for row in hmm.emission],
        edges=(hmm.transition * (1 - 1e-7)).tolist(),
        starts=hmm.start.tolist(),
        ends=[1e-7] * hmm.num_states,
        sample_length=LENGTH,
    )
    return lambda count: model.sample(count)


def _dynamax(hmm: HMM) -> Callable[[int], None]:
    import jax
    from dynamax.hidden_markov_model import CategoricalHMM

    model = CategoricalHMM(hmm.num_states, 1, hmm.num_symbols)
    tables = {"initial_probs": hmm.start, "transition_matrix": hmm.transition, "emission_probs": hmm.emission[:, None]}
    tables = {name: jax.numpy.asarray(table) for name, table in tables.items()}
    parameters, _ = model.initialize(jax.random.PRNGKey(0), method="prior", **tables)
    draw = jax.jit(jax.vmap(lambda key: model.sample(parameters, key, LENGTH)[1]))
    return lambda count: draw(jax.random.split(jax.random.PRNGKey(1), count)).block_until_ready()


@numba.njit(nogil=True)
def _generator_alone(out: np.ndarray) -> None:
    mask = np.uint64(0xFFFFFFFF)
    for n in range(0, out.shape[0] - LANES + 1, LANES):
        for t in range(out.shape[1]):
            for lane in range(LANES):
                index = np.uint64(n + lane)
                words = philox_block(index & mask, np.uint64(0), np.uint64(t) & mask, np.uint64(0), mask, mask)
                out[n + lane, t] = words[0] ^ words[1] ^ words[2] ^ words[3]


def _look_ups_alone(hmm: HMM) -> Callable[[np.ndarray], None]:
    _, symbol, transition = hmm._alias_tables

    @numba.njit(nogil=True)
    def walk(symbol, e_bits, transition, t_bits, out):
        half = np.uint64(0xFFFFFFFF)
        state = np.zeros(LANES, np.uint64)
        word = np.uint64(1)
        for n in range(0, out.shape[0] - LANES + 1, LANES):
            for t in range(out.shape[1]):
                for lane in range(LANES):
                    word = word * np.uint64(6364136223846793005) + np.uint64(1442695040888963407)
                    here = state[lane]
                    column = word >> np.uint64(64 - e_bits)
                    entry = symbol[here, column]
                    out[n + lane, t] = column if (word & half) < (entry & half) else entry >> np.uint64(32)
                    column = (word >> np.uint64(20)) & np.uint64((1 << t_bits) - 1)
                    entry = transition[here, column]
                    state[lane] = column if (word & half) < (entry & half) else entry >> np.uint64(32)

    return lambda out: walk(symbol.entries, symbol.bits, transition.entries, transition.bits, out)


@numba.njit(nogil=True)
def _stores_alone(out: np.ndarray) -> None:
    for n in range(0, out.shape[0] - LANES + 1, LANES):
        for t in range(out.shape[1]):
            for lane in range(LANES):
                out[n + lane, t] = t


def _processor() -> str:
    try:
        with open("/proc/cpuinfo") as file:
            return next(line.split(":", 1)[1].strip() for line in file if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


if __name__ == "__main__":
    main()
