"""What a benchmark says of itself before its tables: command, machine, versions."""

import importlib.metadata
import os
import platform
import sys
from collections.abc import Sequence

CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()


def print_heading(packages: Sequence[str]) -> None:
    """Print the command, the processor, Python's version, and those of the packages."""
    print(f"$ python benchmarks/{' '.join([os.path.basename(sys.argv[0]), *sys.argv[1:]])}\n")
    print(f"{_processor()}, {CORES} cores, Python {platform.python_version()}")
    print(", ".join(f"{name} {importlib.metadata.version(name)}" for name in packages))


def against_goal(found: float, goal: float, written: str, *, at_most: bool = False) -> str:
    """What is printed beside a figure that has a goal: the goal, and whether it is met. Nothing depends on it."""
    met = found <= goal if at_most else found >= goal
    return f"{written}: {'met' if met else 'not met'}"


def _processor() -> str:
    try:
        with open("/proc/cpuinfo") as file:
            return next(line.split(":", 1)[1].strip() for line in file if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()
