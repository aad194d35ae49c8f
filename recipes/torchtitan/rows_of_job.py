"""The rows of a job for torchtitan: those that the run would have read next, in the same order, on any rank.

`write_job.py` copies this file beside the model, where `torchtitan_job.py` imports it.
"""

import itertools
import os
from collections.abc import Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from torch import Tensor
from torch.nn.functional import pad
from torch.utils.data import DataLoader, Dataset

from hmm_datasets.data.skipped_rows import RemainingRows, SkippedRows
from hmm_datasets.data.windows import IGNORED
from hmm_datasets.errors import InputError
from hmm_datasets.files import read_json
from hmm_datasets.hmm.names import process_of_run
from hmm_datasets.runtime.run_identity import check_identity
from hmm_datasets.training.sources import DataSettings, MixtureSettings

JOB_NAME = "job.json"
"""Name of the file with the shape of the model, the rows, and the settings of the training."""


def recorded_data(run: str | os.PathLike, settings: Mapping[str, Any]) -> DataSettings | MixtureSettings:
    """The settings of the data that a run trained on.

    Args:
        run (path): folder of the run, which may have a copy of its process.
        settings (mapping): the settings in its `run.json`.

    Raises:
        `InputError`: they name neither a process nor token streams.
    """
    if all(settings.get(name) is None for name in ("streams", "hmm", "tokens")):
        raise InputError(
            f"{run}: run.json names neither an HMM nor token streams; only runs of pretrain and midtrain have them"
        )
    kind = DataSettings if settings.get("streams") is None else MixtureSettings
    chosen = {field.name: settings[field.name] for field in fields(kind) if field.name in settings}
    if chosen.get("hmm") is not None:
        chosen["hmm"] = process_of_run(run, chosen["hmm"])
    return kind(**chosen)


def read_job(folder: Path) -> dict[str, Any]:
    """`job.json` of a folder, with its rows opened.

    Returns:
        `dict`: `model` and `training` as they are written, `rows`, a map-style data set that begins where the run had
        ended, and `row_length`, tokens per row.

    Raises:
        `InputError`: the data are not there, or are others.
    """
    job = read_json(folder / JOB_NAME)
    settings, place = dict(job["data"]), str(folder)
    settings |= {"model": place} if "streams" in settings else {}
    settings |= {"tokenizer": place} if "tokens" in settings else {}
    data = recorded_data(folder, settings).load()
    before, now = {"data": job["identity"]}, {"data": data.identity}
    check_identity(folder / JOB_NAME, before, now, None, remedy="restore the data")
    first, batch, steps = job["rows"]["first"], job["training"]["global_batch_size"], job["training"]["steps"]
    skipped = SkippedRows(job["rows"]["skipped"])
    all_rows = data.rows(first + skipped.count + batch * steps)
    return job | {"rows": RemainingRows(all_rows, skipped, first), "row_length": data.row_length}


def batches_of_rank(
    rows: Dataset, *, first: int, size: int, rank: int, ranks: int, length: int, num_workers: int = 0
) -> Iterator[tuple[Tensor, Tensor]]:
    """The micro-batches of a rank of data parallelism: together the ranks read all rows, in order.

    Micro-batch `k` has the rows from `first + (k ranks + rank) size` on. So a step of `G` rows reads rows `first` to
    `first + G - 1`, whatever the number of ranks and the size that multiply out to it.

    Args:
        rows (map-style data set): rows with `input_ids` and `labels`, as models of transformers take them.
        first (`int`): the row at which the ranks begin together.
        size (`int`): `B`, rows per micro-batch.
        rank (`int`), ranks (`int`): of data parallelism.
        length (`int`): `L`, tokens per row; shorter rows are padded at the end, where no loss is counted.
        num_workers (`int`, *optional*, defaults to 0): processes that read rows.

    Yields:
        `tuple`: tokens and, at each position, the token to predict there, or -100; int64, shape `(B, L)`.

    Raises:
        `InputError`: rows are longer than `length`.

    ```python
    >>> import torch
    >>> rows = [{"input_ids": torch.tensor([row, 7]), "labels": torch.tensor([-100, 7])} for row in range(8)]
    >>> tokens, labels = next(batches_of_rank(rows, first=2, size=2, rank=1, ranks=2, length=3))
    >>> tokens.tolist(), labels.tolist()
    ([[4, 7, 0], [5, 7, 0]], [[7, -100, -100], [7, -100, -100]])

    ```
    """
    starts = itertools.count(first + rank * size, ranks * size)
    starts = itertools.takewhile(lambda start: start + size <= len(rows), starts)
    batches = (range(start, start + size) for start in starts)
    for batch in DataLoader(rows, batch_sampler=batches, num_workers=num_workers):
        tokens, labels = batch["input_ids"], batch["labels"][:, 1:]
        missing = length - tokens.shape[1]
        if missing < 0:
            raise InputError(f"rows have {tokens.shape[1]} tokens, more than the length {length}; set as many or more")
        yield pad(tokens, (0, missing)), pad(labels, (0, missing + 1), value=IGNORED)
