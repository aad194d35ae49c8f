"""Results of an evaluation in the repository of the model: in its card, and in `.eval_results/`, in one commit.

The items of an evaluation as Parquet for the Hub, with a card that has its tables and plots.
"""

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import datasets
import pyarrow as pa

from ...errors import InputError
from ...files import read_jsonl
from ...report.evaluation_tables import evaluation_tables, read_report, summary
from ..cards import CARD_NAME, eval_result, write_card
from ..download import ModelName, model_file
from ..parquet import write_split
from ..push import PushResult, push_files
from ..redaction import Redaction
from ..results import write_eval_results

_SPLIT = "test"
_NATS = "nats/token"


def write_evaluation_dataset(
    source: Path, folder: Path, *, name: str, licence: str | None = None, repo_id: str | None = None
) -> None:
    """Write what a repository of an evaluation has besides the evaluation's own files.

    Args:
        source (`Path`): folder of the evaluation, with `report.json`, `items/` and `plots/`.
        folder (`Path`): where `data/` and `README.md` go.
        name (`str`): title of the card.
        licence (`str`, *optional*): licence, an identifier of the Hub.
        repo_id (`str`, *optional*): name on the Hub, for the commands in the card.
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
    tables = [table.markdown() for group in evaluation_tables(report).values() for table in group]
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


def push_results(report: Mapping[str, Any], model: str) -> PushResult:
    """Add the metrics of an evaluation to a model's repository on the Hub.

    They go into the `model-index` of its card, where they replace earlier ones of the same name on the same data. Each
    also becomes a result in `.eval_results/` if the model was measured against something on the Hub.

    Args:
        report (mapping): the content of `report.json`.
        model (`str`): the repository, `"USER/NAME"`.

    Returns:
        [`~hmm_datasets.hub.push.PushResult`]: the commit.

    Raises:
        `InputError`: the evaluation has no metrics for a card, the repository has no card and the targets are not on
            the Hub, or the Hub refuses.
    """
    from huggingface_hub import EvalResultEntry, ModelCard

    metrics, _ = metrics_of(report)
    if not metrics:
        raise InputError("push: the tasks optimum and text have results for a card; neither was measured")
    repo_id = ModelName.parse(model).place
    on_hub = [name for name in report["settings"]["targets"] if name.count("/") == 1 and not Path(name).exists()]
    target = on_hub[0] if len(on_hub) == 1 else None
    with tempfile.TemporaryDirectory() as folder:
        files = {}
        path = model_file(repo_id, CARD_NAME)
        if path is not None:
            card = ModelCard.load(path)
            data_name = (
                target or ", ".join(Path(name).name for name in report["settings"]["targets"]) or "held-out data"
            )
            new = [eval_result(result, data_name, target or "custom") for result in metrics]
            ours = {(result.dataset_name, result.metric_name) for result in new}
            kept = [
                result
                for result in card.data.eval_results or []
                if (result.dataset_name, result.metric_name) not in ours
            ]
            card.data.eval_results = [*kept, *new]
            card.data.model_name = card.data.model_name or repo_id.rpartition("/")[2]
            files[CARD_NAME] = Path(folder, CARD_NAME)
            files[CARD_NAME].write_text(str(card), encoding="utf-8")
        if target is not None:
            entries = [
                EvalResultEntry(
                    dataset_id=target,
                    task_id=result["name"],
                    value=result["value"],
                    date=report["time"],
                    notes=f"{result['unit']}, lower is better"
                    + ("" if result["standard_error"] is None else f"; standard error {result['standard_error']:.2g}"),
                )
                for result in metrics
            ]
            path = write_eval_results(folder, target.replace("/", "--"), entries)
            files[path.relative_to(folder).as_posix()] = path
        if not files:
            raise InputError(
                f"{repo_id}: has no card, and the targets are not on the Hub; push the model with hmm-datasets push"
            )
        return push_files(files, repo_id, folder=folder, message="Results of an evaluation with hmm-datasets")


def metric(name: str, value: float, error: float | None = None, unit: str = _NATS) -> dict[str, Any]:
    """A metric of a card; the standard error is None if it was not estimated."""
    return {"name": name, "value": value, "standard_error": error, "unit": unit}


def metrics_of(report: Mapping[str, Any]) -> tuple[list[dict[str, Any]], dict[str, Any] | None]:
    """The metrics of an evaluation, and the loss of the optimal predictor on the same sequences if it is known.

    Args:
        report (mapping): the content of `report.json`.
    """
    metrics, optimal_loss = [], None
    if "optimum" in report:
        entropy, gap, best = (report["optimum"][name] for name in ("cross_entropy", "bayes_gap", "floor"))
        title = "optimal loss" if best == "bayes" else "lower bound of the optimal loss"
        predictor = "Optimal predictor" if best == "bayes" else "Oracle, whose loss is a lower bound,"
        metrics.append(metric("Held-out cross-entropy", *_value(entropy["model"], "cross_entropy")))
        metrics.append(metric(f"Excess over the {title}", *_value(gap, "bayes_gap")))
        optimal_loss = metric(f"{predictor} on the same sequences", *_value(entropy[best], "cross_entropy"))
    if "text" in report:
        metrics.append(metric("Held-out text", *_value(report["text"], "bits_per_byte"), unit="bits/byte"))
    return metrics, optimal_loss


def _value(measured: Mapping[str, Any], name: str) -> tuple[float, float | None]:
    return measured[name], measured.get("standard_error")
