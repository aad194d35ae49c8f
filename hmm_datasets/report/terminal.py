"""Curves as text of a given width and without color, for a terminal or a log.

The first curve is a line of braille patterns with eight points per character; the others, which have fewer points, are
drawn with a letter each.
"""

import math
import textwrap
from collections.abc import Callable, Sequence

from matplotlib.ticker import EngFormatter, Locator, LogLocator, MaxNLocator

from .curves import Panel

_MIN_WIDTH, _MAX_WIDTH = 40, 160
_HEIGHT = 15
_MARKS = ("braille", "o", "x", "+")  # of the first curve and the others


def text_plot(panel: Panel, width: int = 80, height: int = _HEIGHT) -> str:
    """A panel as `height` lines of at most `width` characters.

    ```python
    >>> from hmm_datasets.report.curves import (Curve)
    >>> print(text_plot(Panel("loss", "loss", [Curve("", [10, 20, 30], [3.0, 2.0, 1.0])]), width=40, height=6))
    ...                                         # doctest: +ELLIPSIS
    loss...

    ```
    """
    import plotext

    width = min(max(width, _MIN_WIDTH), _MAX_WIDTH)
    figure = plotext.figure
    figure.clear()
    plotext.terminal.limit(False, False)
    figure.plot_size(width, height - 1)
    tokens = [count for curve in panel.curves for count in curve.tokens]
    is_log = panel.suits_logarithm()
    scale = math.log10 if is_log else float
    values = [value for curve in panel.curves for value in curve.values]
    key = []
    if panel.level is not None:
        name, level = panel.level
        figure.draw(figure.signal([scale(min(tokens)), scale(max(tokens))], [level, level], marker="-").lines())
        key.append(f"- {name} {level:.4g}")
        values.append(level)
    for number, curve in enumerate(panel.curves):
        mark = _MARKS[min(number, len(_MARKS) - 1)]
        line = figure.signal(list(map(scale, curve.tokens)), list(curve.values), marker=mark)
        figure.draw(line if number else line.lines())
        if curve.label:
            key.append(f"{mark if number else '⠒'} {curve.label} {curve.values[-1]:.4g}")
    _set_ticks(figure.ruler("x"), LogLocator(numticks=6) if is_log else MaxNLocator(5), tokens, scale)
    _set_ticks(figure.ruler("y"), MaxNLocator(max(height // 4, 2)), values, float)
    drawn = figure.build().string(colorless=True).rstrip("\n").splitlines()
    # Spaces within a part do not break, so that no value is cut off from its name.
    parts = [part.replace(" ", "\u00a0") for part in (f"{panel.title} by tokens seen", *key)]
    heading = [line.replace("\u00a0", " ") for line in textwrap.wrap("   ".join(parts), width)]
    return "\n".join(line.rstrip() for line in [*heading, *drawn])


def _set_ticks(ruler, locator: Locator, values: Sequence[float], scale: Callable[[float], float]) -> None:
    """Set ticks at round numbers, such as `20k`, if there are any in the range."""
    low, high = min(values), max(values)
    ticks = [tick for tick in locator.tick_values(low, high) if low <= tick <= high] or [float(f"{low:.3g}")]
    ruler.ticks(list(map(scale, ticks)), list(map(_number, ticks)))
    if low < high:
        ruler.lim(scale(low), scale(high))


def _number(value: float) -> str:
    # "20k" for many tokens, but not "3m" for a learning rate, which looks like three million.
    return EngFormatter(sep="")(value) if abs(value) >= 1000 else f"{value:.3g}"


def text_plots(panels: Sequence[Panel], width: int = 80) -> str:
    """Panels below each other, the first one taller than the others."""
    return "\n\n".join(text_plot(panel, width, 10 if index else _HEIGHT) for index, panel in enumerate(panels))
