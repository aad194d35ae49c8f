"""Corpora by name: where each is, what its columns are called, and one way to read them all.

Whatever the source (a Hub data set, a file, a sample inside this package), a row has one column: `text`, a string, or
`messages`, a list of `{role, content}`. Files have no splits of their own, so a document is held out by a hash of its
words (BLAKE2b, RFC 7693): equal documents are on the same side, on every machine, and a larger `test_fraction` only
moves documents from train to test. Streams hold one document at a time; a `.json` file is read whole. To `skip` some
documents of a stream is to read and hash them: they are neither encoded nor copied.
"""

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import InputError
from .filters import DocumentFilter, FirstSeen, document_digest
from .presets import CORPORA, Corpus
from .rows import SUFFIXES, read_rows, shorten

if TYPE_CHECKING:
    import datasets

ROLES = ("system", "user", "assistant")
_TEST_FRACTION = 0.1


def load_corpus(
    name_or_path: str | os.PathLike,
    *,
    split: str = "train",
    streaming: bool = True,
    config: str | None = None,
    text_column: str | None = None,
    messages_column: str | None = None,
    test_fraction: float | None = None,
    filters: DocumentFilter | None = None,
) -> "datasets.IterableDataset | datasets.Dataset":
    """Read a corpus as rows of one column, `text` or `messages`. Documents without a character are left out.

    Args:
        name_or_path (`str` or `os.PathLike`):
            A name in `CORPORA`; a `.txt` (documents parted by `<|endoftext|>`, or one), `.jsonl`, `.json` or
            `.parquet` file, the first three also as `.gz`; a folder that `datasets` can load; or an id on the Hub.
        split (`str`, *optional*, defaults to `"train"`):
            `"train"` or `"test"`; of a data set on the Hub or a folder also any split it names itself.
        streaming (`bool`, *optional*, defaults to `True`):
            Return an `IterableDataset`; otherwise a `Dataset`, which of a file is held in memory, of the Hub
            downloaded first. A download that broke off goes on with the files that are not yet whole.
        config (`str`, *optional*):
            Configuration of a Hub data set, in place of the preset's.
        text_column (`str`, *optional*), messages_column (`str`, *optional*):
            The column to read. By default the preset's, else the first there is of `messages`, `conversations` and
            `text`.
        test_fraction (`float`, *optional*):
            Share of the documents, by their hash, that is `"test"`: 0.1 by default of files and bundled samples, the
            preset's (`Corpus.test_fraction`) of those without a test split. Other Hub data sets and folders keep
            their own splits unless this is given; then it divides their train split. The Hub's own splits may
            share documents; those by hash never do.
        filters ([`~hmm_datasets.text.filters.DocumentFilter`], *optional*):
            Which documents to keep, by length, by other columns, each once; all by default.

    Returns:
        `datasets.IterableDataset` or `datasets.Dataset` with the column `text` (`str`) or `messages` (list of
        `{role, content}`); a corpus that is computed (`story-questions`) keeps its other columns.

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
    local = corpus.bundled or (name not in CORPORA and Path(name).is_file())
    if not local and name not in CORPORA:
        _check_remote(name)
    if test_fraction is None:
        test_fraction = _TEST_FRACTION if local else corpus.test_fraction
    selection = _Selection(split, test_fraction, filters or DocumentFilter())
    if corpus.compute is not None:
        return _load_computed(corpus, selection, streaming)
    if local:
        return _load_file(corpus, selection, streaming)
    return _load_hub(replace(corpus, config=config or corpus.config), selection, streaming)


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
        raise InputError(f"{where}: expected text, found {shorten(text)}; drop the row or name another column")
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
        raise InputError(f"{where}: expected a list of messages, found {shorten(messages)}")
    if all(isinstance(message, str) for message in messages):
        roles = ("user", "assistant")
        messages = [{"role": roles[turn % 2], "content": content} for turn, content in enumerate(messages)]
    result = []
    for number, message in enumerate(messages):
        if not isinstance(message, Mapping) or not {"role", "content"} <= set(message):
            raise InputError(f"{where}: message {number} needs role and content, found {shorten(message)}")
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
    return document_digest(text) < test_fraction * 2.0**64


@dataclass(frozen=True)
class _Selection:
    """Which documents of a source are wanted; `test_fraction` is None where the source has splits of its own."""

    split: str
    test_fraction: float | None
    filters: DocumentFilter

    def __call__(self, document: dict[str, Any]) -> bool:
        """Whether a normalized row is: what a stream can say without those before."""
        text = _as_text(document)
        length = len(text) if "text" in document else sum(len(m["content"]) for m in document["messages"])
        if not text or not self.filters.keeps_length(length):
            return False
        if not self.test_fraction:  # no need to read the words: a third of the time of reading a file
            return self.test_fraction is None or self.split == "train"
        return held_out(text, self.test_fraction) == (self.split == "test")


def _as_text(document: dict[str, Any]) -> str:
    if "text" in document:
        return document["text"]
    return "\n".join(f"{message['role']}: {message['content']}" for message in document["messages"])


def _first_seen(documents: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    new = FirstSeen()
    return (document for document in documents if new(_as_text(document)))


def _normalize(value: Any, kind: str, where: str) -> dict[str, Any]:
    if kind == "text":
        return {"text": normalize_text(value, where)}
    return {"messages": normalize_messages(value, where)}


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
    corpus: Corpus, selection: _Selection, streaming: bool
) -> "datasets.IterableDataset | datasets.Dataset":
    import datasets

    if selection.split not in ("train", "test"):
        raise InputError(
            f"{corpus.name}: split={selection.split!r}, but a file has only 'train' and 'test' (see test_fraction)"
        )
    first = next(read_rows(Path(corpus.path)), None)
    if first is None:
        raise InputError(f"{corpus.name}: holds no documents")
    corpus = _with_column(corpus, list(first[1]))
    source = {"corpus": corpus, "selection": selection}
    if next(_documents(**source), None) is None:
        fraction = selection.test_fraction
        raise InputError(
            f"{corpus.name}: no documents in split {selection.split!r} with test_fraction={fraction} and its filters"
        )
    if streaming:
        from .streaming import document_stream

        return document_stream(_keyed_documents, _features(corpus.kind), **source)
    return datasets.Dataset.from_list(list(_documents(**source)), features=_features(corpus.kind))


def _load_computed(
    corpus: Corpus, selection: _Selection, streaming: bool
) -> "datasets.IterableDataset | datasets.Dataset":
    import datasets

    if selection.split not in ("train", "test"):
        raise InputError(f"{corpus.name}: split={selection.split!r}, but it has only 'train' and 'test'")
    _with_column(corpus, list(corpus.columns))
    source = {"corpus": corpus, "selection": selection}
    if next(_computed_documents(**source), None) is None:
        raise InputError(f"{corpus.name}: its filters keep no document of split {selection.split!r}")
    others = {"kind": datasets.Value("string"), "chance": datasets.Value("float64")}
    features = datasets.Features(_features(corpus.kind) | others)
    if streaming:
        from .streaming import document_stream

        return document_stream(_keyed_computed_documents, features, **source)
    return datasets.Dataset.from_list(list(_computed_documents(**source)), features=features)


def _keyed_computed_documents(**source: Any) -> Iterator[tuple[int, dict[str, Any]]]:
    return enumerate(_computed_documents(**source))


def _computed_documents(corpus: Corpus, selection: _Selection) -> Iterator[dict[str, Any]]:
    """The rows of a split, which `test_fraction` has already told from the other."""
    rows = corpus.compute(selection.split, test_fraction=selection.test_fraction)
    kept = (row for row in rows if selection.filters.keeps_row(row, corpus.name))
    documents = filter(replace(selection, test_fraction=None), kept)
    return _first_seen(documents) if selection.filters.unique else documents


def _keyed_documents(**source: Any) -> Iterator[tuple[int, dict[str, Any]]]:
    return enumerate(_documents(**source))


def _documents(corpus: Corpus, selection: _Selection) -> Iterator[dict[str, Any]]:
    documents = filter(selection, _normalized(corpus, selection.filters))
    return _first_seen(documents) if selection.filters.unique else documents


def _normalized(corpus: Corpus, filters: DocumentFilter) -> Iterator[dict[str, Any]]:
    for where, row in read_rows(Path(corpus.path)):
        if corpus.column not in row:
            raise InputError(f"{where}: no column {corpus.column!r}, found {', '.join(row)}")
        if filters.keeps_row(row, where):
            yield _normalize(row[corpus.column], corpus.kind, where)


def _check_remote(name: str) -> None:
    """Refuse what is neither a folder nor the form of a Hub id, or names a file that is not there."""
    if Path(name).is_dir():
        return
    known = f"known corpora: {', '.join(CORPORA)}"
    if name.lower().endswith((*SUFFIXES, ".gz")) or name.startswith((".", "/", "~")):
        raise InputError(f"{name}: no such file; {known}")
    if not re.fullmatch(r"[\w.-]+/[\w.-]+", name):
        raise InputError(f"{name!r}: no such corpus; {known}; or pass a file, or a Hub id such as owner/name")


def _load_hub(corpus: Corpus, selection: _Selection, streaming: bool) -> "datasets.IterableDataset | datasets.Dataset":
    import datasets

    split, divided = selection.split, selection.test_fraction is not None
    if divided and split not in ("train", "test"):
        raise InputError(f"{corpus.name}: split={split!r}, but test_fraction divides it into 'train' and 'test' only")
    source = corpus.train_split if split == "train" or divided else split
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
        advice = "; pass test_fraction= to train and test alike to hold one out by hash" if source == "test" else ""
        raise InputError(
            f"{corpus.name}: split {source!r} of {corpus.path} cannot be loaded ({reason}){advice}"
        ) from error
    if first is None:
        raise InputError(f"{corpus.name}: split {source!r} of {corpus.path} holds no documents")
    corpus = _with_column(corpus, list(first))
    selection.filters.keeps_row(first, f"{corpus.name}: row 0")
    data = data.map(
        partial(_normalize_row, corpus=corpus, filters=selection.filters),
        with_indices=True,
        remove_columns=list(first),
        features=_features(corpus.kind),
    )
    data = data.filter(selection)
    if not selection.filters.unique:
        return data
    if streaming:  # a generator, so that every pass begins with nothing seen
        source = {"documents": data}
        return datasets.IterableDataset.from_generator(_first_seen, features=_features(corpus.kind), gen_kwargs=source)
    new = FirstSeen()
    return data.select([number for number, document in enumerate(data) if new(_as_text(document))])


def _normalize_row(row: dict[str, Any], index: int, *, corpus: Corpus, filters: DocumentFilter) -> dict[str, Any]:
    where = f"{corpus.name}: row {index}"
    if not filters.keeps_row(row, where):
        return {"text": ""} if corpus.kind == "text" else {"messages": []}  # which no selection wants
    return _normalize(row[corpus.column], corpus.kind, where)
