"""Documents as a `datasets` stream that takes rows as they are, for they are made to the features."""

from collections.abc import Callable, Iterator
from typing import Any

from datasets import DatasetInfo, Features, IterableDataset

from ...compat.datasets import TypedExamples


def document_stream(
    generate: Callable[..., Iterator[tuple[int, dict]]], features: Features, **kwargs: Any
) -> IterableDataset:
    """The stream of the rows that `generate(**kwargs)` yields, each with its key."""
    return IterableDataset(TypedExamples(generate, kwargs, features), info=DatasetInfo(features=features))
