"""Targets, against which a model is measured: a distribution (a process) or held-out text, opened by name."""

import hashlib
import itertools
import sys
from pathlib import Path
from typing import Any, NamedTuple

from ..errors import InputError, path_errors
from ..hmm.loading import load_source, repository_of_process
from ..hmm.names import is_process_name
from ..hmm.process import Process
from ..hmm.process_storage import FAMILY_NAME, PROCESS_NAME
from ..hmm.storage import CONFIG_NAME
from ..runtime import environment
from ..text.corpora.loading import find_corpus, load_corpus, named_splits
from ..text.corpora.local_files import local_files
from ..text.corpora.presets import corpus_names
from ..text.stream import TokenStream
from ..text.stream.index import INDEX_NAME
from ..text.tokenizers.words import INDEX_NAME as WORDS_NAME
from ..text.tokenizers.words import WordCorpus
from .trained_on import TrainedOn

_WINDOW = 64  # words, as fits have by default
_TEST_FRACTION = 0.1  # as recipes have by default


class Documents(NamedTuple):
    """Held-out documents: the `name` by which they were opened, and their `texts`.

    If `of_symbols`, the texts are words that an HMM was fitted to, which models of its symbols read by name.
    """

    name: str
    texts: list[str]
    of_symbols: bool = False

    @property
    def sha256(self) -> str:
        """A hash of the texts, in order."""
        digest = hashlib.sha256()
        for text in self.texts:
            digest.update(hashlib.sha256(text.encode()).digest())
        return digest.hexdigest()


def open_target(
    name: str, max_documents: int = 1000, *, test_fraction: float | None = None, known: TrainedOn | None = None
) -> Process | TokenStream | Documents:
    """Open a target by its name.

    Args:
        name (`str`): one of these: `process:` and a call, such as `process:mess3(x=0.05)`; a folder of a process or a
            token stream; `words/` of a fit, whose held-out sentences are read in windows of 64 words; a named corpus,
            whose test split is read; a file of text, of whose documents those are read that training holds out; or the
            Hub repository of a process or a data set of text.
        max_documents (`int`, *optional*, defaults to 1000): maximum number of documents read from a corpus or file.
        test_fraction (`float`, *optional*): share of the documents of a file or a bundled sample that is held out, at
            most as in training; 1 for a file of which nothing was trained on. By default that of `known`, else 0.1.
        known ([`TrainedOn`], *optional*): what the model was trained on.

    Raises:
        `InputError`: the name is none of these, or a text that the model was trained on.

    ```python
    >>> open_target("tinystories-sample", max_documents=2).texts[0][:8]
    'Once upo'

    ```
    """
    if is_process_name(name):
        return load_source(name)
    folder, known = Path(name), known or TrainedOn()
    with path_errors(name):
        is_folder = folder.is_dir()
    if is_folder:
        if (folder / INDEX_NAME).exists():
            stream = TokenStream(name)
            if stream.index.sha256 in known.streams:
                raise InputError(
                    f"{name}: the model was trained on these tokens; give held-out ones, such as those in test/ beside"
                )
            return stream
        if (folder / WORDS_NAME).exists():
            return _held_out_words(name)
        if any((folder / file).exists() for file in (PROCESS_NAME, FAMILY_NAME, CONFIG_NAME)):
            return load_source(name)
    if is_folder and not local_files(name):
        raise InputError(
            f"{name}: has no {CONFIG_NAME} of an HMM, {FAMILY_NAME} of a family, {PROCESS_NAME} of another process, "
            f"{INDEX_NAME} of a token stream or {WORDS_NAME} of words"
        )
    if name.partition(":")[0] not in corpus_names() and not local_files(name):
        kind = repository_of_process(name)
        if kind is not None:
            return load_source(name, repo_type=kind)
    rows = load_corpus(name, kind="text", **held_out_part(name, test_fraction, known))
    return Documents(name, [row["text"] for row in itertools.islice(rows, max_documents)])


def held_out_part(name: str, test_fraction: float | None, known: TrainedOn) -> dict[str, Any]:
    """Arguments of `load_corpus` for documents of a corpus that a model was not trained on; see [`open_target`]."""
    corpus, files = find_corpus(name)
    if not files or (test_fraction != 1 and named_splits(Path(corpus.path), files)):
        return {"split": "test"}
    is_own = name not in corpus_names()  # not one of the bundled files
    if test_fraction == 1 and is_own:
        return {"split": "train", "test_fraction": 0.0}
    share = test_fraction if test_fraction is not None else known.test_fraction
    share = _TEST_FRACTION if share is None else share
    if not 0 < share < 1 or (known.test_fraction is not None and share > known.test_fraction):
        raise InputError(
            f"{name}: test_fraction is {share:g}, and training held out {known.test_fraction}; expected a share above "
            "0 and at most as large, or 1 for a file of which nothing was trained on"
        )
    if is_own and environment.rank() == 0:
        print(
            f"{name}: the documents that training holds out are read, a share of {share:g}; pass --test_fraction 1 if "
            "it was not trained on",
            file=sys.stderr,
        )
    return {"split": "test", "test_fraction": share}


def _held_out_words(name: str) -> Documents:
    words = WordCorpus.load(name)
    windows = words.as_windows("test", min(_WINDOW, len(words.test.tokens)))
    return Documents(name, [" ".join(words.vocabulary[symbol] for symbol in row) for row in windows], of_symbols=True)
