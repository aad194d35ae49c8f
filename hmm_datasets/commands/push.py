"""Pushing a folder to the Hub."""

from dataclasses import dataclass
from pathlib import Path

from ..hub.push import PushSettings
from ..runtime.settings import argument


@dataclass(frozen=True, kw_only=True)
class PushCommand(PushSettings):
    """Push a run, HMM, data set or anything else to the Hub, in one commit."""

    path: Path = argument("PATH", "folder, or 'process:mess3(x=0.05, a=0.85)'")
    repo_id: str = argument("REPO_ID", "USER/NAME")


def push_command(arguments: PushCommand) -> int:
    """Push what belongs to a path to the Hub."""
    from ..hub.kinds.push import push_path

    push_path(arguments.path, arguments.repo_id, arguments)
    return 0
