"""Rows shared out among ranks in order and gathered in order, so that no figure depends on the number of processes."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
from tqdm.auto import tqdm

from ..errors import InputError

if TYPE_CHECKING:
    from accelerate import Accelerator
    from transformers import PreTrainedModel


def shared_batches(
    rows: Any, batch_size: int, accelerator: "Accelerator", unit: str
) -> Iterator[dict[str, torch.Tensor]]:
    """Yield the columns of consecutive rows, as many as all ranks run at once, with a progress bar."""
    step = batch_size * accelerator.num_processes
    bar = tqdm(total=len(rows), desc="evaluate", unit=f" {unit}", disable=not accelerator.is_main_process)
    for first in range(0, len(rows), step):
        batch = rows.__getitems__(range(first, min(first + step, len(rows))))
        yield {name: torch.stack([row[name] for row in batch]) for name in batch[0]}
        bar.update(len(batch))
    bar.close()


def share_rows(rows: torch.Tensor, accelerator: "Accelerator") -> torch.Tensor:
    """This rank's rows, as many as every other has, on its device; the last row stands in for those that lack.

    What is gathered of them in order is cut off after `len(rows)`.
    """
    # Padded at the end of the whole: accelerate's split_between_processes pads each rank's share, so that from three
    # ranks on padding would stand between the rows gathered.
    share = -(-len(rows) // accelerator.num_processes)
    short = share * accelerator.num_processes - len(rows)
    padded = torch.cat([rows, rows[-1:].expand(short, -1)])
    return padded[share * accelerator.process_index :][:share].to(accelerator.device)


def check_vocabulary(model: "PreTrainedModel", needed: int, kind: str) -> None:
    """Raise [`InputError`] for a model with fewer tokens than the data have."""
    if model.config.vocab_size < needed:
        raise InputError(
            f"the model knows {model.config.vocab_size} tokens, the data have {needed} {kind}; measure it on what it "
            "was trained on"
        )
