"""Scoring models on the benchmark."""

from dataclasses import dataclass

from ..errors import InputError
from ..runtime.settings import argument, option


@dataclass(frozen=True, kw_only=True)
class BenchmarkCommand:
    """Score models on twelve processes whose optimum is known."""

    models: list[str] = argument(
        "MODEL",
        "causal language model, or folder with one for each process",
        many="*",
        default=[],
    )
    data: str | None = option(None, "DATA", "folder or Hub name of the data set; computed by default")
    process: list[str] = option([], "NAME", "one process, may be repeated; default all", repeated=True)
    track: str | None = option(None, None, "default text if the model has a tokenizer", choices=("ids", "text"))
    num_sequences: int = option(256, "N", "of each process, default 256")
    batch_size: int = option(32, "B", "sequences per pass, default 32")
    output_dir: str | None = option(None, "FOLDER", "default benchmark/ in the model's folder")
    dataset_id: str | None = option(None, "USER/NAME", "data set that .eval_results names; default DATA")
    push: bool = option(False, None, "add .eval_results to the model's repository on the Hub")
    write_data: str | None = option(None, "FOLDER", "write the data set's repository there, for the Hub")


def benchmark_command(arguments: BenchmarkCommand) -> int:
    """Score models on the benchmark, or write the benchmark's data set."""
    from ..evaluation.benchmark.report import BenchmarkSettings, models_text, run_benchmark
    from ..evaluation.benchmark.repository import write_benchmark

    if not arguments.models and arguments.write_data is None:
        raise InputError("benchmark: give a MODEL to score, or --write_data FOLDER to write the data set")
    if len(arguments.models) > 1 and arguments.output_dir is not None:
        raise InputError("--output_dir: is one folder for several models; leave it out, or give one MODEL")
    if arguments.write_data is not None:
        write_benchmark(arguments.write_data)
        print(f"{arguments.write_data}/: `hmm-datasets push {arguments.write_data} USER/NAME --repo-type dataset`")
    settings = [
        BenchmarkSettings(
            model=model,
            data=arguments.data,
            processes=tuple(arguments.process),
            track=arguments.track,
            num_sequences=arguments.num_sequences,
            batch_size=arguments.batch_size,
            output_dir=arguments.output_dir,
            dataset_id=arguments.dataset_id,
            push=arguments.push,
        )
        for model in arguments.models
    ]
    reports = [run_benchmark(one) for one in settings]
    if len(reports) > 1:
        print(f"\n{models_text(reports)}")
    return 0
