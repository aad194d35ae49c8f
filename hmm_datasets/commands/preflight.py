"""The subcommand that checks machines before a run."""

import importlib
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from ..display import counted
from ..errors import InputError
from ..operations.launching import launch_module
from ..operations.preflight import PreflightSettings, run_preflight
from ..runtime import environment
from ..runtime.one_line_errors import report_to_launcher
from ..runtime.parent_watch import end_with_launcher
from ..runtime.program import exit_without_teardown
from ..runtime.settings import argument, option, rest

MODULE = "hmm_datasets.commands.preflight"
"""What a launcher starts on all ranks."""


@dataclass(frozen=True, kw_only=True)
class PreflightCommand(PreflightSettings):
    """Check machines and ranks before a run.

    All other flags are those of the launcher, with --launch. Every rank ends with exit code 1 if a check failed on
    any.
    """

    output_dir: Path = argument(
        "OUTPUT_DIR",
        "folder that the run will write into, default the current one",
        default=Path("."),
    )
    launch: str | None = option(
        None,
        "CONFIG",
        "check all ranks of a launch configuration: name of a shipped one, or a file",
    )
    flags: list[str] = rest("flags")
    words: list[str] = rest("words")


def preflight_command(arguments: PreflightCommand) -> int:
    """Check this machine or, under a launcher, all of them; fail if a check failed."""
    environment.check_posix("preflight")
    if arguments.launch is not None:
        return launch_module(MODULE, arguments.words)
    end_with_launcher()
    if arguments.flags:
        raise InputError(f"preflight: unknown flag {arguments.flags[0]}; `preflight --help` lists all")
    environment.check_alone()
    if environment.world_size() == 1:
        return 1 if run_preflight(arguments.output_dir, arguments) else 0
    with exit_without_teardown():  # a thread that hangs in a collective would abort the teardown
        failures = run_preflight(arguments.output_dir, arguments)
        if failures and environment.rank() == 0:
            line = f"error: preflight: {counted(failures, 'failure')}, which rank 0 has printed"
            report_to_launcher(line, time.time())
        sys.exit(1 if failures else 0)


if __name__ == "__main__":  # as a launcher starts it on each rank
    sys.exit(importlib.import_module("hmm_datasets.cli").main(["preflight", *sys.argv[1:]]))
