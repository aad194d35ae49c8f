"""Batches of rows for all ranks together, of which each rank takes its share."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch

from ..runtime.progress import progress_bar

if TYPE_CHECKING:
    from accelerate import Accelerator


def shared_batches(
    rows: Any, batch_size: int, accelerator: "Accelerator", unit: str
) -> Iterator[dict[str, torch.Tensor]]:
    """Yield the columns of consecutive rows, one batch for all ranks together at a time, with a progress bar."""
    step = batch_size * accelerator.num_processes
    bar = progress_bar(len(rows), f" {unit}", desc="evaluate")
    for first in range(0, len(rows), step):
        batch = rows.__getitems__(range(first, min(first + step, len(rows))))
        yield {name: torch.stack([row[name] for row in batch]) for name in batch[0]}
        bar.update(len(batch))
    bar.close()


def share_rows(rows: torch.Tensor, accelerator: "Accelerator") -> torch.Tensor:
    """The rows of this rank, on its device; every rank gets the same number, for which the last row is repeated.

    What is gathered from all ranks must be cut off after `len(rows)`.
    """
    # accelerate's split_between_processes pads each rank's share, so with three ranks or more there would be padding
    # between the gathered rows. Here padding is only at the end.
    share = -(-len(rows) // accelerator.num_processes)
    short = share * accelerator.num_processes - len(rows)
    filled = torch.cat([rows, rows[-1:].expand(short, -1)])
    return filled[share * accelerator.process_index :][:share].to(accelerator.device)
