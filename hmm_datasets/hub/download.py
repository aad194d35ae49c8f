"""Reading from the Hub: which repository a name means, and its files in the cache, all of one commit.

A name is `"USER/NAME"`, or an address as huggingface_hub writes it: `"hf://USER/NAME"`, `"hf://datasets/USER/NAME"`,
each with an optional `@REVISION` and an optional path of a file or folder after it. The files are those of
huggingface_hub's cache, so `HF_ENDPOINT`, `HF_HUB_OFFLINE`, `HF_TOKEN` and `HF_HOME` work as everywhere. Nothing that
is downloaded is executed, and no pickle is read.
"""

import contextlib
import os
import re
import socket
import sys
from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Literal, TypeVar
from urllib.parse import urlsplit
from urllib.request import getproxies

from ..compat.huggingface_hub import answered_within, is_silent, server_message
from ..errors import InputError, first_line, is_disk_full, is_path_error, path_errors
from ..files import file_digest
from ..runtime import environment
from ..runtime.once import once

PREFIX = "hf://"
RepoType = Literal["model", "dataset"]
Result = TypeVar("Result")
_PATIENCE = 30.0
"""Seconds to wait for the Hub to answer."""


@dataclass(frozen=True)
class Repository:
    """A repository on the Hub, or a file or folder in it.

    Attributes:
        repo_id (`str`): `"USER/NAME"`.
        repo_type (`str`): `"model"` or `"dataset"`.
        revision (`str`, *optional*): branch, tag or commit; None means the main branch.
        path (`str`): path in the repository; empty for the repository itself.
    """

    repo_id: str
    repo_type: RepoType = "model"
    revision: str | None = None
    path: str = ""

    @classmethod
    def parse(
        cls, name: str | os.PathLike, revision: str | None = None, repo_type: RepoType = "model"
    ) -> "Repository":
        """The repository that a name means.

        Args:
            name (`str`): `"USER/NAME"` or an address that starts with `hf://`.
            revision (`str`, *optional*): branch, tag or commit; an address may contain it instead.
            repo_type (`str`, *optional*, defaults to `"model"`): type of the repository, unless an address says it.

        Raises:
            `InputError`: the name is malformed, or the address contains another revision.

        ```python
        >>> Repository.parse("hf://datasets/me/stories@v1/train")
        Repository(repo_id='me/stories', repo_type='dataset', revision='v1', path='train')

        ```
        """
        from huggingface_hub import HfUri, parse_hf_uri
        from huggingface_hub.errors import HfUriError

        name = str(name)
        try:
            uri = parse_hf_uri(name) if is_address(name) else HfUri(type=repo_type, id=name)
        except HfUriError as error:
            raise InputError(
                f"{name}: not the name of a repository, expected USER/NAME or hf://... ({error})"
            ) from None
        if uri.type not in ("model", "dataset"):
            raise InputError(f"{name}: expected a repository of a model or data set, as in hf://datasets/USER/NAME")
        if revision is not None and uri.revision not in (None, revision):
            raise InputError(f"{name}: contains the revision {uri.revision}, but revision={revision!r} was given")
        return cls(uri.id, uri.type, uri.revision or revision, uri.path_in_repo)

    def __str__(self) -> str:
        from huggingface_hub import HfUri

        uri = HfUri(type=self.repo_type, id=self.repo_id, revision=self.revision, path_in_repo=self.path).to_uri()
        return uri.replace(f"{PREFIX}models/", PREFIX)

    def __truediv__(self, name: str) -> "Repository":
        return replace(self, path=f"{self.path}/{name}".strip("/"))

    def at(self, commit: str | None) -> "Repository":
        """The same at a commit."""
        return replace(self, revision=commit)

    def pinned(self) -> "Repository":
        """The same at the commit that it means while this command runs; see [`pinned_revision`]."""
        return self.at(pinned_revision(self.repo_id, self.revision, self.repo_type))

    @staticmethod
    def commit_of(path: Path) -> str:
        """The commit that a file of huggingface_hub's cache belongs to, from its path."""
        return path.parts[path.parts.index("snapshots") + 1]


def is_address(name: str | os.PathLike) -> bool:
    """Whether a name is an address on the Hub, such as `"hf://datasets/USER/NAME"`."""
    return str(name).startswith(PREFIX)


@dataclass(frozen=True)
class ModelName:
    """Where a model is, and which file it is if it is a GGUF file.

    Attributes:
        place (`str`): a folder, or `"USER/NAME"` on the Hub.
        revision (`str`, *optional*): branch, tag or commit on the Hub; None means the main branch.
        gguf_file (`str`, *optional*): name of the GGUF file there; None for a model of transformers.
        on_hub (`bool`): whether the place is on the Hub.
    """

    place: str
    revision: str | None = None
    gguf_file: str | None = None
    on_hub: bool = False

    @classmethod
    def parse(cls, name: str | os.PathLike) -> "ModelName":
        """What a name means.

        Args:
            name (`str`): a folder; a file `x.gguf`; or on the Hub `"USER/NAME"` or `"USER/NAME:FILE.gguf"`, each with
                an optional `@REVISION` at its end. A folder without a `config.json` means its only GGUF file.

        Raises:
            `InputError`: a folder has several GGUF files, and no `config.json`.

        ```python
        >>> ModelName.parse("me/llama:q8.gguf@v1")
        ModelName(place='me/llama', revision='v1', gguf_file='q8.gguf', on_hub=True)

        ```
        """
        name = os.fspath(name)
        path = Path(name)
        with path_errors(name):
            if path.is_dir():
                return cls(name, gguf_file=_only_gguf(path))
            repository, _, revision = name.partition("@")
            place, colon, file = repository.partition(":")
            if _is_gguf(name) and (path.is_file() or not colon):
                return cls(str(path.parent), gguf_file=path.name)
            if path.is_file():
                return cls(name)
            if not _is_gguf(file):
                return cls(repository, revision or None, on_hub=True)
            return cls(place, revision or None, file, on_hub=True)

    def __str__(self) -> str:
        file = "" if self.gguf_file is None else f"{':' if self.on_hub else os.sep}{self.gguf_file}"
        return f"{self.place}{file}" + ("" if self.revision is None else f"@{self.revision}")

    def at(self, revision: str | None) -> "ModelName":
        """The same at a revision."""
        return replace(self, revision=revision)

    def pinned(self) -> "ModelName":
        """The same at the commit that it means while this command runs; see [`pinned_revision`]."""
        return self.at(pinned_revision(self.place, self.revision)) if self.on_hub else self


def _is_gguf(name: str) -> bool:
    return name.lower().endswith(".gguf")


def _only_gguf(folder: Path) -> str | None:
    """The GGUF file of a folder that has no other model."""
    if (folder / "config.json").exists() or (folder / "adapter_config.json").exists():
        return None
    names = sorted(path.name for path in folder.iterdir() if _is_gguf(path.name))
    if len(names) > 1:
        raise InputError(
            f"{folder}: has no config.json and {len(names)} GGUF files, so it is not known which one is the model; "
            f"name one of them, such as {folder / names[0]}"
        )
    return names[0] if names else None


def without_network() -> bool:
    """Whether only what was downloaded before is there, because the Hub cannot be reached; see [`why_unreachable`]."""
    return why_unreachable() is not None


def why_unreachable() -> str | None:
    """Why the Hub cannot be reached: its name cannot be resolved, or it did not answer; None if neither is known.

    huggingface_hub tries each request for half a minute then. Behind a proxy the names are those that the proxy knows.
    """
    from huggingface_hub import constants

    only = "and what was downloaded before does not have it"
    if is_silent(urlsplit(constants.ENDPOINT).netloc):
        return f"{constants.ENDPOINT} did not answer within {_PATIENCE:.0f} s, {only}"
    if constants.HF_HUB_OFFLINE or getproxies() or _resolves(constants.ENDPOINT):
        return None
    return f"the Hub's address cannot be resolved here, {only}"


def reason_of_hub(error: BaseException) -> str:
    """Why something could not be read from the Hub: it cannot be reached, what it says, or the error's first line."""
    return why_unreachable() or server_message(error) or first_line(error)


@cache
def _resolves(address: str) -> bool:
    parts = urlsplit(address)
    try:
        socket.getaddrinfo(parts.hostname, parts.port or parts.scheme)
    except OSError:
        return False
    return True


@contextlib.contextmanager
def reading_hub(is_read: bool = True) -> Generator[None]:
    """A context in which the Hub is read, which ends, if it does not answer, and says meanwhile what it waits for.

    Args:
        is_read (`bool`, *optional*, defaults to `True`): whether the Hub is read at all; otherwise nothing changes.
    """
    if not is_read:
        yield
        return

    def notice(line: str) -> None:
        if environment.rank() == 0:
            print(line, file=sys.stderr, flush=True)

    with answered_within(_PATIENCE, notice):
        yield


def pinned_revision(repo_id: str, revision: str | None, repo_type: RepoType = "model") -> str | None:
    """The revision, resolved to a commit that stays the same while a command runs, whatever is pushed meanwhile.

    It is a [`~huggingface_hub.ResolvedRevision`], a string like the revision itself; or the revision itself if the Hub
    has none, or does not answer: what reads the files then reports why.
    """
    from huggingface_hub import resolve_revision
    from huggingface_hub.errors import HFValidationError, RevisionResolutionError

    def resolved() -> str | None:
        try:
            with reading_hub():
                return resolve_revision(
                    repo_id, repo_type=repo_type, revision=revision, local_files_only=without_network()
                )
        except (HFValidationError, RevisionResolutionError, OSError):
            return revision

    return once((repo_id, revision, repo_type), resolved)


def parent_of(path: str) -> str:
    """The folder of a file: its path, or its address on the Hub."""
    return path.rpartition("/")[0]


def download(
    name: str,
    patterns: Sequence[str],
    *,
    revision: str | None = None,
    repo_type: RepoType = "model",
    expected: str = "a repository",
) -> Path:
    """Download the files of a repository that match some patterns.

    Args:
        name (`str`): see [`Repository.parse`], also for `revision` and `repo_type`.
        patterns (sequence of `str`): patterns as in `fnmatch`.
        expected (`str`, *optional*): what the repository should be, for the error message.

    Returns:
        `Path`: the folder of the files in the cache, below a folder whose name is the commit that they belong to.

    Raises:
        `InputError`: there is no such repository or revision, or the Hub refuses or cannot be reached.
    """
    from huggingface_hub import snapshot_download

    def action() -> str:
        repo = Repository.parse(name, revision, repo_type).pinned()
        folder = snapshot_download(
            repo.repo_id,
            repo_type=repo.repo_type,
            revision=repo.revision,
            allow_patterns=[f"{repo.path}/{pattern}".strip("/") for pattern in patterns],
            local_files_only=without_network(),
        )
        return os.path.join(folder, repo.path)

    return Path(_explained(name, f"neither a folder nor {expected} on the Hub", action))


def download_file(file: Repository) -> Path:
    """Download one file unless the cache has it; see [`download`]."""
    from huggingface_hub import hf_hub_download

    def action() -> str:
        return hf_hub_download(
            *(file.repo_id, file.path),
            repo_type=file.repo_type,
            revision=file.pinned().revision,
            local_files_only=without_network(),
        )

    return Path(_explained(str(file), "cannot be read from the Hub", action))


def model_file(model: str, name: str) -> Path | None:
    """A file of a model, which is downloaded from the Hub; None if there is none or the Hub cannot be reached.

    Args:
        model (`str`): see [`ModelName.parse`]. A GGUF file of this machine has no other files.
        name (`str`): name of the file.
    """
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError

    model_name = ModelName.parse(model).pinned()
    if not model_name.on_hub:
        path = Path(model_name.place, name)
        return path if path.is_file() and model_name.gguf_file in (None, name) else None
    try:
        alone = without_network()
        with reading_hub():
            return Path(hf_hub_download(model_name.place, name, revision=model_name.revision, local_files_only=alone))
    except (HfHubHTTPError, HFValidationError, OSError):
        return None


def check_downloaded(folder: Path, names: Iterable[str]) -> None:
    """Compare files of huggingface_hub's cache with the hashes that the Hub gave when they were downloaded.

    The cache names the content of each file by its hash: SHA-256 for large files, that of git for others. So no
    network is needed. Hashing reads every file once, at 0.5 to 2 GB/s.

    Args:
        folder (path): a folder of the cache.
        names (iterable of `str`): names of files in it.

    Raises:
        `InputError`: a file has changed.
    """
    from huggingface_hub.utils.sha import git_hash

    for name in names:
        content = (folder / name).resolve()
        digits = len(content.name) if re.fullmatch("[0-9a-f]+", content.name) else 0
        if digits not in (40, 64):  # a copy, where the file system has no links
            continue
        digest = file_digest(content) if digits == 64 else git_hash(content.read_bytes())
        if digest != content.name:
            raise InputError(
                f"{folder / name}: the Hub's file has the hash {content.name}, but this one has {digest}; delete "
                f"{content}, and it is downloaded again"
            )


def commit_of(model: str) -> str | None:
    """The commit that a model's name on the Hub means now; None for a folder, or if it cannot be found out."""
    model_name = ModelName.parse(model)
    path = model_file(model, model_name.gguf_file or "config.json") if model_name.on_hub else None
    return None if path is None else Repository.commit_of(path)


def branches_of(model: str) -> list[str]:
    """The names of the branches of a model's repository.

    Raises:
        `InputError`: there is no such repository, or the Hub refuses or cannot be reached.
    """
    from huggingface_hub import HfApi

    def action() -> list[str]:
        return [branch.name for branch in HfApi().list_repo_refs(ModelName.parse(model).place).branches]

    return _explained(model, "cannot be read from the Hub", action)


def _explained(name: str, problem: str, action: Callable[[], Result]) -> Result:
    """Run `action`; turn an error of the Hub into one line."""
    from huggingface_hub.errors import HFValidationError

    try:
        with reading_hub():
            return action()
    except (InputError, OSError, HFValidationError) as error:
        if is_disk_full(error) or (is_path_error(error) and getattr(error, "filename", None)):
            raise
        reason = reason_of_hub(error).removeprefix(f"{name}: ")
        raise InputError(f"{name}: {problem} ({reason})") from None
