"""A run of weeks at small size: a ramp of the global batch under ZeRO, in jobs that continue each other.

    hmm-datasets experiment tr1 --config tr1/small.yaml [--launcher zero3]

The settings of BLOOM's first large run, tr1-13B-base, are in `tr1/13b.yaml`, and for 1.3 billion parameters in
`tr1/1.3b.yaml`; these run as chained jobs of Slurm, as their comments say. This program does the same on this machine:
it tokenizes a text and trains a small model on a ramp of the same shape, with z-loss and checkpoints, in several jobs.
Each job but the last has a time limit, before which it saves and stops, and the next one continues, perhaps under
another stage of ZeRO. `history.jsonl` and `plots/` in the run's folder show batch, loss and z-loss along training.
"""

import shlex
from dataclasses import dataclass

from hmm_datasets.runtime.program import run
from hmm_datasets.runtime.settings import setting


@dataclass
class TR1Settings:
    """Settings of the experiment."""

    output_dir: str = setting("outputs/tr1_small", "Output folder.")
    corpus: str = setting("tinystories-sample", "A text corpus: name, file or Hub data set.")
    vocab_size: int = setting(2048, "Vocabulary size of the tokenizer.")
    pretrain: str = setting("", "Flags of the training, beyond tr1/1.3b.yaml.")
    launcher: str = setting("zero1", "Launch configuration: zero1, zero2, zero3, fsdp2 ...")
    num_processes: int = setting(2, "Number of processes.")
    jobs: int = setting(2, "Number of jobs that continue each other.")
    job_time: str = setting("0:01:30", "Time limit of every job but the last.")


def main(settings: TR1Settings) -> None:
    """Tokenize, train job after job, measure."""
    from hmm_datasets.operations.stages import run_or_exit

    run_or_exit(stages(settings))


def stages(settings: TR1Settings) -> list[tuple[str, str]]:
    """Title and command of every stage."""
    from stage_flags import read_flags

    read_flags(settings.pretrain, ["output_dir", "time_limit"])
    tokens, model = f"{settings.output_dir}/tokens", f"{settings.output_dir}/model"
    train = (
        f"hmm-datasets pretrain --launch {shlex.quote(settings.launcher)} --num_processes {settings.num_processes} "
        f"--config tr1/1.3b.yaml --tokens {shlex.quote(f'{tokens}/text')} "
        f"--tokenizer {shlex.quote(f'{tokens}/tokenizer')} {settings.pretrain} --output_dir {shlex.quote(model)}"
    )
    jobs = [
        (
            f"Job {number} of {settings.jobs}",
            train if number == settings.jobs else f"{train} --time_limit {settings.job_time}",
        )
        for number in range(1, settings.jobs + 1)
    ]
    return [
        (
            "The text as token streams",
            f"hmm-datasets tokenize --corpus {shlex.quote(settings.corpus)} --conversations none --vocab_size "
            f"{settings.vocab_size} --output_dir {shlex.quote(tokens)}",
        ),
        *jobs,
        (
            "Bits per byte of held-out text",
            f"hmm-datasets evaluate {shlex.quote(model)} --targets {shlex.quote(f'{tokens}/text/test')} --tasks text "
            f"--output_dir {shlex.quote(f'{settings.output_dir}/evaluation')}",
        ),
    ]


if __name__ == "__main__":
    run(main)
