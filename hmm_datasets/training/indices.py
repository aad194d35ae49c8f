"""Which rows a run trained on, written down: the proof of its order, on request.

With `log_indices` each rank appends to `indices-RANK.jsonl` a row a micro-batch: the step, counted from 1 as in
`history.jsonl`, and the indices of its rows in the run's data set. The index travels with its row through loader,
workers and ranks, so that what stands there is what the model was given. A resumed run forgets the rows of steps it is
about to repeat.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import Dataset

from ..files import append_jsonl
from .record import forget_after

_COLUMN = "row_index"


class IndexedRows(Dataset):
    """A map-style data set whose rows know their places.

    ```python
    >>> IndexedRows([{"input_ids": torch.tensor([5, 6])}])[0]["row_index"]
    tensor(0)

    ```
    """

    def __init__(self, rows: Any):
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[dict[str, torch.Tensor]]:
        together = getattr(self.rows, "__getitems__", None)
        found = together(indices) if together else [self.rows[index] for index in indices]
        return [{**row, _COLUMN: torch.tensor(index)} for index, row in zip(indices, found, strict=True)]


class LoggedIndices:
    """Mixed into a Trainer: writes down what it trains on where `log_indices` of its settings is set."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self._indices_path: Path | None = None
        if self.args.log_indices:
            self.train_dataset = IndexedRows(self.train_dataset)

    def training_step(self, model, inputs, num_items_in_batch=None) -> torch.Tensor:
        """One micro-batch, written down first."""
        if inputs is not None and _COLUMN in inputs:
            if self._indices_path is None:
                self._indices_path = self._begin()
            indices = inputs.pop(_COLUMN).tolist()
            append_jsonl(self._indices_path, {"step": self.state.global_step + 1, "indices": indices})
        return super().training_step(model, inputs, num_items_in_batch)

    def _begin(self) -> Path:
        folder = Path(self.args.output_dir)
        if self.is_world_process_zero():
            for path in folder.glob("indices-*.jsonl"):  # of ranks that are no more, too
                forget_after(path, self.state.global_step)
        self.accelerator.wait_for_everyone()
        return folder / f"indices-{self.args.process_index}.jsonl"

    def _set_signature_columns_if_needed(self) -> None:
        super()._set_signature_columns_if_needed()
        if _COLUMN not in self._signature_columns:
            self._signature_columns.append(_COLUMN)  # else the Trainer drops what the model does not take
