"""Pushing a folder to the Hub."""

import dataclasses
from dataclasses import dataclass
from pathlib import Path

from ..runtime.settings import argument, option


@dataclass(frozen=True, kw_only=True)
class PushCommand:
    """Push a run, HMM, data set or anything else to the Hub, in one commit.

    With --config FILE.yaml instead of PATH it pushes several folders: `configs copy push.py`.
    """

    path: Path = argument("PATH", "folder, file of documents, or 'process:mess3(x=0.05, a=0.85)'")
    repo_id: str = argument("REPO_ID", "USER/NAME")
    repo_type: str | None = option(
        None,
        None,
        "default that of what PATH is; with dataset an HMM becomes a data set of its sequences",
        choices=("model", "dataset"),
    )
    dry_run: bool = option(False, None, "only say what would be pushed")
    revision: str | None = option(None, "BRANCH", "branch to push to, created if missing; default main")
    tag: str | None = option(None, "TAG", "name for the commit")
    private: bool | None = option(None, None, "make the repository private; default as the Hub does")
    include_checkpoints: bool = option(False, None, "push each checkpoint-N of a run to a branch step-N")
    licence: str | None = option(None, "ID", "licence for a card that is made, such as cc0-1.0")
    name: str | None = option(None, "TITLE", "title of a card that is made; default the repository's name")
    message: str | None = option(None, "TEXT", "message of the commit")


def push_command(arguments: PushCommand) -> int:
    """Push what belongs to a path to the Hub."""
    from ..hub.kinds.push import PushSettings, push_path

    names = (field.name for field in dataclasses.fields(PushSettings))
    push_path(arguments.path, arguments.repo_id, PushSettings(**{name: getattr(arguments, name) for name in names}))
    return 0
