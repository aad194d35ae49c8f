"""The held-out sequences of the benchmark, drawn from its processes or read from its data set.

Every process has 256 sequences of 128 symbols, from a seed and indices of their own. Training streams of other seeds
are independent of them, and those of the same seed never reach these indices. The processes of a published data set
are compared with those of this package when it is opened. They fix the sequences, so that scores compare.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from jaxtyping import Float, UInt

from ...data.sequences import TEST_FIRST
from ...errors import InputError
from ...hmm.analysis.predictors import cross_entropy, predictors_of
from ...hmm.model import HMM
from ...hub.download import Repository, download
from .processes import KINDS, LETTERS, chosen_processes, mixture

FIRST_SEED = 12_000
FIRST = TEST_FIRST + (1 << 40)
NUM_SEQUENCES, LENGTH = 256, 128

DATA_NAME, PROCESSES_NAME, EVAL_NAME = "data", "processes", "eval.yaml"

BASELINES = {
    "uniform": "uniform",
    "unigram": "unigram, in context",
    "bigram": "bigram, in context",
    "process_bigram": "bigram of the process",
    "mixture": "knows the twelve processes",
}
"""The baselines and their titles: the uniform distribution over the symbols of the process, n-grams counted in the
sequence, the bigram of the process, and the optimum of a predictor that knows the twelve processes but not which of
them it reads."""


@dataclass(frozen=True)
class HeldOut:
    """Held-out sequences of one process.

    Args:
        name (`str`): name of the process.
        hmm ([`~hmm_datasets.HMM`]): the process.
        num_sequences (`int`, *optional*): the first `N` of the 256 sequences.
    """

    name: str
    hmm: HMM
    num_sequences: int = NUM_SEQUENCES

    @property
    def seed(self) -> int:
        """Seed of the stream, another one for each process, so that their errors are independent."""
        return FIRST_SEED + list(KINDS).index(self.name)

    @cached_property
    def tokens(self) -> UInt[np.ndarray, "N L"]:
        """The symbols."""
        return self.hmm.sample(self.num_sequences, LENGTH, seed=self.seed, first=FIRST)

    @cached_property
    def probs(self) -> Float[np.ndarray, "N L E"]:
        """The exact distribution of each symbol given those before it."""
        return self.hmm.next_token_probs(self.tokens)[:, :-1]

    @cached_property
    def log_probs(self) -> Float[np.ndarray, "N L"]:
        """The optimum: the log-probability of each symbol given those before it, in nats."""
        return np.log(np.take_along_axis(self.probs, self.tokens[..., None].astype(np.int64), axis=-1)[..., 0])

    @cached_property
    def baselines(self) -> dict[str, Float[np.ndarray, "L"]]:
        """The mean loss of each of [`BASELINES`] at every position, in nats."""
        predictors = predictors_of(self.hmm) | {"mixture": mixture().next_token_probs}
        return {name: cross_entropy(predictors[name], self.tokens, show_progress=False).nats for name in BASELINES}

    def texts(self) -> list[str]:
        """The sequences as text: one letter per symbol, separated by spaces."""
        return [" ".join(row) for row in np.array(list(LETTERS))[self.tokens]]


@dataclass(frozen=True)
class Benchmark:
    """The held-out sequences of some or all processes.

    Args:
        processes (`list` of [`HeldOut`]): the sequences of each process.
        dataset_id (`str`, *optional*): repository on the Hub that they were compared with.
        revision (`str`, *optional*): its commit.
    """

    processes: list[HeldOut]
    dataset_id: str | None = None
    revision: str | None = None


def open_benchmark(
    data: str | None = None, *, processes: Sequence[str] | None = None, num_sequences: int = NUM_SEQUENCES
) -> Benchmark:
    """The held-out sequences, computed by this package and compared with a data set if one is given.

    Args:
        data (`str`, *optional*): folder or Hub repository of the data set.
        processes (sequence of `str`, *optional*): names of processes; by default the twelve.
        num_sequences (`int`, *optional*, defaults to 256): how many sequences of each process, 2 to 256.

    Raises:
        `InputError`: an unknown process, a number out of range, or a data set that differs.

    ```python
    >>> open_benchmark(processes=["even"]).processes[0].texts()[0][:9]
    'B A B B A'

    ```
    """
    if not 2 <= num_sequences <= NUM_SEQUENCES:
        raise InputError(f"num_sequences is {num_sequences}; expected 2 to {NUM_SEQUENCES}")
    held_out = [HeldOut(name, hmm, num_sequences) for name, hmm in chosen_processes(processes).items()]
    if data is None:
        return Benchmark(held_out)
    folder, revision = _folder_of(data)
    for process in held_out:
        _compare(process, folder)
    return Benchmark(held_out, data if revision is not None else None, revision)


def parquet_path(name: str) -> str:
    """The file of a process in the data set."""
    return f"{DATA_NAME}/{name}/test-00000-of-00001.parquet"


def _folder_of(data: str) -> tuple[Path, str | None]:
    """The folder, and the commit if it was downloaded."""
    if Path(data).is_dir():
        return Path(data), None
    try:
        folder = download(data, [f"{PROCESSES_NAME}/*"], repo_type="dataset", expected="a data set")
    except InputError as error:
        raise InputError(f"--data {error}") from None
    return folder, Repository.commit_of(folder)


def _compare(held_out: HeldOut, folder: Path) -> None:
    """Raise [`InputError`] if the data set has another process of this name."""
    remedy = (
        "it is another version of the benchmark; leave out --data, or write it anew with "
        "recipes/experiments/benchmark_models/data_set.py"
    )
    published = folder / PROCESSES_NAME / held_out.name
    if not published.is_dir():
        raise InputError(f"{published}: no such folder, so this is not the benchmark's data set; {remedy}")
    fingerprint, expected = HMM.from_pretrained(published).fingerprint(), held_out.hmm.fingerprint()
    if fingerprint != expected:
        raise InputError(f"{published}: has fingerprint {fingerprint}, expected {expected}; {remedy}")
