"""Runs of small Llamas on one process: which there are, and what each loses beyond the optimum."""

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from architectures import architecture_config
from jaxtyping import Float, Int
from small_runs import SmallRun, finished_trial, trained_model
from symbol_predictions import symbol_log_probs
from torch import Tensor
from transformers import PreTrainedConfig

from hmm_datasets.data.sequences import TEST_FIRST
from hmm_datasets.hmm.analysis.divergence import kl_divergence
from hmm_datasets.hmm.loading import load_source
from hmm_datasets.hmm.process import Process
from hmm_datasets.runtime.parent_watch import end_with_parent
from hmm_datasets.training.model_configs import new_model
from hmm_datasets.training.parameters import count_parameters
from hmm_datasets.training.plan.flops import flops_per_token

LENGTH, BATCH_SIZE = 64, 16
"""Symbols per row, and rows per step."""
WIDTHS = (8, 12, 16, 24, 32, 48, 64, 96, 128, 192)
"""Of the Llamas, which have two layers: 2,000 to 1.2 million parameters."""
LAYERS = 2
TOKENS_PER_PARAMETER, FEWEST_STEPS = (0.3, 500.0), 35
"""A compute is tried with the widths that give this many tokens per parameter and that many steps."""
LEARNING_RATE = 0.3
"""The peak, divided by the width."""
TEST_ROWS, FLOOR_ROWS = 1024, 8192
"""Held-out rows that models are measured on, and those of the floor."""
MOST_WORKERS = 8


class Size(NamedTuple):
    """A Llama for `E` symbols, and its FLOPs of training on a token."""

    width: int
    parameters: int
    flops: int

    @classmethod
    def of(cls, width: int, num_symbols: int) -> "Size":
        """The Llama of a width; it is made without memory for its weights."""
        with torch.device("meta"):
            model = new_model(configuration(width, num_symbols))
        return cls(width, count_parameters(model)["total"], flops_per_token(model, LENGTH + 1))

    def steps(self, compute: float) -> int:
        """Optimizer steps that take a compute."""
        return max(1, round(compute / (self.flops * BATCH_SIZE * (LENGTH + 1))))


def configuration(width: int, num_symbols: int) -> PreTrainedConfig:
    """The configuration of a Llama, which begins rows with the token `E`."""
    sizes = {"vocab_size": num_symbols + 1, "length": LENGTH + 1, "bos_token_id": num_symbols}
    return architecture_config("llama", **sizes, width=width, layers=LAYERS, heads=max(1, width // 32))


def sizes_of(compute: float, num_symbols: int) -> list[Size]:
    """The sizes that a compute is tried with."""
    least, most = TOKENS_PER_PARAMETER
    sizes = [size for size in (Size.of(width, num_symbols) for width in WIDTHS) if size.steps(compute) >= FEWEST_STEPS]
    return [size for size in sizes if least <= compute / size.flops / size.parameters <= most]


def nearest_size(parameters: float, num_symbols: int) -> Size:
    """The Llama whose number of parameters is nearest to the given one, of widths that are multiples of eight."""
    widths = [width for width in range(8, 513, 8) if width % (2 * max(1, width // 32)) == 0]
    sizes = [Size.of(width, num_symbols) for width in widths]
    return min(sizes, key=lambda size: abs(np.log(size.parameters / parameters)))


@dataclass(frozen=True)
class Trial:
    """A run.

    Args:
        folder (`str`): of its process; has `process/`, and gets a folder and a file for each run.
        process (`str`): its fingerprint.
        compute (`float`): FLOPs that it was to take.
        width (`int`), steps (`int`), seed (`int`): the Llama, and how it is trained.
    """

    folder: str
    process: str
    compute: float
    width: int
    steps: int
    seed: int

    def result(self) -> dict[str, Any]:
        """What it was, and its `parameters`, `tokens`, `flops` and `excess` in nats per symbol with its
        `standard_error`; from its file, if it was done before.
        """
        name = f"{self.compute:.3g}-{self.width}-{self.seed}"
        described = {**vars(self), "folder": Path(self.folder).name, "learning_rate": LEARNING_RATE / self.width}
        path = Path(self.folder) / "runs" / f"{name}.json"
        return finished_trial(path, described, partial(self._measured, path.with_suffix("")))

    def _measured(self, folder: Path) -> dict[str, Any]:
        process = load_source(str(Path(self.folder) / "process"))
        run = SmallRun(LENGTH, self.steps, BATCH_SIZE, LEARNING_RATE / self.width, seed=self.seed)
        model = trained_model(folder, configuration(self.width, process.num_symbols), process, run)
        rows, exact = test_rows(process, TEST_ROWS)
        with torch.no_grad():
            excess = kl_divergence(exact, symbol_log_probs(model, rows, process.num_symbols)).mean(1)
        return {
            "parameters": model.num_parameters(),
            "tokens": run.tokens,
            "flops": flops_per_token(model, LENGTH + 1) * run.tokens,
            "excess": float(excess.mean()),
            "standard_error": float(excess.std() / len(rows) ** 0.5),
        }


def test_rows(process: Process, count: int) -> tuple[Int[Tensor, "N L"], Float[Tensor, "N L E"]]:
    """Held-out rows, and the exact distribution of each of their symbols."""
    rows = process.sample(count, LENGTH, seed=0, first=TEST_FIRST).astype(np.int64)
    return torch.from_numpy(rows), torch.as_tensor(process.next_token_probs(rows))[:, :-1].double()


def floor_of(process: Process) -> dict[str, float]:
    """The loss of the best predictor of a row, nats per symbol, and its standard error over rows."""
    _, exact = test_rows(process, FLOOR_ROWS)
    entropies = -torch.xlogy(exact, exact).sum(-1).mean(1)
    return {"floor": float(entropies.mean()), "standard_error": float(entropies.std() / FLOOR_ROWS**0.5)}


def results_of(trials: Sequence[Trial], done: Callable[[], Any]) -> Iterator[dict[str, Any]]:
    """The results of trials, in their order, of processes of one thread each, the longest first.

    Args:
        trials (sequence of [`Trial`]): what is run.
        done (callable): is called after each.
    """
    if not trials:
        return
    workers = min(os.cpu_count() or 1, MOST_WORKERS, len(trials))
    with ProcessPoolExecutor(workers, get_context("spawn"), initializer=_begin) as pool:
        longest_first = sorted(trials, key=lambda trial: -trial.steps * trial.width)
        futures = {trial: pool.submit(trial.result) for trial in longest_first}
        for trial in longest_first:
            futures[trial].add_done_callback(lambda _: done())
        yield from (futures[trial].result() for trial in trials)


def _begin() -> None:
    torch.set_num_threads(1)
    end_with_parent()  # else a worker waits for ever once the experiment is killed
