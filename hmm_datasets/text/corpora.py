"""Corpora by name: where each is, what its columns are called, and one way to read them all.

Whatever the source (a Hub data set, a file, a sample inside this package), a row has one column: `text`, a string, or
`messages`, a list of `{role, content}`. Files have no splits of their own, so a document is held out by a hash of its
words (BLAKE2b, RFC 7693): equal documents are on the same side, on every machine, and a larger `test_fraction` only
moves documents from train to test. Streams hold one document at a time; a `.json` file is read whole.
"""

import gzip
import hashlib
import json
import os
import re
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal

from ..errors import InputError

if TYPE_CHECKING:
    import datasets

SAMPLES = Path(__file__).parent / "samples"
"""The folder of the bundled corpora."""

DOCUMENT_SEPARATOR = "<|endoftext|>"
"""What parts the documents of a `.txt` file."""

ROLES = ("system", "user", "assistant")
_SUFFIXES = (".txt", ".jsonl", ".json", ".parquet")
_TEST_FRACTION = 0.1


@dataclass(frozen=True)
class Corpus:
    """Where a corpus is and how it is read.

    Attributes:
        name (`str`): what [`load_corpus`] calls it.
        path (`str`): a data set's id on the Hub, or the path of a file.
        kind (`str`, *optional*): `"text"` or `"conversations"`; if None, what the columns' names say.
        licence (`str`): SPDX identifier, or the terms in a few words.
        config (`str`, *optional*): name of the Hub data set's configuration.
        train_split (`str`), test_split (`str`, *optional*): the Hub's names of what is trained on and held out.
        column (`str`, *optional*): the column that holds the text or the messages; if None, see [`load_corpus`].
        data_files (`str`, *optional*): name of a split's file in the Hub repository, for data sets whose repository
            holds a loading script, which `datasets` refuses.
        bundled (`bool`): whether the file is part of this package.
        documents (`int`, *optional*), tokens (`int`, *optional*): about how much the train split holds.
    """

    name: str
    path: str
    kind: Literal["text", "conversations"] | None
    licence: str
    config: str | None = None
    train_split: str = "train"
    test_split: str | None = None
    column: str | None = "text"
    data_files: str | None = None
    bundled: bool = False
    documents: int | None = None
    tokens: int | None = None


def _presets() -> Iterator[Corpus]:
    """Counts of documents are the rows of the train split on the Hub; other sources are said beside them."""
    yield Corpus(
        "tinystories",
        "roneneldan/TinyStories",
        "text",
        "CDLA-Sharing-1.0",
        test_split="validation",
        documents=2_119_719,
    )
    yield Corpus(
        "fineweb-edu",
        "HuggingFaceFW/fineweb-edu",
        "text",
        "ODC-By-1.0",
        config="sample-10BT",
        documents=9_672_101,
        tokens=10_000_000_000,  # "around 10B gpt2 tokens", its card
    )
    yield Corpus(
        "smoltalk",
        "HuggingFaceTB/smoltalk",
        "conversations",
        "Apache-2.0 for its new parts; the public data sets in it keep their own terms",
        config="all",
        test_split="test",
        column="messages",
        documents=1_043_917,
    )
    yield Corpus(
        "ultrachat",
        "HuggingFaceH4/ultrachat_200k",
        "conversations",
        "MIT",
        train_split="train_sft",
        test_split="test_sft",
        column="messages",
        documents=207_865,
    )
    yield Corpus(
        "lima",
        "GAIR/lima",
        "conversations",
        "CC-BY-NC-SA-4.0, or that of the source where stricter; the Hub asks to accept its terms",
        test_split="test",  # questions without answers
        column="conversations",
        data_files="{split}.jsonl",
        documents=1_000,  # arXiv:2305.11206
    )
    path = str(SAMPLES / "tinystories.txt.gz")
    yield Corpus("tinystories-sample", path, "text", "CDLA-Sharing-1.0", bundled=True, documents=2_316)
    path, kind, column = str(SAMPLES / "instructions.jsonl.gz"), "conversations", "messages"
    yield Corpus("instructions-sample", path, kind, "Apache-2.0", column=column, bundled=True, documents=1_100)


CORPORA: Mapping[str, Corpus] = MappingProxyType({corpus.name: corpus for corpus in _presets()})
"""The corpora that have a name."""


def load_corpus(
    name_or_path: str | os.PathLike,
    *,
    split: str = "train",
    streaming: bool = True,
    config: str | None = None,
    text_column: str | None = None,
    messages_column: str | None = None,
    test_fraction: float | None = None,
) -> "datasets.IterableDataset | datasets.Dataset":
    """Read a corpus as rows of one column, `text` or `messages`. Documents without a character are left out.

    Args:
        name_or_path (`str` or `os.PathLike`):
            A name in `CORPORA`; a `.txt` (documents parted by `<|endoftext|>`, or one), `.jsonl`, `.json` or
            `.parquet` file, the first three also as `.gz`; a folder that `datasets` can load; or an id on the Hub.
        split (`str`, *optional*, defaults to `"train"`):
            `"train"` or `"test"`; of a data set on the Hub or a folder also any split it names itself.
        streaming (`bool`, *optional*, defaults to `True`):
            Return an `IterableDataset`; otherwise a `Dataset`, which of a file is held in memory.
        config (`str`, *optional*):
            Configuration of a Hub data set, in place of the preset's.
        text_column (`str`, *optional*), messages_column (`str`, *optional*):
            The column to read. By default the preset's, else the first there is of `messages`, `conversations` and
            `text`.
        test_fraction (`float`, *optional*):
            Share of the documents, by their hash, that is `"test"`: 0.1 by default of files and bundled samples. Hub
            data sets and folders keep their own splits unless this is given; then it divides their train split.

    Returns:
        `datasets.IterableDataset` or `datasets.Dataset` with the column `text` (`str`) or `messages` (list of
        `{role, content}`).

    Raises:
        `InputError`: for an unknown name, a missing file, column or split, a row that does not fit, no documents.

    ```python
    >>> stories = load_corpus("tinystories-sample", split="test")
    >>> next(iter(stories))["text"][:8]
    'Once upo'

    ```
    """
    if text_column and messages_column:
        raise InputError("load_corpus takes text_column= or messages_column=, found both")
    if test_fraction is not None and not 0 <= test_fraction < 1:
        raise InputError(f"test_fraction={test_fraction}: expected at least 0 and below 1")
    name = os.fspath(name_or_path)
    corpus = CORPORA.get(name) or Corpus(name, name, kind=None, licence="unknown", test_split="test", column=None)
    if text_column or messages_column:
        kind = "text" if text_column else "conversations"
        corpus = replace(corpus, kind=kind, column=text_column or messages_column)
    if corpus.bundled or (name not in CORPORA and Path(name).is_file()):
        return _load_file(corpus, split, streaming, test_fraction)
    if name not in CORPORA:
        _check_remote(name)
    return _load_hub(replace(corpus, config=config or corpus.config), split, streaming, test_fraction)


def normalize_text(text: Any, where: str = "text") -> str:
    """Return `text` without the white space around it; raise [`InputError`] if it is no string.

    ```python
    >>> normalize_text(" Once upon a time. ")
    'Once upon a time.'

    ```
    """
    return check_text(text, where).strip()


def check_text(text: Any, where: str) -> str:
    """Return `text`; raise [`InputError`] unless it is a string that UTF-8 can hold."""
    if not isinstance(text, str):
        raise InputError(f"{where}: expected text, found {_short(text)}; drop the row or name another column")
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise InputError(f"{where}: half a surrogate pair at character {error.start}, which is no text") from None
    return text


def normalize_messages(messages: Any, where: str = "messages") -> list[dict[str, str]]:
    """Return a conversation as a list of `{role, content}`, other keys left out.

    Args:
        messages (list):
            Dictionaries with `role` and `content`; or strings, which are the user's and the assistant's in turn.
        where (`str`, *optional*):
            Opening words of an error.

    Raises:
        `InputError`: where the list is empty, or a role or content is not what a chat template takes.

    ```python
    >>> normalize_messages(["Hello", "Hi"])
    [{'role': 'user', 'content': 'Hello'}, {'role': 'assistant', 'content': 'Hi'}]

    ```
    """
    if not isinstance(messages, list | tuple) or not messages:
        raise InputError(f"{where}: expected a list of messages, found {_short(messages)}")
    if all(isinstance(message, str) for message in messages):
        roles = ("user", "assistant")
        messages = [{"role": roles[turn % 2], "content": content} for turn, content in enumerate(messages)]
    result = []
    for number, message in enumerate(messages):
        if not isinstance(message, Mapping) or not {"role", "content"} <= set(message):
            raise InputError(f"{where}: message {number} needs role and content, found {_short(message)}")
        role = message["role"]
        if role not in ROLES:
            raise InputError(f"{where}: message {number} has role {role!r}, expected one of {', '.join(ROLES)}")
        result.append({"role": role, "content": check_text(message["content"], f"{where}: message {number}")})
    return result


def held_out(text: str, test_fraction: float) -> bool:
    """Whether a document is in the test split: a fixed function of its words, whatever the white space between them.

    ```python
    >>> held_out("A cat  sat.", 0.5) == held_out("A cat sat.\\n", 0.5)
    True

    ```
    """
    words = " ".join(text.split()).encode("utf-8")
    return int.from_bytes(hashlib.blake2b(words, digest_size=8).digest(), "big") < test_fraction * 2.0**64


def _normalize(value: Any, kind: str, where: str) -> dict[str, Any]:
    if kind == "text":
        return {"text": normalize_text(value, where)}
    return {"messages": normalize_messages(value, where)}


def _wanted(row: dict[str, Any], split: str, test_fraction: float | None) -> bool:
    """Whether a normalized row holds anything and is of this split (of any, if `test_fraction` is None)."""
    text = row["text"] if "text" in row else "\n".join(f"{m['role']}: {m['content']}" for m in row["messages"])
    if not text:
        return False
    return test_fraction is None or held_out(text, test_fraction) == (split == "test")


def _with_column(corpus: Corpus, names: list[str]) -> Corpus:
    """Settle the column to read among those found."""
    found = f"found {', '.join(names)}"
    if corpus.column is None:
        column = next((name for name in ("messages", "conversations", "text") if name in names), None)
        if column is None:
            raise InputError(f"{corpus.name}: no column 'text' or 'messages', {found}; name one by text_column=")
        return replace(corpus, column=column, kind="text" if column == "text" else "conversations")
    if corpus.column not in names:
        raise InputError(f"{corpus.name}: no column {corpus.column!r}, {found}")
    return corpus


def _features(kind: str) -> "datasets.Features":
    import datasets

    string = datasets.Value("string")
    if kind == "text":
        return datasets.Features({"text": string})
    return datasets.Features({"messages": [{"role": string, "content": string}]})


def _load_file(
    corpus: Corpus, split: str, streaming: bool, test_fraction: float | None
) -> "datasets.IterableDataset | datasets.Dataset":
    import datasets

    if split not in ("train", "test"):
        raise InputError(f"{corpus.name}: split={split!r}, but a file has only 'train' and 'test' (see test_fraction)")
    fraction = _TEST_FRACTION if test_fraction is None else test_fraction
    first = next(_read_rows(Path(corpus.path)), None)
    if first is None:
        raise InputError(f"{corpus.name}: holds no documents")
    corpus = _with_column(corpus, list(first[1]))
    source = {"corpus": corpus, "split": split, "test_fraction": fraction}
    if next(_documents(**source), None) is None:
        raise InputError(f"{corpus.name}: no documents in split {split!r} with test_fraction={fraction}")
    if streaming:
        return datasets.IterableDataset.from_generator(_documents, features=_features(corpus.kind), gen_kwargs=source)
    return datasets.Dataset.from_list(list(_documents(**source)), features=_features(corpus.kind))


def _documents(corpus: Corpus, split: str, test_fraction: float) -> Iterator[dict[str, Any]]:
    for where, row in _read_rows(Path(corpus.path)):
        if corpus.column not in row:
            raise InputError(f"{where}: no column {corpus.column!r}, found {', '.join(row)}")
        document = _normalize(row[corpus.column], corpus.kind, where)
        if _wanted(document, split, test_fraction):
            yield document


def _read_rows(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield each row of a file with its place, for errors."""
    suffixes = [suffix.lower() for suffix in path.suffixes]
    compressed = suffixes[-1:] == [".gz"]
    suffix = (suffixes[:-1] if compressed else suffixes)[-1:]
    readers = {".txt": _read_txt, ".jsonl": _read_jsonl, ".json": _read_json}
    try:
        if suffix == [".parquet"] and not compressed:
            yield from _read_parquet(path)
        elif suffix and suffix[0] in readers:
            with (gzip.open if compressed else open)(path, "rt", encoding="utf-8") as file:
                yield from readers[suffix[0]](path, file)
        else:
            raise InputError(
                f"{path}: expected a file that ends in {', '.join(_SUFFIXES)}, or .gz after one but the last"
            )
    except (UnicodeDecodeError, EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise InputError(f"{path}: cannot be read as UTF-8 text ({error})") from None


def _read_txt(path: Path, file) -> Iterator[tuple[str, dict[str, Any]]]:
    number, lines = 0, []
    for line in file:
        *ended, rest = line.split(DOCUMENT_SEPARATOR)
        for piece in ended:
            lines.append(piece)
            yield f"{path}: document {number}", {"text": "".join(lines)}
            number, lines = number + 1, []
        lines.append(rest)
    if "".join(lines).strip():
        yield f"{path}: document {number}", {"text": "".join(lines)}


def _read_jsonl(path: Path, file) -> Iterator[tuple[str, dict[str, Any]]]:
    for number, line in enumerate(file, start=1):
        if line.strip():
            try:
                row = json.loads(line)
            except json.JSONDecodeError as error:
                raise InputError(f"{path}:{number}: not JSON ({error.msg})") from None
            yield _json_row(row, f"{path}:{number}")


def _read_json(path: Path, file) -> Iterator[tuple[str, dict[str, Any]]]:
    try:
        rows = json.load(file)
    except json.JSONDecodeError as error:
        raise InputError(f"{path}:{error.lineno}: not JSON ({error.msg}); rows one a line are .jsonl") from None
    if not isinstance(rows, list):
        raise InputError(f"{path}: expected a list of rows, found {_short(rows)}")
    for number, row in enumerate(rows):
        yield _json_row(row, f"{path}: row {number}")


def _json_row(row: Any, where: str) -> tuple[str, dict[str, Any]]:
    if not isinstance(row, dict):
        raise InputError(f"{where}: expected an object with named columns, found {_short(row)}")
    return where, row


def _read_parquet(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    import pyarrow
    from pyarrow import parquet

    try:
        number = 0
        for batch in parquet.ParquetFile(path).iter_batches(batch_size=256):
            for row in batch.to_pylist():
                yield f"{path}: row {number}", row
                number += 1
    except pyarrow.ArrowInvalid as error:
        raise InputError(f"{path}: not Parquet ({error})") from None


def _check_remote(name: str) -> None:
    """Refuse what is neither a folder nor the form of a Hub id, or names a file that is not there."""
    if Path(name).is_dir():
        return
    known = f"known corpora: {', '.join(CORPORA)}"
    if name.lower().endswith((*_SUFFIXES, ".gz")) or name.startswith((".", "/", "~")):
        raise InputError(f"{name}: no such file; {known}")
    if not re.fullmatch(r"[\w.-]+/[\w.-]+", name):
        raise InputError(f"{name!r}: no such corpus; {known}; or pass a file, or a Hub id such as owner/name")


def _load_hub(
    corpus: Corpus, split: str, streaming: bool, test_fraction: float | None
) -> "datasets.IterableDataset | datasets.Dataset":
    import datasets

    if test_fraction is not None and split not in ("train", "test"):
        raise InputError(f"{corpus.name}: split={split!r}, but test_fraction divides it into 'train' and 'test' only")
    if split == "test" and corpus.test_split is None and test_fraction is None:
        raise InputError(
            f"{corpus.name} has no test split; pass test_fraction= to train and test alike to hold one out"
        )
    source = corpus.train_split if split == "train" or test_fraction is not None else split
    source = corpus.test_split if source == "test" else source
    try:
        if corpus.data_files:
            file = f"hf://datasets/{corpus.path}/{corpus.data_files.format(split=source)}"
            data = datasets.load_dataset("json", data_files={source: file}, split=source, streaming=streaming)
        else:
            data = datasets.load_dataset(corpus.path, corpus.config, split=source, streaming=streaming)
        first = next(iter(data), None)
    except Exception as error:  # its clients raise the errors of several HTTP libraries
        reason = f"{type(error).__name__}: {error}"
        raise InputError(f"{corpus.name}: split {source!r} of {corpus.path} cannot be loaded ({reason})") from error
    if first is None:
        raise InputError(f"{corpus.name}: split {source!r} of {corpus.path} holds no documents")
    corpus = _with_column(corpus, list(first))
    data = data.map(
        partial(_normalize_row, corpus=corpus),
        with_indices=True,
        remove_columns=list(first),
        features=_features(corpus.kind),
    )
    return data.filter(partial(_wanted, split=split, test_fraction=test_fraction))


def _normalize_row(row: dict[str, Any], index: int, *, corpus: Corpus) -> dict[str, Any]:
    return _normalize(row[corpus.column], corpus.kind, f"{corpus.name}: row {index}")


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
