"""Results of papers, repeated: what was published beside what was measured, and why they differ.

A recipe that repeats a result calls [`write_result`] at its end. It writes `result.json` and `result.md`, and prints
the table.
"""

import os
import platform
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from hmm_datasets.display import format_duration
from hmm_datasets.files import atomic_file, write_json
from hmm_datasets.report.tables import Table

RESULT_NAME = "result.json"


@dataclass(frozen=True)
class Paper:
    """What is repeated.

    Args:
        title (`str`): title of the paper.
        arxiv (`str`): its number on arXiv.
        figures (`str`): the figures or tables that are repeated.
    """

    title: str
    arxiv: str
    figures: str


@dataclass(frozen=True)
class Finding:
    """One number of a result.

    Args:
        quantity (`str`): what it is, with its unit.
        measured (`float`): what was found here.
        standard_error (`float`, *optional*): of it, over seeds or sequences.
        published (`float` or `str`, *optional*): the paper's number, or a bound in words; None if it states none.
        where (`str`, *optional*): where the paper states it.
        difference (`str`, *optional*): why the two differ, or a note on a number that the paper does not state.
    """

    quantity: str
    measured: float
    standard_error: float | None = None
    published: float | str | None = None
    where: str = ""
    difference: str = ""


def write_result(
    folder: str | os.PathLike,
    paper: Paper,
    findings: Sequence[Finding],
    *,
    protocol: str,
    tokens: int,
    seconds: float,
    pictures: Mapping[str, Callable[[Path], None]] | None = None,
    more: dict[str, Any] | None = None,
) -> Path:
    """Write `result.json` and `result.md`, print the table, and then draw the pictures.

    What a picture raises costs no result, since the numbers are on disk before it is drawn.

    Args:
        folder (path): folder of the experiment.
        paper ([`Paper`]): what is repeated.
        findings (sequence of [`Finding`]): the numbers.
        protocol (`str`): how they were measured: models, tokens, seeds, sizes.
        tokens (`int`): tokens trained on, over all models.
        seconds (`float`): time of the whole experiment.
        pictures (mapping, *optional*): by name of a file in the folder, the function that draws it to a given path.
        more (`dict`, *optional*): anything else to keep, ready for JSON.

    Returns:
        `Path`: `result.json`.
    """
    folder, pictures = Path(folder), pictures or {}
    folder.mkdir(parents=True, exist_ok=True)
    content = {
        "paper": asdict(paper),
        "findings": [asdict(finding) for finding in findings],
        "protocol": protocol,
        "tokens": tokens,
        "seconds": round(seconds, 1),
        "hardware": hardware(),
        "date": time.strftime("%Y-%m-%d"),
        "pictures": list(pictures),
        **(more or {}),
    }
    write_json(folder / RESULT_NAME, content)
    header = ["quantity", "here", "published", "why they differ"]
    table = Table("", header, [_cells(finding) for finding in content["findings"]])
    with atomic_file(folder / "result.md") as temporary:
        shown = "".join(f"\n![{Path(name).stem}]({name})\n" for name in pictures)
        temporary.write_text(
            f"# {paper.title}\n\narXiv {paper.arxiv}, {paper.figures}.\n\n{protocol}\n\n{table.markdown()}\n{shown}",
            encoding="utf-8",
        )
    cost = f"{tokens:,} tokens, {format_duration(content['seconds'])}, {content['hardware']}"
    print(f"\n{paper.title} (arXiv {paper.arxiv}, {paper.figures})\n{table.text()}\n{cost}", flush=True)
    for name, draw in pictures.items():
        draw(folder / name)
    return folder / RESULT_NAME


def hardware() -> str:
    """The device and the number of cores, in a few words."""
    import torch

    if torch.cuda.is_available():
        return f"{torch.cuda.device_count()} x {torch.cuda.get_device_name(0)}"
    return f"{os.cpu_count()} cores, {platform.machine()}"


def _cells(finding: dict[str, Any]) -> list[str]:
    error, published = finding["standard_error"], finding["published"]
    here = f"{finding['measured']:.4g}" + ("" if error is None else f" ± {error:.1g}")
    stated = "-" if published is None else published if isinstance(published, str) else f"{published:.4g}"
    where = f" ({finding['where']})" if finding["where"] and published is not None else ""
    return [finding["quantity"], here, stated + where, _reason(finding)]


def _reason(finding: dict[str, Any]) -> str:
    if finding["difference"] or finding["published"] is None:
        return finding["difference"] or "-"
    return f"no reason is known; compared are our protocol and {finding['where'] or 'the paper'}"
