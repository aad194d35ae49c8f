"""Errors that a user can correct, reported in one line.

Every check of user input in this package raises `InputError`. Programs (recipes and the command line) run under
`runtime.one_line_errors`, which turns such an error into one line on stderr and exit code 2.
"""

import contextlib
import difflib
import errno
import os
import re
import shutil
import stat
from collections.abc import Generator, Iterable, Iterator
from pathlib import Path

from .display import format_bytes

try:
    import resource
except ImportError:
    resource = None

# Messages about a full disk from libraries that do not give the errno: safetensors, Arrow, torch.save.
_FULL = re.compile(
    r"No space left on device|[Dd]isk quota exceeded|File too large \(os error 27\)"
    r"|PytorchStreamWriter failed|iostream error|unexpected pos \d+ vs \d+"
)

_CHOOSE = "choose another file or folder, or make this one writable"
_IN_THE_WAY = "choose another path, or move what is there"
_BROKEN = "check the disk, or the connection to it, then start the same command again"
_PATH_ERRORS = {
    errno.EROFS: _CHOOSE,
    errno.EACCES: _CHOOSE,
    errno.EPERM: _CHOOSE,
    errno.ENOTDIR: "a part of the path is a file; choose another path",
    errno.EISDIR: "it is a folder; name a file",
    errno.EEXIST: _IN_THE_WAY,
    errno.ENOTEMPTY: _IN_THE_WAY,
    errno.ENAMETOOLONG: "choose a shorter name; most disks take 255 bytes",
    errno.ELOOP: "links lead to one another in a circle; delete one of them",
    errno.EFBIG: "the disk takes no file of this size; choose another disk",
    errno.EIO: _BROKEN,
    getattr(errno, "ESTALE", errno.EIO): _BROKEN,
    getattr(errno, "EREMOTEIO", errno.EIO): _BROKEN,
    errno.ENODEV: _BROKEN,
    errno.ENXIO: _BROKEN,
    errno.ETIMEDOUT: _BROKEN,
    errno.EMFILE: "too many files are open; raise `ulimit -n`",
    errno.ENFILE: "too many files are open; raise `ulimit -n`",
}

_LONGEST_LINE = 400

# Control characters but for tabs and line ends, characters that turn the direction of writing, halves of characters.
_CODES = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


_LONGEST_WORD, _LONGEST_MESSAGE = 300, 1_500  # characters
_DATA = ("corpus", "tokens", "conversations", "preferences", "prompts")
ELSEWHERE = {
    "batch_size": ("per_device_train_batch_size",),
    "block_size": ("length", "max_length"),
    "corpus": _DATA,
    "dataset": _DATA,
    "dataset_name": _DATA,
    "dataset_name_or_path": _DATA,
    "epochs": ("num_train_epochs",),
    "lr": ("learning_rate",),
    "max_seq_length": ("max_length", "length"),
    "model_name": ("model",),
    "model_name_or_path": ("model",),
    "text": _DATA,
    "tokenizer_name": ("tokenizer",),
    "tokenizer_name_or_path": ("tokenizer",),
    "train_file": _DATA,
}
"""What other programs call settings, and what they are here, the first that a command has."""


def printable(text: str) -> str:
    """Text without codes that a terminal obeys, which names in a file and tokens of a model may have in them.

    ```python
    >>> printable("a\\x1b[2Jb")
    'a\\\\x1b[2Jb'

    ```
    """
    return _CODES.sub(lambda match: f"\\x{ord(match[0]):02x}" if match[0] < " " else f"\\u{ord(match[0]):04x}", text)


class InputError(ValueError):
    """Bad input. The message gives in one line what is wrong and where, what was expected, and how to correct it.

    A value in it may have come from a file of anyone: of what is too long to be read, the beginning and the end stay.
    """

    def __init__(self, message: str):
        line = " ".join(shortened(word, _LONGEST_WORD) for word in message.split())
        super().__init__(shortened(line, _LONGEST_MESSAGE))


def shortened(text: str, most: int) -> str:
    """A text of at most so many characters, with dots in place of its middle.

    ```python
    >>> shortened("abcdefghijklmnopqrstuvwxyz", 12)
    'abcdef...xyz'

    ```
    """
    return text if len(text) <= most else f"{text[: most * 2 // 3 - 2]}...{text[-(most - most * 2 // 3 - 1) :]}"


class RankError(InputError):
    """An error of one rank. The message names the rank and its host, even for rank 0."""


class LostPeer(RankError):
    """Another process has ended. The cause is in the error of that process, if there is one."""


class DiskFull(InputError):
    """A disk or a quota is full. Once there is space again, the same command continues."""


class RolledBack(InputError):
    """The run went back to an earlier checkpoint; started again, the same command continues from there.

    A recipe starts itself again (see `hmm_datasets.runtime.program`).
    """


def with_causes(error: BaseException | None, implicit: bool = True) -> Iterator[BaseException]:
    """An error, its cause, the cause of that, and so on, each once: an error can be its own cause.

    Args:
        error (`BaseException`, *optional*): the error.
        implicit (`bool`, *optional*, defaults to `True`): whether an error that was being handled when another was
            raised is a cause of that.
    """
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or (error.__context__ if implicit else None)


def is_disk_full(error: BaseException | None) -> bool:
    """Whether an error, or one of its causes, means that a disk or a quota is full."""
    numbers = (errno.ENOSPC, errno.EDQUOT, *((errno.EFBIG,) if limit_of_files() else ()))
    return any(
        _FULL.search(str(cause)) or (isinstance(cause, OSError) and cause.errno in numbers)
        for cause in with_causes(error)
    )


def limit_of_files() -> str:
    """The limit of this process on the size of a file, as an addition to an error; empty if it has none."""
    if resource is None:  # Windows
        return ""
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
    unlimited = limit == resource.RLIM_INFINITY
    return "" if unlimited else f" (files may have {format_bytes(limit)} at most: raise it by ulimit -f unlimited)"


def disk_full(path: str | os.PathLike, needed: str, advice: str = "start the same command again") -> DiskFull:
    """The error for a file or folder that could not be written because its disk is full.

    Args:
        path (path): the file or folder. Delete what was written of it before this call, because the message gives the
            free space.
        needed (`str`): the space needed, in words.
        advice (`str`, *optional*): what to do once there is space.
    """
    folder = next(parent for parent in Path(path).absolute().parents if parent.is_dir())
    free = format_bytes(shutil.disk_usage(folder).free)
    return DiskFull(
        f"{path}: no room left on the disk: it needs {needed}, {free} are free{limit_of_files()}; make "
        f"room and {advice}"
    )


def is_path_error(error: BaseException) -> bool:
    """Whether an error is about a path that cannot be used: its name, what is there, its permissions, or its disk."""
    if isinstance(error, OSError):
        return error.errno in _PATH_ERRORS
    # Of `open`, and of `Path.resolve`.
    return isinstance(error, ValueError | RuntimeError) and bool(re.search("embedded null|Symlink loop", str(error)))


def path_error(path: str | os.PathLike, error: BaseException) -> InputError:
    """The error of one line for a file or folder that cannot be used.

    Args:
        path (path): what was to be used; the error's own path is named instead if it is another.
        error (`OSError` or `ValueError`): what the system raised, see [`is_path_error`].
    """
    if isinstance(error, RuntimeError):
        error = OSError(errno.ELOOP, os.strerror(errno.ELOOP))
    if not isinstance(error, OSError):
        return InputError(f"{os.fspath(path)!r}: contains a NUL character; choose another name")
    named = error.filename if isinstance(error.filename, str | os.PathLike) else path
    why = _PATH_ERRORS.get(error.errno or 0, "choose another file or folder")
    reason = error.strerror or type(error).__name__
    return InputError(f"{os.fspath(named)}: cannot be used ({reason}); {why}")


def refuse_pipes(path: str | os.PathLike) -> None:
    """Refuse a named pipe, which whoever opens it would wait for; those of a shell's `<(...)` are in /dev or /proc.

    Raises:
        `InputError`: there is one at this path.
    """
    try:
        is_pipe = stat.S_ISFIFO(os.stat(path).st_mode)
    except (OSError, ValueError):
        return  # whoever opens it reports it
    if is_pipe and not os.path.realpath(path).startswith(("/dev/", "/proc/")):
        raise InputError(f"{os.fspath(path)}: a named pipe; expected a file: move it away, or give a file")


@contextlib.contextmanager
def path_errors(path: str | os.PathLike) -> Generator[None]:
    """A context in which a file or folder that cannot be used raises an [`InputError`], see [`path_error`]."""
    refuse_pipes(path)
    try:
        yield
    except (OSError, ValueError, RuntimeError) as error:
        if isinstance(error, InputError) or not is_path_error(error):
            raise
        raise path_error(path, error) from error


@contextlib.contextmanager
def needing_extra(extra: str, what: str) -> Generator[None]:
    """Raise `InputError` for an import that fails, with what needs it and the extra of this package that has it."""
    try:
        yield
    except ImportError as error:
        raise InputError(f"{what}: {first_line(error)}; pip install 'hmm-datasets[{extra}]'") from None


def first_line(error: BaseException) -> str:
    """The first line of an error's message, or the name of its type if it has none, for an error of one line.

    Of a line that quotes a file it is the beginning.

    ```python
    >>> first_line(ValueError("too long\\nby 3")), first_line(KeyError())
    ('too long', 'KeyError')

    ```
    """
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:_LONGEST_LINE]


def check_distinct(what: str, names: Iterable[str]) -> None:
    """Check that no two names of symbols are equal, since a name in a text means one symbol.

    Raises:
        `InputError`: two are; the message gives both places.
    """
    numbers: dict[str, int] = {}
    for number, name in enumerate(names):
        if numbers.setdefault(name, number) != number:
            raise InputError(
                f"{what}[{numbers[name]}] and {what}[{number}] are both {name!r}; expected a name of its own for each "
                "symbol"
            )


def suggestion(name: str, known: Iterable[str]) -> str:
    """The end of an error about an unknown name: the known one that means it or is most like it, if any is.

    ```python
    >>> suggestion("--model_name_or_path", ["--model", "--output_dir"]), suggestion("mes3", ["mess3", "even"])
    ('; did you mean --model?', '; did you mean mess3?')

    ```
    """
    known = sorted(known)
    spelt = {other.lstrip("-").replace("-", "_"): other for other in known}
    meant = [spelt[other] for other in ELSEWHERE.get(name.lstrip("-").replace("-", "_"), ()) if other in spelt]
    near = meant or difflib.get_close_matches(name, known, n=1)
    return f"; did you mean {near[0]}?" if near else ""
