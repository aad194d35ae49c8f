"""A comparison of evaluations as tables, as sentences, and as a folder with a page and plots."""

import os
from collections.abc import Mapping
from typing import Any

from ..files import write_json, written_with_digests
from ..report.page import Section, embed, flattened, render_page
from ..report.tables import Table, figure_text, interval_text, predictor_titles


def comparison_tables(comparison: Mapping[str, Any]) -> list[Table]:
    """A table for each task, and one of the learning phases."""
    first = comparison["runs"][0]["name"]
    header = ["run", "value", "95% interval", f"minus {first}", "95% interval"]
    tables = []
    for task, results in comparison["tasks"].items():
        rows, notes = [], []
        for row in results["rows"]:
            change = row["difference"] or {"value": None, "low": None, "high": None}
            rows.append(
                [
                    row["run"],
                    figure_text(row["value"]),
                    interval_text(row["low"], row["high"]),
                    figure_text(change["value"], "+.4f"),
                    interval_text(change["low"], change["high"], "+.4f"),
                ]
            )
            notes += [] if row["unpaired"] is None else [f"{row['run']}: no difference, {row['unpaired']}"]
        tables.append(Table(f"{task}: {results['measure']}", header, rows, "\n".join(notes)))
    if "training" in comparison:
        tables.append(_phases_table(comparison["training"]))
    return tables


def _phases_table(training: Mapping[str, Any]) -> Table:
    names = predictor_titles(name for phases in training.values() for name in phases["predictors"])
    rows = []
    for run, phases in training.items():
        steps = [phases["predictors"].get(name, {}).get("passed_step") for name in reversed(names)]
        rows.append([run, *(figure_text(step, ",") for step in steps)])
    return Table("training: step at which each predictor is passed", ["run", *reversed(names.values())], rows)


def comparison_text(comparison: Mapping[str, Any]) -> str:
    """[`compare_reports`]'s result as tables for the terminal."""
    parts = [table.text() for table in comparison_tables(comparison)]
    return "\n\n".join([*parts, *["\n".join(comparison["left_out"])] * bool(comparison["left_out"])])


def write_comparison(comparison: Mapping[str, Any], folder: str | os.PathLike) -> None:
    """Write `comparison.json`, `comparison.html` and `plots/` (PNG and PDF).

    Args:
        comparison (`dict`): the result of [`compare_reports`].
        folder (path): folder to write, created if needed.
    """
    from ..report.comparison_plots import FIGURES, draw_comparison

    made_of = {run["name"]: run for run in comparison["runs"]}
    made_of |= {key: comparison[key] for key in ("resamples", "level")}
    with written_with_digests(folder) as temporary:
        write_json(temporary / "comparison.json", comparison)
    with written_with_digests(folder) as temporary:
        (temporary / "plots").mkdir()
        figures = [embed(plot, FIGURES[plot.stem]) for plot in draw_comparison(comparison, temporary / "plots")]
        render_page(
            temporary / "comparison.html",
            title=f"{len(comparison['runs'])} evaluations",
            subtitle=f"each compared with {comparison['runs'][0]['name']}",
            summary=_sentences(comparison) + comparison["left_out"],
            sections=[Section("Results of each run", comparison_tables(comparison)), Section("Figures", (), figures)],
            provenance=list(flattened(made_of)),
        )


def _sentences(comparison: Mapping[str, Any]) -> list[str]:
    """A sentence for each difference, which says whether chance may explain it."""
    first, sentences = comparison["runs"][0]["name"], []
    for task, results in comparison["tasks"].items():
        for row in results["rows"]:
            change = row["difference"]
            if change is None:
                continue
            is_significant = change["low"] is not None and (change["low"] > 0 or change["high"] < 0)
            sentences.append(
                f"{task}, {results['measure']}: {row['run']} has {abs(change['value']):.4f} "
                f"{'more' if change['value'] > 0 else 'less'} than {first} on the same items (95% interval "
                f"{interval_text(change['low'], change['high'], '+.4f')})"
                f"{'.' if is_significant else ', which chance may explain.'}"
            )
    return sentences
