"""Panels of one figure with common curves: their legend, and titles that fit above them."""

import textwrap
from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure


def shared_legend(figure: Figure, columns: int, panels: Sequence[Axes] | None = None) -> None:
    """Below a figure, one entry for each label of its panels, by default of all.

    Args:
        figure (`Figure`): with panels.
        columns (`int`): the most that the legend has.
        panels (sequence of `Axes`, *optional*): those whose labels it has.
    """
    handles: dict[str, object] = {}
    for axes in figure.axes if panels is None else panels:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            handles.setdefault(label, handle)
    figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=min(len(handles), columns))


def wrapped_title(name: str) -> str:
    """A name in lines that fit above a panel.

    ```python
    >>> wrapped_title("context_trees(3, 8, alpha=0.2, stop=0.2)")
    'context_trees(3, 8,\\nalpha=0.2, stop=0.2)'

    ```
    """
    return "\n".join(textwrap.wrap(name, 22, break_long_words=False))
