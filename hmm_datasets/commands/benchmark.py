"""Scoring a model on the benchmark."""

from dataclasses import dataclass

from ..errors import InputError
from ..evaluation.benchmark import BenchmarkSettings
from ..runtime.progress import announce_imports
from ..runtime.setting_rules import Void
from ..runtime.settings import option


@dataclass(frozen=True, kw_only=True)
class BenchmarkCommand(BenchmarkSettings):
    """Score a model on twelve processes whose optimum is known."""

    write_data: str | None = option(None, "FOLDER", "write the data set's repository there, for the Hub")

    voids = (Void("data process track num_sequences batch_size output_dir", "without model"),)


def benchmark_command(arguments: BenchmarkCommand) -> int:
    """Score a model on the benchmark, or write the benchmark's data set."""
    announce_imports()
    from ..evaluation.benchmark.report import run_benchmark
    from ..evaluation.benchmark.repository import write_benchmark

    if arguments.model is None and arguments.write_data is None:
        raise InputError("benchmark: give a MODEL to score, or --write_data FOLDER to write the data set")
    if arguments.write_data is not None:
        write_benchmark(arguments.write_data)
        print(f"{arguments.write_data}/: `hmm-datasets push {arguments.write_data} USER/NAME --repo_type dataset`")
    if arguments.model is not None:
        run_benchmark(arguments)
    return 0
