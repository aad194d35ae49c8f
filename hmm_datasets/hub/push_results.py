"""Results of an evaluation in the repository of the model: in its card, and in `.eval_results/`, in one commit."""

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..errors import InputError
from ..hub_download import model_file, split_revision
from .cards import CARD_NAME, eval_result
from .eval_results import write_eval_results
from .push import PushResult, push_files
from .run_cards import ON_QUESTIONS, metrics_of


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
        raise InputError("push: the tasks optimum, text and chat_core have results for a card; none was measured")
    on_target = [found for found in metrics if found["unit"] not in ON_QUESTIONS]
    repo_id, _ = split_revision(model)
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
            new = [
                eval_result(found, data_name, target or "custom")
                if found in on_target
                else eval_result(found, "questions of chat_core", "custom")
                for found in metrics
            ]
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
        if target is not None and on_target:
            entries = [
                EvalResultEntry(
                    dataset_id=target,
                    task_id=found["name"],
                    value=found["value"],
                    date=report["time"],
                    notes=f"{found['unit']}, lower is better"
                    + ("" if found["standard_error"] is None else f"; standard error {found['standard_error']:.2g}"),
                )
                for found in on_target
            ]
            path = write_eval_results(folder, target.replace("/", "--"), entries)
            files[path.relative_to(folder).as_posix()] = path
        if not files:
            raise InputError(
                f"{repo_id}: has no card, and the targets are not on the Hub; push the model with hmm-datasets push"
            )
        return push_files(files, repo_id, folder=folder, message="Results of an evaluation with hmm-datasets")
