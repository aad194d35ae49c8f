"""Named corpora: their sources, licences and sizes.

Other distributions register a [`~hmm_datasets.text.corpora.corpus.Corpus`] as an entry point in the group
`hmm_datasets.corpora`.
"""

import filecmp
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from ... import plugins
from ...errors import InputError
from .conversations import column_format
from .corpus import Corpus
from .formats import question_and_answer, texts_in_turn

SAMPLES = Path(__file__).parent / "samples"
"""The folder of the bundled corpora."""

# Counts of documents are rows of the train split on the Hub, unless a comment gives another source.
_CORPORA = (
    Corpus(
        *("tinystories", "roneneldan/TinyStories", "text", "CDLA-Sharing-1.0"),
        test_split="validation",
        documents=2_119_719,
    ),
    Corpus(
        *("fineweb-edu", "HuggingFaceFW/fineweb-edu", "text", "ODC-By-1.0"),
        config="sample-10BT",
        documents=9_672_101,
        tokens=10_000_000_000,  # "around 10B gpt2 tokens" in its card
        test_fraction=0.001,
    ),
    Corpus(
        *("smoltalk", "HuggingFaceTB/smoltalk", "conversations"),
        "Apache-2.0 for its new parts; the public data sets in it keep their own terms",
        config="all",
        test_split="test",
        column="messages",
        documents=1_043_917,
    ),
    Corpus(
        *("ultrachat", "HuggingFaceH4/ultrachat_200k", "conversations", "MIT"),
        train_split="train_sft",
        test_split="test_sft",
        column="messages",
        documents=207_865,
    ),
    Corpus(
        *("lima", "GAIR/lima", "conversations"),
        "CC-BY-NC-SA-4.0, or that of the source where stricter; the Hub asks to accept its terms",
        test_split="test",  # questions without answers
        column="conversations",
        format=texts_in_turn,
        data_files="{split}.jsonl",
        documents=1_000,  # arXiv:2305.11206
    ),
    Corpus(
        *("gsm8k", "openai/gsm8k", "conversations", "MIT"),
        config="main",
        test_split="test",
        column="question",
        format=question_and_answer,
        documents=7_473,
    ),
    Corpus(
        *("tinystories-sample", str(SAMPLES / "tinystories.txt.gz"), "text", "CDLA-Sharing-1.0"),
        bundled=True,
        documents=2_316,
    ),
    Corpus(
        *("instructions-sample", str(SAMPLES / "instructions.jsonl.gz"), "conversations", "Apache-2.0"),
        column="messages",
        bundled=True,
        documents=1_100,
    ),
    Corpus(
        *("story-questions", str(SAMPLES / "story_questions"), "conversations", "Apache-2.0"),
        column="messages",
        format=replace(column_format("messages", "conversations"), kept={"kind": "string", "chance": "float64"}),
        bundled=True,
        documents=20_000,
    ),
)
CORPORA: Mapping[str, Corpus] = MappingProxyType({corpus.name: corpus for corpus in _CORPORA})
"""The named corpora of this package."""


def corpus_names() -> list[str]:
    """The names of all corpora, those of other distributions last."""
    return [*CORPORA, *plugins.parts("hmm_datasets.corpora", reserved=CORPORA)]


def named_corpus(name: str) -> Corpus | None:
    """The corpus of a name, of this package or of another distribution; None for another name.

    Raises:
        `InputError`: a distribution registers something else under it, or cannot be imported.
    """
    registered = plugins.parts("hmm_datasets.corpora", reserved=CORPORA)
    if name not in registered:
        return CORPORA.get(name)
    corpus = plugins.load(registered[name])
    if not isinstance(corpus, Corpus) or corpus.name != name:
        raise InputError(
            f"{plugins.distribution_of(registered[name])}: the corpus {name} is {corpus!r}; expected a "
            f"Corpus with this name"
        )
    return corpus


def corpus_licence(source: str) -> str | None:
    """The licence of a named corpus, None if it is none of them.

    Args:
        source (`str`): its name, its data set on the Hub, or a file with the bytes of a bundled corpus.

    ```python
    >>> corpus_licence("roneneldan/TinyStories"), corpus_licence("mine.txt")
    ('CDLA-Sharing-1.0', None)

    ```
    """
    corpus = named_corpus(source) or next((one for one in CORPORA.values() if _is_source(one, Path(source))), None)
    return None if corpus is None else corpus.licence


def _is_source(corpus: Corpus, path: Path) -> bool:
    if not corpus.bundled:
        return corpus.path == str(path)
    return path.is_file() and filecmp.cmp(path, corpus.path, shallow=False)


def corpus_rows() -> list[dict[str, Any]]:
    """The named corpora as the rows of a table: name, kind, source, licence, documents, tokens.

    ```python
    >>> corpus_rows()[0]["name"], corpus_rows()[0]["documents"]
    ('tinystories', 2119719)

    ```
    """
    return [
        {
            "name": corpus.name,
            "kind": corpus.kind,
            "source": "bundled" if corpus.bundled else corpus.path,
            "licence": corpus.licence,
            "documents": corpus.documents,
            "tokens": corpus.tokens,
        }
        for corpus in filter(None, map(named_corpus, corpus_names()))
    ]
