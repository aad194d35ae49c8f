"""An evaluation: every measure that applies to a model, written into one folder.

The folder has `report.html` (self-contained), `plots/` (PNG and PDF), `items/TASK.jsonl` with the result of every
sequence, document or question, and `report.json` with results, versions, seeds, commit and hashes. Results arrive
together, before a picture is drawn, so a folder with a `report.json` has them all. `hmm-datasets compare` computes
paired intervals from `items/`.
"""

import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator

from ..files import write_json, write_jsonl, written_with_digests
from ..hub.cards import CARD_NAME
from ..hub.licences import stated_licence
from ..hub.weights import has_weights
from ..report.evaluation_tables import evaluation_text
from ..report.page import write_page
from ..runtime.credentials import masked
from ..runtime.once import one_command
from ..training.run_card import write_run_card
from .context import open_context
from .provenance import data_hashes, provenance
from .settings import EvaluationSettings
from .tasks import TASKS, chosen_tasks

REPORT_NAME, PAGE_NAME, ITEMS_NAME, PLOTS_NAME = "report.json", "report.html", "items", "plots"


@one_command()
def evaluate_model(settings: EvaluationSettings) -> dict[str, Any]:
    """Evaluate a model, write the folder of the evaluation, and print its tables; under a launcher on all ranks.

    Args:
        settings ([`EvaluationSettings`]): what to measure.

    Returns:
        `dict`: the content of `report.json`; empty on ranks other than the main one.

    Raises:
        `InputError`: a name that is not found, or a task that does not apply.
    """
    accelerator = Accelerator(cpu=not torch.accelerator.is_available())
    context = open_context(settings)
    context.tasks = chosen_tasks(context)
    context.load(accelerator)
    results, items = {}, {}
    for name in context.tasks:
        results[name] = TASKS[name].measure(context, accelerator)
        rows = results[name].pop("items", None)
        if rows is not None:
            items[name] = rows
    if not accelerator.is_main_process:
        return {}
    report = provenance(settings.model, [context.model]) | {
        "settings": masked(asdict(settings)),
        "seeds": {"stream": settings.data_seed, "evaluation": settings.seed},
        "hashes": data_hashes(results),
    }
    report |= results
    write_evaluation(report, items, settings.output_dir)
    _add_to_card(Path(settings.model), settings.output_dir)
    draw_pictures(report, items, settings.output_dir)  # last, since one that fails must cost no result
    return report


def _add_to_card(run: Path, evaluation: str | None) -> None:
    """Write the evaluation into the card of a finished run on this machine, with its errors."""
    finished = (run / "summary.json").is_file() and (run / "run.json").is_file() and has_weights(run)
    if finished and evaluation is not None and os.access(run, os.W_OK):
        licence = stated_licence(run / CARD_NAME).get("license")
        if write_run_card(run, licence=licence, evaluations=[evaluation]):
            print(f"{run / CARD_NAME}: the results are in the card", flush=True)


def write_evaluation(report: dict[str, Any], items: dict[str, list[dict]], folder: str | Path) -> None:
    """Write the results of an evaluation, on a page without pictures, and print them; earlier ones are replaced."""
    with written_with_digests(folder) as temporary:
        for name, rows in items.items():
            write_jsonl(temporary / ITEMS_NAME / f"{name}.jsonl", rows)
        (temporary / PLOTS_NAME).mkdir()
        write_page(report, [], temporary / PAGE_NAME)
        write_json(temporary / REPORT_NAME, report)
    print(evaluation_text(report), flush=True)


def draw_pictures(report: dict[str, Any], items: dict[str, list[dict]], folder: str | Path) -> None:
    """Draw the pictures of an evaluation whose results are in the folder, and put them on its page."""
    from ..report.evaluation_plots import draw_evaluation

    with written_with_digests(folder) as temporary:
        (temporary / PLOTS_NAME).mkdir()
        write_page(report, draw_evaluation(report, items, temporary / PLOTS_NAME), temporary / PAGE_NAME)
    print(f"\n{folder}/: {REPORT_NAME}, {PAGE_NAME}, {PLOTS_NAME}/, {ITEMS_NAME}/")
