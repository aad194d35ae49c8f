"""Experiments of several recipes: commands are printed and run one after another, up to the first that fails."""

import contextlib
import shlex
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from ..runtime.children import Children, SignalHandler, exit_code, shared_environment, with_this_interpreter
from ..runtime.one_line_errors import one_line_errors
from .stage_inputs import check_stages

Stage = tuple[str, str]
"""Title and command. `hmm-datasets` and `python` in the command are those of this interpreter."""


def run_stages(
    stages: Sequence[Stage], folder: Path = Path(), *, later: Sequence[Stage] = (), made: Sequence[Path] = ()
) -> int:
    """Run the stages in order, up to the first that fails.

    Before the first begins, what each reads is checked (see [`~hmm_datasets.operations.stage_inputs`]). On SIGTERM the
    running stage gets it too, so that it can save; no other starts, and the exit code is 143.

    Args:
        stages (sequence of `Stage`): the stages.
        folder (`Path`, *optional*): working directory, by default the current one.
        later (sequence of `Stage`, *optional*): stages that the caller runs after these, to check with them.
        made (sequence of `Path`, *optional*): what the caller itself writes before `later`.

    Returns:
        `int`: the exit code of the first stage that failed, or 0.

    Raises:
        `InputError`: a stage could not run as it is.
    """
    with contextlib.chdir(folder):
        check_stages([(title, shlex.split(command)) for title, command in (*stages, *later)], made)
    children, began = Children(), time.monotonic()
    # Programs of a run save on SIGTERM even if it was ignored, so they get it here too.
    with SignalHandler((signal.SIGTERM,), children.send, stay_ignored=()):
        for number, (title, command) in enumerate(stages, start=1):
            print(f"\n[{number}/{len(stages)}] {title}\n$ {command}", flush=True)
            started = time.monotonic()
            try:
                words = with_this_interpreter(shlex.split(command))
                code = exit_code(children.run(words, cwd=folder, env=shared_environment()))
            except BaseException:  # for example an interrupt that only this process received
                children.send()
                raise
            if children.asked is not None:
                return 128 + children.asked
            if code != 0:
                print(f"stage {number} failed with exit code {code}: {command}", file=sys.stderr, flush=True)
                return code
            print(f"({time.monotonic() - started:.0f} s)", flush=True)
    print(f"\nAll stages took {time.monotonic() - began:.0f} s.")
    return 0


def run_or_exit(stages: Sequence[Stage], *, later: Sequence[Stage] = (), made: Sequence[Path] = ()) -> None:
    """[`run_stages`] in the current folder; if one fails, end this program with its exit code."""
    with one_line_errors():
        code = run_stages(stages, later=later, made=made)
    if code != 0:
        sys.exit(code)
