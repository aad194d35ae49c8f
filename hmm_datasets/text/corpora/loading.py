"""Loading of corpora: named ones, local files, and data sets on the Hub.

For every source a row is a text (`text`, a string), a conversation (`messages`, a list of `{role, content}`) or a
preference (`prompt`, `chosen` and `rejected`, each such a list). The module `conversations` lists the formats they are
read from. Files have no splits, so their documents are split by a hash of their words (see `splits`). A stream has one
document in memory at a time, except that a `.json` file is read as a whole. Skipped documents of a stream are read and
hashed, but neither encoded nor copied.

Documents as a `datasets` stream that does not encode rows again, because they already match the features.
"""

import glob
import json
import multiprocessing
import os
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Any

import datasets
import pyarrow
from datasets import Dataset, DatasetInfo, Features, IterableDataset
from datasets.data_files import DataFilesDict, get_data_patterns
from pyarrow.dataset import ParquetFragmentScanOptions

from ...compat.datasets import TypedExamples
from ...errors import InputError, first_line, path_errors
from ...hub.download import reading_hub, why_unreachable
from ...runtime import environment
from .conversations import Format, Kind, column_format, conversation_text
from .corpus import Corpus
from .formats import FORMATS, PROMPT_FORMATS, format_of_row
from .keys import LABELS, OBEYED, UnusedKeys
from .local_files import SUFFIXES, files_of_folder, has_rows, local_files, read_rows, shorten, without_fillers
from .message_rows import MESSAGE_COLUMNS, MessageColumns, conversations_of_messages
from .presets import corpus_names, named_corpus
from .splits import divided

_TEST_FRACTION = 0.1

_CHECKED_BYTES = 1 << 26
"""Maximum size of a file whose rows are all checked before work starts."""

_BATCH_ROWS = 256
"""Number of rows of a data set that are read together."""

_recognized: set[str] = set()
"""Lines about formats and unused columns that this process has printed, so that none is repeated for every split."""

_COLUMNS = "_columns"
"""Column of JSON with the columns of a row that its format does not read, for prompts."""

_NOTES = "_notes"
"""Column of JSON with the counts of what was not used of a batch of rows, in one of its rows."""


_READ = {*(name for form in FORMATS for name in (*form.columns, *form.optional)), *OBEYED, *MESSAGE_COLUMNS}
"""Columns that are read of any file; the others may have types that nothing here can read."""


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
) -> "datasets.IterableDataset | datasets.Dataset":
    """Read a corpus of texts, conversations or preferences. Empty documents are left out.

    Args:
        name_or_path (`str` or `os.PathLike`):
            A named corpus; a `.txt` (one document, or several separated by `<|endoftext|>`), `.jsonl`, `.ndjson`,
            `.json`, `.csv`, `.tsv` or `.parquet` file, all but the last also as `.gz` or `.zst`; a pattern of such
            files, as `"data/*.jsonl"`, or a folder of such files of one kind, which are read in the order of their
            names; `NAME:FILE` for such a file that is read as the corpus of that name; or an id on the Hub.
        split (`str`, *optional*, defaults to `"train"`):
            `"train"` or `"test"`; for a folder or a data set on the Hub also the name of any of its splits.
        streaming (`bool`, *optional*, defaults to `True`):
            Return an `IterableDataset`. Otherwise return a `Dataset`: a file is read into memory, a data set on the
            Hub is downloaded first. An interrupted download continues with the files that are not complete.
        config (`str`, *optional*):
            Configuration of a data set on the Hub, instead of that of the preset.
        kind (`str`, *optional*):
            `"text"`, `"conversations"` or `"preferences"`. Chooses the format if the columns fit several; a corpus of
            another kind is refused.
        text_column (`str`, *optional*), messages_column (`str`, *optional*):
            The column to read. By default it is that of the preset. Without a preset the format is recognized by the
            columns, see [`~hmm_datasets.text.corpora.conversations`], and printed in one line on stderr.
        test_fraction (`float`, *optional*):
            Share of the documents that is `"test"`, chosen by hash. It is 0.1 by default for files and bundled
            samples, and `Corpus.test_fraction` for named corpora without a test split. Other data sets on the Hub and
            folders keep their own splits by default; if it is given, their train split is split by it. Splits of the
            Hub may share documents; splits by hash never do.
        max_documents (`int`, *optional*):
            Maximum number of rows of the source to read, counted before rows are split.

    Returns:
        `datasets.IterableDataset` or `datasets.Dataset` with the column `text` (`str`), the column `messages` (list
        of `{role, content}`), or the columns `prompt`, `chosen` and `rejected` (such lists), as TRL's DPO takes them.
        A `Dataset` of conversations also has the column `weights` (list of 0 or 1, for each message) if there are
        turns without a loss, see [`~hmm_datasets.text.corpora.keys`]. What is not used of the rows is printed with its
        count on stderr: of a file when it has been read to its end, of a stream from the Hub where it first occurs. A
        named corpus keeps the columns that its `Format.kept` names.

    Raises:
        `InputError`: the name is unknown; a file, column or split is missing; the corpus is of another kind; a row
            cannot be read; a stream has turns without a loss; or there are no documents.

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
        expected = "text" if text_column else "conversations"
        named = replace(source.corpus, kind=expected, column=text_column or messages_column, format=None)
        source = replace(source, corpus=named)
    selection = _Selection(split, source.test_fraction, max_documents)
    return _load(source, selection, streaming, config)


def load_prompts(
    name_or_path: str | os.PathLike, *, split: str = "train", test_fraction: float | None = None
) -> "datasets.Dataset":
    """Read a corpus of conversations or of prompts without answers, with all that its rows have.

    Args:
        name_or_path (`str` or `os.PathLike`), split (`str`), test_fraction (`float`): see [`load_corpus`].

    Returns:
        `datasets.Dataset` with the columns of [`load_corpus`], and the others of the corpus that its format does not
        read. Prompts alone (`prompt`, `question`, `query`, `problem` or `instruction`) are conversations that end
        with the user.

    Raises:
        `InputError`: for the reasons of [`load_corpus`], or a column has values of several types.
    """
    source = _source(os.fspath(name_or_path), "conversations", test_fraction)
    selection = _Selection(split, source.test_fraction, None, keeps_columns=True)
    rows = _load(source, selection, streaming=False, config=None)
    if _COLUMNS not in rows.column_names:
        return rows
    kept = [json.loads(text) for text in rows[_COLUMNS]]
    rows = rows.remove_columns([_COLUMNS])
    for name in dict.fromkeys(name for columns in kept for name in columns if name not in rows.column_names):
        try:
            values = Dataset.from_dict({name: [columns.get(name) for columns in kept]})
        except (pyarrow.ArrowException, OverflowError) as error:
            raise InputError(
                f"{source.corpus.name}: column {name!r} has values of several types ({first_line(error)}); write them "
                "as text"
            ) from None
        rows = datasets.concatenate_datasets([rows, values], axis=1)
    return rows


def _load(
    source: "_Source", selection: "_Selection", streaming: bool, config: str | None
) -> "datasets.IterableDataset | datasets.Dataset":
    if source.files or source.splits:
        return _load_files(source, selection, streaming)
    source = replace(source, corpus=replace(source.corpus, config=config or source.corpus.config))
    return _load_hub(source, selection, streaming)


def read_splits(
    name_or_path: str | os.PathLike,
    *,
    kind: Kind,
    test_fraction: float | None = None,
    max_documents: int | None = None,
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Read both splits of a corpus in one pass, if it is split by hash or by position.

    Args:
        name_or_path (`str` or `os.PathLike`), kind (`str`), test_fraction (`float`), max_documents (`int`):
            See [`load_corpus`], which reads the same documents one split at a time.

    Returns:
        Iterator of `tuple[str, dict]`: `"train"` or `"test"`, and the document, in the order of the source.

    Raises:
        `InputError`: for the reasons of [`load_corpus`], or because the corpus has its own splits and no
            `test_fraction` is given.
    """
    source = _source(os.fspath(name_or_path), kind, test_fraction)
    if not source.test_fraction:
        raise InputError(f"{source.corpus.name}: is not split by hash; pass test_fraction= above 0 and below 1")
    rows = load_corpus(name_or_path, kind=kind, test_fraction=0.0, max_documents=max_documents)
    return divided(rows, source.test_fraction, by_position=bool(source.files))


def check_splits(
    name_or_path: str | os.PathLike,
    *,
    kind: Kind,
    test_fraction: float | None = None,
    max_documents: int | None = None,
    check: Callable[[dict[str, Any]], object] = lambda document: None,
) -> None:
    """Check a corpus before work starts: all rows of a file of at most 64 MiB, else the first rows of both splits.

    Args:
        name_or_path, kind, test_fraction, max_documents:
            See [`read_splits`].
        check (callable, *optional*):
            Called with every document that is read; raises [`InputError`] if it cannot be used.

    Raises:
        `InputError`: for the reasons of [`read_splits`]; or because a row cannot be used (the message gives its
            number, counted from 1), or a split has no documents.
    """
    name = os.fspath(name_or_path)
    _, files = find_corpus(name)
    is_small = bool(files) and sum(file.stat().st_size for file in files) <= _CHECKED_BYTES
    missing = {"train", "test"}
    documents = read_splits(name, kind=kind, test_fraction=test_fraction, max_documents=max_documents)
    for number, (split, document) in enumerate(documents, start=1):
        missing.discard(split)
        try:
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
    """A corpus, its files on this machine, the requested kind, and the share that is held out by hash.

    A folder whose files are divided into splits by their names has those too; of it `files` are those to divide.
    """

    corpus: Corpus
    files: tuple[Path, ...]
    kind: Kind | None
    test_fraction: float | None
    splits: Mapping[str, tuple[Path, ...]] = field(default_factory=dict)


def _source(name: str, kind: Kind | None, test_fraction: float | None) -> _Source:
    if test_fraction is not None and not 0 <= test_fraction < 1:
        raise InputError(f"test_fraction={test_fraction}: expected at least 0 and below 1")
    with path_errors(name):
        corpus, files = find_corpus(name)
    folder = Path(corpus.path)
    if files and folder.is_dir():
        _, unread = files_of_folder(folder)
        if unread:
            names = [str(path.relative_to(folder)) for path in unread]
            _print_once(
                f"{name}: not read: {', '.join(names[:8])}" + f" and {len(names) - 8:,} more" * (len(names) > 8)
            )
        splits = named_splits(folder, files)
        if splits:
            return _Source(corpus, splits.get("train", ()), kind, test_fraction, splits)
    if test_fraction is None:
        test_fraction = _TEST_FRACTION if files else corpus.test_fraction
    return _Source(corpus, files, kind, test_fraction)


def named_splits(folder: Path, files: Sequence[Path]) -> dict[str, tuple[Path, ...]]:
    """The files of each split of a folder by their names, as `datasets` divides them; none if all are in train.

    What is no folder has none.

    Raises:
        `InputError`: some names are those of splits, but a file is in none or several of them.
    """
    if not folder.is_dir():
        return {}
    base = glob.escape(str(folder.absolute()))
    try:
        named = DataFilesDict.from_patterns(get_data_patterns(base), base_path=base)
    except (FileNotFoundError, ValueError) as error:  # of names that no split may have, or that it does not look at
        raise InputError(f"{folder}: {first_line(error)}; rename files, or name them by a pattern in quotes") from None
    paths = {str(split): tuple(path for path in files if str(path.absolute()) in named[split]) for split in named}
    paths = {split: members for split, members in paths.items() if members}
    if paths.keys() == {"train"}:
        return {}
    for path in files:
        splits = [split for split, members in paths.items() if path in members]
        if len(splits) != 1:
            wrong = f"in the splits {' and '.join(splits)}" if splits else "in no split"
            raise InputError(
                f"{path}: is {wrong} by its name, but {folder} has files that are named after splits "
                f"({', '.join(map(str, named))}); rename it, or name files by a pattern in quotes"
            )
    return paths


def find_corpus(name: str) -> tuple[Corpus, tuple[Path, ...]]:
    """What a corpus is called by in [`load_corpus`], and the files on this machine that have it, if some have.

    Raises:
        `InputError`: it is none of those.
    """
    named = named_corpus(name)
    if named is not None:
        return named, local_files(named.path) if named.bundled else ()
    corpus = Corpus(name, name, kind=None, licence="unknown", test_split="test", column=None)
    with path_errors(name):
        files = () if _is_of_datasets(Path(name)) else local_files(name)
    if files:
        return corpus, files
    known, colon, file = name.partition(":")
    named = named_corpus(known) if colon else None
    if named is not None:
        files = local_files(file)
        if not files:
            raise InputError(f"{name}: {file!r} is no file; expected {known}:FILE, a file of the form of {known}")
        return replace(named, name=name, path=file), files
    _check_remote(name)
    return corpus, ()


@dataclass(frozen=True)
class _Selection:
    """The requested documents of a source; `test_fraction` is None if the source has its own splits.

    `keeps_columns` is for prompts, whose documents have the other columns of their rows in a column `_columns`.
    """

    split: str
    test_fraction: float | None
    max_documents: int | None
    keeps_columns: bool = False

    def __call__(self, documents: Iterable[dict[str, Any]], *, by_position: bool = False) -> Iterator[dict[str, Any]]:
        """The normalized rows that are selected, which are not empty; see `divided`."""
        documents = filter(conversation_text, documents)
        if not self.test_fraction:  # without hashing
            return documents if self.test_fraction is None or self.split == "train" else iter(())
        pairs = divided(documents, self.test_fraction, by_position=by_position)
        return (document for split, document in pairs if split == self.split)


def _format(source: _Source, row: dict[str, Any], formats: Sequence[Format] = FORMATS) -> Format:
    """The format of a corpus with this first row; printed in one line if it was recognized by the columns."""
    corpus, kind = source.corpus, source.kind
    description = f"found {', '.join(row)}"
    if corpus.column is not None:
        if corpus.column not in row:
            raise InputError(f"{corpus.name}: no column {corpus.column!r}, {description}")
        if kind not in (None, corpus.kind):
            raise _other_kind(corpus, corpus.kind, (corpus.column,), kind)
        return corpus.format or column_format(corpus.column, corpus.kind)
    chosen = format_of_row(row, kind, formats)
    if chosen is None:
        other = format_of_row(row)
        if other is not None:
            raise _other_kind(corpus, other.kind, other.columns_of(row), kind)
        known = "; ".join(", ".join(candidate.columns) for candidate in formats if kind in (None, candidate.kind))
        if source.files and kind in (None, "conversations"):
            known += "; or of one message per row: conversation_id, role, content"
        wanted = "no column 'text' or 'messages'" if kind is None else f"no {kind}"
        raise InputError(
            f"{corpus.name}: {wanted}, {description}; expected the columns of {kind or 'a known format'}: {known}; "
            "rename columns, or name one by text_column= or messages_column="
        )
    if chosen.kind != "text":
        _print_once(f"{corpus.name}: recognized as {chosen.describe(row)}")
    return chosen


def _print_once(*lines: str) -> None:
    """Print lines on stderr that were not printed yet, in the main process of rank 0."""
    for line in lines:
        if line not in _recognized and environment.rank() == 0 and multiprocessing.parent_process() is None:
            _recognized.add(line)
            print(line, file=sys.stderr, flush=True)


def _other_kind(corpus: Corpus, present: str, columns: Iterable[str], wanted: str) -> InputError:
    names = ", ".join(columns)
    return InputError(f"{corpus.name}: contains {present} ({names}), expected {wanted}; name another corpus")


def _features(
    form: Format, *, weights: bool = False, notes: bool = False, columns: bool = False
) -> "datasets.Features":
    """The columns of documents; those of weights only for conversations."""
    string, kind = datasets.Value("string"), form.kind
    spare = ({_NOTES: string} if notes else {}) | ({_COLUMNS: string} if columns else {})
    spare |= {name: datasets.Value(dtype) for name, dtype in form.kept.items()}
    if kind == "text":
        return datasets.Features({"text": string} | spare)
    if weights and kind == "conversations":
        spare["weights"] = [datasets.Value("int8")]
    names = ("messages",) if kind == "conversations" else ("prompt", "chosen", "rejected")
    return datasets.Features({name: [{"role": string, "content": string}] for name in names} | spare)


def _load_files(
    source: _Source, selection: _Selection, streaming: bool
) -> "datasets.IterableDataset | datasets.Dataset":
    corpus = source.corpus
    files = source.files
    if source.splits and selection.test_fraction is None:
        files = source.splits.get(selection.split, ())
        if not files:
            names = ", ".join(source.splits)
            raise InputError(f"{corpus.name}: split={selection.split!r}, but its files have the splits {names}")
    elif selection.split not in ("train", "test"):
        raise InputError(
            f"{corpus.name}: split={selection.split!r}, but a file has only 'train' and 'test' (see test_fraction)"
        )
    wanted = None if selection.keeps_columns else _READ | {*filter(None, [corpus.column])}
    settings = {"corpus": corpus, "files": files, "selection": selection, "wanted": wanted}
    first = next(_rows(files, wanted), None)
    if first is None:
        raise InputError(f"{corpus.name}: contains no documents")
    settings["messages"] = messages = _message_columns(source, first[1])
    if messages is None:
        settings["format"] = _format(source, first[1], _formats(selection))
    else:
        settings["format"] = column_format("messages", "conversations")
    if next(_documents(**settings), None) is None:
        fraction = selection.test_fraction
        raise InputError(
            f"{corpus.name}: no documents in split {selection.split!r} with test_fraction={fraction}; change it, or "
            "add documents"
        )
    return _rows_of(streaming, settings)


def _message_columns(source: _Source, row: dict[str, Any]) -> MessageColumns | None:
    """The columns of files with one message per row; None for files of another format."""
    form = format_of_row(row, source.kind)
    if source.corpus.column is not None or source.kind not in (None, "conversations"):
        return None
    columns = MessageColumns.of(row) if form is None or form.kind == "text" else None
    if columns is not None:
        _print_once(f"{source.corpus.name}: recognized as one message per row ({columns})")
    return columns


def _formats(selection: _Selection) -> Sequence[Format]:
    return PROMPT_FORMATS if selection.keeps_columns else FORMATS


def _rows(files: tuple[Path, ...], wanted: set[str] | None) -> Iterator[tuple[str, dict[str, Any]]]:
    return chain.from_iterable(read_rows(file, wanted) for file in files)


def _documents(
    corpus: Corpus,
    files: tuple[Path, ...],
    format: Format,
    messages: MessageColumns | None,
    selection: _Selection,
    wanted: set[str] | None,
) -> Iterator[dict[str, Any]]:
    rows = _rows(files, wanted)
    if messages is not None:
        conversations, lines = conversations_of_messages(rows, messages)
        _print_once(*(f"{corpus.name}: {line}" for line in lines))
        rows = iter(conversations)
    rows = islice(rows, selection.max_documents)
    return selection(_normalized(corpus, rows, format, selection), by_position=True)


def _normalized(
    corpus: Corpus, rows: Iterable[tuple[str, dict[str, Any]]], format: Format, selection: _Selection
) -> Iterator[dict[str, Any]]:
    """The documents of files; at their end what was not used of them is printed."""
    unused = UnusedKeys()
    for where, row in rows:
        for column in format.columns:
            if column not in row:
                raise InputError(f"{where}: no column {column!r}, found {', '.join(row)}")
        yield from _read_row(format, row, where, selection, unused)
    _print_once(*unused.lines(corpus.name))


def _read_row(
    format: Format, row: dict[str, Any], where: str, selection: _Selection, unused: UnusedKeys
) -> list[dict[str, Any]]:
    """The document of a row, or none if it is left out; that, and what is not used of it, is counted."""
    row = format.unfolded(row, where)
    document = format.document(row, where)
    unused.rows += 1
    kept = {}
    if isinstance(document, str):
        unused.left_out[document] += 1
    elif selection.keeps_columns:
        read = {*format.columns_of(row), *(OBEYED - {*LABELS}), *format.labels, *_features(format, weights=True)}
        kept = {name: value for name, value in row.items() if name not in read}
        document[_COLUMNS] = json.dumps(kept, default=str)
    unused.update(name for name in format.unused(row) if name not in kept)
    return [] if isinstance(document, str) else [document]


def _is_of_datasets(folder: Path) -> bool:
    """Whether a folder says itself which files are which split: a README.md as on the Hub, or one of save_to_disk."""
    readme = folder / "README.md"
    text = readme.read_text("utf-8", "replace") if readme.is_file() else ""
    return _is_saved(folder) or re.match(r"---\s.*?^configs:", text, re.DOTALL | re.MULTILINE) is not None


def _is_saved(folder: Path) -> bool:
    """Whether a folder was written by `save_to_disk` of `datasets`, from rows or from several splits."""
    return (folder / "state.json").is_file() or (folder / "dataset_dict.json").is_file()


def _check_remote(name: str) -> None:
    """Raise an error unless `name` has the form of an id on the Hub, or is a folder of `datasets`."""
    folder = Path(name)
    with path_errors(name):
        is_folder = folder.is_dir()
        if is_folder and _is_of_datasets(folder):
            return
    if is_folder:
        counts = Counter(path.suffix or path.name for path in files_of_folder(folder)[1])
        present = ", ".join(f"{count:,} {suffix}" for suffix, count in counts.most_common(8)) or "no file"
        raise InputError(f"{name}: expected files that end in {', '.join(SUFFIXES)}, found {present}; convert them")
    known = f"known corpora: {', '.join(corpus_names())}"
    if has_rows(name) or glob.has_magic(name) or name.startswith((".", "/", "~")):
        raise InputError(f"{name}: no such file; {known}")
    if not re.fullmatch(r"[\w.-]+/[\w.-]+", name):
        raise InputError(f"{name!r}: no such corpus; {known}; or pass a file, or a Hub id such as owner/name")


def _load_hub(
    source: _Source, selection: _Selection, streaming: bool
) -> "datasets.IterableDataset | datasets.Dataset":
    data, first = _opened_on_hub(source.corpus, selection, streaming)
    form = _format(source, without_fillers(first, data.features), _formats(selection))
    chosen = partial(
        _chosen_rows,
        name=source.corpus.name,
        format=form,
        selection=selection,
        types=data.features,
        streaming=streaming,
    )
    chosen({name: [value] for name, value in first.items()}, [0])  # raises what is wrong with the first row
    parts = {} if streaming else {"weights": True, "notes": True, "columns": selection.keeps_columns}
    data = _first_rows(data, selection).map(
        chosen,
        batched=True,
        batch_size=_BATCH_ROWS,
        with_indices=True,
        remove_columns=list(first),
        features=_features(form, **parts),
    )
    return data if streaming else _without_notes(data, source.corpus.name)


def _opened_on_hub(
    corpus: Corpus, selection: _Selection, streaming: bool
) -> "tuple[datasets.IterableDataset | datasets.Dataset, dict[str, Any]]":
    """The rows of a split, and the first of them.

    Raises:
        `InputError`: there is no such split, it cannot be read, or it is empty.
    """
    split, divided = selection.split, selection.test_fraction is not None
    if divided and split not in ("train", "test"):
        raise InputError(f"{corpus.name}: split={split!r}, but test_fraction gives only the splits 'train' and 'test'")
    part = corpus.train_split if split == "train" or divided else split
    part = corpus.test_split if part == "test" else part
    is_remote = not Path(corpus.path).exists()
    try:
        with reading_hub(is_remote):
            if corpus.data_files:
                file = f"hf://datasets/{corpus.path}/{corpus.data_files.format(split=part)}"
                data = datasets.load_dataset("json", data_files={part: file}, split=part, streaming=streaming)
            else:
                data = _load_verified(corpus.path, corpus.config, part, streaming)
            first = next(iter(data), None)
    except Exception as error:  # `datasets` raises errors of several HTTP libraries
        reason = (why_unreachable() if is_remote else None) or f"{type(error).__name__}: {error}"
        advice = "; pass test_fraction= for both train and test to split by hash" if part == "test" else ""
        raise InputError(
            f"{corpus.name}: split {part!r} of {corpus.path} cannot be loaded ({reason}){advice}"
        ) from error
    if first is None:
        raise InputError(f"{corpus.name}: split {part!r} of {corpus.path} contains no documents")
    return data, first


def _first_rows(
    data: "datasets.IterableDataset | datasets.Dataset", selection: _Selection
) -> "datasets.IterableDataset | datasets.Dataset":
    """The rows that may be read: `max_documents` of them, if that is set."""
    count = selection.max_documents
    if isinstance(data, Dataset):
        return data if count is None else data.take(min(count, len(data)))
    if count is None:
        return data
    # Which rows are the first is known of all of them alone, so one worker reads the stream.
    return datasets.IterableDataset.from_generator(_all_rows, gen_kwargs={"stream": data, "count": count})


def _all_rows(stream: IterableDataset, count: int | None) -> Iterator[dict[str, Any]]:
    """The first `count` rows of all shards of a stream, also in a worker of a loader, which reads some shards."""
    return islice(chain.from_iterable(map(_rows_of_columns, stream.iter(batch_size=_BATCH_ROWS))), count)


def _rows_of_columns(columns: dict[str, list]) -> Iterator[dict[str, Any]]:
    return (dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True))


def _load_verified(
    path: str, config: str | None, split: str, streaming: bool
) -> "datasets.IterableDataset | datasets.Dataset":
    """`datasets.load_dataset`, or `load_from_disk` of what was saved by `save_to_disk`.

    The pages of Parquet files are compared with their checksums, if they have some.
    """
    if _is_saved(Path(path)):
        saved = datasets.load_from_disk(path)
        data = (saved if isinstance(saved, datasets.DatasetDict) else {"train": saved})[split]
        return data.to_iterable_dataset() if streaming else data
    builder = datasets.load_dataset_builder(path, config)
    if Path(path).is_dir() and hasattr(builder.config, "sample_by"):
        raise InputError(
            "its README.md names text, of which datasets makes each line a document; name the files instead"
        )
    if hasattr(builder.config, "fragment_scan_options"):
        builder.config.fragment_scan_options = ParquetFragmentScanOptions(page_checksum_verification=True)
    if streaming:
        return builder.as_streaming_dataset(split=split)
    builder.download_and_prepare()
    return builder.as_dataset(split=split)


def _chosen_rows(
    columns: dict[str, list],
    indices: list[int],
    *,
    name: str,
    format: Format,
    selection: _Selection,
    types: Features | None,
    streaming: bool,
) -> dict[str, list]:
    """The documents of some rows of a data set that are selected.

    What is not used is written beside the last of them, since the result of a batch may come from a cache. If there is
    none, an empty document has it. A stream has no end to print counts at, so there each name is printed when it first
    occurs.
    """
    documents, unused = [], UnusedKeys()
    for index, row in zip(indices, _rows_of_columns(columns), strict=True):
        where = f"{name}: row {index}"
        documents += _read_row(format, without_fillers(row, types), where, selection, unused)
    documents = list(selection(documents))
    if streaming:
        _print_first(name, unused)
        names = list(_features(format))
        return {column: [_of_stream(document, name)[column] for document in documents] for column in names}
    note = json.dumps({"counts": unused, "rows": unused.rows, "left_out": unused.left_out})
    documents = documents or [{}]
    documents[-1] = {**documents[-1], _NOTES: note}
    names = _features(format, weights=True, notes=True, columns=selection.keeps_columns)
    return {column: [document.get(column) for document in documents] for column in names}


def _without_notes(data: Dataset, name: str) -> Dataset:
    """The documents of a data set, without columns that none of them fills; prints what was not used of its rows."""
    unused, kept = UnusedKeys(), None
    notes = data[_NOTES][:]
    for note in (json.loads(note) for note in notes if note is not None):
        unused.update(note["counts"])
        unused.rows += note["rows"]
        unused.left_out.update(note["left_out"])
    _print_once(*unused.lines(name))
    first = data.column_names[0]
    empty = data.data.column(first).null_count
    if empty:
        kept = [number for number, value in enumerate(data[first]) if value is not None]
    spare = [_NOTES]
    if "weights" in data.column_names and data.data.column("weights").null_count == len(data):
        spare.append("weights")
    data = data.remove_columns(spare)
    return data if kept is None else data.select(kept)


def _print_first(name: str, unused: UnusedKeys) -> None:
    """Print the names of what is not used of a stream, each once."""
    new = [key for key in sorted(unused) if f"{name} {key}" not in _recognized]
    _recognized.update(f"{name} {key}" for key in new)
    if new:
        _print_once(f"{name}: not used: {', '.join(new)}")
    _print_once(*(f"{name}: rows are left out, since {reason}" for reason in unused.left_out))


def _of_stream(document: dict[str, Any], where: str) -> dict[str, Any]:
    """A document of a stream; raises [`InputError`] if it has turns without a loss, for which it has no place."""
    if "weights" in document:
        turn = document["weights"].index(0)
        raise InputError(
            f"{where}: turn {turn} ({shorten(document['messages'][turn]['content'])}) has weight 0, so no loss, but a "
            "stream is trained on as a whole; fine-tune on it (hmm-datasets sft), or drop the turn"
        )
    return document


def _rows_of(streaming: bool, settings: dict[str, Any]) -> IterableDataset | Dataset:
    """The rows that `_documents(**settings)` yields, as a stream or in memory."""
    if not streaming:
        rows = list(_documents(**settings))
        parts = {"weights": any("weights" in row for row in rows), "columns": any(_COLUMNS in row for row in rows)}
        return Dataset.from_list(rows, features=_features(settings["format"], **parts))
    features = _features(settings["format"])
    return IterableDataset(TypedExamples(_numbered, settings, features), info=DatasetInfo(features=features))


def _numbered(corpus: Corpus, **settings: Any) -> Iterator[tuple[int, dict]]:
    return enumerate(_of_stream(document, corpus.name) for document in _documents(corpus, **settings))
