"""A report as one HTML file that needs nothing else: pictures inside, no scripts, nothing fetched.

What a model wrote is data: the template escapes every value, and the page's own policy lets nothing run.
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
    "training": "Along training",
    "beliefs": "Beliefs inside the model",
    "text": "Held-out text",
    "core": "Questions",
    "completions": "Completions",
}

_FIGURES = {
    "positions": ("optimum", "Cross-entropy by position, of the model and of predictors; below, the model's excess "
                  "over the floor with its 95% interval."),
    "kl_positions": ("optimum", "KL(predictor || model) by position with 95% intervals: the nearer zero, the more the "
                     "model predicts as that predictor."),
    "calibration": ("optimum", "The optimum's probability of what the model gave a probability, how often it came; "
                    "below, how many predictions each bin holds."),
    "training": ("training", "KL(predictor || model) along training. Star: the model is closest to that predictor; "
                 "ring: from there on its loss stays below the predictor's. Above: the nearest predictor."),
    "beliefs": ("beliefs", "Held-out R² of linear probes for the belief, by layer, beside an untrained model and "
                "shuffled beliefs."),
    "simplex": ("beliefs", "True beliefs beside probed ones on held-out sequences; the colour is the true belief."),
    "core": ("core", "Centered accuracy by task with 95% intervals; crosses are the control with corrupted inputs."),
}  # fmt: skip


@dataclass(frozen=True)
class Figure:
    """A PNG in base64 and what it shows."""

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
        report (`dict`): what `report.json` holds.
        plots (sequence of `Path`): PNGs of [`~hmm_datasets.report.evaluation_plots.draw_evaluation`].
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
    render(
        path,
        title=model["name"],
        subtitle=f"{model['type']}, {model['parameters']:,} parameters, measured {report['time']}",
        summary=summary(report),
        sections=sections,
        provenance=list(flattened(provenance)),
    )


def embed(plot: Path, caption: str) -> Figure:
    """A PNG as a page holds it."""
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


def render(
    path: str | os.PathLike,
    *,
    title: str,
    subtitle: str,
    summary: Sequence[str],
    sections: Sequence[Section],
    provenance: Sequence[tuple[str, str]],
) -> None:
    """Write a page from its parts, whole or not at all."""
    from jinja2 import Environment, StrictUndefined

    template = (Path(__file__).parent / "page.html").read_text(encoding="utf-8")
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    page = environment.from_string(template).render(
        title=title, subtitle=subtitle, summary=summary, sections=sections, provenance=provenance
    )
    with atomic_file(path) as temporary:
        temporary.write_text(page, encoding="utf-8", errors="replace")
