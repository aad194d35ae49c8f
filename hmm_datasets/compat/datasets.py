"""datasets: streams that read rows by index.

Checked against 5.2. The table of builders by name is in [`~hmm_datasets.compat.datasets_table`], which is imported
before `datasets` is.
"""

from abc import abstractmethod
from collections.abc import Callable, Iterator
from typing import Any

import datasets
import pyarrow as pa
from datasets.iterable_dataset import ExamplesIterable, _BaseExamplesIterable

from .versions import warn_of_untried_versions

warn_of_untried_versions()


class IndexedExamplesIterable(_BaseExamplesIterable):
    """Rows of a stream whose state is the number of the next row, so that resuming takes constant time.

    The public ways are a builder's `_generate_tables` and `IterableDataset.from_generator`. On resuming they compute
    the rows of a shard again and drop them. They distribute only lists of shards, and give a rank consecutive rows,
    not every `n`-th. Upstream: huggingface/datasets#6658 added states; #8308 and #8295 concern how they are rebound.
    This can be removed once a generator can save and restore its own state.

    A subclass has the public methods of its parent, and the abstract methods below.
    """

    _sleep_on_threads_shutdown = False  # no thread has to end before the interpreter does
    is_typed = True
    """Rows have the types of `features`, so `datasets` need not cast them."""

    @abstractmethod
    def rows_from(self, start: int) -> Iterator[tuple[int, dict[str, Any]]]:
        """The rows from number `start` on, each with its key."""

    @abstractmethod
    def tables_from(self, start: int) -> Iterator[tuple[int, pa.Table]]:
        """The rows from number `start` on as tables, each with the key of its first row."""

    def __iter__(self) -> Iterator[tuple[int, dict[str, Any]]]:
        number = self._next_row()
        for key, row in self.rows_from(number):
            number += 1
            self._set_next_row(number)
            yield key, row

    @property
    def iter_arrow(self) -> Callable[[], Iterator[tuple[int, pa.Table]]]:
        """The same rows as tables, with the same state."""
        return self._iter_arrow

    def _iter_arrow(self) -> Iterator[tuple[int, pa.Table]]:
        number = self._next_row()
        for key, table in self.tables_from(number):
            number += len(table)
            self._set_next_row(number)
            yield key, table

    def _init_state_dict(self) -> dict[str, Any]:
        self._state_dict = {"next": 0, "type": type(self).__name__}
        return self._state_dict

    def _next_row(self) -> int:
        return self._state_dict["next"] if isinstance(self._state_dict, dict) else 0

    def _set_next_row(self, number: int) -> None:
        if isinstance(self._state_dict, dict):
            self._state_dict["next"] = number  # changed in place, because `datasets` has a reference to the dict


class StreamedBuilder(datasets.ArrowBasedBuilder):
    """A builder whose splits are streamed as [`IndexedExamplesIterable`] rather than by its generator.

    It can be removed together with [`IndexedExamplesIterable`].
    """

    @abstractmethod
    def examples(self, split: datasets.SplitGenerator) -> IndexedExamplesIterable:
        """The rows of a split."""

    def _get_examples_iterable_for_split(self, split_generator: datasets.SplitGenerator) -> Any:
        return self.examples(split_generator)


class TypedExamples(ExamplesIterable):
    """Rows of a generator that match the features already, so that `datasets` need not cast them.

    `IterableDataset.from_generator` casts every value of every row. That takes 25 microseconds per document, three
    times as long as reading it. We know of no issue upstream. This can be removed once a generator can declare its
    rows typed.

    Args:
        generate (callable): yields keys and rows.
        kwargs (`dict`): arguments of `generate`.
        features (`datasets.Features`): features of the rows.
    """

    is_typed = True

    def __init__(
        self,
        generate: Callable[..., Iterator[tuple[int, dict[str, Any]]]],
        kwargs: dict[str, Any],
        features: datasets.Features,
    ):
        super().__init__(generate, kwargs)
        self._features = features

    @property
    def features(self) -> datasets.Features:
        return self._features
