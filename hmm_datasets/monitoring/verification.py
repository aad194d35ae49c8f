"""Whether the folders this package wrote are as they were written: what `hmm-datasets verify` shows.

Files are compared with the SHA-256 sums in the `digests.json` beside them; those of a token stream with the sums in
its index, and tokens, ends and EOS with each other. The tables of an HMM and the parts of a family must have the
fingerprint that their settings say, a tokenizer the hash that the streams beside it say. Records of a run must be
whole JSON. Of folders written before there were digests sizes and headers are checked.
"""

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ..digests import DIGESTS_NAME, digest_problems
from ..errors import InputError
from ..files import read_json, read_jsonl
from ..hmm.families.storage import FAMILY_NAME, load_source
from ..hmm.storage import CONFIG_NAME
from ..text.stream.index import INDEX_NAME, read_index
from ..training.checkpoints.inspection import read_safetensors_sizes, verify_checkpoint

_RECORD_NAME = "run.json"


@dataclass(frozen=True)
class Verified:
    """What was found of one folder.

    Attributes:
        folder (`Path`): which.
        kind (`str`): what it holds.
        problems (`tuple[str, ...]`): a line per file that differs; empty where all is well.
    """

    folder: Path
    kind: str
    problems: tuple[str, ...]

    @property
    def ok(self) -> bool:
        """Whether nothing differs."""
        return not self.problems


def verify(folder: str | os.PathLike) -> Iterator[Verified]:
    """Check a folder and those in it, as far as they are of kinds known here.

    Raises:
        `InputError`: no such folder, or nothing in it is known.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise InputError(f"{folder}: no such folder")
    known = False
    for found in _walk(folder):
        known = True
        yield found
    if not known:
        raise InputError(
            f"{folder}: nothing to verify; expected an HMM, a family, a tokenizer, a token stream, a checkpoint, a "
            "model or a run, or folders of them"
        )


def _walk(folder: Path) -> Iterator[Verified]:
    if (folder / INDEX_NAME).is_file():
        yield _verified(folder, "token stream", _stream_problems)
    elif (folder / FAMILY_NAME).is_file():
        yield _verified(folder, "family of HMMs", _source_problems)
        for path in sorted(folder.glob("hmm-*")):
            yield _verified(path, "HMM", _source_problems)
    elif _model_type(folder) == "hmm":
        yield _verified(folder, "HMM", _source_problems)
    elif folder.resolve().name.startswith("checkpoint-"):
        yield _verified(folder, "checkpoint", _checkpoint_problems)
    else:
        if (folder / _RECORD_NAME).is_file():
            yield _verified(folder, "records of a run", _record_problems)
        if (folder / DIGESTS_NAME).is_file():
            yield _verified(folder, "model", _digest_lines)
        elif any(folder.glob("*.safetensors")):
            yield _verified(folder, f"model without {DIGESTS_NAME}, sizes alone", _size_problems)
        elif (folder / "tokenizer.json").is_file():
            yield _verified(folder, "tokenizer", _tokenizer_problems)
        for path in sorted(folder.iterdir()):
            if path.is_dir() and not path.name.startswith("."):
                yield from _walk(path)


def _verified(folder: Path, kind: str, problems) -> Verified:
    try:
        return Verified(folder, kind, tuple(problems(folder)))
    except InputError as error:
        return Verified(folder, kind, (str(error),))
    except OSError as error:
        return Verified(folder, kind, (f"{error.filename or folder}: cannot be read ({error.strerror})",))


def _model_type(folder: Path) -> str | None:
    try:
        return json.loads((folder / CONFIG_NAME).read_text(encoding="utf-8")).get("model_type")
    except (OSError, ValueError, AttributeError):
        # Of an HMM whose settings no longer parse the code beside them is left.
        return "hmm" if (folder / "modeling_hmm.py").is_file() else None


def _stream_problems(folder: Path) -> Iterator[str]:
    from ..text.stream.reader import TokenStream

    return TokenStream(folder, verify=False).problems()


def _source_problems(folder: Path) -> list[str]:
    problems = _digest_lines(folder)
    if not problems:
        load_source(folder)
    return problems


def _checkpoint_problems(folder: Path) -> list[str]:
    problems = verify_checkpoint(folder).problems
    return [f"{folder / problem}" for problem in problems] or _digest_lines(folder)


def _digest_lines(folder: Path) -> list[str]:
    return [f"{folder / problem}" for problem in digest_problems(folder)]


def _size_problems(folder: Path) -> list[str]:
    for path in sorted(folder.glob("*.safetensors")):
        read_safetensors_sizes(path)
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
    """A tokenizer is as it was if it is the one that the streams beside it name."""
    from transformers import AutoTokenizer

    from ..text.stream.tokenization import tokenizer_hash

    try:
        found = tokenizer_hash(AutoTokenizer.from_pretrained(folder))
    except Exception as error:  # the Rust library raises nothing narrower
        yield f"{folder / 'tokenizer.json'}: cannot be loaded ({str(error).splitlines()[0]})"
        return
    for path in sorted([*folder.parent.glob(f"*/{INDEX_NAME}"), *folder.parent.glob(f"*/*/{INDEX_NAME}")]):
        try:
            expected = read_index(path.parent).tokenizer_hash
        except InputError:
            continue  # told where its stream is verified
        if expected != found:
            yield f"{folder / 'tokenizer.json'}: hash {found}, but {path} was made with {expected}"
            return
