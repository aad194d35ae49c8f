"""A run in a terminal, drawn anew every few seconds: what `watch` prints, and curves."""

import contextlib
import sys
from collections.abc import Callable, Iterator

from rich.console import Console
from rich.live import Live
from rich.text import Text

from ..errors import printable
from ..report.curves import panels_of
from ..report.terminal import text_plot
from ..runtime.plain_output import terminal
from ..runtime.run_records import read_history
from .diagnosis import DEAD, HANGING
from .progress import HISTORY_NAME
from .run_state import FINISHED, RunState, format_state

_COLORS = {HANGING: "bold red", DEAD: "bold red", FINISHED: "bold green"}


def render(state: RunState, width: int, height: int) -> Text:
    """The picture of a run for a terminal of this many columns and lines."""
    heading = (f"{printable(str(state.folder))}: {state.state}", _COLORS.get(state.state, "bold cyan"))
    parts = [format_state(state), *_curves(state, width, height)]
    return Text.assemble(heading, *(f"\n\n{printable(part)}" for part in parts), overflow="fold")


@contextlib.contextmanager
def live_view() -> Iterator[Callable[[RunState], None]]:
    """A context with the whole terminal, in which the function that it gives draws the state of a run."""
    console = Console(file=terminal(sys.stdout), markup=False)
    with Live(console=console, auto_refresh=False, screen=True) as live:
        yield lambda state: live.update(render(state, *console.size), refresh=True)


def _curves(state: RunState, width: int, height: int) -> list[str]:
    path = state.folder / HISTORY_NAME
    if not path.exists():
        return []
    rows = [row for row in read_history(path) if "tokens" in row]  # rows of other programs may not have them
    panels = {panel.name: panel for panel in panels_of(rows) if max(len(curve.values) for curve in panel.curves) > 1}
    names = ["reward" if "reward" in panels else "loss", "grad_norm", "host_memory"]
    names = [name for name in names if name in panels]
    each = max(min((height - 24) // max(len(names), 1), 14), 8)
    return [text_plot(panels[name], width - 1, each) for name in names]
