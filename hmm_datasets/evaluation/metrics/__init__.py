"""Metrics of a language model, one folder each: `evaluate.load(metric_path("bayes_gap"))` works without a network.

Other distributions register the modules of theirs as entry points in the group `hmm_datasets.metrics`.
"""

import inspect
from pathlib import Path
from typing import Any

import datasets
import evaluate

from ... import plugins
from ...array_input import refuse_masked
from ...errors import InputError

NAMES = tuple(sorted(path.stem for path in Path(__file__).parent.glob("*/*.py") if path.stem == path.parent.name))
"""The metrics of this package."""

ROW = datasets.Sequence(datasets.Value("float64"))
TABLE = datasets.Sequence(ROW)


def metric_path(name: str) -> str:
    """The folder of a metric, or the file of one that another distribution registers, for `evaluate.load`.

    ```python
    >>> Path(metric_path("bayes_gap")).name
    'bayes_gap'

    ```
    """
    registered = plugins.parts("hmm_datasets.metrics", reserved=NAMES)
    if name in registered:
        return str(plugins.file_of(registered[name]))
    if name not in NAMES:
        raise InputError(f"metric {name!r} is unknown; expected one of {', '.join([*NAMES, *registered])}")
    return str(Path(__file__).parent / name)


def load_metric(name: str) -> evaluate.EvaluationModule:
    """Load a metric by name; it keeps its inputs in memory."""
    return evaluate.load(metric_path(name), keep_in_memory=True)


class CheckedMetric(evaluate.Metric):
    """A metric described by the docstring of its class, in which `Args:` begins the description of its inputs.

    Its inputs may be masked arrays without masked entries; `evaluate` would drop the mask.

    Attributes:
        predictions, references (feature of `datasets`): what an entry of each input is; None for no such input.
        citation (`str`): BibTeX.
    """

    predictions: Any = None
    references: Any = None
    citation = ""

    def _info(self) -> evaluate.MetricInfo:
        description, arguments, inputs = inspect.cleandoc(type(self).__doc__ or "").partition("Args:\n")
        columns = {"predictions": self.predictions, "references": self.references}
        return evaluate.MetricInfo(
            description=description,
            citation=self.citation,
            inputs_description=arguments + inputs,
            features=datasets.Features({name: feature for name, feature in columns.items() if feature is not None}),
        )

    def add_batch(self, *, predictions: Any = None, references: Any = None, **others: Any) -> None:
        """Add inputs, of which none may be masked."""
        for name, values in {"predictions": predictions, "references": references, **others}.items():
            refuse_masked(name, values)
        super().add_batch(predictions=predictions, references=references, **others)

    def add(self, *, prediction: Any = None, reference: Any = None, **others: Any) -> None:
        """Add one input, which may not be masked."""
        for name, values in {"prediction": prediction, "reference": reference, **others}.items():
            refuse_masked(name, values)
        super().add(prediction=prediction, reference=reference, **others)
