"""What a sweep shows while it runs: in a terminal a line for each running cell and a bar, elsewhere plain lines."""

import re
import shutil
import sys
import time
from collections.abc import Sequence

from ..quantities import format_duration
from .cell_folder import FAILED, FINISHED, LOG_NAME, CellState, last_line
from .sweep_file import Cell

_DRAW_EVERY = 0.5  # seconds


class LiveView:
    """Shows the cells of a sweep.

    Args:
        total (`int`): number of cells.
        done (`int`): number of those that were finished before.
    """

    def __init__(self, total: int, done: int):
        self.total, self.done, self.before = total, done, done
        self._began = time.monotonic()
        self._drawn = 0.0
        self._height = 0
        self._in_terminal = sys.stdout.isatty()

    def started(self, cell: Cell, state: CellState) -> None:
        """Say that a cell was started."""
        if not self._in_terminal:
            self.say(f"{cell.name}: started" + (f", attempt {state.attempts + 1}" if state.attempts else ""))

    def ended(self, cell: Cell, state: CellState, again: bool) -> None:
        """Say how a cell ended, and whether it is tried again."""
        self.done += state.state == FINISHED or (state.state == FAILED and not again)
        text = f"[{self.done}/{self.total}] {cell.name}: {state.state} after {format_duration(state.seconds)}"
        if state.state == FAILED:
            text += f": {state.errors[-1]}" + ("; it will be started again" if again else "")
        self.say(text)

    def say(self, line: str) -> None:
        """Print a line above the view."""
        self._erase()
        print(line, flush=True)

    def show(self, running: Sequence[tuple[Cell, float]]) -> None:
        """Draw the running cells, each with the time when it began, and the bar."""
        if not self._in_terminal or time.monotonic() - self._drawn < _DRAW_EVERY:
            return
        from tqdm import tqdm

        now, size = time.monotonic(), shutil.get_terminal_size()
        shown = running[: max(1, size.lines - 3)]  # what is above the screen could not be erased
        lines = []
        for cell, began in shown:
            start = f"{cell.name}  {format_duration(now - began)}"
            lines.append(f"{start}  {_quiet(last_line(cell.folder / LOG_NAME))}"[: size.columns - 1])
        if len(running) > len(shown):
            lines[-1] = f"... and {len(running) - len(shown) + 1} more"
        bar = tqdm.format_meter(
            self.done, self.total, now - self._began, ncols=size.columns - 1, unit=" cells", initial=self.before
        )
        self._erase()
        sys.stdout.write("\n".join([*lines, bar]) + "\n")
        sys.stdout.flush()
        self._height, self._drawn = len(lines) + 1, now

    def close(self) -> None:
        """Erase the view."""
        self._erase()

    def _erase(self) -> None:
        if self._height:
            sys.stdout.write(f"\x1b[{self._height}A\x1b[J")
            self._height = 0


def _quiet(line: str) -> str:
    """The line of a log without characters that would move the cursor."""
    return re.sub(r"[\x00-\x1f\x7f]", " ", line)
