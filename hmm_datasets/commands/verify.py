"""Checking that files have not changed."""

from dataclasses import dataclass
from pathlib import Path

from ..runtime.settings import argument


@dataclass(frozen=True, kw_only=True)
class VerifyCommand:
    """Check that the files of a folder have not changed."""

    path: Path = argument("PATH", "process, tokens, checkpoint or run, or a folder of them")


def verify_command(arguments: VerifyCommand) -> int:
    """Check all files in a folder that this package wrote; fail if one differs."""
    from ..operations.verification import verify

    failed = False
    for found in verify(arguments.path):
        failed |= not found.ok
        for line in found.problems or (f"{found.folder}: {found.kind}",):
            print(f"{'ok  ' if found.ok else 'BAD '}  {line}", flush=True)
    return 1 if failed else 0
