"""A run in a terminal, drawn anew every few seconds: state, hosts, curves, events."""

import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby

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


def show(look: Callable[[], RunState], every: float, wait: Callable[[float], None]) -> RunState:
    """Draw a run until it is finished, and return its last state.

    Args:
        look (callable): gives the state.
        every (`float`): seconds between two pictures.
        wait (callable): waits for a number of seconds.
    """
    console = Console(file=terminal(sys.stdout), markup=False)
    state = look()
    with Live(render(state, *console.size), console=console, auto_refresh=False, screen=True) as live:
        while state.state != FINISHED:
            wait(every)
            state = look()
            live.update(render(state, *console.size), refresh=True)
    console.print(render(state, *console.size))
    return state


def _hosts(diagnosis: Diagnosis) -> Table:
    """A row per host: its ranks, where they are, their rate, and seconds per step."""
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("host")
    for name in ("ranks", "step", "tokens/s", *(f"{phase} s" for phase in _PHASES), "beat"):
        table.add_column(name, justify="right")
    table.add_column("phase")
    blamed = {rank.beat.rank for rank in (*diagnosis.blamed, *diagnosis.slow)}
    hosts = [(host, list(its)) for host, its in groupby(diagnosis.ranks, key=lambda rank: rank.beat.host)]
    # Hosts with a rank at fault come first if there are too many.
    hosts.sort(key=lambda one: not any(rank.beat.rank in blamed for rank in one[1]))
    for host, its in hosts[:_MAX_HOSTS]:
        bad = [rank for rank in its if rank.beat.rank in blamed]
        style = "red" if any(rank in diagnosis.blamed for rank in bad) else "yellow" if bad else ""
        table.add_row(host, *_host_cells(its), _phases(bad or its), style=style)
    if len(hosts) > _MAX_HOSTS:
        table.add_row(f"and {len(hosts) - _MAX_HOSTS} more")
    return table


def _host_cells(its: Sequence[Rank]) -> list[str]:
    beats = [rank.beat for rank in its]
    ranks = [beat.rank for beat in beats]
    span = str(ranks[0]) if len(ranks) == 1 else f"{min(ranks)}-{max(ranks)}"
    steps = [beat.step for beat in beats if beat.step is not None]
    rates = [beat.tokens_per_second for beat in beats if beat.tokens_per_second is not None]
    means = []
    for phase in _PHASES:
        values = [beat.seconds[phase] for beat in beats if phase in beat.seconds]
        means.append(f"{statistics.mean(values):.3g}" if values else "")
    return [
        span,
        f"{min(steps):,}" if steps else "",
        f"{sum(rates):,.0f}" if rates else "",
        *means,
        format_duration(max(beat.age for beat in beats)),
    ]


def _phases(its: Sequence[Rank]) -> str:
    if its[0].condition != "beating":
        return f"rank {its[0].beat.rank} {its[0].condition}"
    phases = dict.fromkeys(rank.beat.phase for rank in its)
    return ", ".join(phases)


def _curves(state: RunState, width: int, height: int) -> list[RenderableType]:
    path = state.folder / HISTORY_NAME
    if not path.exists():
        return []
    rows = [row for row in read_history(path) if "tokens" in row]  # rows of other programs may not have them
    panels = {panel.name: panel for panel in panels_of(rows)}
    panels = [
        panels[name]
        for name in ("reward" if "reward" in panels else "loss", "grad_norm", "host_memory")
        if name in panels
    ]
    panels = [panel for panel in panels if max(len(curve.values) for curve in panel.curves) > 1]
    each = max(min((height - 24) // max(len(panels), 1), 14), 8)
    return [part for panel in panels for part in (Text(), Text(text_plot(panel, width - 1, each)))]
