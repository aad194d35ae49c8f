"""The items of an evaluation as Parquet for the Hub, with a card that has its tables and plots."""

from pathlib import Path

import datasets
import pyarrow as pa

from ..data.parquet import write_split
from ..files import read_jsonl
from ..report.evaluation_tables import evaluation_tables, summary
from ..report.pairing import read_report
from .cards import write_card
from .redaction import Redaction

_SPLIT = "test"


def write_evaluation_dataset(
    source: Path,
    folder: Path,
    *,
    name: str,
    licence: str | None = None,
    repo_id: str | None = None,
    show_progress: bool = True,
) -> None:
    """Write what a repository of an evaluation has besides the evaluation's own files.

    Args:
        source (`Path`): folder of the evaluation, with `report.json`, `items/` and `plots/`.
        folder (`Path`): where `data/` and `README.md` go.
        name (`str`): title of the card.
        licence (`str`, *optional*): licence, an identifier of the Hub.
        repo_id (`str`, *optional*): name on the Hub, for the commands in the card.
        show_progress (`bool`, *optional*): ignored; it takes seconds.
    """
    report = read_report(source)
    configs = []
    for path in sorted((source / "items").glob("*.jsonl")):
        rows = read_jsonl(path)
        if rows:
            table = pa.Table.from_pylist(rows)
            features = datasets.Features.from_arrow_schema(table.schema)
            write_split(folder, _SPLIT, [table], features, prefix=f"data/{path.stem}")
            split = {"split": _SPLIT, "path": f"data/{path.stem}/{_SPLIT}-*", "rows": len(rows), "tokens": None}
            configs.append({"name": path.stem, "splits": [split]})
    redaction = Redaction(source)
    tables = [table.markdown() for found in evaluation_tables(report).values() for table in found]
    write_card(
        "evaluation",
        folder,
        {
            "name": name,
            "summary": redaction.without_paths(" ".join(summary(report))),
            "license": licence,
            "model": redaction.without_paths(str(report["model"].get("name") or report["model"]["type"])),
            "sha256": report["model"]["sha256"],
            "tables": [redaction.without_paths(table) for table in tables],
            "plots": [f"plots/{path.name}" for path in sorted((source / "plots").glob("*.png"))],
            "configs": configs,
            "command": redaction.without_paths(report["command"]),
            "versions": report["versions"],
            "repo_id": repo_id,
        },
    )
