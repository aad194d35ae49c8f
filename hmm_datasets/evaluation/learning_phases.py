"""The phases of learning: during training a model resembles the uniform predictor, unigram, bigram, and the optimum.

For every predictor two steps are reported. `closest_step` is where KL(predictor || model) is at its minimum, so where
the model predicts most like it. `passed_step` is the first step from which the model's held-out cross-entropy stays
below the predictor's. Both are steps of evaluations; what happened between two evaluations is not known.
"""

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

_KL, _CROSS_ENTROPY = "kl_", "cross_entropy_"


def learning_phases(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Find which predictor a model was closest to at each evaluation, and when it passed each predictor.

    Args:
        rows (sequence of mappings): evaluations in the order of steps, with `step`, `tokens`, `cross_entropy`, and for
            every predictor `cross_entropy_NAME` and `kl_NAME`, KL(predictor || model), all in nats per token.

    Returns:
        `dict`: `rows`; `predictors`, for each name `closest_step`, `closest_kl` and `passed_step` (`None` if it is not
        passed by the end); `phases`, the runs of evaluations with the same nearest predictor, each with `predictor`,
        `first_step` and `last_step`.

    ```python
    >>> names = ("step", "cross_entropy", "cross_entropy_a", "kl_a", "cross_entropy_b", "kl_b")
    >>> table = [(1, 1.1, 1.0, 0.0, 0.5, 0.6), (2, 0.6, 1.0, 0.4, 0.5, 0.1)]
    >>> rows = [dict(zip(names, row)) for row in table]
    >>> found = learning_phases(rows)
    >>> found["predictors"]["a"]
    {'closest_step': 1, 'closest_kl': 0.0, 'passed_step': 2}
    >>> [phase["predictor"] for phase in found["phases"]]
    ['a', 'b']

    ```
    """
    names = [key.removeprefix(_KL) for key in rows[0] if key.startswith(_KL)]
    predictors = {}
    for name in names:
        closest = min(rows, key=lambda row: row[_KL + name])
        passed = None
        for row in reversed(rows):
            if not row["cross_entropy"] < row[_CROSS_ENTROPY + name]:
                break
            passed = row["step"]
        predictors[name] = {
            "closest_step": closest["step"],
            "closest_kl": closest[_KL + name],
            "passed_step": passed,
        }
    phases = []
    for name, run in groupby(rows, key=lambda row: min(names, key=lambda name: row[_KL + name])):
        steps = [row["step"] for row in run]
        phases.append({"predictor": name, "first_step": steps[0], "last_step": steps[-1]})
    return {"rows": [dict(row) for row in rows], "predictors": predictors, "phases": phases}


def evaluations_of(history: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The rows of a `history.jsonl` that have divergences, one per step, as [`learning_phases`] takes them."""
    rows = {}
    for row in history:
        measured = {key.removeprefix("eval_"): value for key, value in row.items() if key.startswith("eval_")}
        if any(key.startswith(_KL) for key in measured):
            wanted = {key: value for key, value in measured.items() if key.startswith(("cross_entropy", _KL))}
            rows[row["step"]] = {"step": row["step"], "tokens": row["tokens"], **wanted}
    return [rows[step] for step in sorted(rows)]


def evaluation_of(measured: Mapping[str, Any]) -> dict[str, float]:
    """A row for [`learning_phases`], without `step` and `tokens`, from the result of
    [`~hmm_datasets.evaluation.optimum.measure_optimum`]."""
    row = {"cross_entropy": measured["cross_entropy"]["model"]["cross_entropy"]}
    for name, figures in measured["cross_entropy"].items():
        if name != "model":
            row[_CROSS_ENTROPY + name] = figures["cross_entropy"]
    return row | {_KL + name: figures["kl"] for name, figures in measured["kl"].items()}
