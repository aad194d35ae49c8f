"""The subcommand that runs sweeps."""

import contextlib
import os
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..display import format_duration
from ..errors import InputError
from ..files import read_yaml
from ..operations.launching import launch_config, recipe_command
from ..operations.sweeps.cells import FAILED, FINISHED, LOG_NAME, prepare, read_states
from ..operations.sweeps.file import read_sweep
from ..operations.sweeps.local import CellSlots, LocalRun
from ..operations.sweeps.planning import plan_sweep, plan_text
from ..operations.sweeps.report import (
    check_values,
    collect,
    draw_heat_map,
    states_sentence,
    sweep_table,
    write_results,
)
from ..operations.sweeps.slurm import JOBS_NAME, queued_cells, submit
from ..runtime.credentials import secrets_for_children
from ..runtime.lock import exclusive_lock
from ..runtime.setting_rules import Void
from ..runtime.settings import argument, option, rest

if TYPE_CHECKING:
    from ..operations.sweeps.cells import CellState
    from ..operations.sweeps.file import Sweep
    from ..operations.sweeps.planning import SweepPlan


@dataclass(frozen=True, kw_only=True)
class SweepCommand:
    """Run a recipe with many settings, each in its own folder.

    When started again, the command skips finished cells, continues stopped ones and tries failed ones again. The
    guide on sweeps describes the file.
    """

    file: str = argument("FILE.yaml", "the sweep: recipe, settings, grid, output_dir")
    plan: bool = option(False, None, "print what would run and what it would consume, and end")
    table: bool = option(False, None, "write the tables of what is finished, and end")
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
        Void("plan slurm jobs launch num_processes", "with table"),
        Void("slurm", "with plan"),
        Void("jobs", "with plan or slurm"),
        Void("num_processes", "without launch"),
    )


def sweep_command(arguments: SweepCommand) -> int:
    """Plan a sweep, run or submit its cells, and write its tables; fail if a cell failed."""
    sweep = read_sweep(arguments.file, arguments.commands)
    os.environ.update(secrets_for_children(sweep.cells[0].settings))
    if arguments.table:
        return _show_results(sweep)
    config = None if arguments.launch is None else launch_config(arguments.launch)
    if config is not None and not recipe_command(sweep.recipe).launches:
        raise InputError(f"--launch {arguments.launch}: {sweep.recipe} runs in one process; leave --launch out")
    with contextlib.nullcontext() if arguments.plan else exclusive_lock(sweep.output_dir):
        plan = plan_sweep(sweep, config, arguments.num_processes)
        print(plan_text(sweep, plan, read_states(sweep)), end="\n\n", flush=True)
        if arguments.plan:
            return 0
        return _submit(sweep, arguments) if arguments.slurm else _run(sweep, arguments, plan)


def _prepared(sweep: "Sweep", arguments: SweepCommand) -> "dict[str, CellState]":
    launch = [] if arguments.launch is None else ["--launch", arguments.launch]
    launch += [] if arguments.num_processes is None else ["--num_processes", str(arguments.num_processes)]
    return prepare(sweep, launch)


def _run(sweep: "Sweep", arguments: SweepCommand, plan: "SweepPlan") -> int:
    """Run the cells on this machine."""
    processes = arguments.num_processes or 1
    if arguments.launch is not None and arguments.num_processes is None:
        processes = int(read_yaml(launch_config(arguments.launch)).get("num_processes", 1))
    _refuse_queued(sweep)
    states = _prepared(sweep, arguments)
    slots = CellSlots.of_this_machine(plan.num_gpus, jobs=arguments.jobs, processes=processes, cells=len(sweep.cells))
    print(f"Cells run {slots}; their logs are {sweep.output_dir}/*/log.txt", flush=True)
    began = time.monotonic()

    def write() -> None:
        write_results(collect(sweep, states))

    stopped = LocalRun(sweep.cells, states, slots, write).run()
    code = _show_results(sweep)
    print(f"took {format_duration(time.monotonic() - began)}")
    if stopped is not None:
        print(f"stopped; the same command continues: hmm-datasets sweep {sweep.path}", file=sys.stderr)
        return 128 + stopped
    return code


def _refuse_queued(sweep: "Sweep") -> None:
    """Refuse to run cells here that wait in the queue of Slurm."""
    if (sweep.output_dir / JOBS_NAME).exists():
        queued = queued_cells(sweep)
        if queued:
            raise InputError(
                f"{sweep.output_dir}: {len(queued)} cells are in the queue of Slurm, such as job "
                f"{next(iter(queued.values()))}; wait for them, or cancel them with scancel"
            )


def _submit(sweep: "Sweep", arguments: SweepCommand) -> int:
    """Submit the cells to Slurm."""
    states = _prepared(sweep, arguments)
    jobs = submit(sweep, states)
    finished = sum(state.state == FINISHED for state in states.values())
    queued = len(sweep.cells) - finished - len(jobs)
    for name, job in jobs.items():
        print(f"{job}  {name}")
    print(
        f"cells: {len(jobs)} submitted, {queued} in the queue before, {finished} finished; "
        f"hmm-datasets sweep {sweep.path} --table writes the tables of what is finished"
    )
    return 0


def _show_results(sweep: "Sweep") -> int:
    """Write and print the tables, and list the cells that failed."""
    if not sweep.output_dir.is_dir():
        raise InputError(f"{sweep.output_dir}: no such folder; start the sweep first: hmm-datasets sweep {sweep.path}")
    results = collect(sweep)
    write_results(results)
    picture = draw_heat_map(sweep, results)
    print(f"\n{sweep_table(results).text()}\n\n{states_sentence(results)}")
    failed = [cell for cell in results["cells"] if cell["state"] == FAILED]
    for cell in failed:
        print(f"failed: {cell['name']}: {cell['errors'][-1]}\n        {cell['folder']}/{LOG_NAME}")
    names = ["sweep.csv", "sweep.json", "means.csv", "means.tex", *([] if picture is None else [picture.name])]
    print(f"{sweep.output_dir}/: {', '.join(names)}", flush=True)
    check_values(sweep, results)
    return 1 if failed else 0
