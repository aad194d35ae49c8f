"""The report of an experiment: its figures as JSON, its tables and pictures as a page."""

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from hmm_datasets.files import atomic_file, write_json
from hmm_datasets.report.tables import Table


def write_report_page(
    folder: str | os.PathLike,
    tables: Sequence[Table],
    figures: Mapping[str, Any],
    pictures: Mapping[str, Callable[[Path], Any]],
    *,
    sections: Sequence[str] = (),
    others: Sequence[str] = (),
) -> None:
    """Print tables, draw pictures, and write `report.json` and `report.md`.

    Args:
        folder (path): of the experiment.
        tables (sequence of [`~hmm_datasets.report.tables.Table`]): each is a section of the page, under its title.
        figures (mapping): the content of `report.json`.
        pictures (mapping): for each name of a PNG what draws it, called with its path. They end the page.
        sections (sequence of `str`, *optional*): Markdown between the tables and the pictures.
        others (sequence of `str`, *optional*): names of further files, which are printed with these.
    """
    folder = Path(folder)
    for table in tables:
        print(f"\n{table.text()}", flush=True)
    write_json(folder / "report.json", figures)
    shown = [f"![{Path(name).stem}]({name})" for name in pictures]
    parts = [*(f"# {table.markdown()}" for table in tables), *sections, *shown]
    with atomic_file(folder / "report.md") as temporary:
        temporary.write_text("\n\n".join(parts) + "\n", encoding="utf-8")
    for name, draw in pictures.items():
        draw(folder / name)
    print(f"\n{folder}/: {', '.join(['report.md', 'report.json', *pictures, *others])}", flush=True)
