"""Files with the activations of a model on held-out sequences, for analyses of one's own.

Each of `activations-00000.safetensors`, `activations-00001.safetensors`, .. has for `N` consecutive rows

| name | type and shape | content |
|---|---|---|
| `input_ids` | int64, `(N, T)` | the tokens, after a beginning token if there is one |
| `layer.NAME` | type of the model, `(N, T, D)` | the activation after each token; `layer.0` is the embedding |
| `beliefs` | float32, `(N, T, W)` | the exact belief after the same tokens |

They are written while the model runs, so that memory is that of one file.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from safetensors.torch import save_file
from torch import Tensor

from ..data.sequences import HMMSequences
from ..files import atomic_folder
from .model_outputs import GivesActivations, Reader, activations_of, check_inputs
from .rank_batches import share_rows, shared_batches

if TYPE_CHECKING:
    from accelerate import Accelerator

_FILE_BYTES = 1 << 28


def save_activations(
    model: GivesActivations,
    rows: HMMSequences,
    folder: Path,
    accelerator: "Accelerator",
    *,
    layers: Sequence[str] | None = None,
    batch_size: int = 32,
) -> None:
    """Write the activations of a model on rows of a process; the main rank writes.

    Args:
        model, rows, accelerator, layers, batch_size: see [`~hmm_datasets.evaluation.beliefs.probe_beliefs`].
        folder (`Path`): where the files go; one that exists is replaced.

    Raises:
        `InputError`: a layer that does not exist, or activations of a wrong shape or with NaN.
    """
    check_inputs(model, rows)
    read = activations_of(model, rows, layers)
    if not accelerator.is_main_process:
        for batch in shared_batches(rows, batch_size, accelerator, "sequences"):
            _activations(read, batch, accelerator)
        return
    waiting: list[dict[str, Tensor]] = []
    with atomic_folder(folder) as temporary:
        for batch in shared_batches(rows, batch_size, accelerator, "sequences"):
            tokens = batch["input_ids"]
            beliefs = rows.source.beliefs(tokens[:, rows.bos_token_id is not None :])
            # After a beginning token the belief is that before any symbol.
            beliefs = beliefs if rows.bos_token_id is not None else beliefs[:, 1:]
            waiting.append({"input_ids": tokens, "beliefs": beliefs.float(), **_activations(read, batch, accelerator)})
            if sum(table.nbytes for tables in waiting for table in tables.values()) >= _FILE_BYTES:
                _write(temporary, waiting)
        if waiting:
            _write(temporary, waiting)


def _activations(read: Reader, batch: dict[str, Tensor], accelerator: "Accelerator") -> dict[str, Tensor]:
    """The activations of all ranks' rows by layer, on the CPU; all ranks have to call it."""
    count = len(batch["input_ids"])
    index = torch.arange(count).unsqueeze(1)
    tokens, index = (share_rows(part, accelerator) for part in (batch["input_ids"], index))
    outputs = read(tokens, index.squeeze(1))
    return {f"layer.{name}": accelerator.gather(table)[:count].cpu() for name, table in outputs.items()}


def _write(folder: Path, waiting: list[dict[str, Tensor]]) -> None:
    """Write the next file, and begin again."""
    number = len(list(folder.iterdir()))
    tables = {name: torch.cat([tables[name] for tables in waiting]).contiguous() for name in waiting[0]}
    save_file(tables, folder / f"activations-{number:05d}.safetensors")
    waiting.clear()
