"""`hmm-datasets push`: what belongs to a path goes to a repository, whatever the path is.

[`push_path`] recognizes the kind of the path, says what it is going to push, makes Parquet files and a card where the
kind has them, and pushes all of it in one commit. Each checkpoint of a run can go to a branch of its own.
"""

import os
import re
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ...display import counted, format_bytes
from ...errors import InputError
from ...files import DIGESTS_NAME, missing_files, scratch_folder
from ...hmm.loading import load_source
from ...hmm.names import SAVED_NAME, is_process_name
from ...runtime.run_records import read_run_record
from ..cards import CARD_NAME, PLACEHOLDER, is_own_card
from ..contents import files_in, model_files
from ..licences import with_licence
from ..push import Push, PushResult, PushSettings
from .recognition import Contents, detect_kind

_TITLE = re.compile(r"^# (?!Written by).*$", re.MULTILINE)


def push_path(
    path: str | os.PathLike,
    repo_id: str,
    settings: PushSettings | None = None,
    *,
    token: str | None = None,
    endpoint: str | None = None,
    say: Callable[[str], object] = print,
) -> list[PushResult]:
    """Recognize what a path is, say what of it is pushed, and push it.

    Args:
        path (path): a run, HMM, family, fit, data set of an HMM, token stream, word corpus, or any other
            folder; or the name of a process, such as `"process:mess3(x=0.05)"`.
        repo_id (`str`): `"USER/NAME"`, or `"NAME"` for the token's own user.
        settings ([`PushSettings`], *optional*): which type of repository, branch and so on.
        token (`str`, *optional*): a token with write access; by default the token of huggingface_hub.
        endpoint (`str`, *optional*): address of the Hub.
        say (callable, *optional*, defaults to `print`): takes lines for the user.

    Returns:
        list of [`PushResult`]: of each branch, the main one last; empty for a dry run.

    Raises:
        [`InputError`]: there is nothing to push, or see [`~hmm_datasets.push_folder`].
    """
    settings = settings or PushSettings()
    if is_process_name(path):
        with tempfile.TemporaryDirectory(prefix="process.") as scratch:
            folder = Path(scratch) / "process"
            load_source(str(path)).save_pretrained(folder)
            return push_path(folder, repo_id, settings, token=token, endpoint=endpoint, say=say)
    contents = detect_kind(path, settings.repo_type)
    if not contents.files and contents.make is None:
        raise InputError(f"{path}: no files to push, only hidden files, caches or checkpoints")
    card = contents.files.get(CARD_NAME)
    if settings.license and card is not None and not is_own_card(card.parent):
        raise InputError(f"license is {settings.license}, but {card} was written or edited by hand; state it there")
    _check_complete(contents.folder)
    for line in plan_lines(path, contents, repo_id, settings):
        say(line)
    if settings.dry_run:
        return []
    target: dict[str, Any] = {"repo_type": contents.repo_type, "private": settings.private}
    target |= {"token": token, "endpoint": endpoint}

    def push(files: Mapping[str, Path], revision: str | None, message: str | None) -> PushResult:
        result = Push(files, repo_id, contents.folder, revision=revision, message=message, **target).run()
        say(_report(result, revision))
        return result

    results = []
    for checkpoint in contents.checkpoints if settings.include_checkpoints else ():
        branch = branch_of(checkpoint)
        message = f"Checkpoint of step {branch.removeprefix('step-')}"
        results.append(push(checkpoint_files(checkpoint), branch, message))
    with scratch_folder(contents.folder.resolve()) as scratch:
        files = {**contents.files, **_made(contents, scratch, repo_id, settings)}
        return [*results, push(files, settings.revision, settings.message)]


def _check_complete(folder: Path) -> None:
    """Refuse to push a folder without a file that its digests list, or a run without the process that it named.

    Raises:
        `InputError`: one is missing.
    """
    remedy = f"bring it back, or delete {folder / DIGESTS_NAME} to push the folder as it is"
    missing = missing_files(folder)
    record = folder / "run.json"
    if not missing and record.is_file():
        settings = read_run_record(record).settings
        if is_process_name(settings.get("hmm") or "") and not (folder / SAVED_NAME).is_dir():
            missing = [f"{SAVED_NAME}/: no such folder, though run.json names {settings['hmm']}"]
            saved = f"load_source({settings['hmm']!r}).save_pretrained({str(folder / SAVED_NAME)!r})"
            remedy = f"write it in Python: from hmm_datasets import load_source; {saved}"
    if missing:
        raise InputError(f"{folder}/{missing[0]}; {remedy}")


def plan_lines(path: str | os.PathLike, contents: Contents, repo_id: str, settings: PushSettings) -> list[str]:
    """What is going to be pushed, in lines for the user."""
    size = sum(file.stat().st_size for file in contents.files.values())
    parts = [f"{counted(len(contents.files), 'file')}, {format_bytes(size)}"] if contents.files else []
    parts += [f"{contents.made}, made now"] if contents.made else []
    visibility = {None: "as the Hub makes it", True: "private", False: "public"}[settings.private]
    where = f"branch {settings.revision}" if settings.revision else "the main branch"
    lines = [
        f"{path}: {contents.kind}; {' and '.join(parts)}",
        f"to the {contents.repo_type} repository {repo_id} (a new one: {visibility}), {where}",
    ]
    if settings.include_checkpoints and not contents.checkpoints:
        raise InputError(f"{path}: has no checkpoint-N folders; leave out --include_checkpoints")
    if settings.include_checkpoints:
        branches = [branch_of(checkpoint) for checkpoint in contents.checkpoints]
        sizes = [
            sum(file.stat().st_size for file in checkpoint_files(entry).values()) for entry in contents.checkpoints
        ]
        saved = counted(len(branches), "checkpoint")
        lines.append(f"{saved} ({format_bytes(sum(sizes))}) to the branches {', '.join(branches)}")
    elif contents.checkpoints:
        saved = counted(len(contents.checkpoints), "checkpoint")
        lines.append(f"not pushed without --include_checkpoints, each to a branch: {saved}")
    if settings.dry_run:
        lines += [f"  {name}" for name in contents.files] + ["nothing was pushed (dry run)"]
    return lines


def branch_of(checkpoint: Path) -> str:
    """The branch of a checkpoint: `step-1000` for `checkpoint-1000`."""
    return f"step-{int(checkpoint.name.rpartition('-')[2])}"


def checkpoint_files(checkpoint: Path) -> dict[str, Path]:
    """The files of a checkpoint that are pushed to its branch.

    Raises:
        `InputError`: it has no weights in one piece, as checkpoints of sharded training.
    """
    files = model_files(checkpoint)
    if not any(name.endswith(".safetensors") for name in files):
        raise InputError(
            f"{checkpoint}: has no model.safetensors, only shards of ranks; train with a configuration that saves "
            "whole weights, or leave out --include_checkpoints"
        )
    return files


def _made(contents: Contents, scratch: Path, repo_id: str, settings: PushSettings) -> Mapping[str, Path]:
    """Files made for the Hub. A card that somebody wrote is kept; one of ours gets the name of the repository."""
    folder = scratch / "made"
    folder.mkdir()
    name = settings.name or repo_id.rpartition("/")[2]
    if contents.make is not None:
        contents.make(folder, name=name, licence=settings.license, repo_id=repo_id)
    made = files_in(folder)
    card = contents.files.get(CARD_NAME)
    if card is not None and not is_own_card(card.parent):
        made.pop(CARD_NAME, None)
    elif (card is not None or settings.license) and CARD_NAME not in made:
        made[CARD_NAME] = folder / CARD_NAME
        text = "" if card is None else card.read_text(encoding="utf-8").replace(PLACEHOLDER, repo_id)
        text = _TITLE.sub(lambda title: f"# {name}", text, count=1)
        text = with_licence(text, {"license": settings.license.lower()}) if settings.license else text
        made[CARD_NAME].write_text(text, encoding="utf-8")
    return made


def _report(result: PushResult, revision: str | None) -> str:
    visibility = "private" if result.private else "public"
    branch = f", branch {revision}" if revision else ""
    return (
        f"{result.url} ({visibility}{branch}) at {result.commit}: {counted(result.files, 'file')}, "
        f"{format_bytes(result.bytes)}"
    )
