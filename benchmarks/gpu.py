"""What needs a GPU, part by part: the tests marked `gpu`, and `gpu_recipes`, `gpu_training` and `gpu_hmm`.

    make gpu [PART="sampler em mfu_125m"]
    python benchmarks/gpu.py [PART ...] [--together] [--limit 540] [--tiny]

The parts run in the order of how uncertain their outcome is, the most uncertain first, since the time on a GPU may be
short. Each says first what it will prove, and is a process of its own. What it prints goes line by line to
`benchmarks/results/gpu-DEVICE.txt`, with the chip, driver, versions and command, in place of what an earlier run of
that part left there. So a part that fails, or is cut off, loses only what it had not printed; it is named at the end,
and the others run. Nothing is downloaded, unless `HF_HUB_OFFLINE=0` is set, with which `kernels` fetches
FlashAttention. With `--together` those that time nothing run side by side, which saves minutes of a rented GPU of 80
GB. With `--tiny` every part runs on the CPU at sizes that show nothing but that it runs, and its results go to a
temporary folder.

CONTRIBUTING.md says which parts have been run on a GPU. Every part but `training` has been run with `--tiny` on two
CPU cores.
"""

import argparse
import importlib.metadata
import itertools
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from machine import CORES

FOLDER = Path(__file__).resolve().parent
PACKAGES = ("torch", "triton", "transformers", "accelerate", "datasets", "kernels", "flash-attn", "numba", "numpy")
_TESTS = ["-m", "pytest", "-q", "-rs", "-p", "no:cacheprovider", "-m", "gpu"]
PREFLIGHT = "tests/operations/preflight/test_cuda.py"
PARTS = {
    "preflight": ("the preflight checks find a GPU sound", [*_TESTS, PREFLIGHT]),
    "tests": ("every other test marked gpu passes: half precision, resuming, packed rows, kernels", _TESTS),
    "kernels": (
        "`pretrain` has the same losses in float32 and bf16, eager and compiled, under sdpa, flex and flash attention",
        ["benchmarks/gpu_recipes.py", "kernels"],
    ),
    "sharding": (
        "`pretrain` has the same losses on one GPU and on all by DDP, ZeRO 1, 2, 3 and FSDP2, in bf16",
        ["benchmarks/gpu_recipes.py", "sharding"],
    ),
    "nccl": ("NCCL sums over all GPUs, and how fast", ["benchmarks/gpu_training.py", "nccl"]),
    "packing": (
        "packed rows train by every attention, compiled too, and how fast",
        ["benchmarks/gpu_training.py", "packing"],
    ),
    "attention": (
        "every attention runs at 4,096 tokens, and how fast",
        ["benchmarks/gpu_training.py", "attention"],
    ),
    "fp16": ("float16 with a scaled loss learns as float32 does", ["benchmarks/gpu_training.py", "fp16"]),
    "sampler": ("the Triton sampler draws the bits of the CPU, and how fast", ["benchmarks/gpu_hmm.py", "sampler"]),
    "em": ("an epoch of Baum-Welch fits its time", ["benchmarks/gpu_hmm.py", "em"]),
    "mfu_125m": ("MFU of 125m beside torch alone; goal 45%", ["benchmarks/gpu_training.py", "mfu_125m"]),
    "mfu_500m": ("MFU of 500m beside torch alone; goal 52%", ["benchmarks/gpu_training.py", "mfu_500m"]),
    "training": (
        "MFU of 500m in the recipe's trainer, and that small models on short rows do not wait for their data",
        ["benchmarks/training.py", "--part", "gpu"],
    ),
    "chunks": ("how large the chunks of the loss are best", ["benchmarks/gpu_training.py", "chunks"]),
    "inference": ("filter and smoother of HMMs, and how fast", ["benchmarks/gpu_hmm.py", "inference"]),
    "generation": (
        "models generate and score in bfloat16, and how fast",
        ["benchmarks/gpu_training.py", "generation"],
    ),
    "mfu_350m": ("MFU of 350m beside torch alone; goal 50%", ["benchmarks/gpu_training.py", "mfu_350m"]),
    "mfu_1.3b": ("MFU of 1.3b beside torch alone; goal 52%", ["benchmarks/gpu_training.py", "mfu_1.3b"]),
}
"""By name what a part proves, and what Python is given, in the order in which they run."""

PROOFS = ("tests", "kernels", "sharding", "nccl")
"""Parts whose times do not matter, so that they can run side by side."""

_SAVING = threading.Lock()

TITLE = "What benchmarks/gpu.py printed: a section for each part that has been run, the last time that it was."


def main() -> int:
    """Run what was asked for; 0 if every part ended well."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"all by default: {', '.join(PARTS)}")
    parser.add_argument("--limit", type=float, default=540.0, help="seconds after which a part is ended, default 540")
    parser.add_argument("--together", action="store_true", help=f"run {', '.join(PROOFS)} side by side")
    parser.add_argument("--tiny", action="store_true", help="run on the CPU, at sizes that only show that it runs")
    settings = parser.parse_args()
    unknown = [name for name in settings.parts if name not in PARTS]
    if unknown:
        parser.error(f"unknown part {unknown[0]!r}; expected {', '.join(PARTS)}")
    if settings.tiny:
        with tempfile.TemporaryDirectory() as folder:
            return _run_all(settings, Path(folder) / "gpu-none.txt", ["no GPU: tiny sizes on the CPU"])
    device = _device()
    if device is None:
        print("benchmarks/gpu.py: torch finds no CUDA device on this machine, so nothing was run", file=sys.stderr)
        return 1
    name = re.sub(r"[^a-z0-9]+", "-", device[0].lower()).strip("-")
    return _run_all(settings, FOLDER / "results" / f"gpu-{name}.txt", [", ".join(device)])


def _device() -> list[str] | None:
    """The name of the first GPU, their number, and the versions of driver and CUDA; None if there is none."""
    import torch

    if not torch.cuda.is_available():
        return None
    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        driver = subprocess.run(query, capture_output=True, text=True, check=True).stdout.split()[0]
    except (OSError, subprocess.CalledProcessError, IndexError):
        driver = "unknown"
    count = torch.cuda.device_count()
    return [torch.cuda.get_device_name(), f"{count} of them", f"driver {driver}", f"CUDA {torch.version.cuda}"]


def _run_all(settings: argparse.Namespace, results: Path, device: list[str]) -> int:
    found = [name for name in PACKAGES if _version(name)]
    versions = ", ".join(f"{name} {_version(name)}" for name in found)
    heading = [*device, f"{CORES} cores, Python {sys.version.split()[0]}", versions]
    run = partial(_run_one, settings, results, heading)
    failed: list[str] = []
    wanted = settings.parts or list(PARTS)
    for at_once, group in itertools.groupby(wanted, lambda name: settings.together and name in PROOFS):
        names = list(group)
        with ThreadPoolExecutor(len(names) if at_once else 1) as pool:
            failed += [name for name, status in zip(names, pool.map(run, names), strict=True) if status]
    print(f"\n{results}" + (f"; failed: {', '.join(failed)}" if failed else ""))
    return 1 if failed else 0


def _run_one(settings: argparse.Namespace, results: Path, heading: list[str], name: str) -> int:
    """Run a part, and keep what it prints; its exit status."""
    proves, arguments = PARTS[name]
    command = [sys.executable, *arguments]
    if name == "tests":
        if (cores := CORES or 1) > 4 and _version("pytest-xdist"):
            command += ["-n", str(min(8, cores))]
        command += _files_with_gpu_tests()
    command += ["--together"] if settings.together and arguments[0] == "benchmarks/gpu_recipes.py" else []
    if settings.tiny and arguments[0].startswith("benchmarks/gpu_"):
        command.append("--tiny")
    began = time.monotonic()
    print(f"\n## {name}: to prove: {proves}", flush=True)
    lines = [f"to prove: {proves}", f"$ python {' '.join(command[1:])}", *heading, ""]
    status = run_part(command, settings.limit, lines, lambda lines: save(results, name, lines))
    print(f"## {name}: {lines[-1]}", flush=True)
    if time.monotonic() - began > settings.limit:
        print(f"## {name}: ended at the limit of {settings.limit:g} s; --limit sets another", file=sys.stderr)
    return status


def _files_with_gpu_tests() -> list[str]:
    """The files of tests that mention the mark, but for preflight; collecting all others takes a minute."""
    tests = FOLDER.parent / "tests"
    found = (path for path in sorted(tests.rglob("test_*.py")) if "mark.gpu" in path.read_text(encoding="utf-8"))
    return [name for name in (str(path.relative_to(FOLDER.parent)) for path in found) if name != PREFLIGHT]


def run_part(command: list[str], limit: float, lines: list[str], kept: Callable[[list[str]], None]) -> int:
    """Run a command; show and keep what it prints, line by line. Its messages on stderr are shown and not kept."""
    began = time.monotonic()
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(FOLDER.parent), os.environ.get("PYTHONPATH", "")])}
    environment = {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"} | environment | {"PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(
        command, cwd=FOLDER.parent, env=environment, stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        timer = threading.Timer(limit, _end, [process])
        timer.start()
        try:
            for line in process.stdout or ():
                print(line, end="", flush=True)
                lines.append(line.rstrip())
                kept([*lines, "cut off here"])
            status = process.wait()
        finally:
            timer.cancel()
            _end(process)
    how = "ended well" if status == 0 else f"FAILED with status {status}"
    lines.append(f"{how} after {time.monotonic() - began:.0f} s")
    kept(lines)
    return status


def _end(process: subprocess.Popen) -> None:
    """End a process and all that it started; it leads a group of its own."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def save(results: Path, part: str, lines: list[str]) -> None:
    """Write the section of a part, in place of an earlier one; the others stay as they are."""
    with _SAVING:
        text = results.read_text(encoding="utf-8") if results.exists() else ""
        pieces = re.split(r"^## (\S+)\n", text, flags=re.MULTILINE)[1:]
        sections = dict(zip(pieces[::2], pieces[1::2], strict=True)) | {part: "\n".join(lines) + "\n\n"}
        ordered = [name for name in PARTS if name in sections]
        whole = "".join(f"## {name}\n{sections[name]}" for name in ordered)
        temporary = results.with_suffix(".part")
        temporary.write_text(f"{TITLE}\n\n{whole}", encoding="utf-8")
        os.replace(temporary, results)


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


if __name__ == "__main__":
    sys.exit(main())
