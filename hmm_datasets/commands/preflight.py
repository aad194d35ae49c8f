"""The subcommand that checks machines before a run. Slow imports are in the functions that need them, as in `cli`."""

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from ..errors import InputError
from ..runtime import environment as launch_environment
from ..runtime.one_line_errors import one_line_errors, report_to_launcher
from ..runtime.settings import parse_known

MODULE = "hmm_datasets.commands.preflight"
"""What a launcher starts on all ranks."""


def add_arguments(command: argparse.ArgumentParser) -> None:
    """Add the arguments of `hmm-datasets preflight`."""
    command.add_argument(
        "output_dir",
        nargs="?",
        type=Path,
        default=Path("."),
        metavar="OUTPUT_DIR",
        help="folder that the run will write into, default the current one",
    )
    command.add_argument(
        "--launch",
        metavar="CONFIG",
        help="check all ranks of a launch configuration: name of a shipped one, or a file",
    )
    command.add_argument(
        "--push", action="store_true", help="the run pushes to the Hub, so fail if the Hub does not answer"
    )
    command.add_argument(
        "--config",
        metavar="FILE.yaml",
        help="settings of pretrain or midtrain, whose first rows are then read on every rank and compared",
    )
    command.add_argument(
        "--min-disk-gib", type=float, metavar="GIB", help="free space needed in OUTPUT_DIR, default 10"
    )
    command.add_argument("--min-memory-gib", type=float, metavar="GIB", help="free memory needed, default 2")
    command.add_argument("--min-shm-gib", type=float, metavar="GIB", help="free /dev/shm needed, default 0.5")
    command.add_argument(
        "--min-bus-bandwidth", type=float, metavar="GB/S", help="bus bandwidth of all-reduces needed, default 0"
    )
    command.add_argument(
        "--seconds", type=float, metavar="S", help="seconds for which each device multiplies matrices, default 2"
    )
    command.add_argument("--timeout", type=float, metavar="S", help="seconds to wait for other ranks, default 60")
    command.epilog = (
        "All other flags are those of the launcher, with --launch, and those of the recipe, with --config. Every rank "
        "ends with exit code 1 if a check failed on any."
    )


def preflight(arguments: argparse.Namespace) -> int:
    """Check this machine or, under a launcher, all of them; fail if a check failed."""
    if arguments.launch is not None:
        from ..operations.launching import launch_module

        return launch_module(MODULE, arguments.words)
    if arguments.flags and arguments.config is None:
        raise InputError(f"preflight: unknown flag {arguments.flags[0]}; flags of a recipe need --config FILE.yaml")
    if arguments.flags and arguments.words[0].startswith("-"):
        raise InputError(
            "preflight: name OUTPUT_DIR first, because a value of the recipe's flags would be taken for it"
        )
    problem = launch_environment.take_from_mpi()
    if problem is not None:
        raise InputError(problem)
    from ..operations.preflight import PreflightSettings, run_preflight

    names = ("min_disk_gib", "min_memory_gib", "min_shm_gib", "min_bus_bandwidth", "seconds", "timeout", "config")
    given = {name: value for name in names if (value := getattr(arguments, name)) is not None}
    settings = PreflightSettings(push=arguments.push, flags=tuple(arguments.flags), **given)
    if launch_environment.world_size() == 1:
        return 1 if run_preflight(arguments.output_dir, settings) else 0
    from ..runtime.program import exit_without_teardown

    with exit_without_teardown():  # a thread that hangs in a collective would abort the teardown
        failures = run_preflight(arguments.output_dir, settings)
        if failures and launch_environment.rank() == 0:
            line = f"error: preflight: {failures} failures; rank 0 has printed what they are"
            report_to_launcher(line, time.time())
        sys.exit(1 if failures else 0)


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command on a rank, and exit."""
    from ..runtime.parent_watch import end_with_launcher

    end_with_launcher()
    with one_line_errors():
        words = list(sys.argv[1:] if argv is None else argv)
        parser = argparse.ArgumentParser(prog=f"python -m {MODULE}", allow_abbrev=False)
        add_arguments(parser)
        arguments, flags = parse_known(parser, words)
        arguments.flags, arguments.words = flags, words
        sys.exit(preflight(arguments))


if __name__ == "__main__":
    main()
