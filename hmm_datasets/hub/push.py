"""Pushing a folder to the Hub: make one commit of its files, and check that it has all of them.

huggingface_hub retries the upload of a file, but neither the creation of a repository nor a commit. Its
`upload_folder` may split a folder into several commits, and readers see a partial folder between them. Here:

1. the repository is created unless it exists, and the head of its main branch is read;
2. the files are uploaded, which changes nothing that a reader sees, and one commit is made on top of that head. If it
   is refused or its reply is lost, this is repeated from the new head. Files that are on the Hub by then are not sent
   again and are left out of the commit. So a commit whose reply was lost is found "unchanged" and not made twice;
3. the files of the commit are listed, since the Hub leaves out those that a `.gitignore` names.

No access token, host name or absolute path of this machine is pushed: see [`.contents`].

Each file is read twice (for hash and upload) if the Hub stores it with Git LFS, and once with Xet. Memory does not
grow with the size of large files. Repeating an interrupted push uploads only missing files; with Xet, also what
arrived just before the interruption.
"""

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TypeVar

from .. import __version__
from ..compat.huggingface_hub import http_client, lacks_xet, patience
from ..errors import InputError, with_causes
from ..runtime.settings import option
from .access import endpoint_of, token_of
from .contents import DEFAULT_IGNORE, files_to_push, pushable
from .download import RepoType
from .hub_errors import is_temporary, pause_before_retry, reason_of

Result = TypeVar("Result")

_TRIES = 6
_TRIES_IN_SILENCE = 2  # if the Hub accepts a request and does not answer

PATIENCE = 120.0
"""Seconds that a push waits for an answer of the Hub."""


@dataclass(frozen=True, kw_only=True)
class PushSettings:
    """What of a path is pushed, and where to; see [`~hmm_datasets.hub.kinds.push.push_path`]."""

    repo_type: RepoType | None = option(
        None, None, "default that of what PATH is; with dataset an HMM becomes a data set of its sequences"
    )
    dry_run: bool = option(False, None, "only say what would be pushed")
    revision: str | None = option(None, "BRANCH", "branch to push to, created if missing; default main")
    private: bool | None = option(None, None, "make the repository private; default as the Hub does")
    include_checkpoints: bool = option(False, None, "push each checkpoint-N of a run to a branch step-N")
    license: str | None = option(None, "ID", "licence for a card that is made, such as cc0-1.0")
    name: str | None = option(None, "TITLE", "title of a card that is made; default the repository's name")
    message: str | None = option(None, "TEXT", "message of the commit")


@dataclass(frozen=True)
class PushResult:
    """The result of a push.

    Args:
        repo_id (`str`): Namespace and name, as `"USER/NAME"`.
        url (`str`): Address of the repository.
        commit (`str`): The commit with the folder, 40 hexadecimal digits. It is the former head if the repository
            already had all files.
        files (`int`): Number of files pushed or found unchanged.
        bytes (`int`): Their total size.
        private (`bool`): Whether the repository is private.
    """

    repo_id: str
    url: str
    commit: str
    files: int
    bytes: int
    private: bool = False


def push_folder(
    folder: str | os.PathLike,
    repo_id: str,
    *,
    repo_type: RepoType = "model",
    private: bool | None = None,
    message: str | None = None,
    token: str | None = None,
    endpoint: str | None = None,
    ignore: Sequence[str] = DEFAULT_IGNORE,
    revision: str | None = None,
) -> PushResult:
    """Push the files of a folder to a repository on the Hub, in one commit, and check that they arrived.

    The repository is created if it is missing. Other files in it are kept. Nothing is committed if the repository
    already has all files. Links to files are followed, links to folders are not. Records are pushed without host names
    and absolute paths. A file with something that looks like an access token stops the push.

    Args:
        folder (`str` or `os.PathLike`):
            The folder to push.
        repo_id (`str`):
            `"USER/NAME"`, or `"NAME"` for the token's own user.
        repo_type (`str`, *optional*, defaults to `"model"`):
            `"model"` (for HMMs too) or `"dataset"`.
        private (`bool`, *optional*):
            Create a private repository, or with False a public one; by default a new repository is what the Hub makes
            it. True raises an error if the repository exists and is public.
        message (`str`, *optional*):
            The commit's message.
        token (`str`, *optional*):
            A token with write access. By default the token of huggingface_hub (`HF_TOKEN`, or a login).
        endpoint (`str`, *optional*):
            Address of the Hub, by default `HF_ENDPOINT` or `"https://huggingface.co"`.
        ignore (`Sequence[str]`, *optional*, defaults to `DEFAULT_IGNORE`):
            Patterns (as in `fnmatch`, where `*` matches `/` too) of paths to leave out. By default hidden files,
            Python caches and checkpoints. `.git` and `.cache` folders, `training_args.bin` and TensorBoard's events
            are always left out.
        revision (`str`, *optional*):
            Branch to push to; created from the first commit if it is missing. By default the main branch.

    Returns:
        [`PushResult`]: Repository, address, commit, number of files and bytes.

    Raises:
        [`InputError`]: The folder is missing or has no files, the name of the repository is invalid, there is no token
            or the Hub refuses it, the card is invalid, a file contains a token, the Hub still fails after all retries
            (about half a minute) or twice does not answer for two minutes, or the files on the Hub differ from those
            sent.

    Example:

    ```python
    >>> from hmm_datasets.hub import push_folder
    >>> push_folder("outputs/mess3", "me/mess3-38M")  # doctest: +SKIP

    ```
    """
    return Push(
        files_to_push(folder, ignore),
        repo_id,
        folder,
        repo_type=repo_type,
        private=private,
        message=message,
        token=token,
        endpoint=endpoint,
        revision=revision,
    ).run()


@dataclass
class Push:
    """One push of given files, in the steps in the docstring of the module; see [`push_folder`] for other settings.

    Args:
        files (mapping from `str` to `Path`): paths in the repository, and the files.
        folder (path): folder of the files, for the commit message and to find host names in its records.
    """

    files: Mapping[str, Path]
    repo_id: str
    folder: str | os.PathLike
    repo_type: RepoType = "model"
    private: bool | None = None
    message: str | None = None
    token: str | None = field(default=None, repr=False)
    endpoint: str | None = None
    revision: str | None = None
    _is_private: bool = field(default=False, init=False)

    def __post_init__(self):
        from huggingface_hub import HfApi

        if self.repo_type not in ("model", "dataset"):
            raise InputError(f"repo_type is {self.repo_type!r}, expected 'model' or 'dataset'")
        if not self.repo_id:
            raise InputError("repo_id is empty, expected USER/NAME")
        token = token_of(self.token)
        self._api = HfApi(endpoint=endpoint_of(self.endpoint), token=token, library_name="hmm-datasets")
        self._contents = pushable(self.files, self.folder, token)

    @patience(PATIENCE)
    def run(self) -> PushResult:
        """Push the files; the Hub has [`PATIENCE`] seconds for each answer."""
        known = {"repo_type": self.repo_type, "private": self.private, "exist_ok": True}
        url = self._retried("create the repository", partial(self._api.create_repo, self.repo_id, **known))
        self.repo_id = url.repo_id
        if self.revision is not None:
            branch = self.revision
            self._retried(f"create the branch {branch}", lambda: self._create_branch(branch))
        commit = self._retried("commit", self._commit)
        listing = partial(self._api.list_repo_files, self.repo_id, repo_type=self.repo_type, revision=commit)
        arrived = self._retried("list the files", listing)
        for path in self._contents.keys() - arrived:
            raise InputError(
                f"{self.repo_id}: {path} at commit {commit[:8]} is missing; check whether a .gitignore in the "
                "repository excludes it"
            )
        contents = self._contents.values()
        size = sum(len(content) if isinstance(content, bytes) else content.stat().st_size for content in contents)
        return PushResult(self.repo_id, str(url), commit, len(contents), size, self._is_private)

    def _create_branch(self, name: str) -> None:
        """Create the branch unless it exists, from the first commit, so that it never shows files of another."""
        refs = self._api.list_repo_refs(self.repo_id, repo_type=self.repo_type)
        if name not in {branch.name for branch in refs.branches}:
            first = self._api.list_repo_commits(self.repo_id, repo_type=self.repo_type)[-1].commit_id
            self._api.create_branch(self.repo_id, branch=name, revision=first, repo_type=self.repo_type, exist_ok=True)

    def _commit(self) -> str:
        from huggingface_hub import CommitOperationAdd

        # The head is read first, so that any later change on the Hub makes the commit fail and be repeated.
        head = self._api.repo_info(self.repo_id, repo_type=self.repo_type, revision=self.revision)
        self._is_private = bool(head.private)
        if self.private and head.private is False:
            raise InputError(
                f"{self.repo_id} exists and is public, but private=True was given; make it private in its settings, "
                "or choose another name"
            )
        message = self.message or f"Upload {Path(self.folder).resolve().name} with hmm-datasets {__version__}"
        info = self._api.create_commit(
            self.repo_id,
            [CommitOperationAdd(path, file) for path, file in self._contents.items()],
            commit_message=message,
            repo_type=self.repo_type,
            revision=self.revision,
            parent_commit=head.sha,
        )
        return info.oid

    def _retried(self, what: str, action: Callable[[], Result]) -> Result:
        """Run `action`, and retry after temporary errors.

        Raises:
            `InputError`: all tries failed, or the error is one that the user can correct.
        """
        number = 0
        while True:
            number += 1
            try:
                return action()
            except InputError:
                raise
            except Exception as error:
                if lacks_xet(error) or not is_temporary(error):
                    explained = self._explained(what, error)
                    if explained is None:
                        raise
                    raise explained from error
                causes, timeout = with_causes(error, implicit=False), http_client().TimeoutException
                is_silent = number >= _TRIES_IN_SILENCE and any(isinstance(cause, timeout) for cause in causes)
                if number == _TRIES or is_silent:
                    raise InputError(
                        f"{self._api.endpoint}: could not {what} for {self.repo_id} in {number} tries, last: "
                        f"{reason_of(error)}; push again later, uploaded files are not sent twice"
                    ) from error
                time.sleep(pause_before_retry(number, error))

    def _explained(self, what: str, error: Exception) -> InputError | None:
        """The message for an error that a retry cannot correct, or None if the user cannot correct it either."""
        from huggingface_hub.errors import HfHubHTTPError, OfflineModeIsEnabled

        if lacks_xet(error):
            return InputError(f"{self._api.endpoint} has no Xet; set HF_HUB_DISABLE_XET=1 to upload by Git LFS")
        for cause in with_causes(error, implicit=False):
            if isinstance(cause, OfflineModeIsEnabled):
                return InputError(f"HF_HUB_OFFLINE is set, so {self.repo_id} cannot be pushed: unset it")
            if isinstance(cause, HfHubHTTPError):
                status = cause.response.status_code
                remedy = {
                    401: "; set HF_TOKEN to a token with write access, or run `hf auth login`",
                    403: f"; use a token that may write to {self.repo_id}, or another namespace",
                    404: "; if it was deleted or renamed in the meantime, push again",
                }.get(status, "")
                return InputError(
                    f"{self._api.endpoint} refused to {what} for {self.repo_id}: {reason_of(cause)}{remedy}"
                )
            if isinstance(cause, ValueError):
                return InputError(f"cannot {what} for {self.repo_id}: {cause}")
        return None
