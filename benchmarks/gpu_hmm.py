"""HMMs on a GPU: the sampler, an epoch of Baum-Welch, and inference, each beside a goal or what bounds it.

    python benchmarks/gpu_hmm.py sampler em inference [--tiny]

Started by `benchmarks/gpu.py`, which keeps what is printed. With `--tiny` it runs on the CPU at tiny sizes.
"""

import argparse
import time
from collections.abc import Callable

import numpy as np
import torch
from machine import against_goal

from hmm_datasets.hmm import processes
from hmm_datasets.hmm.fitting.baum_welch import batch_rows
from hmm_datasets.hmm.fitting.fit import fit_hmm
from hmm_datasets.hmm.fitting.settings import FitSettings
from hmm_datasets.report.tables import text_table

LENGTH = 100
SAMPLER_GOAL = 2e9
"""Tokens per second."""
EPOCH_GOAL = 4.0
"""Seconds."""


def main() -> None:
    """Time what was asked for; print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parts = {"sampler": sampler, "em": em, "inference": inference}
    parser.add_argument("parts", nargs="+", choices=parts)
    parser.add_argument("--tiny", action="store_true", help="on the CPU, at tiny sizes")
    settings = parser.parse_args()
    device = torch.device("cpu" if settings.tiny else "cuda")
    for part in settings.parts:
        parts[part](device, settings.tiny)


def sampler(device: torch.device, tiny: bool) -> None:
    """Tokens per second into a tensor on the device, whether the bits are the CPU's, and what storing alone takes."""
    count = 1 << 8 if tiny else 1 << 22
    table = []
    for name, hmm in {
        "H=500, E=100": processes.random(500, 100, seed=0),
        "H=200, E=200": processes.random(200, 200, seed=0),
        "H=50, E=50": processes.random(50, 50, seed=0),
        "mess3 (H=3, E=3)": processes.mess3(0.15, 0.6),
        "H=5000, E=1000": processes.random(50 if tiny else 5000, 1000, seed=0),
    }.items():
        # Of the type that the CPU draws, which is the smallest that can hold the symbols.
        dtype = getattr(torch, str(hmm.sample(1, 1).dtype))
        out = torch.empty(count, LENGTH, dtype=dtype, device=device)
        rate = count * LENGTH / _seconds(lambda hmm=hmm, out=out: hmm.sample(count, LENGTH, out=out), device, tiny)
        same = np.array_equal(out[:1000].cpu().numpy(), hmm.sample(min(count, 1000), LENGTH))
        stores = count * LENGTH / _seconds(lambda out=out: out.fill_(1), device, tiny)
        goal = against_goal(rate, SAMPLER_GOAL, f"{SAMPLER_GOAL:.0e}")
        table.append([name, f"{rate:,.0f}", goal, "same" if same else "DIFFER", f"{stores:,.0f}"])
    print(f"Drawing {count:,} sequences of {LENGTH} into a tensor that is there\n")
    print(text_table(["HMM", "tokens/s", "goal", "bits of the CPU", "storing alone, tokens/s"], table))


def em(device: torch.device, tiny: bool) -> None:
    """Epochs at the size of TinyStories' hundred commonest words: 74,514 rows of 100, 500 states."""
    states, rows = (20, 200) if tiny else (500, 74_514)
    tokens = processes.random(states, 100, alpha=0.3, seed=1).sample(rows, LENGTH, seed=2)
    settings = FitSettings(states, max_epochs=4, tolerance=0, dtype="float32")
    history = fit_hmm(tokens, settings, num_symbols=100, device=device, show_progress=False).history
    table = []
    products = _products(batch_rows(tokens.shape, states, torch.float32, device), states, device, tiny)
    for number, row in enumerate(history, start=1):
        seconds = tokens.size / row["tokens_per_second"]
        share = row["tokens_per_second"] * 6 * states**2 / products
        goal = against_goal(seconds, EPOCH_GOAL, f"under {EPOCH_GOAL:g} s", at_most=True)
        table.append([number, f"{row['tokens_per_second']:,.0f}", f"{seconds:.2f}", goal, f"{share:.0%}"])
    size = f"{tokens.size:,} tokens, H={states}, E=100, float32"
    print(f"Baum-Welch: {size}; its matrix products alone: {products / 1e12:.2f} TFLOP/s\n")
    print(text_table(["epoch", "tokens/s", "seconds", "goal", "of the products' rate"], table))


def _products(rows: int, states: int, device: torch.device, tiny: bool) -> float:
    """FLOP/s of `(rows, H) @ (H, H)` in float32; an epoch has `6 H^2` operations per token."""
    left, right = torch.rand(rows, states, device=device), torch.rand(states, states, device=device)
    out = torch.empty(rows, states, device=device)
    return 2 * rows * states**2 / _seconds(lambda: torch.mm(left, right, out=out), device, tiny)


def inference(device: torch.device, tiny: bool) -> None:
    """Tokens per second of the log-likelihood and posteriors of 4,096 sequences of 64, float32."""
    table = []
    for states in (3, 20) if tiny else (3, 20, 50, 200, 500):
        hmm = processes.random(states, max(states, 2), alpha=0.3, seed=1)
        tokens = torch.from_numpy(hmm.sample(64 if tiny else 4096, 64, seed=2).astype(np.int64)).to(device)
        ways = (hmm.log_likelihood, hmm.posteriors)
        rates = [
            tokens.numel() / _seconds(lambda way=way, tokens=tokens: way(tokens, dtype=torch.float32), device, tiny)
            for way in ways
        ]
        table.append([states, *(f"{rate:,.0f}" for rate in rates)])
    print("Inference: 4,096 sequences of 64, H=E, float32, tokens per second\n")
    print(text_table(["H", "log-likelihood", "posteriors"], table))


def _seconds(job: Callable[[], object], device: torch.device, tiny: bool) -> float:
    """Mean seconds of a job over at least half a second, after two that are not timed."""
    job(), job()
    _wait(device)
    count, began, passed = 0, time.perf_counter(), 0.0
    while passed < (0.01 if tiny else 0.5):
        job()
        _wait(device)
        count, passed = count + 1, time.perf_counter() - began
    return passed / count


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


if __name__ == "__main__":
    main()
