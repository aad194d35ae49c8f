"""The processes of the benchmark: twelve HMMs of different kinds over at most 16 symbols.

The memory of the twelve is finite or infinite; they are periodic or not, unifilar or not, ergodic or not, and have few
states or many. [`KINDS`] says what each asks of a predictor. The probabilities are rounded to multiples of 2^-30. So
the tables, and with them the sequences, do not depend on the last bits of a machine's linear algebra.
"""

from collections.abc import Sequence
from functools import cache

import numpy as np
from jaxtyping import Float

from ...errors import InputError
from ...hmm import processes
from ...hmm.families.mixture import HMMMixture, with_symbols
from ...hmm.model import HMM

LETTERS = "ABCDEFGHIJKLMNOP"
"""The name of each symbol in text."""

NUM_SYMBOLS = len(LETTERS)
"""Symbols of all processes together; a model of all twelve has these and a beginning token."""

KINDS = {
    "golden_mean": "remember one symbol: no two zeros in a row",
    "even": "remember a parity, which no finite past suffices for: blocks of ones have even length",
    "zero_one_random": "find the phase of a period of three, one symbol of which is random",
    "rrxor": "compute the exclusive or of two random bits, and find the phase",
    "leaky_rrxor": "the same, but the phase is lost now and then, so it is never known for good",
    "mess3": "keep a belief over three states, which moves on a fractal",
    "simple_nonunifilar": "count the symbols since the last 0, the only one that reveals the state",
    "renewal": "count the symbols since the last event, whose probability grows with the wait",
    "dishonest_casino": "notice when a fair die is exchanged for a loaded one",
    "noisy_cycle": "find the phase of a cycle of seven, of which one symbol in seven is misread",
    "non_ergodic": "recognize which of three processes the sequence is from, then predict that one",
    "random_50": "track 50 states with 3 successors and 3 symbols each",
}
"""The processes, and what a predictor of each must do."""

_UNIT = 1 << 30
_SEED_OF_RANDOM = 50


@cache
def benchmark_processes() -> dict[str, HMM]:
    """The processes by name, in the order of [`KINDS`].

    ```python
    >>> len(benchmark_processes()), max(hmm.num_symbols for hmm in benchmark_processes().values())
    (12, 16)

    ```
    """
    made = {
        "golden_mean": processes.golden_mean(),
        "even": processes.even(),
        "zero_one_random": processes.zero_one_random(),
        "rrxor": processes.rrxor(),
        "leaky_rrxor": processes.leaky_rrxor(0.1),
        "mess3": processes.mess3(x=0.05, a=0.85),
        "simple_nonunifilar": processes.simple_nonunifilar(),
        "renewal": _renewal(),
        "dishonest_casino": processes.dishonest_casino(),
        "noisy_cycle": _noisy_cycle(7, right=6 / 7),
        "non_ergodic": _one_of(processes.golden_mean(), processes.even(), HMM(edges=[[[0.75]], [[0.25]]])),
        "random_50": _sparse(50, NUM_SYMBOLS, ways=3),
    }
    return {name: _rounded(hmm) for name, hmm in made.items()}


def chosen_processes(names: Sequence[str] | None = None) -> dict[str, HMM]:
    """The processes of these names, by default the twelve.

    Raises:
        `InputError`: an unknown name.
    """
    known = benchmark_processes()
    for name in names or ():
        if name not in known:
            raise InputError(f"process {name!r} is not in the benchmark; expected some of {', '.join(known)}")
    return {name: hmm for name, hmm in known.items() if name in (names or known)}


@cache
def mixture() -> HMMMixture:
    """The twelve processes with equal weights, over the 16 symbols: data for one model of all twelve.

    Its Bayes-optimal predictor knows the twelve processes, but not which of them a sequence is from.
    """
    hmms = [with_symbols(hmm, NUM_SYMBOLS) for hmm in benchmark_processes().values()]
    return HMMMixture([HMM(**hmm.tables(), vocabulary=LETTERS) for hmm in hmms], [1 / len(hmms)] * len(hmms))


def _renewal() -> HMM:
    """Symbol 1 is an event. Its probability `k` symbols after the last event is the `k`-th of these."""
    hazards = [0, 0, 1 / 8, 1 / 4, 1 / 2, 3 / 4, 7 / 8, 1]
    edges = np.zeros((2, len(hazards), len(hazards)))
    for wait, hazard in enumerate(hazards):
        edges[1, wait, 0] = hazard
        edges[0, wait, min(wait + 1, len(hazards) - 1)] = 1 - hazard
    return HMM(edges=edges)


def _noisy_cycle(period: int, right: float) -> HMM:
    emission = np.full((period, period), (1 - right) / (period - 1))
    np.fill_diagonal(emission, right)
    return HMM(start=np.full(period, 1 / period), transition=np.roll(np.eye(period), 1, axis=1), emission=emission)


def _one_of(*hmms: HMM) -> HMM:
    """An HMM whose states are those of all `hmms`, without a way from one to another."""
    sizes = [hmm.num_states for hmm in hmms]
    edges = np.zeros((hmms[0].num_symbols, sum(sizes), sum(sizes)))
    ends = np.cumsum(sizes)
    for hmm, end in zip(hmms, ends, strict=True):
        states = slice(end - hmm.num_states, end)
        edges[:, states, states] = hmm.edges
    return HMM(start=np.concatenate([hmm.start / len(hmms) for hmm in hmms]), edges=edges)


def _sparse(num_states: int, num_symbols: int, ways: int) -> HMM:
    """Each state has `ways` successors and emits `ways` symbols, drawn uniformly, with Dirichlet probabilities."""
    generator = np.random.default_rng(_SEED_OF_RANDOM)

    def table(columns: int) -> Float[np.ndarray, "H C"]:
        rows = np.zeros((num_states, columns))
        for row in rows:
            row[generator.choice(columns, ways, replace=False)] = generator.dirichlet(np.ones(ways))
        return rows

    return HMM(start=np.full(num_states, 1 / num_states), transition=table(num_states), emission=table(num_symbols))


def _rounded(hmm: HMM) -> HMM:
    """An HMM with probabilities that are multiples of 2^-30, and letters as names of its symbols."""
    tables = {"start": _rounded_rows(hmm.start[None])[0]}
    if hmm.edges is None:
        tables |= {"transition": _rounded_rows(hmm.transition), "emission": _rounded_rows(hmm.emission)}
    else:
        ways = hmm.edges.transpose(1, 0, 2)
        rows = _rounded_rows(ways.reshape(len(ways), -1)).reshape(ways.shape)
        tables["edges"] = rows.transpose(1, 0, 2)
    return HMM(**tables, vocabulary=LETTERS[: hmm.num_symbols])


def _rounded_rows(rows: Float[np.ndarray, "H C"]) -> Float[np.ndarray, "H C"]:
    counts = np.rint(rows * _UNIT).astype(np.int64)
    rest = _UNIT - counts.sum(axis=1)
    counts[np.arange(len(counts)), counts.argmax(axis=1)] += rest  # a few units of 2^-30
    return counts / _UNIT
