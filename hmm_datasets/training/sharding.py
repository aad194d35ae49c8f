"""What each rank really holds: the proof that a run was sharded, and not just launched as if it were."""

from dataclasses import asdict, dataclass

from torch.distributed.tensor import DTensor
from transformers import Trainer

from .models import parameter_size


@dataclass(frozen=True)
class ShardSizes:
    """Elements on one rank.

    Attributes:
        rank (`int`): the rank.
        parameters (`int`): elements of the parameters it keeps between steps.
        optimized (`int`): elements its optimizer updates, so those it keeps optimizer state for.
        total (`int`): elements of the whole model.
    """

    rank: int
    parameters: int
    optimized: int
    total: int


def shard_sizes(trainer: Trainer) -> list[dict]:
    """What every rank holds, in order of rank; call it on all ranks after training.

    Under plain data parallelism every rank holds all; under ZeRO 1 and 2 each optimizes its part; under ZeRO 3 and
    FSDP2 each also keeps just its part of the parameters.
    """
    from accelerate.utils import gather_object

    parameters = list(trainer.model.parameters())
    sizes = ShardSizes(
        rank=trainer.args.process_index,
        parameters=sum(map(_held, parameters)),
        optimized=sum(map(_held, _optimized(trainer.optimizer))),
        total=sum(map(parameter_size, parameters)),
    )
    return gather_object([asdict(sizes)])


def _optimized(optimizer) -> list:
    """What the innermost optimizer updates."""
    while hasattr(optimizer, "optimizer"):
        if hasattr(optimizer, "fp32_partitioned_groups_flat"):
            return optimizer.fp32_partitioned_groups_flat  # ZeRO 3 lends them to its inner optimizer one by one
        optimizer = optimizer.optimizer
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def _held(tensor) -> int:
    if isinstance(tensor, DTensor):
        return tensor.to_local().numel()
    if hasattr(tensor, "ds_tensor"):
        return tensor.ds_tensor.numel()
    return tensor.numel()
