"""Rows of a map-style data set over several epochs, shuffled anew in each, by index alone."""

from collections.abc import Sequence
from typing import Any

from torch.utils.data import Dataset

from ..shuffle import indices_in_epochs
from .row_access import rows_at


class ShuffledEpochs(Dataset):
    """A map-style data set that holds the rows of another as often as there are epochs.

    Epoch `e` is items `e N` to `(e + 1) N`, `N` the number of rows, in an order that `seed` and `e` fix on every
    machine. More epochs change no item, so a run that goes on for longer reads on.

    Args:
        rows (map-style data set): of `N` rows.
        seed (`int`): of the orders.
        epochs (`int`): how often each row is there.

    ```python
    >>> rows = ShuffledEpochs(["a", "b", "c"], seed=0, epochs=2)
    >>> sorted(rows[index] for index in range(3)), len(rows)
    (['a', 'b', 'c'], 6)

    ```
    """

    def __init__(self, rows: Any, seed: int, epochs: int):
        self.rows, self.seed, self.epochs = rows, seed, epochs

    def __len__(self) -> int:
        return len(self.rows) * self.epochs

    def __getitem__(self, index: int) -> Any:
        return self.rows[int(indices_in_epochs([index], len(self.rows), self.epochs, self.seed)[0])]

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        return rows_at(self.rows, indices_in_epochs(indices, len(self.rows), self.epochs, self.seed).tolist())
