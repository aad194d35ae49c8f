"""A run that ended, in pictures: as text in the terminal, and as PNGs in `plots/` of its folder."""

import os
import shutil
import sys
import traceback
from pathlib import Path

from ..files import read_jsonl
from .curves import Panel, panels

PLOTS_NAME = "plots"

_FEWEST = 10  # rows; fewer are read faster as they stand


def draw_run(folder: str | os.PathLike) -> list[Path]:
    """Print the curves of the run in `folder`, and write `plots/loss.png` and its kin, if it has ten losses or more.

    The run is trained and saved by now, so that nothing that goes wrong here may make it look failed to the batch
    script that waits for it: an error is told in full, and is not raised.

    Args:
        folder (path): of a run, with `history.jsonl`.

    Returns:
        list of `Path`: the PNGs; none of a run too short to draw.
    """
    folder = Path(folder)
    try:
        history = read_jsonl(folder / "history.jsonl")
        if sum("loss" in row for row in history) < _FEWEST:
            return []
        found = panels(history)
        print_plots(found)
        return write_plots(found, folder)
    except Exception:
        traceback.print_exc()
        print(f"{folder}: trained and saved; its plots failed, as told above", file=sys.stderr)
        return []


def print_plots(found: list[Panel]) -> None:
    """Print panels at the width of the terminal, in characters that the stream can take."""
    from .terminal import text_plots

    encoding = sys.stdout.encoding or "utf-8"
    text = text_plots(found, shutil.get_terminal_size().columns)
    print(f"\n{text}\n".encode(encoding, "replace").decode(encoding))


def write_plots(found: list[Panel], folder: Path) -> list[Path]:
    """Write a PNG a panel."""
    from .plots import plot_panel

    paths = []
    for panel in found:
        paths.append(folder / PLOTS_NAME / f"{panel.name}.png")
        plot_panel(panel, paths[-1], title=folder.resolve().name)
    return paths
