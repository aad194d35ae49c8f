"""Rows of a map-style data set over several epochs, each in a different random order, read by index."""

from collections.abc import Sequence
from typing import Any

from torch.utils.data import Dataset

from ..hmm.integers import integer
from ..shuffle import indices_in_epochs
from .row_reading import BatchReader, rows_at


class ShuffledEpochs(BatchReader, Dataset):
    """A map-style data set with the rows of another one in every epoch.

    Epoch `e` is items `e N` to `(e + 1) N` for `N` rows. Its order depends on `seed` and `e` alone and is the same on
    every machine. A larger number of epochs adds items but changes none, so a run can be extended.

    Args:
        rows (map-style data set): `N` rows.
        seed (`int`): seed of the order.
        epochs (`int`): number of epochs.

    ```python
    >>> rows = ShuffledEpochs(["a", "b", "c"], seed=0, epochs=2)
    >>> sorted(rows[index] for index in range(3)), len(rows)
    (['a', 'b', 'c'], 6)

    ```
    """

    def __init__(self, rows: Any, seed: int, epochs: int):
        self.rows, self.seed, self.epochs = rows, integer("seed", seed, 0, 64), integer("epochs", epochs, 1, 31)

    def __len__(self) -> int:
        return len(self.rows) * self.epochs

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        return rows_at(self.rows, indices_in_epochs(indices, len(self.rows), self.epochs, self.seed).tolist())
