"""How long a user waits: for the commands that are typed most, for `make test` and for `make demo`.

    python benchmarks/waiting.py [--part commands tests demo] [--rounds 5] [--beside CHECKOUT]

`commands` starts each command several times, in turns, and prints the seconds until its first line and until its end,
beside those of what it cannot be faster than: the imports of torch and of a model of transformers. The first
`describe` after an installation compiles its kernels, in an empty cache of numba's. `tests` runs `make test`, and
`demo` runs `make demo` in a new clone with nothing installed but Python; both print minutes by the clock and of all
processors. With `--beside`, the commands and the demo of another checkout, such as one of an older commit, are timed
in the same run, with the libraries installed here. Nothing else should run on the machine meanwhile.
"""

import argparse
import os
import pty
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from machine import against_goal, print_heading

from hmm_datasets.report.tables import text_table

ROOT = Path(__file__).resolve().parent.parent
PYTHON = Path(sys.executable)
CLI = (sys.executable, "-m", "hmm_datasets.cli")
PLAN = (*CLI, "plan", "pretrain", "--config", "zac_gpt/pretrain.yaml", "--assumed_vocab_size", "32768")
IMPORTS = "from transformers import LlamaForCausalLM, TrainingArguments"
COMMANDS = {
    "hmm-datasets --help": ((*CLI, "--help"), None),
    "python -c 'import torch'": ((sys.executable, "-c", "import torch"), None),
    "hmm-datasets describe mess3": ((*CLI, "describe", "mess3"), 2.0),
    f"python -c '{IMPORTS}'": ((sys.executable, "-c", IMPORTS), None),
    "hmm-datasets plan pretrain, of zac_gpt": (PLAN, 3.0),
}
"""By what is typed, the command, and the seconds that it is to take at most."""


def commands(rounds: int, checkouts: list[Path]) -> None:
    """Seconds until the first line, and until the end: medians of the rounds, after one that is not counted."""
    seconds: dict[str, list[list[tuple[float, float]]]] = {name: [[] for _ in checkouts] for name in COMMANDS}
    for turn in range(rounds + 1):
        for name, (command, _) in COMMANDS.items():
            for times, checkout in zip(seconds[name], checkouts, strict=True):
                taken = _seconds(command, checkout)
                if turn:
                    times.append(taken)
    first = "hmm-datasets describe mess3, the first"
    seconds[first] = []
    for checkout in checkouts:
        with tempfile.TemporaryDirectory() as cache:
            seconds[first].append([_seconds((*CLI, "describe", "mess3"), checkout, NUMBA_CACHE_DIR=cache)])
    goals = {name: goal for name, (_, goal) in COMMANDS.items()} | {first: 4.0}
    table = []
    for name, of_checkouts in seconds.items():
        medians = [[statistics.median(column) for column in zip(*pairs, strict=True)] for pairs in of_checkouts]
        row = [text for begun, ended in medians for text in ("" if begun == ended else f"{begun:.2f}", f"{ended:.2f}")]
        goal = goals[name]
        met = "" if goal is None else against_goal(medians[0][1], goal, f"{goal:g} s", at_most=True)
        table.append([name, *row, met])
    print(f"\nSeconds in a terminal, medians of {rounds}\n")
    beside = ["first line, beside", "end, beside"][: 2 * len(checkouts) - 2]
    print(text_table(["command", "first line", "end", *beside, "goal"], table))


def _seconds(command: tuple[str, ...], checkout: Path, **variables: str) -> tuple[float, float]:
    """Seconds until a command of a checkout prints something on a terminal, and until it ends."""
    variables["PYTHONPATH"] = str(checkout)
    ours, theirs = pty.openpty()
    began, first = time.perf_counter(), None
    with subprocess.Popen(
        command, cwd=checkout, env=os.environ | variables, stdin=theirs, stdout=theirs, stderr=theirs
    ) as process:
        os.close(theirs)
        while True:
            try:
                printed = os.read(ours, 1 << 16)
            except OSError:  # the other end is closed
                break
            if not printed:
                break
            first = first or time.perf_counter() - began
    os.close(ours)
    ended = time.perf_counter() - began
    if process.returncode != 0:
        raise SystemExit(f"{' '.join(command)}: exit code {process.returncode}")
    return first or ended, ended


def tests() -> None:
    """`make test` here, where everything is installed."""
    minutes, of_processors = _make("test", ROOT)
    goal = against_goal(of_processors, 8.0, "8 minutes of processors", at_most=True)
    print(f"\nmake test: {minutes:.1f} minutes by the clock, {of_processors:.1f} of processors; {goal}")


def demo(checkouts: list[Path]) -> None:
    """`make demo` in new clones, installation included."""
    for checkout in checkouts:
        with tempfile.TemporaryDirectory() as folder:
            clone = Path(folder) / "clone"
            subprocess.run(["git", "clone", "-q", str(checkout), str(clone)], check=True)
            minutes, of_processors = _make("demo", clone)
        goal = against_goal(60 * minutes, 300.0, "300 s", at_most=True)
        head = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=checkout, capture_output=True, text=True)
        print(
            f"\nmake demo of {head.stdout.strip()}, installing first: {60 * minutes:.0f} s, "
            f"{of_processors:.1f} minutes of processors; {goal}",
            flush=True,
        )


def _make(target: str, folder: Path) -> tuple[float, float]:
    """Minutes by the clock, and of all processors that it and its children took."""
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run(["make", target], cwd=folder, stdout=subprocess.DEVNULL, check=True)
    after, seconds = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter() - began
    taken = after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime
    return seconds / 60, taken / 60


def main() -> None:
    """Time what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--part", nargs="+", choices=("commands", "tests", "demo"), default=["commands"])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--beside", type=Path, nargs=1, default=[], help="another checkout, to time too")
    settings = parser.parse_args()
    checkouts = [ROOT, *(path.resolve() for path in settings.beside)]
    print_heading(["hmm-datasets", "torch", "transformers", "numba"])
    parts = {"commands": lambda: commands(settings.rounds, checkouts), "tests": tests, "demo": lambda: demo(checkouts)}
    for part in settings.part:
        parts[part]()


if __name__ == "__main__":
    main()
