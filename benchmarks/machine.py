"""What a benchmark prints before its tables (command, machine, versions), and ways of a task timed in turns."""

import importlib.metadata
import os
import platform
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

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


def in_turns(ways: dict[str, Callable[[], Any]], rounds: int) -> tuple[dict[str, Any], dict[str, list[float]]]:
    """What each way found, and its seconds in every round; another way begins each round."""
    found, order = {}, list(ways)
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(rounds):
        for name in order[number % len(order) :] + order[: number % len(order)]:
            start = time.perf_counter()
            found[name] = ways[name]()
            seconds[name].append(time.perf_counter() - start)
    return found, seconds


def _processor() -> str:
    try:
        with open("/proc/cpuinfo") as file:
            return next(line.split(":", 1)[1].strip() for line in file if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()
