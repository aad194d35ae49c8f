"""Named corpora: their sources, licences, sizes and columns."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

from .calculator import read_with_calls
from .conversations import Format, question_and_answer
from .story_questions import NUM_TRAIN, story_questions

SAMPLES = Path(__file__).parent / "samples"
"""The folder of the bundled corpora."""


@dataclass(frozen=True)
class Corpus:
    """The source of a corpus, and how it is read.

    Attributes:
        name (`str`): name for [`load_corpus`].
        path (`str`): id of a data set on the Hub, or path of a file.
        kind (`str`, *optional*): `"text"` or `"conversations"`; if None, decided by the names of the columns.
        licence (`str`): SPDX identifier, or the terms in a few words.
        config (`str`, *optional*): name of the configuration of the data set on the Hub.
        train_split (`str`), test_split (`str`, *optional*): names of the splits on the Hub.
        column (`str`, *optional*): the column with the text or the messages; if None, see [`load_corpus`].
        format (`Format`, *optional*): how rows are read, if it takes several columns; `column` is one of them.
        data_files (`str`, *optional*): file name of a split in the repository on the Hub, for data sets with a loading
            script, which `datasets` refuses to run.
        bundled (`bool`): whether the file is part of this package.
        documents (`int`, *optional*), tokens (`int`, *optional*): approximate size of the train split; None if
            unknown.
        columns (`tuple[str, ...]`): columns of the source, which can be used in filters.
        test_fraction (`float`, *optional*): share held out by hash if the data set on the Hub has no test split. For a
            computed corpus, share of the facts that only its test split tells.
        compute (callable, *optional*): for a corpus that is computed when it is read, a function that yields the rows
            of a `split` for a `test_fraction`, with all columns.
    """

    name: str
    path: str
    kind: Literal["text", "conversations"] | None
    licence: str
    config: str | None = None
    train_split: str = "train"
    test_split: str | None = None
    column: str | None = "text"
    format: Format | None = None
    data_files: str | None = None
    bundled: bool = False
    documents: int | None = None
    tokens: int | None = None
    columns: tuple[str, ...] = ("text",)
    test_fraction: float | None = None
    compute: Callable[..., Iterator[dict[str, Any]]] | None = None


def _presets() -> Iterator[Corpus]:
    """Counts of documents are rows of the train split on the Hub, unless a comment gives another source."""
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
        tokens=10_000_000_000,  # "around 10B gpt2 tokens" in its card
        columns=(
            *("text", "id", "dump", "url", "file_path", "language", "language_score"),
            *("token_count", "score", "int_score"),
        ),
        test_fraction=0.001,
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
        columns=("messages", "source"),
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
        columns=("prompt", "prompt_id", "messages"),
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
        columns=("conversations", "source"),
    )
    columns = ("question", "answer")
    problems = Corpus("gsm8k", "openai/gsm8k", "conversations", "MIT", config="main", test_split="test")
    problems = replace(problems, column="question", columns=columns, documents=7_473)
    yield replace(problems, format=question_and_answer)
    with_calls = Format("question and answer with calls", "conversations", columns, read_with_calls)
    yield replace(problems, name="gsm8k-calculator", format=with_calls)
    path = str(SAMPLES / "tinystories.txt.gz")
    yield Corpus("tinystories-sample", path, "text", "CDLA-Sharing-1.0", bundled=True, documents=2_316)
    path, kind, column = str(SAMPLES / "instructions.jsonl.gz"), "conversations", "messages"
    sample = Corpus("instructions-sample", path, kind, "Apache-2.0", column=column, bundled=True, documents=1_100)
    yield replace(sample, columns=(column,))
    name, columns = "story-questions", ("messages", "kind", "chance")
    computed = Corpus(name, name, "conversations", "Apache-2.0", column="messages", columns=columns, test_fraction=0.1)
    yield replace(computed, compute=story_questions, documents=NUM_TRAIN)


CORPORA: Mapping[str, Corpus] = MappingProxyType({corpus.name: corpus for corpus in _presets()})
"""The named corpora."""


def corpus_rows() -> list[dict[str, Any]]:
    """The named corpora as the rows of a table: name, kind, source, licence, documents, tokens, columns.

    ```python
    >>> corpus_rows()[0]["name"], corpus_rows()[0]["documents"]
    ('tinystories', 2119719)

    ```
    """
    return [
        {
            "name": corpus.name,
            "kind": corpus.kind,
            "source": "computed" if corpus.compute else "bundled" if corpus.bundled else corpus.path,
            "licence": corpus.licence,
            "documents": corpus.documents,
            "tokens": corpus.tokens,
            "columns": corpus.columns,
        }
        for corpus in CORPORA.values()
    ]
