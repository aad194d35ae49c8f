"""The subcommand that watches a run."""

import json
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ..operations.diagnosis import Limits
from ..operations.run_state import FINISHED, RunObserver, format_state
from ..runtime.setting_rules import Void
from ..runtime.settings import argument, option

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..operations.run_state import RunState


@dataclass(frozen=True, kw_only=True)
class HangFlags:
    """What counts as a hang, for those who watch a run."""

    hang_after: float = option(
        300.0,
        "SECONDS",
        "a phase of a step that takes longer hangs, or a save or an evaluation that takes six times as long, unless a "
        "tenth of it was usual; default 300",
        above=0,
    )


@dataclass(frozen=True, kw_only=True)
class WatchCommand(HangFlags):
    """Report the state of a run, live if asked.

    Exit code 1 if the run hangs or is dead, or its loss is NaN or infinite.
    """

    path: Path = argument("RUN", "folder of the run, or its history.jsonl")
    follow: bool = option(False, None, "repeat until the run is finished; in a terminal as a live view")
    every: float = option(10.0, "SECONDS", "interval, default 10", above=0, most=1e6)
    json: bool = option(False, None, "JSON instead of a table")

    voids = (Void("every", "without follow"),)


def watch_command(arguments: WatchCommand) -> int:
    """Print the state of a run; fail if it needs somebody."""
    observer = RunObserver(arguments.path, Limits.hang_after(arguments.hang_after))
    if not arguments.follow:
        state = observer.look(twice=True)
        _print(state, arguments)
    elif sys.stdout.isatty() and not arguments.json:
        from ..operations.live_view import live_view

        with live_view() as draw:
            state = _follow(observer.look, draw, arguments.every)
        _print(state, arguments)
    else:
        state = _follow(observer.look, lambda state: _print(state, arguments, end="\n"), arguments.every)
    return 0 if state.trouble is None else 1


def _follow(look: "Callable[[], RunState]", draw: "Callable[[RunState], None]", every: float) -> "RunState":
    draw(state := look())
    while state.state != FINISHED:
        time.sleep(every)
        draw(state := look())
    return state


def _print(state: "RunState", arguments: WatchCommand, end: str = "") -> None:
    record = asdict(state) | {"ok": state.trouble is None}
    print(json.dumps(record, ensure_ascii=False, default=str) if arguments.json else format_state(state))
    print(end=end, flush=True)
