"""Word-level corpora: real sentences over a small vocabulary, to which an HMM can be fitted.

A document is lower-cased and cut into sentences at `.`, `!` or `?` before white space, and at blank lines. A word
consists of letters and digits, with apostrophes inside. The full stop is a word too; other punctuation marks are not.
A sentence is kept if it consists of the `k` most frequent words only and has one full stop, at the end. So `"3.5 m."`,
`"Mr. Fox ran."` (cut after `Mr.`) and sentences with a comma or quotation marks are dropped, and those kept are simple
and complete.

The documents are read once, in time linear in their length. Memory is 4 bytes per word of the sentences without other
marks.
"""

import os
import re
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from jaxtyping import Int64, UInt16

from ...errors import InputError
from ...files import atomic_folder, check_digests, write_digests, write_json
from ...records import Count, Finite, read_record
from ...shuffle import epoch_order
from ..corpora.splits import held_out
from ..stream import check_replaceable

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

FORMAT_VERSION = 1
"""Version of the format. It must change when older folders would be read wrongly, or when the same documents give
other sentences."""

FULL_STOP = "."

SPECIAL_TOKENS = ("<bos>", "<eos>", "<pad>", "<unk>")
"""Special tokens that [`word_tokenizer`] adds after the words, in this order."""

INDEX_NAME = "words.json"
ARRAYS_NAME = "sentences.safetensors"

_PARTS = ("train", "test", "unique")
SPLITS = (*_PARTS, "unique_test")
_SAVED = ("vocabulary", "word_counts", "num_documents", "num_sentences", "num_words", "test_fraction")
_WORD = r"[^\W_]+(?:'[^\W_]+)*"
_TOKEN = re.compile(rf"{_WORD}|\S")
_PARAGRAPH = re.compile(r"\n\s*\n")
_SENTENCE_END = re.compile(r"""([.!?]+)(["'”)\]]*)(?=\s|$)""")


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
        if not 1 <= length <= len(sentences.tokens):
            raise InputError(f"length={length}: expected 1 to {len(sentences.tokens)}, the symbols in {which}")
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
        if index.format_version != FORMAT_VERSION:
            raise InputError(
                f"{path}: format_version is {index.format_version}, expected {FORMAT_VERSION}; build it again"
            )
        check_digests(folder)
        try:
            arrays = load_file(arrays_path)
        except (SafetensorError, FileNotFoundError) as error:
            raise InputError(f"{arrays_path}: cannot be read ({error}); build the corpus again") from None
        if {name: values.size for name, values in arrays.items()} != index.sizes:
            raise InputError(f"{arrays_path}: sizes are not those in {INDEX_NAME}; build the corpus again")
        fields: dict[str, Any] = {name: getattr(index, name) for name in _SAVED}
        fields |= {part: Sentences(arrays[f"{part}.tokens"], arrays[f"{part}.offsets"]) for part in _PARTS}
        return cls(**fields)


def build_word_corpus(documents: Iterable[str], k: int = 100, test_fraction: float = 0.1) -> WordCorpus:
    """Keep the sentences that consist of the `k` most frequent words only.

    Args:
        documents (iterable of `str`):
            The texts, for example `load_corpus("tinystories", ...)["text"]`; read once.
        k (`int`, *optional*, defaults to 100):
            Number of words in the vocabulary, including the full stop.
        test_fraction (`float`, *optional*, defaults to 0.1):
            Share of the distinct sentences that goes to `test`, chosen by hash. Words are counted in both splits.

    Returns:
        [`WordCorpus`].

    Raises:
        `InputError`: `k` is below 2 or above the number of distinct words, there are no documents, or no sentence is
            kept.

    ```python
    >>> corpus = build_word_corpus(["The cat sat. The cat ran. The cat sat. A dog!"], k=4, test_fraction=0.0)
    >>> corpus.vocabulary, corpus.train[0].tolist(), len(corpus.train), len(corpus.unique)
    (('.', 'cat', 'the', 'sat'), [2, 1, 3, 0], 2, 1)

    ```
    """
    if not 2 <= k <= 1 << 16:
        raise InputError(f"k={k}: expected 2 to 65536 words, including the full stop")
    if not 0 <= test_fraction < 1:
        raise InputError(f"test_fraction={test_fraction}: expected at least 0 and below 1")
    counts: Counter[str] = Counter()
    first_seen: dict[str, int] = {}
    candidates, lengths = array("I"), array("q")
    num_documents = num_sentences = 0
    for document in documents:
        num_documents += 1
        for words, complete in split_sentences(document):
            num_sentences += 1
            counts.update(word for word in words if word[0].isalnum())
            counts[FULL_STOP] += words[-1:] == [FULL_STOP]
            if complete:
                candidates.extend(first_seen.setdefault(word, len(first_seen)) for word in words)
                lengths.append(len(words))
    if not num_sentences:
        raise InputError(f"no sentence in {num_documents} documents")
    vocabulary = _most_frequent(counts, k)
    sentences = _in_vocabulary(candidates, lengths, list(first_seen), vocabulary)
    train, test, unique = _split(sentences, vocabulary, test_fraction)
    if not train:
        raise InputError(
            f"no sentence to train on: of {num_sentences}, {len(lengths)} end in a full stop and have no other mark, "
            f"{len(sentences)} of these have only the {k} most frequent words, {len(test)} of these are held out; "
            "pass a larger k or more text"
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
    )


def as_text(words: Iterable[str]) -> str:
    """Words as they are read: separated by spaces, with no space before a full stop.

    ```python
    >>> as_text(["the", "cat", "sat", ".", "it", "ran", "."])
    'the cat sat. it ran.'

    ```
    """
    return " ".join(words).replace(f" {FULL_STOP}", FULL_STOP)


def sentences_of(text: str, vocabulary: Sequence[str]) -> tuple[list[UInt16[np.ndarray, "L"]], int]:
    """The sentences of a text that consist of the words of a vocabulary only, and the number of all sentences.

    ```python
    >>> sentences_of("The cat sat. The dog sat!", (".", "the", "cat", "sat"))
    ([array([1, 2, 3, 0], dtype=uint16)], 2)

    ```
    """
    symbol_of = {word: symbol for symbol, word in enumerate(vocabulary)}
    sentences = list(split_sentences(text))
    kept = [words for words, complete in sentences if complete and all(word in symbol_of for word in words)]
    return [np.array([symbol_of[word] for word in words], np.uint16) for words in kept], len(sentences)


def split_sentences(document: str) -> Iterator[tuple[list[str], bool]]:
    """Yield each sentence as words and marks, and whether it consists of words and one full stop at the end.

    ```python
    >>> list(split_sentences("The cat sat. It's late!"))
    [(['the', 'cat', 'sat', '.'], True), (["it's", 'late', '!'], False)]

    ```
    """
    for paragraph in _PARAGRAPH.split(_fold(document)):
        start = 0
        for end in _SENTENCE_END.finditer(paragraph):
            words = _TOKEN.findall(paragraph[start : end.end()])
            start = end.end()
            marks = [word for word in words if not word[0].isalnum()]
            yield words, marks == [FULL_STOP] and words[-1] == FULL_STOP and len(words) > 1
        rest = _TOKEN.findall(paragraph[start:])
        if rest:
            yield rest, False


def word_tokenizer(vocabulary: Sequence[str]) -> "PreTrainedTokenizerFast":
    """A tokenizer whose ids are the symbols of an HMM over `vocabulary`.

    It cuts text into words as [`build_word_corpus`] does. Word `i` has id `i`. Then come `<bos>`, `<eos>`, `<pad>` and
    `<unk>`; encoding does not add them. Decoding puts one space between words.

    Args:
        vocabulary (sequence of `str`):
            The words, for example [`WordCorpus.vocabulary`].

    Raises:
        `InputError`: a word occurs twice, or [`build_word_corpus`] would cut or change it.

    ```python
    >>> tokenizer = word_tokenizer((".", "cat", "the", "sat"))
    >>> tokenizer("The cat sat.")["input_ids"], tokenizer.decode([2, 1, 3, 0])
    ([2, 1, 3, 0], 'the cat sat .')

    ```
    """
    from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    ids = {word: number for number, word in enumerate(vocabulary)}
    if len(ids) < len(vocabulary):
        twice = next(word for number, word in enumerate(vocabulary) if ids[word] != number)
        raise InputError(f"vocabulary: {twice!r} occurs twice")
    for word in vocabulary:
        if _TOKEN.findall(_fold(word)) != [word]:
            raise InputError(
                f"vocabulary: {word!r} is not one lower-case word or mark; take it from build_word_corpus"
            )
    ids |= {token: len(vocabulary) + number for number, token in enumerate(SPECIAL_TOKENS)}
    bos, eos, pad, unk = SPECIAL_TOKENS
    tokenizer = Tokenizer(models.WordLevel(ids, unk_token=unk))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Lowercase(), normalizers.Replace("’", "'")])
    # [\p{L}\p{N}] is the [^\W_] of Python's re; the \w of the tokenizers library also matches combining marks.
    word_pattern = _WORD.replace(r"[^\W_]", r"[\p{L}\p{N}]")
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(rf"{word_pattern}|\S"), "removed", invert=True)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=bos,
        eos_token=eos,
        pad_token=pad,
        unk_token=unk,
        clean_up_tokenization_spaces=False,
        model_input_names=["input_ids", "attention_mask"],
    )


def _fold(text: str) -> str:
    # The capital sigma is replaced first, since str.lower considers its neighbours and the tokenizers library does
    # not.
    return text.replace("Σ", "σ").lower().replace("’", "'")


def _most_frequent(counts: Counter[str], k: int) -> tuple[str, ...]:
    ranked = sorted(counts, key=lambda word: (-counts[word], word))
    if len(ranked) < k:
        raise InputError(
            f"k={k}, but the documents have only {len(ranked)} distinct words; pass k={len(ranked)} "
            "(--vocabulary_size of fit)"
        )
    chosen = ranked[:k]
    if FULL_STOP not in chosen:  # rarer than k words; without it no sentence could be kept
        chosen[-1] = FULL_STOP
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
