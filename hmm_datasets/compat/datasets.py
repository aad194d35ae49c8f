"""datasets: rows that a stream reads by their place, and formatters in place of its own.

Checked against 5.2. The table of builders by name is in [`~hmm_datasets.compat.datasets_table`], which is read before
`datasets` is imported.
"""

from abc import abstractmethod
from collections.abc import Callable, Iterator
from typing import Any

import datasets
import pyarrow as pa
from datasets import formatting
from datasets.formatting import Formatter
from datasets.iterable_dataset import ExamplesIterable, _BaseExamplesIterable


class PlacedRows(_BaseExamplesIterable):
    """Rows of a stream whose state is the place of the next one, so that resuming takes constant time.

    What is public, a builder's `_generate_tables` or `IterableDataset.from_generator`, makes the rows of a shard again
    and drops them on resuming, shares out lists of shards alone, and gives a rank a run of rows, not every `n`-th.
    Upstream: huggingface/datasets#6658 brought states; #8308 and #8295 concern how they are rebound. It goes once a
    generator may give and take a state of its own.

    A subclass has the public methods of its parent, and those that are abstract here.
    """

    _sleep_on_threads_shutdown = False  # no thread has to end before the interpreter does

    @abstractmethod
    def rows_from(self, place: int) -> Iterator[tuple[int, dict[str, Any]]]:
        """The rows from a place on, each with its key."""

    @abstractmethod
    def tables_from(self, place: int) -> Iterator[tuple[int, pa.Table]]:
        """The rows from a place on as tables, each with the key of its first row."""

    @property
    def is_typed(self) -> bool:
        """Rows have the types of `features` already: `datasets` need not cast them."""
        return True

    def __iter__(self) -> Iterator[tuple[int, dict[str, Any]]]:
        place = self._place()
        for key, row in self.rows_from(place):
            place += 1
            self._go_to(place)
            yield key, row

    @property
    def iter_arrow(self) -> Callable[[], Iterator[tuple[int, pa.Table]]]:
        """The same rows, state and all, as tables."""
        return self._iter_arrow

    def _iter_arrow(self) -> Iterator[tuple[int, pa.Table]]:
        place = self._place()
        for key, table in self.tables_from(place):
            place += len(table)
            self._go_to(place)
            yield key, table

    def _init_state_dict(self) -> dict[str, Any]:
        self._state_dict = {"next": 0, "type": type(self).__name__}
        return self._state_dict

    def _place(self) -> int:
        return self._state_dict["next"] if isinstance(self._state_dict, dict) else 0

    def _go_to(self, place: int) -> None:
        if isinstance(self._state_dict, dict):
            self._state_dict["next"] = place  # in place: `datasets` holds the same dict


class StreamedBuilder(datasets.ArrowBasedBuilder):
    """A builder whose splits are streamed as rows of its own making, [`PlacedRows`], rather than by its generator.

    It goes with [`PlacedRows`].
    """

    @abstractmethod
    def examples(self, split: datasets.SplitGenerator) -> PlacedRows:
        """The rows of a split."""

    def _get_examples_iterable_for_split(self, split_generator: datasets.SplitGenerator) -> Any:
        return self.examples(split_generator)


class TypedExamples(ExamplesIterable):
    """Rows of a generator that hold just what the features say, so that `datasets` casts none of them.

    `IterableDataset.from_generator` casts every value of every row: 25 microseconds a document, three times what
    reading it takes. No issue upstream is known. It goes once a generator can say that its rows are typed.

    Args:
        generate (callable): yields key and row.
        kwargs (`dict`): what it takes.
        features (`datasets.Features`): of the rows.
    """

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

    @property
    def is_typed(self) -> bool:
        return True


def replace_formatters(**kinds: type[Formatter]) -> None:
    """Have data sets of this process formatted by other classes.

    Formatters stand in a table by the name of the format. `datasets` means `_register_formatter` for it, private too
    since huggingface/datasets#1795, which warns where a name is taken. Upstream, on the speed of the torch format:
    #2498, #5841, #6833 (open). It goes once lists of equal length are converted in one step.

    Args:
        kinds (`type`): the class for each name, such as `numpy=`; it extends the one that it replaces.
    """
    formatting._FORMAT_TYPES.update(kinds)
