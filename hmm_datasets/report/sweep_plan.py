"""The plan of a sweep as a table: its cells, and what they will consume."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from ..quantities import format_duration
from .tables import Table

if TYPE_CHECKING:
    from ..sweep.cell_folder import CellState
    from ..sweep.planning import SweepPlan
    from ..sweep.sweep_file import Sweep

# A cell that was killed could not write that it has stopped.
_WORDS = {"running": "unfinished", "stopped": "unfinished", "waiting": "new"}


def plan_text(sweep: "Sweep", plan: "SweepPlan", states: "Mapping[str, CellState | None]") -> str:
    """A row for each cell with its plan, if its recipe has one, and the totals."""
    header, rows = ["cell", "state"], []
    header += ["parameters", "tokens", "FLOPs", "hours"] if plan.cells else []
    for cell in sweep.cells:
        state = states[cell.name]
        row = [cell.name, "new" if state is None else _WORDS.get(state.state, state.state)]
        if plan.cells:
            found = plan.cells[cell.name]
            hours = f"{found['time']['device_hours']:.3g}" if "time" in found else "-"
            row += [f"{found['parameters']:,}", f"{found['tokens']:,}", f"{found['flops']:.3g}", hours]
        rows.append(row)
    return f"{Table('', header, rows).text()}\n\n{_totals(sweep, plan)}"


def _totals(sweep: "Sweep", plan: "SweepPlan") -> str:
    commands = " and then ".join([sweep.recipe, *(words[0] for words in sweep.cells[0].then)])
    text = f"{len(sweep.cells)} cells of {commands}, in {sweep.output_dir}"
    if not plan.cells:
        return text
    text += f"; together {plan.total('tokens'):,} tokens, {plan.total('flops'):.4g} FLOPs"
    if plan.device_hours is None:
        settings = (
            "assumed_flops" if sweep.recipe == "fit" else "assumed_run, assumed_device or assumed_tokens_per_second"
        )
        return f"{text}; hours: set {settings}"
    return f"{text}, {format_duration(3600 * plan.device_hours)} of one device"
