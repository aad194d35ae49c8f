"""Experiments of several recipes: commands are printed and run one after another, up to the first that fails.

Branches of stages that are independent of each other can run in parallel. The output of the first branch is shown
directly. The output of the others is stored, and shown when the branches before them have finished.
"""

import contextlib
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from ..runtime.children import Children, SignalHandler, shared_environment, with_this_interpreter
from ..runtime.one_line_errors import one_line_errors
from .stage_inputs import check_stages

Stage = tuple[str, str]
"""Title and command. `hmm-datasets` and `python` in the command are those of this interpreter."""


@dataclass(frozen=True)
class Parallel:
    """Branches that run in parallel. The stages of a branch run one after another.

    Attributes:
        branches (sequence of sequences of `Stage`): they share the cores unless `OMP_NUM_THREADS` is set.
    """

    branches: Sequence[Sequence[Stage]]


def run_stages(
    stages: Sequence[Stage | Parallel],
    folder: Path = Path(),
    *,
    later: Sequence[Stage] = (),
    made: Sequence[Path] = (),
) -> int:
    """Run the stages in order. When one fails, stop those that run in parallel and start no other.

    Before the first begins, what each reads is checked (see [`~hmm_datasets.operations.stage_inputs`]). On SIGTERM the
    running stages get it too, so that they can save; no other starts, and the exit code is 143.

    Args:
        stages (sequence of `Stage` and [`Parallel`]): the stages.
        folder (`Path`, *optional*): working directory, by default the current one.
        later (sequence of `Stage`, *optional*): stages that the caller runs after these, to check with them.
        made (sequence of `Path`, *optional*): what the caller itself writes before `later`.

    Returns:
        `int`: the exit code of the first stage that failed, or 0.

    Raises:
        `InputError`: a stage could not run as it is.
    """
    groups = [entry.branches if isinstance(entry, Parallel) else ((entry,),) for entry in (*stages, *later)]
    flat = [stage for branches in groups for branch in branches for stage in branch]
    with contextlib.chdir(folder):
        check_stages([(title, shlex.split(command)) for title, command in flat], made)
    began = time.monotonic()
    code = _Run(groups[: len(stages)], folder).code
    if code == 0:
        print(f"\nAll stages took {time.monotonic() - began:.0f} s.")
    return code


def run_or_exit(stages: Sequence[Stage | Parallel], *, later: Sequence[Stage] = (), made: Sequence[Path] = ()) -> None:
    """[`run_stages`] in the current folder; if one fails, end this program with its exit code."""
    with one_line_errors():
        code = run_stages(stages, later=later, made=made)
    if code != 0:
        sys.exit(code)


class _Run:
    """Runs stages when it is made; `code` is the exit code of the first stage that failed, or 0."""

    def __init__(self, groups: Sequence[Sequence[Sequence[Stage]]], folder: Path):
        self.code = 0
        self._folder = folder
        self._total = sum(len(branch) for branches in groups for branch in branches)
        self._children = Children()
        numbers = iter(range(1, self._total + 1))
        # Programs of a run save on SIGTERM even if it was ignored, so they get it here too.
        with SignalHandler((signal.SIGTERM,), self._on_signal, stay_ignored=()):
            for branches in groups:
                numbered = [[(next(numbers), *stage) for stage in branch] for branch in branches]
                try:
                    if len(branches) == 1:
                        self._run_branch(numbered[0], shared_environment())
                    else:
                        self._run_in_parallel(numbered)
                except BaseException:  # for example an interrupt that only this process received
                    self._stop()
                    raise

    def _on_signal(self, number: signal.Signals) -> None:
        self.code = self.code or 128 + number
        self._stop()

    def _run_in_parallel(self, branches: list[list[tuple[int, str, str]]]) -> None:
        spans = ", ".join(f"{branch[0][0]} to {branch[-1][0]}" for branch in branches)
        print(f"\nStages {spans} run in parallel; their output is shown in order.", flush=True)
        environment = shared_environment(len(branches))
        with ExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            outputs = [stack.enter_context((folder / f"{branch[0][0]}").open("wb")) for branch in branches[1:]]
            pool = stack.enter_context(ThreadPoolExecutor(len(branches)))
            stack.push(lambda kind, *_: self._stop() if kind is not None else None)  # before the pool waits
            running = [
                pool.submit(self._run_branch, branch, environment, output)
                for branch, output in zip(branches, [None, *outputs], strict=True)
            ]
            running[0].result()
            for branch, output in zip(running[1:], outputs, strict=True):
                for text in _follow(Path(output.name), branch):
                    sys.stdout.write(text)
                    sys.stdout.flush()
                branch.result()

    def _run_branch(
        self, branch: list[tuple[int, str, str]], environment: dict[str, str], output: IO[bytes] | None = None
    ) -> None:
        def show(line: str) -> None:
            if output is None:
                print(line, flush=True)
            else:
                output.write(f"{line}\n".encode())
                output.flush()

        for number, title, command in branch:
            if self.code != 0:
                return
            show(f"\n[{number}/{self._total}] {title}\n$ {command}")
            started = time.monotonic()
            errors = None if output is None else subprocess.STDOUT
            words = with_this_interpreter(shlex.split(command))
            code = self._children.run(words, cwd=self._folder, env=environment, stdout=output, stderr=errors)
            if code != 0:
                if self.code == 0:
                    self.code = code
                    print(f"stage {number} failed with exit code {code}: {command}", file=sys.stderr, flush=True)
                    self._stop()
                return
            show(f"({time.monotonic() - started:.0f} s)")

    def _stop(self) -> None:
        self.code = self.code or 1
        self._children.send()


def _follow(path: Path, branch: Future) -> Iterator[str]:
    """Yield the output of a branch from its beginning until the branch has finished."""
    with path.open(encoding="utf-8", errors="replace", newline="") as file:
        while not branch.done():
            yield file.read()
            time.sleep(0.2)
        yield file.read()
