"""Scoring a model on the benchmark."""

from dataclasses import dataclass

from ..evaluation.benchmark import BenchmarkSettings
from ..runtime.progress import announce_imports


@dataclass(frozen=True, kw_only=True)
class BenchmarkCommand(BenchmarkSettings):
    """Score a model on twelve processes whose optimum is known."""


def benchmark_command(arguments: BenchmarkCommand) -> int:
    """Score a model on the benchmark."""
    announce_imports()
    from ..evaluation.benchmark.report import run_benchmark

    run_benchmark(arguments)
    return 0
