"""The files of a folder that are pushed, and checks of their contents.

Hidden files, checkpoints, caches, logs of hosts and what was moved aside are not pushed by default, but
`.eval_results/` is, which the Hub reads. The Trainer's pickled arguments are never pushed. A file with something that
looks like an access token stops the push. Of records that name the machine, a copy without host name and absolute
paths is pushed; see [`.redaction`]. The digests beside them are those of the copies, so that downloaded files can be
verified. Logs of TensorBoard, which name the host and the settings of the machine, are never pushed.
"""

import hashlib
import json
import os
import re
from collections.abc import Mapping, Sequence
from fnmatch import fnmatch
from pathlib import Path

from ..errors import InputError
from ..files import DIGESTS_NAME, inside, recorded_digests
from ..runtime.credentials import MIN_SECRET_LENGTH, known_secrets
from .redaction import Redaction
from .secret_scan import find_secret

# Hidden files belong to tools; checkpoints have optimizer states of many times the size of the model.
DEFAULT_IGNORE = (
    *(".*", "*/.*", "__pycache__/*", "*/__pycache__/*", "checkpoint-*/*", "*/checkpoint-*/*"),
    *("set_aside/*", "*/set_aside/*"),
    # The log of a run's hosts, and stacks of its processes: for those who run it.
    *("events.jsonl", "*/events.jsonl", "stacks-*.txt", "*/stacks-*.txt", "heartbeats/*", "*/heartbeats/*"),
)

_NEVER = (".git", ".cache", "training_args.bin", "events.out.tfevents.*")
_RESULTS = ".eval_results/"
_MODEL_FILES = re.compile(
    r"(.*\.safetensors|.*\.safetensors\.index\.json|config\.json|generation_config\.json|adapter_config\.json|"
    r"tokenizer.*|special_tokens_map\.json|added_tokens\.json|vocab\..*|merges\.txt|chat_template\..*|trainer_state\.json)"
)
"""Files of a checkpoint that are pushed: the model, its tokenizer and the history, without what resuming needs."""


def files_in(folder: Path, ignore: Sequence[str] = ()) -> dict[str, Path]:
    """The files of a folder by their relative paths, without those that `ignore` matches; there may be none.

    A file that is deleted in the meantime is left out. Links to folders are not followed.

    Raises:
        `InputError`: one is a link out of the folder, so it may be anyone's file.
    """
    from huggingface_hub.utils import filter_repo_objects

    all_files = sorted(Path(parent, name) for parent, _, names in os.walk(folder) for name in names)
    files = {path.relative_to(folder).as_posix(): path for path in all_files if path.is_file()}
    ignore = [ignore] if isinstance(ignore, str) else list(ignore)
    # Results of evaluations are hidden files to this package, and part of the model to the Hub.
    shown = {path.removeprefix(".") if path.startswith(_RESULTS) else path: path for path in files}
    kept = [shown[path] for path in filter_repo_objects(shown, ignore_patterns=ignore)]
    all_files = {path: files[path] for path in sorted(kept) if not _is_never_pushed(path)}
    for name, path in all_files.items():
        if path.is_symlink():
            inside(folder, name)
    return all_files


def model_files(checkpoint: Path) -> dict[str, Path]:
    """The files of a checkpoint with its model, tokenizer and history, by their names."""
    return {name: file for name, file in files_in(checkpoint).items() if _MODEL_FILES.fullmatch(name)}


def files_to_push(folder: str | os.PathLike, ignore: Sequence[str]) -> dict[str, Path]:
    """The files of a folder by their relative paths, without those that `ignore` matches.

    Raises:
        `InputError`: there is no such folder, or it has no files.
    """
    folder = Path(folder)
    if not folder.is_dir():
        what_is_there = "a file" if folder.exists() else "nothing"
        raise InputError(f"{folder}: expected a folder to push, found {what_is_there}")
    chosen = files_in(folder, ignore)
    if not chosen:
        count = sum(path.is_file() for path in folder.rglob("*"))
        raise InputError(
            f"{folder}: no files to push ({count} found, all left out by ignore={ignore})"
            if count
            else f"{folder}: no files to push, the folder is empty"
        )
    return chosen


def pushable(files: Mapping[str, Path], folder: str | os.PathLike, token: str) -> dict[str, Path | bytes]:
    """What is pushed: the files, and in place of those that name this machine what is left of them without that.

    Args:
        files (mapping from `str` to `Path`): paths in the repository, and the files.
        folder (path): folder of the files; host names in its records are removed from all of them.
        token (`str`): access token of the push, which must not occur in the files.

    Raises:
        `InputError`: a file contains something that looks like an access token, or a secret of the environment.
    """
    secrets = [*known_secrets(), *([token] if len(token) >= MIN_SECRET_LENGTH else [])]
    for name, path in files.items():
        if secret := find_secret(path, secrets):
            raise InputError(
                f"{path}: contains something that looks like an access token or key ({secret}), so nothing was "
                f"pushed; remove it from {name}, or move the file out of the folder, and revoke the token if others "
                "could read it"
            )
    redaction = Redaction(Path(folder))
    contents: dict[str, Path | bytes] = dict(files)
    for name, path in files.items():
        if (text := redaction.cleaned(path)) is not None:
            contents[name] = text.encode()
    for name, path in files.items():
        if path.name == DIGESTS_NAME:
            contents[name] = _digests_of_pushed(name, path, contents)
    return contents


def _digests_of_pushed(name: str, path: Path, contents: Mapping[str, Path | bytes]) -> bytes:
    """A `digests.json` with the digests of what is pushed in place of its files."""
    digests = recorded_digests(path.parent)
    folder = name.rpartition("/")[0]
    for entry in digests:
        content = contents.get(f"{folder}/{entry}" if folder else entry)
        if isinstance(content, bytes):
            digests[entry] = hashlib.sha256(content).hexdigest()
    return json.dumps({"sha256": digests}, indent=2).encode() + b"\n"


def _is_never_pushed(path: str) -> bool:
    return any(fnmatch(part, pattern) for part in path.split("/") for pattern in _NEVER)
