"""A report as a single HTML file with embedded figures; it has no scripts and loads nothing.

Text that a model wrote cannot run: the template escapes every value, and the page's content security policy forbids
scripts.
"""

import base64
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..files import atomic_file
from .evaluation_tables import evaluation_tables, summary
from .tables import Table

_TITLES = {
    "optimum": "Distance from the optimum",
    "training": "Learning phases",
    "beliefs": "Beliefs inside the model",
    "text": "Held-out text",
    "core": "Questions",
    "chat": "Conversations",
    "completions": "Completions",
}

_FIGURES = {
    "positions": ("optimum", "Top: cross-entropy of the model and the predictors by position. Bottom: the model's "
                  "excess over the optimal loss with its 95% interval."),
    "kl_positions": ("optimum", "KL(predictor || model) by position with 95% intervals. The closer to zero, the more "
                     "the model predicts like that predictor."),
    "training": ("training", "KL(predictor || model) during training. Star: the model is closest to that predictor. "
                 "Ring: from there on its loss stays below the predictor's."),
    "beliefs": ("beliefs", "Held-out R² of linear probes for the belief, by layer, with an untrained model and "
                "shuffled beliefs as controls."),
    "simplex": ("beliefs", "True beliefs and probed ones on held-out sequences; the color is the true belief."),
    "vectors": ("beliefs", "True predictive vectors and probed ones on held-out sequences, by the principal "
                "components of the true ones; the color is a further component."),
    "beliefs_training": ("beliefs", "Held-out R² of a linear probe of all layers, by checkpoint."),
}  # fmt: skip


@dataclass(frozen=True)
class Figure:
    """A PNG in base64, and its caption."""

    data: str
    caption: str


@dataclass(frozen=True)
class Section:
    """A part of a page: tables, then prompts with their completions, then figures."""

    title: str
    tables: Sequence[Table] = ()
    figures: Sequence[Figure] = ()
    prompts: Sequence[Mapping[str, Any]] = ()


def write_page(report: Mapping[str, Any], plots: Sequence[Path], path: str | os.PathLike) -> None:
    """Write an evaluation as a page.

    Args:
        report (`dict`): the content of `report.json`.
        plots (sequence of `Path`): PNGs that [`~hmm_datasets.report.evaluation_plots.draw_evaluation`] wrote.
        path (path): where the page goes.
    """
    tables = evaluation_tables(report)
    sections = [
        Section(
            title,
            tables.get(task, ()),
            [embed(plot, _FIGURES[plot.stem][1]) for plot in plots if _FIGURES[plot.stem][0] == task],
            report[task]["prompts"] if task == "completions" else (),
        )
        for task, title in _TITLES.items()
        if task in report
    ]
    model = report["model"]
    provenance = {name: value for name, value in report.items() if name not in _TITLES}
    render_page(
        path,
        title=model["name"],
        subtitle=f"{model['type']}, {model['parameters']:,} parameters, measured {report['time']}",
        summary=summary(report),
        sections=sections,
        provenance=list(flattened(provenance)),
    )


def embed(plot: Path, caption: str) -> Figure:
    """Read a PNG to embed it in a page."""
    return Figure(base64.b64encode(plot.read_bytes()).decode(), caption)


def flattened(value: Any, name: str = "") -> Iterator[tuple[str, str]]:
    """The leaves of nested dictionaries with dotted names.

    ```python
    >>> list(flattened({"seeds": {"stream": 0}, "commit": None}))
    [('seeds.stream', '0'), ('commit', '-')]

    ```
    """
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from flattened(inner, f"{name}.{key}" if name else str(key))
    elif isinstance(value, list | tuple):
        yield name, ", ".join(map(str, value)) or "-"
    else:
        yield name, "-" if value is None else str(value)


def render_page(
    path: str | os.PathLike,
    *,
    title: str,
    subtitle: str,
    summary: Sequence[str],
    sections: Sequence[Section],
    provenance: Sequence[tuple[str, str]],
) -> None:
    """Write a page from its parts, atomically."""
    from jinja2 import Environment, StrictUndefined

    template = (Path(__file__).parent / "page.html").read_text(encoding="utf-8")
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    page = environment.from_string(template).render(
        title=title, subtitle=subtitle, summary=summary, sections=sections, provenance=provenance
    )
    with atomic_file(path) as temporary:
        temporary.write_text(page, encoding="utf-8", errors="replace")
