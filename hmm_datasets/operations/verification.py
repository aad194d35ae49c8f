"""`hmm-datasets verify`: whether folders that this package wrote have changed since.

Files are compared with the SHA-256 sums in the `digests.json` of their folder. Files of a token stream are compared
with the sums in its index, and its tokens, document ends and EOS are checked against each other. An HMM, another
process and its parts must have the fingerprint in their settings, and a tokenizer the hash in the indexes of the
streams next to it. Records of a run must be valid JSON. What was moved aside is left out. In folders without digests
only sizes and headers are checked.
"""

import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from transformers import AutoTokenizer

from ..errors import InputError, first_line
from ..files import DIGESTS_NAME, digest_problems, read_json, read_jsonl
from ..foreign.tensors import tensor_names
from ..hmm.loading import load_source
from ..hmm.process_storage import FAMILY_NAME, PROCESS_NAME
from ..hmm.tilted import TiltedHMM
from ..hub.kinds.recognition import model_type
from ..runtime.set_aside import SET_ASIDE_NAME
from ..text.stream.index import INDEX_NAME, read_index
from ..text.stream.reader import TokenStream
from ..text.stream.tokenization import tokenizer_hash
from ..training.checkpoints.inspection import verify_checkpoint

_RECORD_NAME = "run.json"
_SOURCES = {"hmm": "HMM", "tilted_hmm": "tilted HMM"}  # by the type of a model


@dataclass(frozen=True)
class VerificationResult:
    """The result for one folder.

    Attributes:
        folder (`Path`): the folder.
        contents (`str`): what it contains, such as `checkpoint`.
        problems (`tuple[str, ...]`): a line per file that differs; empty if there is no problem.
    """

    folder: Path
    contents: str
    problems: tuple[str, ...]

    @property
    def ok(self) -> bool:
        """Whether nothing differs."""
        return not self.problems


def verify(folder: str | os.PathLike) -> Iterator[VerificationResult]:
    """Check a folder and its subfolders, as far as they are of known kinds.

    Args:
        folder (path): the folder.

    Raises:
        `InputError`: no such folder, or it contains nothing of a known kind.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise InputError(f"{folder}: no such folder")
    is_known = False
    for result in _walk(folder):
        is_known = True
        yield result
    if not is_known:
        raise InputError(
            f"{folder}: nothing to verify; expected an HMM or another process, a tokenizer, a token stream, a "
            "checkpoint, a model or a run, or folders of them"
        )


def _walk(folder: Path) -> Iterator[VerificationResult]:
    """Results of a folder and its subfolders; those of streams and checkpoints belong to them."""
    is_stream, is_checkpoint = (folder / INDEX_NAME).is_file(), folder.resolve().name.startswith("checkpoint-")
    checks = _checks(folder)
    if is_stream:
        checks = [("token stream", lambda: TokenStream(folder, verify=False).problems())]
    elif is_checkpoint:
        checks = [("checkpoint", lambda: _checkpoint_problems(folder))]
    for contents, problems in checks:
        try:
            yield VerificationResult(folder, contents, tuple(problems()))
        except InputError as error:
            yield VerificationResult(folder, contents, (str(error),))
        except OSError as error:
            problem = f"{error.filename or folder}: cannot be read ({error.strerror})"
            yield VerificationResult(folder, contents, (problem,))
    if not (is_stream or is_checkpoint):
        for path in sorted(folder.iterdir()):
            if path.is_dir() and not path.name.startswith(".") and path.name != SET_ASIDE_NAME:
                yield from _walk(path)


def _checks(folder: Path) -> Iterator[tuple[str, Callable[[], Iterable[str]]]]:
    """What a folder contains, and a function that finds problems of it."""
    if (folder / FAMILY_NAME).is_file():
        yield "family of HMMs", lambda: _source_problems(folder)
    elif (folder / PROCESS_NAME).is_file():
        yield "process", lambda: _source_problems(folder)
    elif (kind := _model_type(folder)) in _SOURCES:
        yield _SOURCES[kind], lambda: _source_problems(folder)
    else:
        if (folder / _RECORD_NAME).is_file():
            yield "records of a run", lambda: _record_problems(folder)
        if (folder / DIGESTS_NAME).is_file():
            yield "model", lambda: _digest_problems(folder)
        elif any(folder.glob("*.safetensors")):
            yield f"model without {DIGESTS_NAME}, sizes only", lambda: _size_problems(folder)
        elif (folder / "tokenizer.json").is_file():
            yield "tokenizer", lambda: _tokenizer_problems(folder)


def _model_type(folder: Path) -> str | None:
    try:
        return model_type(folder)
    except InputError:
        # If the settings of an HMM cannot be parsed, it is recognized by its code file.
        return "hmm" if (folder / "modeling_hmm.py").is_file() else None


def _source_problems(folder: Path) -> list[str]:
    problems = _digest_problems(folder)
    if not problems:
        (TiltedHMM.from_pretrained if _model_type(folder) == "tilted_hmm" else load_source)(folder)
    return problems


def _checkpoint_problems(folder: Path) -> list[str]:
    problems = verify_checkpoint(folder).problems
    return [f"{folder / problem}" for problem in problems] or _digest_problems(folder)


def _digest_problems(folder: Path) -> list[str]:
    return [f"{folder / problem}" for problem in digest_problems(folder)]


def _size_problems(folder: Path) -> list[str]:
    for path in sorted(folder.glob("*.safetensors")):
        tensor_names(path)
    return []


def _record_problems(folder: Path) -> Iterator[str]:
    for path in sorted(folder.iterdir()):
        if path.suffix not in (".json", ".jsonl") or path.name == DIGESTS_NAME:
            continue
        try:
            (read_json if path.suffix == ".json" else read_jsonl)(path)
        except InputError as error:
            yield str(error)


def _tokenizer_problems(folder: Path) -> Iterator[str]:
    """A tokenizer is unchanged if its hash is the one in the indexes of the streams next to it."""
    try:
        actual = tokenizer_hash(AutoTokenizer.from_pretrained(folder, trust_remote_code=False))
    except Exception as error:  # the Rust library raises nothing narrower
        yield f"{folder / 'tokenizer.json'}: cannot be loaded ({first_line(error)})"
        return
    for path in sorted([*folder.parent.glob(f"*/{INDEX_NAME}"), *folder.parent.glob(f"*/*/{INDEX_NAME}")]):
        try:
            expected = read_index(path.parent).tokenizer_hash
        except InputError:
            continue  # reported when its stream is verified
        if expected != actual:
            yield f"{folder / 'tokenizer.json'}: hash {actual}, but {path} was made with {expected}"
            return
