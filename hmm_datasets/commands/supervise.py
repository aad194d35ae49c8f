"""The subcommand that starts a run again after faults."""

from dataclasses import dataclass
from pathlib import Path

from ..errors import InputError
from ..operations.diagnosis import Limits
from ..operations.requeueing import requeue
from ..operations.supervision import SupervisionSettings, Supervisor
from ..runtime.command_line import named_setting
from ..runtime.environment import check_posix
from ..runtime.setting_rules import Void
from ..runtime.settings import option, rest
from .watch import HangFlags


@dataclass(frozen=True, kw_only=True)
class SuperviseCommand(SupervisionSettings, HangFlags):
    """Start a run again after faults.

    An error of the settings and a request to stop end it. Everything is logged in events.jsonl, which
    `hmm-datasets watch` shows.
    """

    output_dir: Path | None = option(None, "RUN", "folder of the run; default the output_dir of the command")
    start_after: float = option(
        1800.0,
        "SECONDS",
        "a phase before the first step that takes longer hangs, or the compiling of a step, default 1800",
        above=0,
    )
    requeue: bool = option(
        False,
        None,
        "instead, last in a batch script: put the job back into the queue of Slurm if its run is to continue",
    )
    supervised: list[str] = rest("after")

    voids = (Void("first_delay max_delay patience hang_after start_after", "with requeue"),)


def supervise_command(arguments: SuperviseCommand) -> int:
    """Start the command until its run is finished, or put the job back into its queue."""
    check_posix("supervise")
    if arguments.requeue:
        print(requeue(_folder(arguments), arguments.max_failures), flush=True)
        return 0
    words = arguments.supervised
    if not words:
        raise InputError("supervise: no command; give it after --: hmm-datasets supervise -- accelerate launch ...")
    folder = _folder(arguments)
    limits = Limits.hang_after(arguments.hang_after, start=arguments.start_after)
    return Supervisor(words, folder, arguments, limits).run()


def _folder(arguments: SuperviseCommand) -> str | Path:
    """The folder of the run, from the flag or else from the command."""
    folder = arguments.output_dir or named_setting(arguments.supervised, "output_dir")
    if folder is None:
        raise InputError("the command names no output_dir; name the folder of the run with --output_dir RUN before --")
    return folder
