"""trl: private methods of its trainers that this package must override.

Each can be removed once TRL accepts rows that are already tokenized, and reference log-probabilities that are already
columns, as its docstrings announce; and once it keeps the log-probabilities of rows in memory where all ranks find
them.
"""

from pathlib import Path
from typing import Any

from datasets import Dataset
from datasets.fingerprint import Hasher
from trl import DPOTrainer

from ..files import atomic_folder

PAIR_COLUMNS = ("prompt_ids", "chosen_ids", "rejected_ids")
"""The columns of token ids that `DPOTrainer` makes from preference pairs."""

REFERENCE_COLUMNS = ("ref_chosen_logps", "ref_rejected_logps")
"""The columns of log-probabilities under the reference, in nats per completion."""

REFERENCE_NAME = ".reference"
"""The folder in that of the run with the tokenized pairs and their log-probabilities under the reference."""


class OpenDPOTrainer(DPOTrainer):
    """A `DPOTrainer` that leaves rows alone which have its columns already.

    Rows with `PAIR_COLUMNS` are not tokenized, so no EOS is appended to them. Rows with `REFERENCE_COLUMNS` keep
    these, so the reference may be any distribution, not only a model with an output layer. Otherwise the
    log-probabilities are kept in the folder of the run: for rows in memory TRL has a temporary folder on each rank, in
    which the other ranks find nothing.
    """

    def _prepare_dataset(self, dataset, *args: Any, **kwargs: Any):
        if set(PAIR_COLUMNS) <= set(dataset.column_names):
            return dataset
        return super()._prepare_dataset(dataset, *args, **kwargs)

    def _precompute_ref_logps(self, dataset, name: str, batch_size: int):
        if set(REFERENCE_COLUMNS) <= set(dataset.column_names):
            return dataset
        folder = Path(str(self.args.output_dir), REFERENCE_NAME, name)
        if self.accelerator.is_main_process:
            _write_rows(dataset.select_columns(list(PAIR_COLUMNS)), folder)
        self.accelerator.wait_for_everyone()
        return super()._precompute_ref_logps(Dataset.load_from_disk(str(folder)), name, batch_size)


def _write_rows(rows: Dataset, folder: Path) -> None:
    """Write rows, unless the folder has them already.

    Their fingerprint, by which TRL finds what it computed, is that of their tokens, so it is the same when a run
    continues.
    """
    rows._fingerprint = Hasher.hash([rows.with_format("arrow")[name].to_pylist() for name in PAIR_COLUMNS])
    if folder.exists() and Dataset.load_from_disk(str(folder))._fingerprint == rows._fingerprint:
        return
    with atomic_folder(folder) as temporary:
        rows.save_to_disk(str(temporary))
