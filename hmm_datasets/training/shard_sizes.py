"""How many parameters each rank actually has, which shows whether a run was sharded."""

from dataclasses import asdict, dataclass

from accelerate.utils import gather_object
from torch.distributed.tensor import DTensor
from transformers import Trainer

from .parameters import parameter_size


@dataclass(frozen=True)
class ShardSizes:
    """Number of elements on one rank.

    Attributes:
        rank (`int`): the rank.
        parameters (`int`): elements of the parameters that it keeps between steps.
        optimized (`int`): elements that its optimizer updates and keeps state for.
        total (`int`): elements of the whole model.
    """

    rank: int
    parameters: int
    optimized: int
    total: int


def shard_sizes(trainer: Trainer) -> list[dict]:
    """The [`ShardSizes`] of every rank as dictionaries, in order of rank; call it on all ranks after training.

    Under plain data parallelism every rank has everything. Under ZeRO 1 and 2 each rank optimizes only its part. Under
    ZeRO 3 and FSDP2 each rank also keeps only its part of the parameters.
    """
    parameters = list(trainer.model.parameters())
    sizes = ShardSizes(
        rank=trainer.args.process_index,
        parameters=sum(map(_local_size, parameters)),
        optimized=sum(map(_local_size, _optimized(trainer.optimizer))),
        total=sum(map(parameter_size, parameters)),
    )
    return gather_object([asdict(sizes)])


def _optimized(optimizer) -> list:
    """The tensors that the innermost optimizer updates."""
    while hasattr(optimizer, "optimizer"):
        if hasattr(optimizer, "fp32_partitioned_groups_flat"):
            return optimizer.fp32_partitioned_groups_flat  # ZeRO 3 lends them to its inner optimizer one by one
        optimizer = optimizer.optimizer
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def _local_size(tensor) -> int:
    if isinstance(tensor, DTensor):
        return tensor.to_local().numel()
    if hasattr(tensor, "ds_tensor"):
        return tensor.ds_tensor.numel()
    return tensor.numel()
