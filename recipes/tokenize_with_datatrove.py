# /// script
# requires-python = ">=3.11"
# dependencies = ["hmm-datasets[datatrove]"]
# ///

"""Write token streams on a cluster.

A datatrove pipeline tokenizes a text corpus, run by a chosen executor.

    hmm-datasets tokenize --executor slurm --corpus fineweb-edu --tokenizer outputs/tokens/tokenizer \\
        --output_dir outputs/fineweb --tasks 200 --partition cpu --time 4:00:00

For each split, `output_dir` has a folder of datatrove's shards, one per task, with the index that makes it a token
stream. When it is started again, datatrove runs only the tasks that are not done. The Slurm executor returns as soon
as the jobs are submitted; a last job writes the index. This needs the extra `datatrove`; the Ray executor also needs
ray.
"""

from dataclasses import MISSING, asdict, dataclass

from hmm_datasets.errors import needing_extra
from hmm_datasets.runtime.parent_watch import preload_in_fork_server
from hmm_datasets.runtime.program import run
from hmm_datasets.runtime.setting_rules import Void, check_object
from hmm_datasets.runtime.settings import setting

SPLITS = ["train", "test"]


@dataclass
class ClusterSettings:
    """The corpus to tokenize, and the executor that does it."""

    output_dir: str = setting(MISSING, "Output folder of splits and datatrove's logs, on a disk that all nodes share.")
    tokenizer: str = setting(MISSING, "Folder of a tokenizer, on a disk that all nodes share.")
    corpus: str = setting("tinystories-sample", "A text corpus: name, file or Hub data set.")
    test_fraction: float | None = setting(
        None, "Share of the documents that is held out, where the corpus has no test split.", above=0, below=1
    )
    max_documents: int | None = setting(None, "Maximum number of rows of the corpus to read.", least=1)
    executor: str = setting("local", "Executor of datatrove: local, slurm or ray.")
    tasks: int = setting(1, "Number of tasks, and so of shards, per split.", least=1)
    workers: int = setting(-1, "Number of tasks that run at once; -1 for all.", least=-1)
    mem_per_cpu_gb: int = setting(2, "Memory of a task, which has one CPU core, in GB, under Slurm and Ray.", least=1)
    partition: str | None = setting(None, "Partition of Slurm.")
    time: str | None = setting(None, "Time limit of a task under Slurm, such as 4:00:00.")
    env_command: str | None = setting(None, "Shell command that a Slurm node runs before Python.")

    voids = (
        Void("mem_per_cpu_gb", "if executor is local"),
        Void("partition time env_command", "unless executor is slurm"),
    )

    def __post_init__(self):
        from hmm_datasets.errors import InputError

        check_object(self)
        if self.executor not in ("local", "slurm", "ray"):
            raise InputError(f"executor is {self.executor!r}, expected local, slurm or ray")
        if self.executor == "slurm" and (self.partition is None or self.time is None):
            raise InputError("executor is slurm, which needs partition and time")


def main(settings: ClusterSettings) -> None:
    """Tokenize each split with `tasks` tasks, then write its index with one more task."""
    from functools import partial
    from pathlib import Path

    from hmm_datasets.text.corpora.loading import load_corpus
    from hmm_datasets.text.stream import TokenStream, tokenizer_hash
    from hmm_datasets.text.tokenizers.chat_templates import load_tokenizer
    from hmm_datasets.training.record import write_record

    with needing_extra("datatrove", "--executor"):
        from hmm_datasets.text.stream.datatrove_steps import PlainTextTokenizer, read_corpus, write_index

    output, tokenizer_file = Path(settings.output_dir).resolve(), Path(settings.tokenizer).resolve() / "tokenizer.json"
    tokenizer = load_tokenizer(tokenizer_file.parent)
    names = ("corpus", "test_fraction", "max_documents", "tasks")
    data = {name: getattr(settings, name) for name in names} | {"splits": SPLITS}
    data["tokenizer_hash"] = tokenizer_hash(tokenizer)
    limits = {"test_fraction": settings.test_fraction, "max_documents": settings.max_documents}
    for split in SPLITS:
        load_corpus(settings.corpus, kind="text", split=split, **limits)  # an error occurs here and not in a task
    write_record(output, asdict(settings), data, accepted=None, made=[f"{split}/*.ds" for split in SPLITS])
    for split in SPLITS:
        folder, logs = output / split, output / "datatrove" / split
        writer = PlainTextTokenizer(str(folder), str(tokenizer_file), tokenizer.eos_token)
        reader = partial(read_corpus, settings.corpus, {"split": split, **limits})
        index = partial(write_index, folder, str(tokenizer_file.parent), settings.corpus)
        tokenizing = executor(settings, [reader, writer], settings.tasks, str(logs / "tokens"))
        executor(settings, [index], 1, str(logs / "index"), depends=tokenizing).run()
        if settings.executor == "slurm":
            print(f"{split}: submitted; when the last job has ended, {folder} is a token stream")
        else:
            stream_index = TokenStream(folder).index
            print(f"{split}: {stream_index.num_documents:,} documents, {stream_index.num_tokens:,} tokens in {folder}")


def executor(settings: ClusterSettings, pipeline: list, tasks: int, logging_dir: str, depends=None):
    """The executor of datatrove for one stage of the pipeline."""
    common = {"tasks": tasks, "workers": settings.workers, "logging_dir": logging_dir, "depends": depends}
    if settings.executor == "local":
        import multiprocess
        from datatrove.executor import LocalPipelineExecutor

        preload_in_fork_server(multiprocess)
        return LocalPipelineExecutor(pipeline, **common)
    common["mem_per_cpu_gb"] = settings.mem_per_cpu_gb
    if settings.executor == "ray":
        from datatrove.executor import RayPipelineExecutor

        return RayPipelineExecutor(pipeline, **common)
    from datatrove.executor import SlurmPipelineExecutor

    return SlurmPipelineExecutor(
        pipeline, **common, time=settings.time, partition=settings.partition, env_command=settings.env_command
    )


if __name__ == "__main__":
    run(main)
