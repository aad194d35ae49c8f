"""The subcommand that starts a run again after faults. Slow imports are in the functions that need them."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from ..errors import InputError


def add_arguments(command: argparse.ArgumentParser) -> None:
    """Add the arguments of `hmm-datasets supervise`."""
    command.usage = "hmm-datasets supervise [--requeue] [flags] -- COMMAND"
    _add_folder(command)
    command.add_argument(
        "--max-failures", type=int, default=5, metavar="N", help="in a row without a new checkpoint, default 5"
    )
    command.add_argument(
        "--first-delay", type=float, default=5.0, metavar="SECONDS", help="before a start; doubles; default 5"
    )
    command.add_argument(
        "--max-delay", type=float, default=600.0, metavar="SECONDS", help="before a start, default 600"
    )
    command.add_argument(
        "--hang-after",
        type=float,
        default=300.0,
        metavar="SECONDS",
        help="a phase of a step that takes longer hangs, unless a tenth of it was usual; default 300",
    )
    command.add_argument(
        "--pause-after",
        type=float,
        default=1800.0,
        metavar="SECONDS",
        help="a save or an evaluation that takes longer hangs, unless a tenth of it was usual; default 1800",
    )
    command.add_argument(
        "--start-after",
        type=float,
        default=1800.0,
        metavar="SECONDS",
        help="a phase before the first step that takes longer hangs, or the compiling of a step, default 1800",
    )
    command.add_argument(
        "--patience", type=float, default=60.0, metavar="SECONDS", help="that a hang must last to be ended, default 60"
    )
    command.add_argument(
        "--host-failures", type=int, default=2, metavar="N", help="after which srun and sbatch leave a host out"
    )
    command.add_argument(
        "--requeue",
        action="store_true",
        help="instead, last in a batch script: put the job back into the queue of Slurm if its run is to continue",
    )
    command.add_argument(
        "--max-requeues", type=int, default=5, metavar="N", help="in a row without a new checkpoint, default 5"
    )
    command.epilog = (
        "An error of the settings and a request to stop end it. Everything is logged in events.jsonl, which "
        "`hmm-datasets watch` shows."
    )


def _add_folder(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--output-dir", type=Path, metavar="RUN", help="folder of the run; default the output_dir of the command"
    )


def requeue(arguments: argparse.Namespace) -> int:
    """Put the job of Slurm that this process runs in back into the queue, if its run should go on."""
    from ..operations import supervision

    folder, most = _folder(arguments), arguments.max_requeues
    print(supervision.requeue(folder, max_requeues=most, host_failures=arguments.host_failures), flush=True)
    return 0


def split(argv: Sequence[str]) -> tuple[list[str], list[str]]:
    """The arguments before `--` and the command after it; of other subcommands, all arguments and no command."""
    if argv[:1] != ["supervise"] or "--" not in argv:
        return list(argv), []
    at = argv.index("--")
    return list(argv[:at]), list(argv[at + 1 :])


def supervise(arguments: argparse.Namespace) -> int:
    """Start the command until its run is finished, or put the job back into its queue."""
    if arguments.requeue:
        return requeue(arguments)
    from ..operations.diagnosis import Limits
    from ..operations.supervision import SupervisionSettings, Supervisor

    words = arguments.supervised
    if not words:
        raise InputError("supervise: no command; give it after --: hmm-datasets supervise -- accelerate launch ...")
    folder = _folder(arguments)
    settings = SupervisionSettings(
        max_failures=arguments.max_failures,
        first_delay=arguments.first_delay,
        max_delay=arguments.max_delay,
        patience=arguments.patience,
        limits=Limits(step=arguments.hang_after, start=arguments.start_after, pause=arguments.pause_after),
        host_failures=arguments.host_failures,
    )
    return Supervisor(words, folder, settings).run()


def _folder(arguments: argparse.Namespace) -> str | Path:
    """The folder of the run, from the flag or else from the command."""
    from ..runtime.program import named_output_dir

    folder = arguments.output_dir or named_output_dir(arguments.supervised)
    if folder is None:
        raise InputError("the command names no output_dir; name the folder of the run with --output_dir RUN before --")
    return folder
