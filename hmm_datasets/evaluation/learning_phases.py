"""A model's passage from predictor to predictor along its training: uniform, unigram, bigram, at last the optimum.

Of every predictor two steps are told. It is closest where KL(predictor || model) is least: there the model predicts
most like it. It is passed at the first step from which the model's held-out cross-entropy stays below the predictor's
own. Both are steps of evaluations, so they are known to the evaluation before; in between nobody looked.
"""

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

_KL, _CROSS_ENTROPY = "kl_", "cross_entropy_"


def learning_phases(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Tell which predictor a model was most like at each evaluation, and when it passed each.

    Args:
        rows (sequence of mappings): evaluations in the order of steps, with `step`, `tokens`, `cross_entropy`, and for
            every predictor `cross_entropy_NAME` and `kl_NAME`, KL(predictor || model), all in nats per token.

    Returns:
        `dict`: `rows`; `predictors`, by name `closest_step`, `closest_kl` and `passed_step` (`None` of one that is not
        passed by the end); `phases`, the runs of evaluations with one nearest predictor: `predictor`, `first_step`,
        `last_step`.

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
        found = {key.removeprefix("eval_"): value for key, value in row.items() if key.startswith("eval_")}
        if any(key.startswith(_KL) for key in found):
            wanted = {key: value for key, value in found.items() if key.startswith(("cross_entropy", _KL))}
            rows[row["step"]] = {"step": row["step"], "tokens": row["tokens"], **wanted}
    return [rows[step] for step in sorted(rows)]


def evaluation_of(measured: Mapping[str, Any]) -> dict[str, float]:
    """The result of [`~hmm_datasets.evaluation.optimum.measure_optimum`] as one such row, but for step and tokens."""
    row = {"cross_entropy": measured["cross_entropy"]["model"]["cross_entropy"]}
    for name, found in measured["cross_entropy"].items():
        if name != "model":
            row[_CROSS_ENTROPY + name] = found["cross_entropy"]
    return row | {_KL + name: found["kl"] for name, found in measured["kl"].items()}
