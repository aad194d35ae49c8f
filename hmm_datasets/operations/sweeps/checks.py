"""The plan of a whole sweep before it starts: are the settings of every cell right, and what will all consume?

The settings of each cell are read by the recipe's own dataclasses, so a value that the recipe would refuse is refused
before the first cell runs. Recipes that have a plan (`hmm-datasets plan`) are planned cell by cell.
"""

import json
import multiprocessing
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ...display import format_duration
from ...errors import InputError, suggestion
from ...files import read_yaml, write_yaml
from ...report.tables import text_table
from ...runtime.command_line import check_flags, parse_settings, setting_names
from ...runtime.parent_watch import end_with_parent
from ...runtime.progress import progress_bar
from ..launching import recipe_settings, split_command
from .cells import CellState
from .file import Sweep

_PLANNED = ("pretrain", "midtrain", "sft")


@dataclass(frozen=True)
class SweepPlan:
    """What a sweep will consume.

    Attributes:
        cells (`dict`): for each name of a cell the plan of its run, see
            [`~hmm_datasets.operations.planning.plan_recipe`] and
            [`~hmm_datasets.operations.planning.plan_fit_recipe`]; empty for recipes that have none.
        num_gpus (`int`): number of GPUs of this machine.
    """

    cells: dict[str, dict[str, Any]] = field(default_factory=dict)
    num_gpus: int = 0

    def total(self, name: str) -> float:
        """The sum of an entry of the plans, such as `tokens` or `flops`."""
        return sum(plan[name] for plan in self.cells.values())

    @property
    def device_hours(self) -> float | None:
        """Hours of all devices together; `None` if the settings assume no rate."""
        times = [plan.get("time") for plan in self.cells.values()]
        return sum(time["device_hours"] for time in times) if times and all(times) else None


def plan_sweep(sweep: Sweep, launch_config: Path | None = None, num_processes: int | None = None) -> SweepPlan:
    """Check the settings of every cell, and plan it if its recipe has a plan.

    This happens in a process of its own, so that the one that waits for the cells holds neither torch nor a GPU.

    Args:
        sweep ([`~hmm_datasets.operations.sweeps.file.Sweep`]): the sweep.
        launch_config (path, *optional*): the launch configuration of each run.
        num_processes (`int`, *optional*): number of ranks of each run; by default that of the configuration, or one.

    Raises:
        `InputError`: the recipe does not have a setting, or would refuse a value; the message names file and cell.
    """
    spawn = multiprocessing.get_context("spawn")
    # A pickled secret is None. The process reads settings with names of secrets, as the cells do, which it inherits.
    cells = [replace(cell, settings=json.loads(json.dumps(cell.settings, default=str))) for cell in sweep.cells]
    sweep = replace(sweep, cells=cells)
    with ProcessPoolExecutor(1, mp_context=spawn, initializer=end_with_parent) as pool:
        return pool.submit(check_and_plan, sweep, launch_config, num_processes).result()


def check_and_plan(sweep: Sweep, launch_config: Path | None = None, num_processes: int | None = None) -> SweepPlan:
    """[`plan_sweep`] in this process."""
    kinds = recipe_settings(sweep.recipe)
    if not kinds or "output_dir" not in setting_names(kinds):
        raise InputError(
            f"{sweep.path}: recipe is {sweep.recipe!r}, which has no settings with an output_dir; a sweep needs a "
            "recipe that has, such as fit, pretrain or evaluate"
        )
    _check_names(sweep, kinds)
    plans = {}
    with tempfile.TemporaryDirectory() as folder, progress_bar(len(sweep.cells), " cells", desc="planning") as bar:
        for cell in sweep.cells:
            path = Path(folder) / "settings.yaml"
            write_yaml(path, cell.run_settings)
            try:
                cell_plan = _plan(sweep.recipe, kinds, path, launch_config, num_processes)
            except InputError as error:
                problem = str(error).removeprefix(f"{path}: ").removeprefix("settings: ")
                raise InputError(f"{sweep.path}: cell {cell.name}: {problem}") from None
            if cell_plan is not None:
                plans[cell.name] = cell_plan
            bar.update()
    return SweepPlan(plans, _num_gpus())


def _num_gpus() -> int:
    import torch

    from ...compat.torch_xla import xla_device  # slow, as torch is

    return torch.cuda.device_count() if xla_device() in (None, "CPU") else 1  # all chips of a TPU are one


def _check_names(sweep: Sweep, kinds: Sequence[type]) -> None:
    """Refuse settings that the recipe does not have, and flags that commands of `then` do not have."""
    content = read_yaml(sweep.path)
    known, chosen = setting_names(kinds), set(content.get("settings") or {})
    for name in sweep.cells[0].settings:
        if name not in known and name != "env":
            place = "grid or cells" if name in sweep.names else "settings" if name in chosen else content["config"]
            hint = suggestion(name, known)
            raise InputError(f"{sweep.path}: {place}: unknown setting {name!r} of the recipe {sweep.recipe}{hint}")
    for words in sweep.cells[0].then:
        name, flags = split_command(words) or (words[0], [])
        others = recipe_settings(name) if flags else ()
        if others and "--launch" not in words:
            try:
                check_flags(flags, others)
            except InputError as error:
                raise InputError(f"{sweep.path}: then: {name}: {error}") from None


def _plan(
    recipe: str, kinds: Sequence[type], path: Path, launch_config: Path | None, num_processes: int | None
) -> dict[str, Any] | None:
    if recipe in _PLANNED:
        from ..planning import plan_recipe  # slow, and not needed for all recipes

        return plan_recipe(path, num_processes=num_processes, launch_config=launch_config)
    if recipe == "fit":
        from ..planning import plan_fit_recipe

        return plan_fit_recipe(path)
    parse_settings(*kinds, arguments=["--config", str(path)])
    return None


def plan_text(sweep: Sweep, plan: SweepPlan, states: Mapping[str, CellState]) -> str:
    """A row for each cell with its plan, if its recipe has one, and the totals."""
    rows = []
    for cell in sweep.cells:
        row = [cell.name, states[cell.name].state]
        if cell_plan := plan.cells.get(cell.name):
            hours = f"{cell_plan['time']['device_hours']:.3g}" if "time" in cell_plan else "-"
            row += [f"{cell_plan['parameters']:,}", f"{cell_plan['tokens']:,}", f"{cell_plan['flops']:.3g}", hours]
        rows.append(row)
    header = ["cell", "state", "parameters", "tokens", "FLOPs", "hours"][: len(rows[0])]
    commands = " and then ".join([sweep.recipe, *(words[0] for words in sweep.cells[0].then)])
    text = f"{text_table(header, rows)}\n\n{len(sweep.cells)} cells of {commands}, in {sweep.output_dir}"
    if plan.cells:
        text += f"; together {plan.total('tokens'):,} tokens, {plan.total('flops'):.4g} FLOPs"
    return text if plan.device_hours is None else f"{text}, {format_duration(3600 * plan.device_hours)} of one device"
