"""A log of the rows that a run trained on, as evidence of its order.

With `log_indices` each rank appends one line per micro-batch to `indices-RANK.jsonl`: the step, counted from 1 as in
`history.jsonl`, and the indices of its rows in the run's data set. The index travels with its row through loader,
workers and ranks, so the log shows what the model was given. A resumed run drops the lines of steps that it repeats.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import Dataset

from ...data.row_reading import BatchReader, rows_at
from ...files import append_jsonl
from ..record import truncate_after_step
from ..run_context import RunContext
from .component import Component

ROW_INDEX = "row_index"
"""The column with the index of a row in the data set."""


class IndexedRows(BatchReader, Dataset):
    """A map-style data set that adds to every row its index.

    ```python
    >>> IndexedRows([{"input_ids": torch.tensor([5, 6])}])[0]["row_index"]
    tensor(0)

    ```
    """

    def __init__(self, rows: Any):
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    def __getitems__(self, indices: Sequence[int]) -> list[dict[str, torch.Tensor]]:
        rows = rows_at(self.rows, indices)
        return [{**row, ROW_INDEX: torch.tensor(index)} for index, row in zip(indices, rows, strict=True)]


class IndexedBatches:
    """A collator that adds the indices of the rows to the batch of another collator.

    Args:
        collate (callable): the other collator, which makes a batch of rows.
    """

    def __init__(self, collate: Callable[[list[dict[str, Any]]], dict[str, Any]]):
        self.collate = collate

    def __call__(self, rows: list[dict[str, Any]]) -> dict[str, Any]:
        indices = [row[ROW_INDEX] for row in rows if ROW_INDEX in row]
        batch = self.collate([{name: value for name, value in row.items() if name != ROW_INDEX} for row in rows])
        return {**batch, ROW_INDEX: torch.stack(indices)} if indices else batch


class LoggedRows(Component):
    """Writes the indices of the rows trained on, if batches have them ([`IndexedBatches`])."""

    def __init__(self, run: RunContext):
        super().__init__(run)
        self._path: Path | None = None

    def before_micro_batch(self, inputs: dict[str, Any]) -> None:
        """Write the indices of a micro-batch, and remove them from it."""
        if ROW_INDEX not in inputs:
            return
        if self._path is None:
            self._path = self._begin()
        indices = inputs.pop(ROW_INDEX).tolist()
        append_jsonl(self._path, {"step": self.run.state.global_step + 1, "indices": indices})

    def _begin(self) -> Path:
        folder = Path(self.run.args.output_dir)
        if self.run.is_world_process_zero():
            for path in folder.glob("indices-*.jsonl"):  # includes ranks of an earlier, larger world size
                truncate_after_step(path, self.run.state.global_step)
        self.run.accelerator.wait_for_everyone()
        return folder / f"indices-{self.run.args.process_index}.jsonl"
