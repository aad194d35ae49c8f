"""Which way of sharding fits a device and is the fastest there, for several models, devices and numbers of ranks.

For every strategy, micro-batch and choice of recomputing activations, the memory per rank comes from `forecast`. What
fits is ordered by an estimate of the time per step, the longer of

- computing: the FLOPs of the step at the assumed share of the device's peak, and a third more if activations are
  recomputed (one more forward pass);
- communicating: the bytes that a rank receives, divided by the rate of the link between the ranks.

A rank receives `(W - 1) / W` of the following, in parameters, with `A` micro-batches per step:

| | per step |
|---|---|
| ddp | 2, in float32: one all-reduce of the gradients |
| zero1 | 2: gradients reduced, weights gathered |
| zero2 | A + 1: gradients reduced after every micro-batch |
| zero3, fsdp2 | 3 A: weights gathered for the forward and the backward pass, gradients reduced |

Of an adapter only its own gradients and weights count, but zero3 and fsdp2 gather all weights.

See Rajbhandari et al., "ZeRO: memory optimizations toward training trillion parameter models", 2020, section 7, for
one micro-batch. The estimate assumes that communication is hidden behind computing as far as it is shorter, which no
implementation quite achieves, and it knows nothing of latency. It is for choosing what to try first, not a forecast.

Offloading keeps the optimizer, and under ZeRO 3 the weights, on the host or on NVMe disks; how long a step takes then
depends on the machine, and is not estimated.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from .accelerators import USABLE, Device
from .forecast import Memory, memory_per_rank

DEVICES_PER_MACHINE = 8
NETWORK = 25e9
"""Bytes per second and device between machines: one port of InfiniBand HDR (200 Gbit/s)."""

OFFLOADED = {"zero2_offload": "zero2", "zero3_offload": "zero3", "zero3_nvme": "zero3"}
"""Files of `ds_configs/` that keep states elsewhere than on the device, and their strategy."""

_NVME_BUFFERS = 4 * 4 * 10**8 + 5 * 2 * 10**8
"""Bytes on the host, in `zero3_nvme`: four float32 arrays of a sub-group, and five buffers of bfloat16 weights, all of
1e8 numbers."""
_MAX_RANKS = 1 << 14


@dataclass(frozen=True)
class Job:
    """What is to be trained.

    Attributes:
        parameters (`int`): `N`, of the whole model.
        largest_layer (`int`): parameters that are gathered at once.
        flops_per_token (`int`): of the forward and the backward pass.
        row_length (`int`): tokens per row.
        global_batch_size (`int`): rows per step.
        low_precision (`bool`): whether it computes in bfloat16 or float16.
        moments (`float`): floats per parameter that the optimizer keeps.
        batch_divisor (`int`): the largest number that divides the rows of every step; smaller than
            `global_batch_size` if the batch grows.
        reduces_once (`bool`): see [`~hmm_datasets.training.plan.forecast.memory_per_rank`].
        activations (callable): bytes for a micro-batch of so many rows, with or without recomputing, under a strategy
            that shards or ddp.
        trained (`int`, *optional*), weight_bytes (`int`, *optional*): see there too.
    """

    parameters: int
    largest_layer: int
    flops_per_token: int
    row_length: int
    global_batch_size: int
    batch_divisor: int
    low_precision: bool
    moments: float
    reduces_once: bool
    activations: Callable[[int, bool, bool], int]
    trained: int | None = None
    weight_bytes: int = 4

    @property
    def bytes_per_number(self) -> int:
        """Bytes of a number in computing."""
        return 2 if self.low_precision else 4


@dataclass(frozen=True)
class Option:
    """A way to run a job that fits.

    Attributes:
        strategy (`str`): one of `STRATEGIES`, or one with `_offload`.
        micro_batch_size (`int`): rows per rank in one forward pass.
        recomputes (`bool`): whether activations are recomputed in the backward pass.
        memory (`int`): bytes per rank on the device.
        host_memory (`int`), nvme (`int`): bytes per rank on the host, and on its NVMe disks.
        computing (`float`), communicating (`float`): seconds per step; not a number where they are not estimated.
    """

    strategy: str
    micro_batch_size: int
    recomputes: bool
    memory: int
    host_memory: int
    computing: float
    communicating: float
    nvme: int = 0

    @property
    def seconds(self) -> float:
        """Seconds per step."""
        return max(self.computing, self.communicating)


def options(job: Job, device: Device, world_size: int, *, mfu: float = 0.4, network: float = NETWORK) -> list[Option]:
    """The ways to run a job that fit the device, the fastest first, those that offload last.

    Args:
        job ([`Job`]): what is to be trained.
        device ([`~hmm_datasets.training.plan.accelerators.Device`]): where.
        world_size (`int`): `W`, number of devices.
        mfu (`float`, *optional*, defaults to 0.4): share of the device's peak that computing reaches.
        network (`float`, *optional*): bytes per second and device between machines of eight devices.
    """
    room = USABLE * device.memory
    strategies = [
        option
        for micro, recomputes in _batches(job, world_size)
        for option in _with_batch(job, device, world_size, micro, recomputes, mfu, network)
        if option.memory <= room
    ]
    # Of equally fast ones first the one that communicates less, then the larger micro-batch: its products are larger.
    on_device = [strategy for strategy in strategies if not strategy.host_memory]
    on_device.sort(
        key=lambda strategy: (strategy.seconds, strategy.communicating, -strategy.micro_batch_size, strategy.memory)
    )
    offloaded = [strategy for strategy in strategies if strategy.host_memory]
    offloaded.sort(
        key=lambda strategy: (strategy.nvme > 0, strategy.recomputes, -strategy.micro_batch_size, strategy.memory)
    )
    return on_device + offloaded


def reason(job: Job, device: Device, world_size: int) -> str:
    """Why a job has no way to run, and what to do about it."""
    rows = job.batch_divisor
    if rows % world_size != 0:
        if rows < job.global_batch_size:  # each batch is a multiple of them
            return (
                f"batch_ramp has batches of {rows:,} rows, or of multiples that {world_size} ranks cannot divide; use "
                "fewer ranks until the ramp has ended, or another batch_ramp"
            )
        if rows < world_size:
            return (
                f"{rows:,} rows per step are less than one for each rank; use fewer ranks, or split "
                "layers or rows over them (tensor or context parallelism)"
            )
        return f"{rows:,} rows per step cannot be divided among {world_size} ranks; change either"
    room = USABLE * device.memory
    one_row = job.activations(1, True, True) + 2 * job.bytes_per_number * job.largest_layer
    if one_row > room:
        return "one row and one gathered layer do not fit: split layers or rows (tensor or context parallelism)"
    ranks = world_size
    while ranks < min(_MAX_RANKS, job.batch_divisor):
        ranks *= 2
        if _memory(job, "zero3", ranks, 1, True).total <= room:
            return f"its states do not fit on {world_size}; they do on {ranks} (zero3), or split layers over devices"
    return "its states do not fit with data parallelism alone: split layers over devices (tensor, pipeline)"


def last_data_parallel(
    job: Job, device: Device | None = None, *, mfu: float = 0.4, network: float = NETWORK
) -> tuple[int, str]:
    """The most ranks that data parallelism alone can use, and what ends it there.

    Ranks divide the rows of every step, and each needs one. On a known device a way to run must fit, too, and the
    fastest must not communicate longer than it computes, by the estimates above: with `G` rows of `L` tokens per step
    computing takes `FLOPs per token x L G / (W x mfu x peak)`, which falls with the number of ranks `W`, and
    communicating `bytes x (W - 1) / (W x link)`, which does not. Since no implementation hides all communication, it
    is an upper bound.

    Args:
        job ([`Job`]), device ([`~hmm_datasets.training.plan.accelerators.Device`], *optional*), mfu (`float`,
            *optional*), network (`float`, *optional*): see [`options`]; without a device only rows are counted.

    Returns:
        `tuple`: the number of ranks, 0 if there is none, and the reason in words.
    """
    rows, ended = job.batch_divisor, f"each has one of the {job.batch_divisor:,} rows that divide a step"
    for world_size in (ranks for ranks in range(rows, 0, -1) if rows % ranks == 0):
        if device is None:
            return world_size, ended
        ways = [way for way in options(job, device, world_size, mfu=mfu, network=network) if not way.host_memory]
        if ways and ways[0].communicating <= ways[0].computing:
            return world_size, ended
        if not ways and world_size == rows:
            return 0, f"not even on {rows:,} ranks do states and activations fit (--devices tries other micro-batches)"
        if ways:
            communicating, computing = (f"{seconds:.2g} s" for seconds in (ways[0].communicating, ways[0].computing))
            step = f"a step of {ways[0].strategy} communicates for {communicating} and computes for {computing}"
            ended = f"on {world_size:,}, {step}"
    return 0, ended


def _batches(job: Job, world_size: int) -> Iterator[tuple[int, bool]]:
    if job.batch_divisor % world_size == 0:
        rows = job.batch_divisor // world_size
        for micro in (size for size in (2**power for power in range(8)) if rows % size == 0):
            yield from ((micro, False), (micro, True))


def _with_batch(job, device, world_size, micro, recomputes, mfu, network) -> Iterator[Option]:
    accumulation = job.global_batch_size // (world_size * micro)
    flops = job.flops_per_token * job.row_length * job.global_batch_size / world_size
    computing = flops * (4 / 3 if recomputes else 1) / (mfu * device.peak("bf16"))
    link = device.link if world_size <= DEVICES_PER_MACHINE else min(device.link, network)
    volumes = _volumes(job, accumulation) if world_size > 1 else {"ddp": 0.0}  # there is nothing to shard over
    for strategy, volume in volumes.items():
        memory = _memory(job, strategy, world_size, micro, recomputes)
        seconds = volume * (world_size - 1) / world_size / link
        yield Option(strategy, micro, recomputes, memory.total, 0, computing, seconds)
    for name, strategy in OFFLOADED.items():
        memory, host, nvme = offloaded_memory(name, _memory(job, strategy, world_size, micro, recomputes))
        yield Option(name, micro, recomputes, memory, host, math.nan, math.nan, nvme)


def offloaded_memory(name: str, memory: Memory) -> tuple[int, int, int]:
    """Bytes per rank on the device, on the host and on NVMe disks, with a file of `OFFLOADED`.

    Args:
        name (`str`): the file.
        memory ([`~hmm_datasets.training.plan.forecast.Memory`]): that of its strategy without offloading.

    ```python
    >>> offloaded_memory("zero3_offload", Memory(weights=2, gradients=2, optimizer=12, activations=5))
    (7, 14, 0)

    ```
    """
    moved = memory.optimizer + (memory.weights if OFFLOADED[name] == "zero3" else 0)
    host, nvme = (_NVME_BUFFERS, moved) if name.endswith("nvme") else (moved, 0)
    return memory.total - moved, host, nvme


def _volumes(job: Job, accumulation: int) -> dict[str, float]:
    """Bytes that a rank receives per step, but for the factor `(W - 1) / W`."""
    count = job.parameters if job.trained is None else job.trained
    whole, trained = job.bytes_per_number * job.parameters, job.bytes_per_number * count
    return {
        "ddp": 2 * 4 * count,
        "zero1": 2 * trained,
        "zero2": (accumulation + 1) * trained,
        "zero3": accumulation * (2 * whole + trained),
        "fsdp2": accumulation * (2 * whole + trained),
    }


def _memory(job: Job, strategy: str, world_size: int, micro: int, recomputes: bool) -> Memory:
    return memory_per_rank(
        strategy,
        parameters=job.parameters,
        world_size=world_size,
        activations=job.activations(micro, recomputes, strategy != "ddp"),
        largest_layer=job.largest_layer,
        low_precision=job.low_precision,
        moments=job.moments,
        trained=job.trained,
        reduces_once=job.reduces_once and job.global_batch_size > world_size * micro,
        weight_bytes=job.weight_bytes,
    )


def linear_activations(measure: Callable[[int, bool, bool], int]) -> Callable[[int, bool, bool], int]:
    """Activations by micro-batch from two measurements each, since they grow linearly with it; measured once."""
    known: dict[tuple[bool, bool], tuple[int, int]] = {}

    def activations(micro: int, recomputes: bool, sharded: bool) -> int:
        if (recomputes, sharded) not in known:
            first, second = (measure(size, recomputes, sharded) for size in (1, 16))
            slope = (second - first) // 15
            known[recomputes, sharded] = first - slope, slope
        fixed, slope = known[recomputes, sharded]
        return fixed + slope * micro

    return activations
