"""Reads damaged files within limits of time and memory, and counts what came of it.

A module of kinds of files has a tuple `KINDS`. Its cases are numbered, and a number and a kind give the same damage on
every machine. `run_case` tries one in this process; `main` runs thousands in others and prints a table:

    python tests/fuzz/foreign_files.py --cases 10000
    python tests/fuzz/foreign_files.py --kind "JSON Lines" --seed 17     # one case again, with its traceback

| outcome | meaning |
|---|---|
| refused | an `InputError`, in one line of at most 1,500 characters |
| harmless | what was read is what was written, or what an independent reader reads of the damaged file |
| traceback | any other error, or the process died |
| hang | no end after the time limit |
| memory | more than 2 GB, or a `MemoryError` |
| different | something else was read, without an error |
"""

import argparse
import contextlib
import importlib
import multiprocessing
import os
import random
import resource
import shutil
import sys
import tempfile
import time
import traceback
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any, NamedTuple

from fuzz.damage import damage_folder

OUTCOMES = ("refused", "harmless", "traceback", "hang", "memory", "different")
BAD = OUTCOMES[2:]
MOST_BYTES = 2 * 10**9
_ADDRESS_BYTES = 3 * 10**9  # a library may reserve what it does not use
_MOST_CHARACTERS = 1_500
_MOST_SECONDS_OF_IMPORTS = 120
_CASES_PER_WORKER = 500  # a library may keep what it has read


@dataclass(frozen=True)
class Kind:
    """A kind of file, and how it is read.

    Attributes:
        name (`str`): name in the table.
        make (callable): writes an undamaged example into an empty folder.
        read (callable): what the package reads of that folder, as a value that can be compared; raises `InputError`.
        reference (callable, *optional*): what an independent reader makes of the folder once it is damaged, as the
            same kind of value; by default whatever differs from the undamaged value must be refused.
        damage (callable, *optional*): damages the folder.
    """

    name: str
    make: Callable[[Path], None]
    read: Callable[[Path], Any]
    reference: Callable[[Path], Any] | None = None
    damage: Callable[[Path, random.Random], None] = damage_folder


class Outcome(NamedTuple):
    """What came of a case: one of `OUTCOMES`, and the error or the difference."""

    name: str
    detail: str


class Examples:
    """Undamaged examples of kinds, each written once and read once."""

    def __init__(self, folder: Path):
        self._folder = folder
        self._values: dict[str, Any] = {}

    def of(self, kind: Kind) -> tuple[Path, Any]:
        """The folder with the example, and what is read of it."""
        path = self._folder / f"example of {kind.name.replace('/', ' ')}"
        if kind.name not in self._values:
            path.mkdir(parents=True)
            kind.make(path)
            self._values[kind.name] = kind.read(path)
        return path, self._values[kind.name]


def run_case(kind: Kind, seed: int, examples: Examples, folder: Path) -> Outcome:
    """Damage an example in a folder of its own, and read it in this process.

    Args:
        kind ([`Kind`]): the kind.
        seed (`int`): number of the case.
        examples ([`Examples`]): undamaged examples.
        folder (`Path`): a folder that does not exist; deleted afterwards.
    """
    from hmm_datasets.errors import InputError

    example, written = examples.of(kind)
    shutil.copytree(example, folder)
    try:
        kind.damage(folder, random.Random(f"{kind.name} {seed}"))
        _forget_peak()
        before, value = _memory("VmHWM"), None
        try:
            with _limited_memory():
                value = kind.read(folder)
        except InputError as error:
            outcome = Outcome("refused" if len(str(error)) <= _MOST_CHARACTERS else "traceback", str(error))
        except MemoryError:
            outcome = Outcome("memory", traceback.format_exc())
        except (KeyboardInterrupt, GeneratorExit):
            raise
        except BaseException:  # a panic of Rust, or SystemExit
            outcome = Outcome("traceback", traceback.format_exc())
        else:
            outcome = None
        grown = _memory("VmHWM") - before
        if grown > MOST_BYTES:
            return Outcome("memory", f"{grown:,} bytes")
        return _compared(kind, folder, written, value) if outcome is None else outcome
    finally:
        if folder.is_dir():
            shutil.rmtree(folder)
        else:
            folder.unlink(missing_ok=True)


def _compared(kind: Kind, folder: Path, written: Any, value: Any) -> Outcome:
    if _same(value, written):
        return Outcome("harmless", "")
    if kind.reference is None:
        return Outcome("different", f"{_shortened(written)} was written, {_shortened(value)} is read")
    try:
        expected = kind.reference(folder)
    except Exception as error:
        expected = error
    if _same(value, expected):
        return Outcome("harmless", "")
    return Outcome("different", f"{_shortened(expected)} is in the file, {_shortened(value)} is read")


def _same(value: Any, other: Any) -> bool:
    return type(value) is type(other) and (repr(value) == repr(other))


def _shortened(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 300 else f"{text[:200]}...{text[-90:]}"


@contextlib.contextmanager
def _limited_memory() -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (_memory("VmSize") + _ADDRESS_BYTES, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


def _memory(name: str) -> int:
    """A figure of this process in bytes, of `/proc/self/status`."""
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) << 10 for line in file if line.startswith(f"{name}:"))


def _forget_peak() -> None:
    with contextlib.suppress(OSError):  # then the peak of an earlier case counts too
        Path("/proc/self/clear_refs").write_text("5")


def _work(module: str, pipe: Any, folder: str) -> None:
    """Run the cases that arrive in a pipe, in a process of its own."""
    silent = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(silent, number)
    kinds = {kind.name: kind for kind in importlib.import_module(module).KINDS}
    examples = Examples(Path(folder))
    pipe.send(None)  # it has imported what it needs
    with contextlib.suppress(EOFError):
        while True:
            name, seed = pipe.recv()
            try:
                examples.of(kinds[name])
                pipe.send(None)  # the time of the case begins here
                outcome = run_case(kinds[name], seed, examples, Path(folder) / "case")
            except Exception:  # of the kind itself
                outcome = Outcome("traceback", traceback.format_exc())
            pipe.send(outcome)


class _Worker:
    """A process that runs one case after the other; another one replaces it when it hangs, dies or has grown old."""

    def __init__(self, module: str, folder: Path, seconds: float):
        self._module, self._folder, self._seconds = module, folder, seconds
        self._process: Any = None
        self._started = 0
        self.case: tuple[str, int] | None = None

    def start(self, case: tuple[str, int]) -> None:
        """Begin a case."""
        if self._process is None:
            context = multiprocessing.get_context("forkserver")
            self._pipe, theirs = context.Pipe()
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder.mkdir(parents=True)
            self._process = context.Process(target=_work, args=(self._module, theirs, str(self._folder)), daemon=True)
            self._process.start()
            theirs.close()
            self._started = 0
            self._pipe.poll(_MOST_SECONDS_OF_IMPORTS)
            self._pipe.recv()
        self.case, self._until = case, time.monotonic() + _MOST_SECONDS_OF_IMPORTS
        self._started += 1
        self._pipe.send(case)

    @property
    def waits_for(self) -> Any:
        """What becomes ready when the case ends."""
        return self._pipe

    def outcome(self) -> Outcome | None:
        """The outcome of the case, None while it runs."""
        if self._pipe.poll():
            try:
                outcome = self._pipe.recv()
                if outcome is None:
                    self._until = time.monotonic() + self._seconds
                    return None
            except (EOFError, ConnectionResetError):
                self._process.join()
                outcome = Outcome("traceback", f"the process ended with {self._process.exitcode}")
                self._process = None
        elif time.monotonic() > self._until:
            outcome = Outcome("hang", f"no end after {self._seconds:g} s")
            self.stop()
        else:
            return None
        self.case = None
        if self._started >= _CASES_PER_WORKER:
            self.stop()
        return outcome

    def stop(self) -> None:
        """End the process."""
        if self._process is not None:
            self._process.kill()
            self._process.join()
            self._process = None


def run_cases(
    module: str, cases: Iterable[tuple[str, int]], *, workers: int, seconds: float
) -> Iterator[tuple[str, int, Outcome]]:
    """Run cases of a module's `KINDS` in other processes.

    Args:
        module (`str`): name of the module, such as `"fuzz.foreign_files"`.
        cases (iterable of `tuple[str, int]`): names of kinds and numbers of cases.
        workers (`int`): number of processes.
        seconds (`float`): time limit of a case.

    Returns:
        Iterator of kind, number and outcome, in the order in which the cases end.
    """
    multiprocessing.get_context("forkserver").set_forkserver_preload([module])
    remaining = iter(cases)
    with tempfile.TemporaryDirectory() as folder:
        crew = [_Worker(module, Path(folder, str(number)), seconds) for number in range(workers)]
        try:
            busy: list[_Worker] = []
            while True:
                for worker in crew:
                    if worker.case is None and (case := next(remaining, None)) is not None:
                        worker.start(case)
                busy = [worker for worker in crew if worker.case is not None]
                if not busy:
                    return
                wait([worker.waits_for for worker in busy], timeout=1)
                for worker in busy:
                    kind, seed = worker.case or ("", 0)
                    outcome = worker.outcome()
                    if outcome is not None:
                        yield kind, seed, outcome
        finally:
            for worker in crew:
                worker.stop()


def table(counts: dict[str, Counter[str]]) -> str:
    """The number of cases of each kind by outcome, in Markdown."""
    total: Counter[str] = sum(counts.values(), Counter())
    lines = [f"| kind | cases | {' | '.join(OUTCOMES)} |", "|---|" + "---:|" * (len(OUTCOMES) + 1)]
    for name, count in [*counts.items(), ("all", total)]:
        cells = [str(count.total()), *(str(count[outcome]) for outcome in OUTCOMES)]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main(module: str, kinds: Sequence[Kind]) -> int:
    """Run the cases that the command line asks for, and print the table; 1 if one of them ended badly."""
    parser = argparse.ArgumentParser(description=importlib.import_module(module).__doc__)
    parser.add_argument("--cases", type=int, default=1_000, help="number of cases, divided among the kinds")
    parser.add_argument("--first", type=int, default=0, help="number of the first case of each kind")
    parser.add_argument("--kind", action="append", choices=[kind.name for kind in kinds], help="only this kind")
    parser.add_argument("--seed", type=int, help="only this case of a kind, in this process, with its traceback")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=10.0, help="time limit of a case")
    parser.add_argument("--shown", type=int, default=3, help="bad cases to print of each kind and outcome")
    chosen = parser.parse_args()
    names = chosen.kind or [kind.name for kind in kinds]
    if chosen.seed is not None:
        with tempfile.TemporaryDirectory() as folder:
            examples = Examples(Path(folder))
            for kind in kinds:
                if kind.name in names:
                    print(kind.name, *run_case(kind, chosen.seed, examples, Path(folder) / "case"), sep="\n")
        return 0
    each = -(-chosen.cases // len(names))
    cases = [(name, seed) for seed in range(chosen.first, chosen.first + each) for name in names][: chosen.cases]
    counts: dict[str, Counter[str]] = {name: Counter() for name in names}
    printed: defaultdict[tuple[str, str], int] = defaultdict(int)
    for kind, seed, outcome in run_cases(module, cases, workers=chosen.workers, seconds=chosen.seconds):
        counts[kind][outcome.name] += 1
        printed[kind, outcome.name] += 1
        if outcome.name in BAD and printed[kind, outcome.name] <= chosen.shown:
            print(f"{kind}, --seed {seed}: {outcome.name}: {outcome.detail.strip()[-1_000:]}\n", file=sys.stderr)
    print(table(counts))
    return int(any(count[outcome] for count in counts.values() for outcome in BAD))
