"""What the cells of a sweep consume, as a table: parameters, tokens, FLOPs and, if a rate is assumed, hours."""

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hmm_datasets.display import format_duration
from hmm_datasets.files import write_yaml
from hmm_datasets.operations.planning import plan_recipe
from hmm_datasets.operations.sweeps.file import Sweep
from hmm_datasets.report.tables import text_table


def plans_of(sweep: Sweep) -> dict[str, dict[str, Any]]:
    """The plan of every cell by its name."""
    plans = {}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "settings.yaml"
        for cell in sweep.cells:
            write_yaml(path, cell.settings)
            plans[cell.name] = plan_recipe(sweep.file.recipe, ["--config", str(path)])
    return plans


def device_hours(plans: Mapping[str, Mapping[str, Any]]) -> float | None:
    """Hours of all devices together; None if the settings assume no rate."""
    times = [plan.get("time") for plan in plans.values()]
    return sum(time["device_hours"] for time in times) if times and all(times) else None


def costs_text(sweep: Sweep) -> str:
    """A row for each cell, and the totals."""
    plans, rows = plans_of(sweep), []
    for name, plan in plans.items():
        hours = f"{plan['time']['device_hours']:.3g}" if "time" in plan else "-"
        rows.append([name, f"{plan['parameters']:,}", f"{plan['tokens']:,}", f"{plan['flops']:.3g}", hours])
    totals = f"{len(sweep.cells)} cells of {sweep.file.recipe}, in {sweep.output_dir}"
    totals += f"; together {sum(plan['tokens'] for plan in plans.values()):,} tokens, "
    totals += f"{sum(plan['flops'] for plan in plans.values()):.4g} FLOPs"
    hours = device_hours(plans)
    totals += "" if hours is None else f", {format_duration(3600 * hours)} of one device"
    return f"{text_table(['cell', 'parameters', 'tokens', 'FLOPs', 'hours'], rows)}\n\n{totals}\n"
