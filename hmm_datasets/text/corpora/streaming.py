"""Documents as a `datasets` stream that does not encode rows again, because they already match the features."""

from collections.abc import Callable, Iterator
from typing import Any

from datasets import DatasetInfo, Features, IterableDataset

from ...compat.datasets import TypedExamples


def document_stream(
    generate: Callable[..., Iterator[tuple[int, dict]]], features: Features, **kwargs: Any
) -> IterableDataset:
    """The stream of the rows that `generate(**kwargs)` yields together with their keys."""
    return IterableDataset(TypedExamples(generate, kwargs, features), info=DatasetInfo(features=features))
