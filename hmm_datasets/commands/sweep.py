"""The subcommand that runs sweeps."""

import contextlib
import os
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..errors import InputError
from ..files import read_yaml
from ..operations.launching import launch_config, recipe_command
from ..operations.sweeps.cells import FAILED, FINISHED, LOG_NAME, prepare, read_states
from ..operations.sweeps.checks import plan_sweep, plan_text
from ..operations.sweeps.file import read_sweep
from ..operations.sweeps.local import CellSlots, run_cells
from ..operations.sweeps.report import check_values, collect, draw_heat_map, sweep_table, write_results
from ..operations.sweeps.slurm import queued_cells, submit
from ..runtime.credentials import secrets_for_children
from ..runtime.lock import exclusive_lock
from ..runtime.setting_rules import Void
from ..runtime.settings import argument, option, rest

if TYPE_CHECKING:
    from ..operations.sweeps.cells import CellState
    from ..operations.sweeps.file import Sweep


@dataclass(frozen=True, kw_only=True)
class SweepCommand:
    """Run a recipe with many settings, each in its own folder.

    When started again, the command skips finished cells, continues stopped ones and tries failed ones again. The
    guide on sweeps describes the file.
    """

    file: str = argument("FILE.yaml", "the sweep: recipe, settings, grid, output_dir")
    plan: bool = option(False, None, "print what would run and what it would consume, and end")
    table: bool = option(False, None, "write the table of what is finished, and end")
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
    """Plan a sweep, run or submit its cells, and write its table; fail if a cell failed."""
    sweep = read_sweep(arguments.file, arguments.commands)
    os.environ.update(secrets_for_children(sweep.cells[0].settings))
    if arguments.table:
        return _show_results(sweep)
    config = None if arguments.launch is None else launch_config(arguments.launch)
    if config is not None and not recipe_command(sweep.recipe).launches:
        raise InputError(f"--launch {arguments.launch}: {sweep.recipe} runs in one process; leave --launch out")
    processes = arguments.num_processes or (1 if config is None else int(read_yaml(config).get("num_processes", 1)))
    launch = [] if config is None else ["--launch", str(arguments.launch), "--num_processes", str(processes)]
    with contextlib.nullcontext() if arguments.plan else exclusive_lock(sweep.output_dir):
        plan = plan_sweep(sweep, config, processes)
        print(plan_text(sweep, plan, read_states(sweep)), end="\n\n", flush=True)
        if arguments.plan:
            return 0
        if arguments.slurm:
            return _submit(sweep, prepare(sweep, launch))
        if queued := queued_cells(sweep):
            raise InputError(
                f"{sweep.output_dir}: {len(queued)} cells are in the queue of Slurm, such as job "
                f"{next(iter(queued.values()))}; wait for them, or cancel them with scancel"
            )
        jobs = {"jobs": arguments.jobs, "processes": processes, "cells": len(sweep.cells)}
        return _run(sweep, prepare(sweep, launch), CellSlots.of_this_machine(plan.num_gpus, **jobs))


def _run(sweep: "Sweep", states: "dict[str, CellState]", slots: CellSlots) -> int:
    """Run the cells on this machine."""
    print(f"{slots.jobs} cells at a time; their logs are {sweep.output_dir}/*/log.txt. Ctrl-C stops them", flush=True)
    stopped = run_cells(sweep.cells, states, slots, lambda: write_results(sweep, collect(sweep, states)))
    code = _show_results(sweep)
    if stopped is not None:
        print(f"stopped; the same command continues: hmm-datasets sweep {sweep.path}", file=sys.stderr)
        return 128 + stopped
    return code


def _submit(sweep: "Sweep", states: "dict[str, CellState]") -> int:
    """Submit the cells to Slurm."""
    jobs = submit(sweep, states)
    finished = sum(state.state == FINISHED for state in states.values())
    for name, job in jobs.items():
        print(f"{job}  {name}")
    print(
        f"cells: {len(jobs)} submitted, {len(sweep.cells) - finished - len(jobs)} in the queue before, {finished} "
        f"finished; hmm-datasets sweep {sweep.path} --table writes the table of what is finished"
    )
    return 0


def _show_results(sweep: "Sweep") -> int:
    """Write and print the table, and list the cells that failed."""
    if not sweep.output_dir.is_dir():
        raise InputError(f"{sweep.output_dir}: no such folder; start the sweep first: hmm-datasets sweep {sweep.path}")
    results = collect(sweep)
    write_results(sweep, results)
    picture = draw_heat_map(sweep, results)
    states = [cell["state"] for cell in results["cells"]]
    counts = "; ".join(f"{states.count(state)} {state}" for state in dict.fromkeys(states) if state != FINISHED)
    finished = f"{states.count(FINISHED)} of {len(states)} cells are finished"
    print(f"\n{sweep_table(sweep, results).text()}\n\n{'; '.join(filter(None, (finished, counts)))}.")
    for cell in results["cells"]:
        if cell["state"] == FAILED:
            print(f"failed: {cell['name']}: {'; '.join(cell['errors'])}\n        {cell['folder']}/{LOG_NAME}")
    names = ["sweep.csv", "sweep.json", *([] if picture is None else [picture.name])]
    print(f"{sweep.output_dir}/: {', '.join(names)}", flush=True)
    check_values(sweep, results)
    return 1 if FAILED in states else 0
