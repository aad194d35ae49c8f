"""Word-level corpora: real sentences over a small vocabulary, to which an HMM can be fitted.

A document in any script is cut into sentences and words by the rules of [`sentences`]. The full stop of a script is a
word too; other marks are only if the caller names them. A sentence is kept if it consists of the `k` most frequent
words only and has one full stop, at the end. So `"3.5 m."`, `"Mr. Fox ran."` (cut after `Mr.`) and sentences with a
comma or quotation marks are dropped, and those kept are simple and complete. `dropped` counts the others by reason.

The documents are read once, in time linear in their length. Memory is 4 bytes per word of the sentences without other
marks.
"""

import os
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
from jaxtyping import Int64, UInt16

from ...errors import InputError, check_distinct
from ...files import atomic_folder, check_digests, write_digests, write_json
from ...records import Count, Finite, read_record
from ...shuffle import epoch_order
from ..corpora.splits import held_out
from ..stream import check_replaceable
from .sentences import FULL_STOP, FULL_STOPS, Segmenter, is_mark, split_sentences

FORMAT_VERSION = 2
"""Version of the format. It must change when older folders would be read wrongly, or when the same documents give
other sentences."""

_READ_VERSIONS = (1, FORMAT_VERSION)
"""Versions that are read; sentences of version 1 had letters and digits without combining marks."""

INDEX_NAME = "words.json"
ARRAYS_NAME = "sentences.safetensors"

_PARTS = ("train", "test", "unique")
SPLITS = (*_PARTS, "unique_test")
_COUNTS = ("num_documents", "num_sentences", "num_words")
_SAVED = ("vocabulary", "word_counts", *_COUNTS, "test_fraction", "dropped", "corpus")
_RARER_WORD = "a rarer word"


@dataclass(frozen=True)
class _Index:
    """The content of `words.json`; `sizes` are those of the arrays beside it."""

    format_version: int
    vocabulary: tuple[str, ...]
    word_counts: tuple[Count, ...]
    num_documents: Count
    num_sentences: Count
    num_words: Count
    test_fraction: Finite
    sizes: dict[str, Count]
    dropped: dict[str, Count] = field(default_factory=dict)
    corpus: str | None = None


@dataclass(frozen=True, eq=False)
class Sentences:
    """Sentences as symbols, stored one after another in one array: a sequence of `uint16` arrays.

    Attributes:
        tokens (`np.ndarray` of shape `(T,)`, uint16): the symbols.
        offsets (`np.ndarray` of shape `(N + 1,)`, int64): sentence `n` is `tokens[offsets[n]:offsets[n + 1]]`.
    """

    tokens: UInt16[np.ndarray, "T"]
    offsets: Int64[np.ndarray, "N_plus_1"]

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, number: int) -> UInt16[np.ndarray, "L"]:
        if not -len(self) <= number < len(self):
            raise IndexError(f"sentence {number} of {len(self)}")
        number %= len(self)
        return self.tokens[self.offsets[number] : self.offsets[number + 1]]

    def __iter__(self) -> Iterator[UInt16[np.ndarray, "L"]]:
        return (self[number] for number in range(len(self)))

    @classmethod
    def from_list(cls, sentences: Sequence[np.ndarray]) -> "Sentences":
        """Concatenate arrays, one per sentence."""
        offsets = np.cumsum([0, *map(len, sentences)], dtype=np.int64)
        tokens = np.concatenate(sentences) if sentences else np.zeros(0)
        return cls(tokens.astype(np.uint16), offsets)


@dataclass(frozen=True, eq=False)
class WordCorpus:
    """Sentences over the `k` most frequent words, with counts of the documents they come from.

    Attributes:
        vocabulary (`tuple[str, ...]`): the words by decreasing count, ties in alphabetical order; word `i` is symbol
            `i`.
        word_counts (`tuple[int, ...]`): count of each word in all documents; for the full stop, the number of
            sentences that end in it.
        train ([`Sentences`]), test ([`Sentences`]): the sentences in the order of the documents. All occurrences of a
            sentence are in the same split.
        unique ([`Sentences`]): each distinct sentence of `train` once, in the order of first occurrence.
        num_documents (`int`), num_sentences (`int`), num_words (`int`): counts of everything read, kept or not.
        test_fraction (`float`): expected share of the distinct sentences that are in `test`.
        dropped (`dict[str, int]`): number of sentences that were not kept, by the first reason, the most frequent
            first; empty if it was read from a folder of version 1.
        corpus (`str`, *optional*): name of the corpus, if it was given.
    """

    vocabulary: tuple[str, ...]
    word_counts: tuple[int, ...]
    train: Sentences
    test: Sentences
    unique: Sentences
    num_documents: int
    num_sentences: int
    num_words: int
    test_fraction: float
    dropped: dict[str, int] = field(default_factory=dict)
    corpus: str | None = None

    @property
    def unique_test(self) -> Sentences:
        """Each distinct sentence of `test` once, in the order of first occurrence."""
        return Sentences.from_list(list({sentence.tobytes(): sentence for sentence in self.test}.values()))

    def as_windows(
        self, which: Literal["train", "test", "unique", "unique_test"], length: int, seed: int = 0
    ) -> UInt16[np.ndarray, "N L"]:
        """Concatenate the sentences in a seeded order and cut them into windows; the remainder is dropped.

        Args:
            which (`str`):
                `"train"`, `"test"`, `"unique"` or `"unique_test"`.
            length (`int`):
                Symbols per window.
            seed (`int`, *optional*, defaults to 0):
                Seed of the order, which is the same on every machine.

        Returns:
            `np.ndarray` of shape `(N, length)`, uint16.

        Raises:
            `InputError`: `which` is another name, or the sentences do not fill one window.
        """
        if which not in SPLITS:
            raise InputError(f"which={which!r}: expected one of {', '.join(SPLITS)}")
        sentences: Sentences = getattr(self, which)
        if length < 1:
            raise InputError(f"length is {length}; expected 1 or more")
        if length > len(sentences.tokens):
            raise InputError(
                f"length={length}: the sentences of {which} have {len(sentences.tokens)} symbols, not enough for a "
                "window; give a smaller length, a larger vocabulary or more documents"
            )
        order = epoch_order(np.arange(len(sentences)), len(sentences), seed)
        tokens = np.concatenate([sentences[number] for number in order.tolist()])
        return tokens[: len(tokens) // length * length].reshape(-1, length)

    def save(self, folder: str | os.PathLike, overwrite: bool = False) -> None:
        """Write a folder with `words.json` and `sentences.safetensors`, atomically.

        Raises:
            `InputError`: the folder contains something else, or a corpus without `overwrite`.
        """
        from safetensors.numpy import save_file

        check_replaceable(folder, INDEX_NAME, overwrite)
        arrays = {}
        for which in _PARTS:
            sentences: Sentences = getattr(self, which)
            arrays |= {f"{which}.tokens": sentences.tokens, f"{which}.offsets": sentences.offsets}
        with atomic_folder(folder, replace=overwrite) as temporary:
            save_file(arrays, temporary / ARRAYS_NAME)
            index = {"format_version": FORMAT_VERSION} | {name: getattr(self, name) for name in _SAVED}
            index["sizes"] = {name: len(values) for name, values in arrays.items()}
            write_json(temporary / INDEX_NAME, index)
            write_digests(temporary)
            check_replaceable(folder, INDEX_NAME, overwrite)  # another process may have written there meanwhile

    @classmethod
    def load(cls, folder: str | os.PathLike) -> "WordCorpus":
        """Read a folder written by [`WordCorpus.save`].

        Raises:
            `InputError`: a file is missing or has changed, the version is another, or the arrays do not match
                `words.json`.
        """
        from safetensors import SafetensorError
        from safetensors.numpy import load_file

        path, arrays_path = Path(folder) / INDEX_NAME, Path(folder) / ARRAYS_NAME
        index = read_record(path, _Index, "build it again")
        if index.format_version not in _READ_VERSIONS:
            raise InputError(
                f"{path}: format_version is {index.format_version}, expected {FORMAT_VERSION}; build it again"
            )
        check_digests(folder)
        check_distinct(f"{path}: vocabulary", index.vocabulary)
        try:
            arrays = load_file(arrays_path)
        except (SafetensorError, FileNotFoundError) as error:
            raise InputError(f"{arrays_path}: cannot be read ({error}); build the corpus again") from None
        if {name: values.size for name, values in arrays.items()} != index.sizes:
            raise InputError(f"{arrays_path}: sizes are not those in {INDEX_NAME}; build the corpus again")
        fields: dict[str, Any] = {name: getattr(index, name) for name in _SAVED}
        fields |= {part: Sentences(arrays[f"{part}.tokens"], arrays[f"{part}.offsets"]) for part in _PARTS}
        return cls(**fields)


def build_word_corpus(
    documents: Iterable[str],
    k: int = 100,
    test_fraction: float = 0.1,
    *,
    marks: str = "",
    segmenter: Segmenter | None = None,
    corpus: str | None = None,
) -> WordCorpus:
    """Keep the sentences that consist of the `k` most frequent words only.

    Args:
        documents (iterable of `str`):
            The texts, for example `load_corpus("tinystories", ...)["text"]`; read once.
        k (`int`, *optional*, defaults to 100):
            Number of words in the vocabulary, including the full stop.
        test_fraction (`float`, *optional*, defaults to 0.1):
            Share of the distinct sentences that goes to `test`, chosen by hash. Words are counted in both splits.
        marks (`str`, *optional*):
            Marks besides the full stop that are words too, such as `",;"`.
        segmenter (callable, *optional*):
            Cuts a run of a script without spaces into words, such as `jieba.lcut`; by default every character of such
            a script is a word.
        corpus (`str`, *optional*):
            Name of the corpus of the texts, by which a card on the Hub states its licence.

    Returns:
        [`WordCorpus`].

    Raises:
        `InputError`: `k` is below 2 or above the number of distinct words, there are no documents, no sentence is
            kept, a mark is a letter or a full stop, or the segmenter loses text.

    ```python
    >>> corpus = build_word_corpus(["The cat sat. The cat ran. The cat sat. A dog!"], k=4, test_fraction=0.0)
    >>> corpus.vocabulary, corpus.train[0].tolist(), len(corpus.train), len(corpus.unique)
    (('.', 'cat', 'the', 'sat'), [2, 1, 3, 0], 2, 1)
    >>> corpus.dropped
    {'a rarer word': 1, 'no full stop at the end': 1}

    ```
    """
    if not 2 <= k <= 1 << 16:
        raise InputError(f"k={k}: expected 2 to 65536 words, including the full stop")
    if not 0 <= test_fraction < 1:
        raise InputError(f"test_fraction={test_fraction}: expected at least 0 and below 1")
    wrong = [mark for mark in marks if mark in FULL_STOPS or mark.isspace() or not is_mark(mark)]
    if wrong:
        raise InputError(f"marks={marks!r}: {wrong[0]!r} is no mark inside sentences; expected such as ',;'")
    counts: Counter[str] = Counter()
    dropped: Counter[str] = Counter()
    first_seen: dict[str, int] = {}
    candidates, lengths = array("I"), array("q")
    num_documents = num_sentences = 0
    for document in documents:
        num_documents += 1
        for words, lack in split_sentences(document, marks=marks, segmenter=segmenter):
            num_sentences += 1
            counts.update(word for word in words if not is_mark(word) or word in marks)
            counts.update(words[-1:] if words[-1] in FULL_STOPS else ())
            if lack is None:
                candidates.extend(first_seen.setdefault(word, len(first_seen)) for word in words)
                lengths.append(len(words))
            else:
                dropped[lack] += 1
    if not num_sentences:
        raise InputError(f"no sentence in {num_documents} documents")
    vocabulary = _most_frequent(counts, k)
    sentences = _in_vocabulary(candidates, lengths, list(first_seen), vocabulary)
    dropped.update({_RARER_WORD: len(lengths) - len(sentences)} if len(sentences) < len(lengths) else {})
    train, test, unique = _split(sentences, vocabulary, test_fraction)
    if not train:
        reasons = ", ".join(f"{count} with {reason}" for reason, count in _in_order(dropped).items())
        raise InputError(
            f"no sentence to train on: of {num_sentences}, {len(test)} are held out and the others dropped: "
            f"{reasons or 'none'}; pass a larger k, more text, or marks= with the marks that sentences may have"
        )
    return WordCorpus(
        vocabulary=vocabulary,
        word_counts=tuple(counts[word] for word in vocabulary),
        train=Sentences.from_list(train),
        test=Sentences.from_list(test),
        unique=Sentences.from_list(unique),
        num_documents=num_documents,
        num_sentences=num_sentences,
        num_words=counts.total(),
        test_fraction=test_fraction,
        dropped=_in_order(dropped),
        corpus=corpus,
    )


def _most_frequent(counts: Counter[str], k: int) -> tuple[str, ...]:
    ranked = sorted(counts, key=lambda word: (-counts[word], word))
    if len(ranked) < k:
        raise InputError(
            f"k={k}, but the documents have only {len(ranked)} distinct words; pass k={len(ranked)} "
            "(--vocabulary_size of fit)"
        )
    chosen = ranked[:k]
    if not FULL_STOPS & {*chosen}:  # rarer than k words; without it no sentence could be kept
        chosen[-1] = next((word for word in ranked if word in FULL_STOPS), FULL_STOP)
    return tuple(chosen)


def _in_vocabulary(
    candidates: array, lengths: array, words: list[str], vocabulary: tuple[str, ...]
) -> list[np.ndarray]:
    """Return the candidate sentences without words outside the vocabulary, as symbols."""
    if not lengths:
        return []
    symbol_of = {word: symbol for symbol, word in enumerate(vocabulary)}
    symbols = np.array([symbol_of.get(word, len(vocabulary)) for word in words])[np.array(candidates)]
    ends = np.cumsum(lengths)
    kept = np.maximum.reduceat(symbols, ends - np.array(lengths)) < len(vocabulary)
    return [part.astype(np.uint16) for part, keep in zip(np.split(symbols, ends[:-1]), kept, strict=True) if keep]


def _split(
    sentences: list[np.ndarray], vocabulary: tuple[str, ...], test_fraction: float
) -> tuple[list[np.ndarray], list[np.ndarray], list[np.ndarray]]:
    """Split sentences into train and test by the hash of their words; list each sentence of train once."""
    train, test, unique = [], [], []
    in_test: dict[bytes, bool] = {}
    for sentence in sentences:
        key = sentence.tobytes()
        new = key not in in_test
        if new:
            in_test[key] = held_out(" ".join(vocabulary[symbol] for symbol in sentence), test_fraction)
        (test if in_test[key] else train).append(sentence)
        if new and not in_test[key]:
            unique.append(sentence)
    return train, test, unique


def _in_order(counts: Counter[str]) -> dict[str, int]:
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))
