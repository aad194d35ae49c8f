"""Corpora by name: where each is, what its columns are called, and one way to read them all.

Whatever the source (a Hub data set, a file, a sample inside this package), a row is a text (`text`, a string), a
conversation (`messages`, a list of `{role, content}`) or a preference (`prompt`, `chosen` and `rejected`, each such a
list); `conversations` has the formats they are read from. Files have no splits of their own, so their documents are
divided as `splits` says: by a hash of their words. Streams hold one document at a time; a `.json` file is read whole.
To `skip` some documents of a stream is to read and hash them: they are neither encoded nor copied.
"""

import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ... import launch_environment
from ...errors import InputError
from .conversations import (
    FORMATS,
    Format,
    Kind,
    as_prompt,
    as_text,
    column_format,
    num_characters,
    recognize,
)
from .filters import DocumentFilter, FirstSeen
from .local_files import SUFFIXES, read_rows
from .presets import CORPORA, Corpus
from .splits import divided, held_out

if TYPE_CHECKING:
    import datasets

_TEST_FRACTION = 0.1

_CHECKED_BYTES = 1 << 26
"""A file that is no larger is read whole before work starts."""

_recognized: set[str] = set()
"""What was said of formats in this process, so that nothing is said again for every split."""


def load_corpus(
    name_or_path: str | os.PathLike,
    *,
    split: str = "train",
    streaming: bool = True,
    config: str | None = None,
    kind: Kind | None = None,
    text_column: str | None = None,
    messages_column: str | None = None,
    test_fraction: float | None = None,
    max_documents: int | None = None,
    filters: DocumentFilter | None = None,
) -> "datasets.IterableDataset | datasets.Dataset":
    """Read a corpus of texts, conversations or preferences. Documents without a character are left out.

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
        kind (`str`, *optional*):
            `"text"`, `"conversations"` or `"preferences"`: what is wanted, where a data set has the columns of
            several; another kind is refused.
        text_column (`str`, *optional*), messages_column (`str`, *optional*):
            The column to read. By default the preset's, else the columns tell the format, see
            [`~hmm_datasets.text.corpora.conversations`], and one line on stderr says which of them was recognized.
        test_fraction (`float`, *optional*):
            Share of the documents, by their hash, that is `"test"`: 0.1 by default of files and bundled samples, the
            preset's (`Corpus.test_fraction`) of those without a test split. Other Hub data sets and folders keep
            their own splits unless this is given; then it divides their train split. The Hub's own splits may
            share documents; those by hash never do.
        max_documents (`int`, *optional*):
            Read no more than the first so many rows of the source; they are counted before any is filtered, and
            before they are divided into train and test.
        filters ([`~hmm_datasets.text.corpora.filters.DocumentFilter`], *optional*):
            Which documents to keep, by length, by other columns, each once; all by default.

    Returns:
        `datasets.IterableDataset` or `datasets.Dataset` with the column `text` (`str`), the column `messages` (list
        of `{role, content}`), or the columns `prompt`, `chosen` and `rejected` (such lists), as TRL's DPO takes them;
        a corpus that is computed (`story-questions`) keeps its other columns.

    Raises:
        `InputError`: for an unknown name, a missing file, column or split, another kind than asked for, a row that
            does not fit, no documents.

    ```python
    >>> stories = load_corpus("tinystories-sample", split="test")
    >>> next(iter(stories))["text"][:8]
    'Once upo'

    ```
    """
    if text_column and messages_column:
        raise InputError("load_corpus takes text_column= or messages_column=, found both")
    if max_documents is not None and max_documents < 1:
        raise InputError(f"max_documents={max_documents}: expected at least 1")
    source = _source(os.fspath(name_or_path), kind, test_fraction)
    if text_column or messages_column:
        own = "text" if text_column else "conversations"
        source = replace(source, corpus=replace(source.corpus, kind=own, column=text_column or messages_column))
    selection = _Selection(split, source.test_fraction, filters or DocumentFilter(), max_documents)
    if source.corpus.compute is not None:
        return _load_computed(source, selection, streaming)
    if source.local:
        return _load_file(source, selection, streaming)
    source = replace(source, corpus=replace(source.corpus, config=config or source.corpus.config))
    return _load_hub(source, selection, streaming)


def read_splits(
    name_or_path: str | os.PathLike,
    *,
    kind: Kind,
    test_fraction: float | None = None,
    max_documents: int | None = None,
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Read both splits of a corpus in one pass, where they are divided by hash or by position.

    Args:
        name_or_path (`str` or `os.PathLike`), kind (`str`), test_fraction (`float`), max_documents (`int`):
            See [`load_corpus`], which reads the same documents split by split.

    Returns:
        Iterator of `tuple[str, dict]`: `"train"` or `"test"`, and the document, in the order of the source.

    Raises:
        `InputError`: as [`load_corpus`]; and for a corpus with splits of its own and no `test_fraction`.
    """
    source = _source(os.fspath(name_or_path), kind, test_fraction)
    if not source.test_fraction:
        raise InputError(f"{source.corpus.name}: is not divided by hash; pass test_fraction= above 0 and below 1")
    if source.corpus.compute is not None:  # what is held out is not told in train, so that each split is computed
        return (
            (split, document)
            for split in ("test", "train")
            for document in load_corpus(
                name_or_path, split=split, kind=kind, test_fraction=test_fraction, max_documents=max_documents
            )
        )
    rows = load_corpus(name_or_path, kind=kind, test_fraction=0.0, max_documents=max_documents)
    return divided(rows, source.test_fraction, by_position=source.local)


def check_splits(
    name_or_path: str | os.PathLike,
    *,
    kind: Kind,
    test_fraction: float | None = None,
    max_documents: int | None = None,
    check: Callable[[dict[str, Any]], object] | None = None,
) -> None:
    """Look at a corpus before work starts: every row of a file of at most 64 MiB, else the first rows of both splits.

    Args:
        name_or_path, kind, test_fraction, max_documents:
            See [`read_splits`].
        check (callable, *optional*):
            Called with every document that is looked at; raises [`InputError`] if it cannot be used.

    Raises:
        `InputError`: as [`read_splits`]; for a row that cannot be used, by its number from 1; for a split without
            documents.
    """
    name = os.fspath(name_or_path)
    file = Path(CORPORA[name].path if name in CORPORA and CORPORA[name].bundled else name)
    is_small = file.is_file() and file.stat().st_size <= _CHECKED_BYTES
    missing = {"train", "test"}
    documents = read_splits(name, kind=kind, test_fraction=test_fraction, max_documents=max_documents)
    for number, (split, document) in enumerate(documents, start=1):
        missing.discard(split)
        try:
            if check is not None:
                check(document)
        except InputError as error:
            raise InputError(f"{name}: document {number}: {error}") from None
        if not missing and not is_small:
            return
    for split in sorted(missing):
        raise InputError(
            f"{name}: no documents in split {split!r}, of {number} read; change test_fraction, read more of them "
            "(max_documents), or add documents"
        )


@dataclass(frozen=True)
class _Source:
    """A corpus, whether it is a file, the kind that is asked for, and how much of it is held out by hash."""

    corpus: Corpus
    local: bool
    kind: Kind | None
    test_fraction: float | None


def _source(name: str, kind: Kind | None, test_fraction: float | None) -> _Source:
    if test_fraction is not None and not 0 <= test_fraction < 1:
        raise InputError(f"test_fraction={test_fraction}: expected at least 0 and below 1")
    corpus = CORPORA.get(name) or Corpus(name, name, kind=None, licence="unknown", test_split="test", column=None)
    local = corpus.bundled or (name not in CORPORA and Path(name).is_file())
    if not local and name not in CORPORA:
        _check_remote(name)
    if test_fraction is None:
        test_fraction = _TEST_FRACTION if local else corpus.test_fraction
    return _Source(corpus, local, kind, test_fraction)


@dataclass(frozen=True)
class _Selection:
    """Which documents of a source are wanted; `test_fraction` is None where the source has splits of its own."""

    split: str
    test_fraction: float | None
    filters: DocumentFilter
    max_documents: int | None

    def is_long_enough(self, document: dict[str, Any]) -> bool:
        """Whether a normalized row holds anything, and no more or less than asked for."""
        length = num_characters(document)
        return bool(as_text(document)) and self.filters.keeps_length(length)

    def __call__(self, document: dict[str, Any]) -> bool:
        """Whether a normalized row is wanted: what can be said without those before."""
        if not self.is_long_enough(document):
            return False
        if not self.test_fraction:  # no need to read the words: a third of the time of reading a file
            return self.test_fraction is None or self.split == "train"
        return held_out(as_prompt(document), self.test_fraction) == (self.split == "test")


def _first_seen(documents: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    new = FirstSeen()
    return (document for document in documents if new(as_text(document)))


def _format(source: _Source, row: dict[str, Any]) -> Format:
    """The format of a corpus with this first row; says so in one line where its columns alone tell it."""
    corpus, kind = source.corpus, source.kind
    found = f"found {', '.join(row)}"
    if corpus.column is not None:
        if corpus.column not in row:
            raise InputError(f"{corpus.name}: no column {corpus.column!r}, {found}")
        if kind not in (None, corpus.kind):
            raise _other_kind(corpus, corpus.kind, (corpus.column,), kind)
        return column_format(corpus.column, corpus.kind)
    chosen = recognize(row, kind)
    if chosen is None:
        other = recognize(row)
        if other is not None:
            raise _other_kind(corpus, other.kind, other.columns, kind)
        known = "; ".join(", ".join(one.columns) for one in FORMATS if kind in (None, one.kind))
        wanted = "no column 'text' or 'messages'" if kind is None else f"no {kind}"
        raise InputError(
            f"{corpus.name}: {wanted}, {found}; expected the columns of {kind or 'a known format'}: {known}; rename "
            "columns, or name one by text_column= or messages_column="
        )
    line = f"{corpus.name}: recognized as {chosen.describe(row)}"
    if chosen.kind != "text" and line not in _recognized and launch_environment.rank() == 0:
        _recognized.add(line)
        print(line, file=sys.stderr, flush=True)
    return chosen


def _other_kind(corpus: Corpus, found: str, columns: tuple[str, ...], wanted: str) -> InputError:
    return InputError(f"{corpus.name}: holds {found} ({', '.join(columns)}), expected {wanted}; name another corpus")


def _features(kind: str) -> "datasets.Features":
    import datasets

    string = datasets.Value("string")
    if kind == "text":
        return datasets.Features({"text": string})
    names = ("messages",) if kind == "conversations" else ("prompt", "chosen", "rejected")
    return datasets.Features({name: [{"role": string, "content": string}] for name in names})


def _load_file(
    source: _Source, selection: _Selection, streaming: bool
) -> "datasets.IterableDataset | datasets.Dataset":
    import datasets

    corpus = source.corpus
    if selection.split not in ("train", "test"):
        raise InputError(
            f"{corpus.name}: split={selection.split!r}, but a file has only 'train' and 'test' (see test_fraction)"
        )
    first = next(read_rows(Path(corpus.path)), None)
    if first is None:
        raise InputError(f"{corpus.name}: holds no documents")
    settings = {"corpus": corpus, "format": _format(source, first[1]), "selection": selection}
    if next(_documents(**settings), None) is None:
        fraction = selection.test_fraction
        raise InputError(
            f"{corpus.name}: no documents in split {selection.split!r} with test_fraction={fraction} and its filters; "
            "change these, or add documents"
        )
    features = _features(settings["format"].kind)
    if streaming:
        from .streaming import document_stream

        return document_stream(_keyed_documents, features, **settings)
    return datasets.Dataset.from_list(list(_documents(**settings)), features=features)


def _load_computed(
    source: _Source, selection: _Selection, streaming: bool
) -> "datasets.IterableDataset | datasets.Dataset":
    import datasets

    corpus = source.corpus
    if selection.split not in ("train", "test"):
        raise InputError(f"{corpus.name}: split={selection.split!r}, but it has only 'train' and 'test'")
    if source.kind not in (None, corpus.kind):
        raise _other_kind(corpus, corpus.kind, (corpus.column,), source.kind)
    if corpus.column not in corpus.columns:
        raise InputError(f"{corpus.name}: no column {corpus.column!r}, found {', '.join(corpus.columns)}")
    settings = {"corpus": corpus, "selection": selection}
    if next(_computed_documents(**settings), None) is None:
        raise InputError(f"{corpus.name}: its filters keep no document of split {selection.split!r}")
    others = {"kind": datasets.Value("string"), "chance": datasets.Value("float64")}
    features = datasets.Features(_features(corpus.kind) | others)
    if streaming:
        from .streaming import document_stream

        return document_stream(_keyed_computed_documents, features, **settings)
    return datasets.Dataset.from_list(list(_computed_documents(**settings)), features=features)


def _keyed_computed_documents(**settings: Any) -> Iterator[tuple[int, dict[str, Any]]]:
    return enumerate(_computed_documents(**settings))


def _computed_documents(corpus: Corpus, selection: _Selection) -> Iterator[dict[str, Any]]:
    """The rows of a split, which `test_fraction` has already told from the other."""
    rows = corpus.compute(selection.split, test_fraction=selection.test_fraction)
    rows = islice(rows, selection.max_documents)
    kept = (row for row in rows if selection.filters.keeps_row(row, corpus.name))
    documents = filter(replace(selection, test_fraction=None), kept)
    return _first_seen(documents) if selection.filters.unique else documents


def _keyed_documents(**settings: Any) -> Iterator[tuple[int, dict[str, Any]]]:
    return enumerate(_documents(**settings))


def _documents(corpus: Corpus, format: Format, selection: _Selection) -> Iterator[dict[str, Any]]:
    documents = filter(selection.is_long_enough, _normalized(corpus, format, selection))
    if selection.test_fraction:
        pairs = divided(documents, selection.test_fraction, by_position=True)
        documents = (document for split, document in pairs if split == selection.split)
    elif selection.split == "test":
        documents = iter(())
    return _first_seen(documents) if selection.filters.unique else documents


def _normalized(corpus: Corpus, format: Format, selection: _Selection) -> Iterator[dict[str, Any]]:
    for where, row in islice(read_rows(Path(corpus.path)), selection.max_documents):
        for column in format.columns:
            if column not in row:
                raise InputError(f"{where}: no column {column!r}, found {', '.join(row)}")
        if selection.filters.keeps_row(row, where):
            yield format.read(row, where)


def _check_remote(name: str) -> None:
    """Refuse what is neither a folder nor the form of a Hub id, or names a file that is not there."""
    if Path(name).is_dir():
        return
    known = f"known corpora: {', '.join(CORPORA)}"
    if name.lower().endswith((*SUFFIXES, ".gz")) or name.startswith((".", "/", "~")):
        raise InputError(f"{name}: no such file; {known}")
    if not re.fullmatch(r"[\w.-]+/[\w.-]+", name):
        raise InputError(f"{name!r}: no such corpus; {known}; or pass a file, or a Hub id such as owner/name")


def _load_hub(
    source: _Source, selection: _Selection, streaming: bool
) -> "datasets.IterableDataset | datasets.Dataset":
    import datasets

    corpus = source.corpus
    split, divided = selection.split, selection.test_fraction is not None
    if divided and split not in ("train", "test"):
        raise InputError(f"{corpus.name}: split={split!r}, but test_fraction divides it into 'train' and 'test' only")
    part = corpus.train_split if split == "train" or divided else split
    part = corpus.test_split if part == "test" else part
    try:
        if corpus.data_files:
            file = f"hf://datasets/{corpus.path}/{corpus.data_files.format(split=part)}"
            data = datasets.load_dataset("json", data_files={part: file}, split=part, streaming=streaming)
        else:
            data = datasets.load_dataset(corpus.path, corpus.config, split=part, streaming=streaming)
        first = next(iter(data), None)
    except Exception as error:  # its clients raise the errors of several HTTP libraries
        reason = f"{type(error).__name__}: {error}"
        advice = "; pass test_fraction= to train and test alike to hold one out by hash" if part == "test" else ""
        raise InputError(
            f"{corpus.name}: split {part!r} of {corpus.path} cannot be loaded ({reason}){advice}"
        ) from error
    if first is None:
        raise InputError(f"{corpus.name}: split {part!r} of {corpus.path} holds no documents")
    form = _format(source, first)
    _normalize_row(first, 0, name=corpus.name, format=form, filters=selection.filters)
    if selection.max_documents is not None:
        count = selection.max_documents
        data = data.take(count if streaming else min(count, len(data)))
    data = data.map(
        partial(_normalize_row, name=corpus.name, format=form, filters=selection.filters),
        with_indices=True,
        remove_columns=list(first),
        features=_features(form.kind),
    )
    data = data.filter(selection)
    if not selection.filters.unique:
        return data
    if streaming:  # a generator, so that every pass begins with nothing seen
        settings = {"documents": data}
        return datasets.IterableDataset.from_generator(_first_seen, features=_features(form.kind), gen_kwargs=settings)
    new = FirstSeen()
    return data.select([number for number, document in enumerate(data) if new(as_text(document))])


def _normalize_row(
    row: dict[str, Any], index: int, *, name: str, format: Format, filters: DocumentFilter
) -> dict[str, Any]:
    where = f"{name}: row {index}"
    if not filters.keeps_row(row, where):
        return {name: "" if name == "text" else [] for name in _features(format.kind)}  # which no selection wants
    return format.read(row, where)
