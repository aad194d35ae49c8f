"""The plan of a sweep as a table: its cells, and what they will consume."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

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
    has_cost = any("cost" in found.get("time", {}) for found in plan.cells.values())
    header += ["parameters", "tokens", "FLOPs", "GiB", "hours", *(["cost"] if has_cost else [])] if plan.cells else []
    for cell in sweep.cells:
        state = states[cell.name]
        row = [cell.name, "new" if state is None else _WORDS.get(state.state, state.state)]
        if plan.cells:
            found = plan.cells[cell.name]
            hours = f"{found['time']['device_hours']:.3g}" if "time" in found else "-"
            row += [f"{found['parameters']:,}", f"{found['tokens']:,}", f"{found['flops']:.3g}", _memory(found), hours]
            row += [f"{found['time']['cost']:,.2f}"] if has_cost else []
        rows.append(row)
    note = "GiB: memory per rank, with data parallelism." if plan.cells else ""
    return f"{Table('', header, rows, note).text()}\n\n{_totals(sweep, plan)}"


def _memory(found: Mapping[str, Any]) -> str:
    """GiB per rank of a run, or of a fit."""
    memory = found["memory"]
    return f"{(memory['ddp']['total'] if isinstance(memory, dict) else memory) / 2**30:.3g}"


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
    costs = [found["time"].get("cost") for found in plan.cells.values()]
    cost = f", {sum(costs):,.2f} at price_per_hour" if None not in costs else ""
    return f"{text}, {format_duration(3600 * plan.device_hours)} of one device{cost}"
