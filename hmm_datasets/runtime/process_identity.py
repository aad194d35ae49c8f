"""Which process this is, and where: host, process id and start time, and with them rank and device."""

import os
from dataclasses import asdict, dataclass

from ..process_state import machine_id, start_time
from ..records import Count, Finite
from . import environment


@dataclass(frozen=True)
class ProcessIdentity:
    """A process that can be distinguished from all others, on other machines and of other times.

    Attributes:
        host (`str`), process (`int`): host name, and id of the process.
        machine (`str`): boot id and process namespace; process ids can be compared only where these are equal.
        process_started (`float`): start time of the process on its machine, because process ids are reused.
    """

    host: str
    process: Count
    machine: str
    process_started: Finite

    @property
    def is_here(self) -> bool:
        """Whether the process is, or was, on this machine."""
        return self.machine == machine_id()

    @property
    def is_alive_here(self) -> bool:
        """Whether the process is on this machine and has not ended."""
        return self.is_here and start_time(self.process) == self.process_started


def this_process() -> ProcessIdentity:
    """The identity of this process."""
    process = os.getpid()
    return ProcessIdentity(environment.host(), process, machine_id(), start_time(process) or 0.0)


@dataclass(frozen=True)
class Place(ProcessIdentity):
    """Where a process is.

    Attributes:
        rank (`int`), world_size (`int`), local_rank (`int`): rank, number of ranks, and rank among those of its host.
        device (`str`): `CPU`, or index and name of its GPU.
        uuid (`str`, *optional*): UUID of its GPU, as `nvidia-smi -L` lists it.
    """

    rank: int
    world_size: int
    local_rank: int
    device: str
    uuid: str | None = None

    @property
    def device_with_uuid(self) -> str:
        """The device, with the UUID of a GPU."""
        return self.device if self.uuid is None else f"{self.device} ({self.uuid})"

    @property
    def short(self) -> str:
        """Rank, host and device, as messages name them."""
        return f"rank {self.rank} on {self.host}, {self.device_with_uuid}"


def this_place(local_rank: int | None = None) -> Place:
    """The place of this process, which is on the GPU of its local rank.

    Args:
        local_rank (`int`, *optional*): instead, the place that it would have with this local rank.
    """
    local_rank = environment.local_rank() if local_rank is None else local_rank
    device, uuid = _device(local_rank)
    return Place(
        **asdict(this_process()),
        rank=environment.rank(),
        world_size=environment.world_size(),
        local_rank=local_rank,
        device=device,
        uuid=uuid,
    )


def uses_gpu() -> bool:
    """Whether ranks compute on GPUs: there are some, and the launch configuration does not have `use_cpu`."""
    import torch

    return torch.cuda.is_available() and os.environ.get("ACCELERATE_USE_CPU", "false").lower() != "true"


def _device(index: int) -> tuple[str, str | None]:
    import torch

    if not uses_gpu():
        return "CPU", None
    if index >= torch.cuda.device_count():
        return f"cuda:{index}, which does not exist", None
    properties = torch.cuda.get_device_properties(index)
    uuid = getattr(properties, "uuid", None)
    return f"cuda:{index} {properties.name}", None if uuid is None else f"GPU-{uuid}"
