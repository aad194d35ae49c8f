"""Curves as text, for a terminal or a log: no colour, no wider than asked for.

The first curve is a line of braille patterns, eight points a character; the second, sparse, is of letters.
"""

import math
import textwrap
from collections.abc import Callable, Sequence

from matplotlib.ticker import EngFormatter, Locator, LogLocator, MaxNLocator

from .curves import Panel

_NARROWEST, _WIDEST = 40, 160
_HEIGHT = 15


def text_plot(panel: Panel, width: int = 80, height: int = _HEIGHT) -> str:
    """A panel as `height` lines of at most `width` characters.

    ```python
    >>> from hmm_datasets.report.curves import Curve
    >>> print(text_plot(Panel("loss", "loss", [Curve("", [10, 20, 30], [3.0, 2.0, 1.0])]), width=40, height=6))
    ...                                         # doctest: +ELLIPSIS
    loss...

    ```
    """
    import plotext

    width = min(max(width, _NARROWEST), _WIDEST)
    figure = plotext.figure
    figure.clear()
    plotext.terminal.limit(False, False)
    figure.plot_size(width, height - 1)
    tokens = [place for curve in panel.curves for place in curve.tokens]
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
        mark = "o" if number else "braille"
        line = figure.signal(list(map(scale, curve.tokens)), list(curve.values), marker=mark)
        figure.draw(line if number else line.lines())
        if curve.label:
            key.append(f"{'o' if number else '⠒'} {curve.label} {curve.values[-1]:.4g}")
    _set_ticks(figure.ruler("x"), LogLocator(numticks=6) if is_log else MaxNLocator(5), tokens, scale)
    _set_ticks(figure.ruler("y"), MaxNLocator(max(height // 4, 2)), values, float)
    drawn = figure.build().string(colorless=True).rstrip("\n").splitlines()
    heading = textwrap.wrap("   ".join([f"{panel.title} by tokens seen", *key]), width)
    return "\n".join(line.rstrip() for line in [*heading, *drawn])


def _set_ticks(ruler, locator: Locator, values: Sequence[float], scale: Callable[[float], float]) -> None:
    """Ticks at round numbers, `20k` and the like, where there are any."""
    low, high = min(values), max(values)
    places = [place for place in locator.tick_values(low, high) if low <= place <= high] or [float(f"{low:.3g}")]
    ruler.ticks(list(map(scale, places)), list(map(_number, places)))
    if low < high:
        ruler.lim(scale(low), scale(high))


def _number(value: float) -> str:
    # "20k" for many tokens, but no "3m" for a learning rate, which reads as three million.
    return EngFormatter(sep="")(value) if abs(value) >= 1000 else f"{value:.3g}"


def text_plots(panels: Sequence[Panel], width: int = 80) -> str:
    """Panels one below the other, the first the tallest."""
    return "\n\n".join(text_plot(panel, width, 10 if place else _HEIGHT) for place, panel in enumerate(panels))
