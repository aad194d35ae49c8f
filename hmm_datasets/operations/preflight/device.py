"""The checks of the device of a rank: whether it computes, keeps what is written into its memory, and at what clock.

- State: what `nvidia-smi` says about a GPU, that is its driver, clocks and why they are low, memory errors, and the
  processes that hold its memory.
- Memory: patterns are written to all of a block before any is read back. They are those of memory testers: all bits
  zero, all one, alternating, and the address itself, which finds cells that are addressed twice. On a GPU most of the
  free memory is tested, in some seconds; on the CPU a small block.
- Matrix products, which find a device that computes wrongly. A product of small integers is exact in every order of
  summation, so its result is known. A product of normal random numbers, drawn on the CPU from a fixed seed, is
  rounded, and the same device with the same libraries rounds it in the same way: it is repeated for some seconds, each
  result must equal the first bit for bit, and the hashes of the ranks are compared with each other (`report.py`). A
  product of 4,096 x 4,096 matrices takes milliseconds on a GPU.
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

_PATTERNS = (0, -1, 0x5555_5555_5555_5555, -0x5555_5555_5555_5556)
_SHARE = 0.9  # of the free memory of a GPU
_ON_CPU = 64 << 20
_BLOCK = 1 << 30


def check_device_memory(index: int | None = None, size: int | None = None) -> Check:
    """Write and read back patterns in the memory of a GPU, or of the CPU.

    Args:
        index (`int`, *optional*): index of the GPU; None for the CPU.
        size (`int`, *optional*): bytes to test; by default nine tenths of what is free on the GPU, or 64 MiB.
    """
    import torch

    device = "cpu" if index is None else f"cuda:{index}"
    if size is None:
        size = _ON_CPU if index is None else int(torch.cuda.mem_get_info(index)[0] * _SHARE)
    blocks: list[torch.Tensor] = []
    try:
        for first in range(0, size, _BLOCK):
            blocks.append(torch.empty(min(_BLOCK, size - first) // 8, dtype=torch.int64, device=device))
    except torch.OutOfMemoryError:
        pass  # another process took some since it was measured: test what there is
    bad = sum(_wrong_words(torch, blocks, pattern) for pattern in (*_PATTERNS, None))
    tested = sum(block.numel() for block in blocks) * 8
    del blocks
    if index is not None:
        torch.cuda.empty_cache()
    if bad:
        detail = f"{bad} words of 8 bytes read back wrongly in {tested / GIB:.2f} GiB; take this device out of use"
        return Check("device memory", False, detail)
    return Check("device memory", True, f"{tested / GIB:.2f} GiB keep {len(_PATTERNS) + 1} patterns")


def _wrong_words(torch, blocks: list, pattern: int | None) -> int:
    """The number of words that do not keep a pattern; with None, each word is its own address."""
    for number, block in enumerate(blocks):
        if pattern is None:
            torch.arange(number * _BLOCK, number * _BLOCK + block.numel(), out=block)
        else:
            block.fill_(pattern)
    wrong = 0
    for number, block in enumerate(blocks):
        for start in range(0, block.numel(), _BLOCK >> 6):  # parts, because a comparison needs memory too
            part = block[start : start + (_BLOCK >> 6)]
            if pattern is None:
                first = number * _BLOCK + start
                expected = torch.arange(first, first + part.numel(), device=block.device)
                wrong += int((part != expected).sum())
            else:
                wrong += int((part != pattern).sum())
    return wrong


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


@dataclass(frozen=True)
class GpuState:
    """A GPU as `nvidia-smi` sees it; None where it says nothing.

    Attributes:
        uuid (`str`), driver (`str`): UUID, and version of the driver.
        clock (`int`), max_clock (`int`): clock of the multiprocessors now and at most, in MHz.
        temperature (`int`): in degrees Celsius.
        errors (`int`): uncorrected memory errors since the driver was loaded.
        reasons (`int`): bits that say why the clock is not the highest.
    """

    uuid: str
    driver: str
    clock: int | None
    max_clock: int | None
    temperature: int | None
    errors: int | None
    reasons: int | None

    @property
    def slowed_by(self) -> list[str]:
        """Why the GPU is slower than it could be; its power limit and idleness do not count."""
        return [name for bit, name in _SLOWING.items() if (self.reasons or 0) & bit]


@dataclass(frozen=True)
class GpuProcess:
    """A process that holds memory of a GPU: its id, the UUID of the GPU, and MiB."""

    process: int
    uuid: str
    memory: int | None

    def __str__(self) -> str:
        name = _name_of(self.process)
        known = f"process {self.process} ({name})" if name else f"process {self.process}, not seen from here,"
        return f"{known} holds {'some' if self.memory is None else self.memory} MiB"


def gpu_states() -> list[GpuState]:
    """The GPUs of this host; none if there is no `nvidia-smi`."""
    for reasons in _REASONS:
        text = _nvidia_smi(f"--query-gpu={_FIELDS},{reasons}")
        if text is not None:
            return [parse_state(line) for line in text.splitlines() if line.strip()]
    return []


def parse_state(line: str) -> GpuState:
    """A GPU from one line of the output of `nvidia-smi`."""
    uuid, driver, *numbers, reasons = [field.strip() for field in line.split(",")]
    clock, max_clock, temperature, errors = map(_number, numbers)
    return GpuState(uuid, driver, clock, max_clock, temperature, errors, _number(reasons))


def gpu_processes() -> list[GpuProcess]:
    """The processes that compute on the GPUs of this host."""
    text = _nvidia_smi("--query-compute-apps=pid,gpu_uuid,used_memory") or ""
    return [parse_process(line) for line in text.splitlines() if line.strip()]


def parse_process(line: str) -> GpuProcess:
    """A process from one line of the output of `nvidia-smi`."""
    process, uuid, memory = (field.strip() for field in line.split(","))
    return GpuProcess(int(process), uuid, _number(memory))


def check_gpu_state(uuid: str, own: set[int]) -> Check:
    """The clocks, errors and foreign processes of a GPU that has just computed.

    Args:
        uuid (`str`): its UUID.
        own (`set` of `int`): ids of processes that belong to this job.
    """
    state = next((state for state in gpu_states() if state.uuid == uuid), None)
    if state is None:
        return Check("GPU state", True, f"not known: nvidia-smi does not list {uuid}", warning=True)
    return judged(state, foreign([one for one in gpu_processes() if one.uuid == uuid], own))


def foreign(processes: list[GpuProcess], own: set[int]) -> list[GpuProcess]:
    """The processes of a GPU that are not of this job.

    In a container `nvidia-smi` lists the ids that processes have outside. Then none is known, and the one that holds
    the least is taken for this one, which has just released its memory.
    """
    others = [one for one in processes if one.process not in own]
    if len(others) == len(processes):
        others = sorted(others, key=lambda one: one.memory or 0)[1:]
    return others


def judged(state: GpuState, foreign: list[GpuProcess]) -> Check:
    """A check of a GPU's state, with the processes that are not of this job."""
    found = f"{state.clock} of {state.max_clock} MHz, {state.temperature} °C, driver {state.driver}"
    if state.errors:
        remedy = "take this GPU out of use; a reset or a restart of the host may repair it (nvidia-smi -r)"
        return Check("GPU state", False, f"{state.errors} uncorrected memory errors; {remedy}")
    problems = [f"slowed by {name}: look at its cooling and power" for name in state.slowed_by]
    holding = [one for one in foreign if one.memory is None or one.memory >= _MUCH_MEMORY]
    problems += [f"{one}: end it (kill -9 {one.process}), or choose another GPU" for one in holding]
    return Check("GPU state", True, "; ".join([found, *problems]), warning=bool(problems))


def has_nvlink() -> bool | None:
    """Whether any GPU of this host has an active NVLink; None if `nvidia-smi` does not say."""
    text = _run("nvidia-smi", "nvlink", "--status")
    return None if text is None else "GB/s" in text


def _nvidia_smi(query: str) -> str | None:
    return _run("nvidia-smi", query, "--format=csv,noheader,nounits")


def _run(*command: str) -> str | None:
    if shutil.which(command[0]) is None:
        return None
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


def _name_of(process: int) -> str | None:
    try:
        return Path(f"/proc/{process}/comm").read_text().strip()
    except OSError:
        return None


def check_devices() -> Check:
    """Multiply a small matrix on each GPU, and report its name and free memory; a machine without GPUs is fine."""
    import torch

    if not torch.cuda.is_available():
        return _check_cpu("devices")
    tried = [_try_device(index) for index in range(torch.cuda.device_count())]
    wrong = [problem for _, problem in tried if problem is not None]
    return Check("devices", not wrong, "; ".join(wrong or [found for found, _ in tried]))


def check_device(index: int | None) -> Check:
    """Multiply a small matrix on the GPU of this rank; a rank without a GPU (None) is fine."""
    import torch

    if index is None:
        return _check_cpu("device")
    if index >= torch.cuda.device_count():
        count = torch.cuda.device_count()
        return Check(
            "device",
            False,
            f"local rank {index} has no GPU: this host has {count}; start no more ranks here (--num_processes)",
        )
    found, wrong = _try_device(index)
    return Check("device", wrong is None, wrong or found)


def _check_cpu(name: str) -> Check:
    """A process without a GPU is fine, unless there are GPUs that torch cannot use, and nothing says not to."""
    import torch

    found = gpu_states()
    wanted = os.environ.get("CUDA_VISIBLE_DEVICES") not in ("", "-1")
    if found and wanted and not torch.cuda.is_available():
        built = f"CUDA {torch.version.cuda}" if torch.version.cuda else "the CPU only"
        return Check(
            name,
            False,
            f"nvidia-smi lists {len(found)} GPUs with driver {found[0].driver}, but torch {torch.__version__}, built "
            f"for {built}, cannot use them; install another build of torch or a newer driver, or, to compute without "
            "them, set CUDA_VISIBLE_DEVICES to nothing",
        )
    return Check(name, True, f"no GPU; CPU with {torch.get_num_threads()} threads")


def _try_device(index: int) -> tuple[str, str | None]:
    """What a GPU is, and what is wrong with it, if anything."""
    import torch

    try:
        ones = torch.ones(64, 64, device=f"cuda:{index}")
        value = (ones @ ones).sum().item()
        free, total = torch.cuda.mem_get_info(index)
    except RuntimeError as error:
        return "", f"cuda:{index} fails: {first_line(error)}"
    found = f"cuda:{index} {torch.cuda.get_device_name(index)}, {free / GIB:.0f} of {total / GIB:.0f} GiB free"
    wrong = f"cuda:{index} multiplies wrongly ({value} for {64.0**3}); take it out of use"
    return found, None if value == 64.0**3 else wrong


_SEED = 20_250_101
_INTEGERS = 8  # sums of 4,096 products of integers up to 8 are below 2**24, so exact in float32 and TF32


@dataclass(frozen=True)
class Product:
    """What the products of a rank gave.

    Attributes:
        kind (`str`): kind of device, within which results are compared.
        digest (`str`): hash of the rounded products.
        computed_with (`str`): instructions or precision that explain a difference, if there is one.
        repeats (`int`), differing (`int`): number of products, and of those that differed from the first.
        exact (`bool`): whether the product of integers is right.
    """

    kind: str
    digest: str
    computed_with: str
    repeats: int
    differing: int
    exact: bool

    @property
    def check(self) -> Check:
        """What the rank can say by itself."""
        if not self.exact:
            return Check("matrix product", False, f"a product of integers is wrong on this {self.kind}; {TAKE_OUT}")
        if self.differing:
            detail = (
                f"{self.differing} of {self.repeats} products differ from the first on this {self.kind}; {TAKE_OUT}"
            )
            return Check("matrix product", False, detail)
        return Check("matrix product", True, f"{self.repeats} products, all the same; the exact one is right")


def measure_product(seconds: float, index: int | None = None) -> Product:
    """Multiply matrices on a device for some seconds.

    Args:
        seconds (`float`): how long to repeat it; at least two products are computed.
        index (`int`, *optional*): index of the GPU; None for the CPU, which uses one thread.
    """
    import torch

    threads = torch.get_num_threads()
    if index is None:
        torch.set_num_threads(1)  # the order of summation can depend on their number
    try:
        return _measure(torch, seconds, index)
    finally:
        torch.set_num_threads(threads)


def _measure(torch, seconds: float, index: int | None) -> Product:
    device = "cpu" if index is None else f"cuda:{index}"
    size = 256 if index is None else 4096
    generator = torch.Generator().manual_seed(_SEED)
    pairs = []
    for dtype in (torch.float32, torch.bfloat16):
        pair = [torch.randn(size, size, generator=generator).to(dtype).to(device) for _ in range(2)]
        pairs.append(pair)
    first = [left @ right for left, right in pairs]
    repeats, differing, deadline = 1, 0, time.monotonic() + seconds
    while repeats < 2 or time.monotonic() < deadline:
        for (left, right), expected in zip(pairs, first, strict=True):
            differing += not torch.equal(left @ right, expected)  # waits for the device
        repeats += 1
    digest = hashlib.sha256()
    for result in first:
        digest.update(result.cpu().contiguous().view(torch.uint8).numpy())
    return Product(
        kind=_processor() if index is None else torch.cuda.get_device_name(index),
        digest=digest.hexdigest()[:16],
        computed_with=_computed_with(torch, index),
        repeats=repeats,
        differing=differing,
        exact=_exact(torch, device, generator),
    )


def _exact(torch, device: str, generator) -> bool:
    values = torch.randint(-_INTEGERS, _INTEGERS + 1, (2, 512, 512), generator=generator)
    left, right = values.float().to(device)
    expected = values[0].double() @ values[1].double()
    return torch.equal((left @ right).cpu().double(), expected)


def _computed_with(torch, index: int | None) -> str:
    if index is None:
        return torch.backends.cpu.get_cpu_capability()
    return f"TF32 {'on' if torch.backends.cuda.matmul.allow_tf32 else 'off'}"


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor() or platform.machine())
