"""Metrics of a language model, one folder each: `evaluate.load(metric_path("bayes_gap"))` works without a network."""

from pathlib import Path
from typing import Any

import datasets
import evaluate

from ...errors import InputError

NAMES = (
    "bayes_gap",
    "belief_probe",
    "bits_per_byte",
    "core",
    "final_token_cross_entropy",
    "perplexity",
    "predictor_kl",
    "token_cross_entropy",
)


def metric_path(name: str) -> str:
    """The folder of a metric, for `evaluate.load`.

    ```python
    >>> Path(metric_path("bayes_gap")).name
    'bayes_gap'

    ```
    """
    if name not in NAMES:
        raise InputError(f"metric {name!r} is unknown; expected one of {', '.join(NAMES)}")
    return str(Path(__file__).parent / name)


def load_metric(name: str) -> evaluate.EvaluationModule:
    """Load a metric by name; it keeps its inputs in memory."""
    return evaluate.load(metric_path(name), keep_in_memory=True)


def metric_info(description: str, inputs: str, citation: str = "", **columns: Any) -> evaluate.MetricInfo:
    """What `evaluate` asks of a metric: its texts, and the feature of each column."""
    return evaluate.MetricInfo(
        description=description, citation=citation, inputs_description=inputs, features=datasets.Features(columns)
    )
