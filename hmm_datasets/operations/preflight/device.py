"""The checks of the device of a rank: whether it is there, computes rightly, and what `nvidia-smi` reports about it.

A product of small integers is exact in every order of summation, so its result is known. A product of normal random
numbers, drawn on the CPU from a fixed seed, is rounded, and the same device with the same libraries rounds it in the
same way: it is repeated for a second, each result must equal the first bit for bit, and the hashes of the ranks are
compared with each other ([`~hmm_datasets.operations.preflight.report`]).
"""

import hashlib
import os
import platform
import shutil
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

from ...errors import first_line
from .report import GIB, TAKE_OUT, Check

_FIELDS = "uuid,driver_version,clocks.sm,clocks.max.sm,temperature.gpu,ecc.errors.uncorrected.volatile.total"
# Newer drivers call the second one by the first name.
_REASONS = ("clocks_event_reasons.active", "clocks_throttle_reasons.active")
# Bits of the reasons (nvml.h, nvmlClocksEventReasons) that mean that a GPU computes more slowly than it could.
_SLOWING = {
    0x08: "hardware slowdown",
    0x20: "heat (by the driver)",
    0x40: "heat (by the hardware)",
    0x80: "power brake of the machine",
}
_MUCH_MEMORY = 256  # MiB that a process holds; contexts of monitoring tools take less
_SEED = 20_250_101
_INTEGERS = 8  # sums of 512 products of integers up to 8 are below 2**24, so exact in float32 and TF32


@dataclass(frozen=True)
class GpuState:
    """A GPU as `nvidia-smi` lists it; None where it has no value.

    Attributes:
        uuid (`str`), driver (`str`): UUID, and version of the driver.
        clock (`int`), max_clock (`int`): clock of the multiprocessors now and at most, in MHz.
        temperature (`int`): in degrees Celsius.
        errors (`int`): uncorrected memory errors since the driver was loaded.
        reasons (`int`): bits of the reasons why the clock is not the highest.
    """

    uuid: str
    driver: str
    clock: int | None
    max_clock: int | None
    temperature: int | None
    errors: int | None
    reasons: int | None


@dataclass(frozen=True)
class GpuProcess:
    """A process that holds memory of a GPU: its id, the UUID of the GPU, and MiB."""

    process: int
    uuid: str
    memory: int | None


def gpu_states() -> list[GpuState]:
    """The GPUs of this host; none if there is no `nvidia-smi`."""
    for reasons in _REASONS:
        text = _nvidia_smi(f"--query-gpu={_FIELDS},{reasons}")
        if text is not None:
            return [parse_state(line) for line in text.splitlines() if line.strip()]
    return []


def parse_state(line: str) -> GpuState:
    """A GPU from one line of the output of `nvidia-smi`."""
    uuid, driver, *numbers = [field.strip() for field in line.split(",")]
    return GpuState(uuid, driver, *map(_number, numbers))


def gpu_processes() -> list[GpuProcess]:
    """The processes that compute on the GPUs of this host."""
    text = _nvidia_smi("--query-compute-apps=pid,gpu_uuid,used_memory") or ""
    return [parse_process(line) for line in text.splitlines() if line.strip()]


def parse_process(line: str) -> GpuProcess:
    """A process from one line of the output of `nvidia-smi`."""
    process, uuid, memory = (field.strip() for field in line.split(","))
    return GpuProcess(int(process), uuid, _number(memory))


def check_gpu_state(uuid: str, job: set[int]) -> Check:
    """The clocks, memory errors and foreign processes of a GPU that has just computed.

    Args:
        uuid (`str`): its UUID.
        job (`set` of `int`): ids of processes that belong to this job.
    """
    state = next((state for state in gpu_states() if state.uuid == uuid), None)
    if state is None:
        return Check("GPU state", True, f"not known: nvidia-smi does not list {uuid}", warning=True)
    return state_check(state, foreign([process for process in gpu_processes() if process.uuid == uuid], job))


def foreign(processes: list[GpuProcess], job: set[int]) -> list[GpuProcess]:
    """The processes of a GPU that are not of this job.

    In a container `nvidia-smi` lists the ids that processes have outside. Then none is known, and the one that holds
    the least is taken for this one, which has just released its memory.
    """
    others = [process for process in processes if process.process not in job]
    if len(others) == len(processes):
        others = sorted(others, key=lambda process: process.memory or 0)[1:]
    return others


def state_check(state: GpuState, foreign: list[GpuProcess]) -> Check:
    """A check of a GPU's state, with the processes that are not of this job."""
    if state.errors:
        remedy = "take this GPU out of use; a reset or a restart of the host may repair it (nvidia-smi -r)"
        return Check("GPU state", False, f"{state.errors} uncorrected memory errors; {remedy}")
    slowed = [name for bit, name in _SLOWING.items() if (state.reasons or 0) & bit]
    problems = [f"slowed by {name}: look at its cooling and power" for name in slowed]
    for process in foreign:
        if process.memory is None or process.memory >= _MUCH_MEMORY:
            memory = "some" if process.memory is None else process.memory
            remedy = f"end it (kill -9 {process.process}), or choose another GPU"
            problems.append(f"process {process.process} holds {memory} MiB: {remedy}")
    clocks = f"{state.clock} of {state.max_clock} MHz, {state.temperature} °C, driver {state.driver}"
    return Check("GPU state", True, "; ".join([clocks, *problems]), warning=bool(problems))


def check_device(index: int | None) -> Check:
    """Multiply a small matrix on the GPU of this rank, and report its name and free memory; None for the CPU."""
    import torch

    if index is None:
        return _check_cpu()
    count = torch.cuda.device_count()
    if index >= count:
        remedy = "start no more ranks here (--num_processes)"
        return Check("device", False, f"local rank {index} has no GPU: this host has {count}; {remedy}")
    try:
        ones = torch.ones(64, 64, device=f"cuda:{index}")
        value = (ones @ ones).sum().item()
        free, total = torch.cuda.mem_get_info(index)
    except RuntimeError as error:
        return Check("device", False, f"cuda:{index} fails: {first_line(error)}")
    if value != 64.0**3:
        return Check("device", False, f"cuda:{index} multiplies wrongly ({value} for {64.0**3}); {TAKE_OUT}")
    name = torch.cuda.get_device_name(index)
    return Check("device", True, f"cuda:{index} {name}, {free / GIB:.0f} of {total / GIB:.0f} GiB free")


def _check_cpu() -> Check:
    """A process without a GPU is fine, unless there are GPUs that torch cannot use, and they are not hidden."""
    import torch

    states = gpu_states()
    hidden = os.environ.get("CUDA_VISIBLE_DEVICES") in ("", "-1")
    if not states or hidden or torch.cuda.is_available():
        return Check("device", True, f"no GPU; CPU with {torch.get_num_threads()} threads")
    built = f"CUDA {torch.version.cuda}" if torch.version.cuda else "the CPU only"
    return Check(
        "device",
        False,
        f"nvidia-smi lists {len(states)} GPUs with driver {states[0].driver}, but torch {torch.__version__}, built "
        f"for {built}, cannot use them; install another build of torch or a newer driver, or, to compute without "
        "them, set CUDA_VISIBLE_DEVICES to nothing",
    )


def check_product(index: int | None, seconds: float) -> tuple[Check, dict]:
    """Multiply matrices on a device, and return the check, and `device` and `digest` of the product.

    Args:
        index (`int`, *optional*): index of the GPU; None for the CPU, which uses one thread.
        seconds (`float`): how long to repeat it; at least two products are computed.
    """
    import torch

    threads = torch.get_num_threads()
    if index is None:
        torch.set_num_threads(1)  # the order of summation can depend on their number
    try:
        return _check_product(torch, index, seconds)
    finally:
        torch.set_num_threads(threads)


def _check_product(torch, index: int | None, seconds: float) -> tuple[Check, dict]:
    device = "cpu" if index is None else f"cuda:{index}"
    size = 256 if index is None else 4096
    generator = torch.Generator().manual_seed(_SEED)
    pairs = []
    for dtype in (torch.float32, torch.bfloat16):
        pairs.append([torch.randn(size, size, generator=generator).to(dtype).to(device) for _ in range(2)])
    first = [left @ right for left, right in pairs]
    repeats, differing, deadline = 1, 0, time.monotonic() + seconds
    while repeats < 2 or time.monotonic() < deadline:
        for (left, right), expected in zip(pairs, first, strict=True):
            differing += not torch.equal(left @ right, expected)  # waits for the device
        repeats += 1
    digest = hashlib.sha256()
    for result in first:
        digest.update(result.cpu().contiguous().view(torch.uint8).numpy())
    fact = {"device": _device_and_instructions(torch, index), "digest": digest.hexdigest()[:16]}
    if not _is_exact(torch, device, generator):
        return Check("matrix product", False, f"a product of integers is wrong; {TAKE_OUT}"), fact
    detail = f"{repeats} products, all the same; the exact one is right"
    if differing:
        detail = f"{differing} of {repeats} products differ from the first; {TAKE_OUT}"
    return Check("matrix product", not differing, detail), fact


def _is_exact(torch, device: str, generator) -> bool:
    values = torch.randint(-_INTEGERS, _INTEGERS + 1, (2, 512, 512), generator=generator)
    left, right = values.float().to(device)
    return torch.equal((left @ right).cpu().double(), values[0].double() @ values[1].double())


def _device_and_instructions(torch, index: int | None) -> str:
    """What decides how a product is rounded."""
    if index is not None:
        return f"{torch.cuda.get_device_name(index)}, TF32 {torch.backends.cuda.matmul.allow_tf32}"
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return f"{next(names, platform.processor() or platform.machine())}, {torch.backends.cpu.get_cpu_capability()}"


def _nvidia_smi(query: str) -> str | None:
    if shutil.which("nvidia-smi") is None:
        return None
    command = ["nvidia-smi", query, "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None


def _number(text: str) -> int | None:
    try:
        return int(text, 16) if text.startswith("0x") else int(float(text))
    except ValueError:
        return None  # [N/A], [Not Supported]
