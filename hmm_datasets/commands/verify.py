"""Checking that files have not changed."""

from dataclasses import dataclass
from pathlib import Path

from ..runtime.settings import argument


@dataclass(frozen=True, kw_only=True)
class VerifyCommand:
    """Check that the files of a folder are complete and have not changed."""

    path: Path = argument("PATH", "process, tokens, tokenizer, checkpoint, model or run, or a folder of them")


def verify_command(arguments: VerifyCommand) -> int:
    """Check all files in a folder that this package wrote; fail if one differs."""
    from ..operations.verification import verify
    from ..training.checkpoints.inspection import list_steps

    failed, complete = False, set()
    for result in verify(arguments.path):
        failed |= not result.ok
        if result.ok:
            complete.add(result.folder)
        for line in result.problems or (f"{result.folder}: {result.contents}",):
            print(f"{'ok  ' if result.ok else 'BAD '}  {line}", flush=True)
    checkpoints = [arguments.path / f"checkpoint-{step}" for step in list_steps(arguments.path)]  # newest first
    if checkpoints:
        newest = next((folder for folder in checkpoints if folder in complete), None)
        print("no checkpoint to resume from" if newest is None else f"resume from {newest}")
    return 1 if failed else 0
