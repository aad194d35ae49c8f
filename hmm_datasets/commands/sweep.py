"""The subcommand that runs sweeps."""

import sys
from dataclasses import dataclass

from ..errors import InputError
from ..files import read_yaml
from ..operations.launching import launch_config
from ..operations.stage_inputs import check_cells
from ..operations.sweeps.cells import FAILED, prepare
from ..operations.sweeps.file import Sweep, read_sweep
from ..operations.sweeps.local import environments, num_gpus, run_cells
from ..operations.sweeps.report import collect, show_results, write_results
from ..operations.sweeps.slurm import queued_cells, submit
from ..runtime.lock import exclusive_lock
from ..runtime.setting_rules import Void
from ..runtime.settings import argument, option, rest


@dataclass(frozen=True, kw_only=True)
class SweepCommand:
    """Run a recipe with many settings, each in its own folder.

    When started again, the command skips finished cells, continues stopped ones and tries failed ones again. The
    guide on sweeps describes the file.
    """

    file: str = argument("FILE.yaml", "the sweep: recipe, settings, grid, output_dir")
    table: bool = option(False, None, "start nothing; write the table of the cells and what they have found")
    jobs: int | None = option(None, "N", "cells at a time; default one for each GPU, or for each core", least=1)
    launch: str | None = option(
        None,
        "CONFIG",
        "start each cell on several processes: name of a configuration, or a file",
    )
    num_processes: int | None = option(None, "N", "processes of each cell", least=1)
    slurm: bool = option(False, None, "submit the cells as an array, with the parameters under slurm in the file")
    commands: list[str] = rest("commands")

    voids = (
        Void("slurm jobs launch num_processes", "with table"),
        Void("jobs", "with slurm"),
        Void("num_processes", "without launch"),
    )


def sweep_command(arguments: SweepCommand) -> int:
    """Check the cells of a sweep, run or submit them, and write its table; fail if a cell failed."""
    sweep = read_sweep(arguments.file, arguments.commands)
    stopped = None if arguments.table else _start(sweep, arguments)
    results = collect(sweep)
    show_results(sweep, results)
    if stopped is not None:
        print(f"stopped; the same command continues: hmm-datasets sweep {sweep.path}", file=sys.stderr)
        return 128 + stopped
    return 1 if any(cell["state"] == FAILED for cell in results["cells"]) else 0


def _start(sweep: Sweep, arguments: SweepCommand) -> int | None:
    """Run or submit the cells; return the number of the signal that stopped them, if one did."""
    launch, processes = [], arguments.num_processes or 1
    if arguments.launch is not None:
        processes = arguments.num_processes or int(read_yaml(launch_config(arguments.launch)).get("num_processes", 1))
        launch = ["--launch", arguments.launch, "--num_processes", str(processes)]
    check_cells(sweep, launch)
    with exclusive_lock(sweep.output_dir):
        queued = queued_cells(sweep)
        if queued and not arguments.slurm:
            raise InputError(
                f"{sweep.output_dir}: {len(queued)} cells are in the queue of Slurm, such as job "
                f"{next(iter(queued.values()))}; wait for them, or cancel them with scancel"
            )
        states = prepare(sweep, launch)
        if arguments.slurm:
            print(
                f"{len(submit(sweep, states, queued))} cells submitted, {len(queued)} were queued; --table shows them"
            )
            return None
        places = environments(num_gpus(), jobs=arguments.jobs, processes=processes, cells=len(sweep.cells))
        print(f"{len(places)} cells at a time; their logs are {sweep.output_dir}/*/log.txt. Ctrl-C stops them")
        return run_cells(sweep.cells, states, places, lambda: write_results(sweep, collect(sweep, states)))
