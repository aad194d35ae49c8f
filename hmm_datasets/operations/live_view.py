"""A run in a terminal, drawn anew every few seconds: state, hosts, curves, events."""

import contextlib
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby
from statistics import mean

from rich.console import Console, ConsoleOptions, Group, RenderableType
from rich.live import Live
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from ..display import format_duration
from ..errors import printable
from ..report.curves import panels_of
from ..report.terminal import text_plot
from ..runtime.plain_output import terminal
from ..runtime.run_records import read_history
from .diagnosis import DEAD, HANGING, Diagnosis, Rank
from .progress import HISTORY_NAME
from .run_state import FINISHED, RunState, state_rows

_PHASES = ("data", "forward", "backward", "optimizer")
_MAX_HOSTS = 16
_COLORS = {HANGING: "bold red", DEAD: "bold red", FINISHED: "bold green"}


def render(state: RunState, width: int, height: int) -> RenderableType:
    """The picture of a run for a terminal of this many columns and lines."""
    table = Table.grid(padding=(0, 2))
    for name, value in [("run", str(state.folder)), *state_rows(state)]:
        style = _COLORS.get(state.state, "bold cyan") if name == "state" else ""
        table.add_row(Text(name, style="dim"), Text(value, style=style, overflow="fold"))
    hosts = [] if state.diagnosis is None else [Text(), _hosts(state.diagnosis)]
    return _Printable(Group(table, *hosts, *_curves(state, width, height)))


class _Printable:
    """A picture in whose text codes that a terminal obeys are written as text."""

    def __init__(self, picture: RenderableType):
        self._picture = picture

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Segment]:
        for text, style, control in console.render(self._picture, options):
            yield Segment(text if control else printable(text), style, control)


@contextlib.contextmanager
def live_view() -> Iterator[Callable[[RunState], None]]:
    """A context with the whole terminal, in which the function that it gives draws the state of a run."""
    console = Console(file=terminal(sys.stdout), markup=False)
    with Live(console=console, auto_refresh=False, screen=True) as live:
        yield lambda state: live.update(render(state, *console.size), refresh=True)


def _hosts(diagnosis: Diagnosis) -> Table:
    """A row per host: its ranks, where they are, their rate, and seconds per step."""
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for name in ("host", "ranks", "step", "tokens/s", *(f"{phase} s" for phase in _PHASES), "beat", "phase"):
        table.add_column(name, justify="left" if name in ("host", "phase") else "right")
    hosts = [list(its) for _, its in groupby(diagnosis.ranks, key=lambda rank: rank.beat.host)]
    styled = [(_style(its, diagnosis), its) for its in hosts]
    styled.sort(key=lambda host: host[0] == "")  # those with a rank at fault come first, if there are too many
    for style, its in styled[:_MAX_HOSTS]:
        bad = [rank for rank in its if rank in (*diagnosis.blamed, *diagnosis.slow)]
        table.add_row(*_host_cells(its), _phases(bad or its), style=style)
    if len(hosts) > _MAX_HOSTS:
        table.add_row(f"and {len(hosts) - _MAX_HOSTS} more")
    return table


def _style(its: Sequence[Rank], diagnosis: Diagnosis) -> str:
    if any(rank in diagnosis.blamed for rank in its):
        return "red"
    return "yellow" if any(rank in diagnosis.slow for rank in its) else ""


def _host_cells(its: Sequence[Rank]) -> list[str]:
    beats = [rank.beat for rank in its]
    first, last = beats[0].rank, beats[-1].rank
    return [
        beats[0].host,
        str(first) if first == last else f"{first}-{last}",
        _cell(min, ",", (beat.step for beat in beats)),
        _cell(sum, ",.0f", (beat.tokens_per_second for beat in beats)),
        *(_cell(mean, ".3g", (beat.seconds.get(phase) for beat in beats)) for phase in _PHASES),
        format_duration(max(beat.age for beat in beats)),
    ]


def _cell(reduce: Callable[[list], float], form: str, values: Iterable[float | None]) -> str:
    known = [value for value in values if value is not None]
    return format(reduce(known), form) if known else ""


def _phases(its: Sequence[Rank]) -> str:
    if its[0].condition != "beating":
        return f"rank {its[0].beat.rank} {its[0].condition}"
    return ", ".join(dict.fromkeys(rank.beat.phase for rank in its))


def _curves(state: RunState, width: int, height: int) -> list[RenderableType]:
    path = state.folder / HISTORY_NAME
    if not path.exists():
        return []
    rows = [row for row in read_history(path) if "tokens" in row]  # rows of other programs may not have them
    panels = {panel.name: panel for panel in panels_of(rows) if max(len(curve.values) for curve in panel.curves) > 1}
    names = ["reward" if "reward" in panels else "loss", "grad_norm", "host_memory"]
    names = [name for name in names if name in panels]
    each = max(min((height - 24) // max(len(names), 1), 14), 8)
    return [part for name in names for part in (Text(), Text(text_plot(panels[name], width - 1, each)))]
