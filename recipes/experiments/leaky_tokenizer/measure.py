"""How well tokenizers compress texts, confidence intervals of differences, and tokens learned from test text.

Bytes per token and tokens per word (fertility) are ratios of sums over documents. Two tokenizers are compared on the
same documents; the confidence interval of a difference is over documents (see
`hmm_datasets.statistics`). Documents without a word are left out. Encoding takes time linear in the text. Memory is 48
bytes per document, and the bootstrap makes `resamples` passes over these.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Int64

from hmm_datasets.errors import InputError
from hmm_datasets.intervals import influence_interval
from hmm_datasets.paired_differences import Difference, check_bootstrap
from hmm_datasets.text.tokenizers.encoding import Encoder
from hmm_datasets.text.tokenizers.text_sizes import token_bytes

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

_BATCH = 1024


@dataclass(frozen=True)
class Compression:
    """Counts of a tokenizer on some documents.

    Attributes:
        documents (`int`), bytes (`int`), words (`int`): counts of the text; words are separated by white space.
        tokens (`int`): number of tokens, without special tokens.
        single_byte_tokens (`int`): number of tokens that stand for one byte.
    """

    documents: int
    bytes: int
    words: int
    tokens: int
    single_byte_tokens: int

    @property
    def bytes_per_token(self) -> float:
        return self.bytes / self.tokens

    @property
    def fertility(self) -> float:
        """Tokens per word."""
        return self.tokens / self.words

    @property
    def tokens_per_document(self) -> float:
        return self.tokens / self.documents

    @property
    def single_byte_share(self) -> float:
        """Share of the tokens that stand for one byte."""
        return self.single_byte_tokens / self.tokens


@dataclass(frozen=True)
class Comparison:
    """Two tokenizers on the same documents.

    Attributes:
        first ([`Compression`]), second ([`Compression`]): the counts of each tokenizer.
        bytes_per_token ([`Difference`]), fertility ([`Difference`]), tokens_per_document ([`Difference`]),
        single_byte_share ([`Difference`]): second minus first.
        level (`float`): confidence level of the intervals, for example 0.95.
    """

    first: Compression
    second: Compression
    bytes_per_token: Difference
    fertility: Difference
    tokens_per_document: Difference
    single_byte_share: Difference
    level: float


@dataclass(frozen=True)
class TokenFromTest:
    """A token that is more frequent in the test text than in the train text.

    Attributes:
        token_id (`int`), text (`str`): the token; bytes that are not UTF-8 are written `�`.
        in_test (`int`), in_train (`int`): number of occurrences.
        rate_in_test (`float`), rate_in_train (`float`): occurrences per million bytes.
    """

    token_id: int
    text: str
    in_test: int
    in_train: int
    rate_in_test: float
    rate_in_train: float


@dataclass(frozen=True)
class TokensFromTest:
    """The tokens that only one of two tokenizers has, and which of them come from the test text.

    Attributes:
        new (`int`): number of tokens of the second tokenizer that the first does not have.
        used (`int`): number of new tokens that occur in the test text.
        from_test (`tuple` of [`TokenFromTest`]): used tokens that are less frequent in the train text, by decreasing
            count in the test text.
    """

    new: int
    used: int
    from_test: tuple[TokenFromTest, ...]


def measure(tokenizer: "PreTrainedTokenizerFast", texts: Iterable[str]) -> Compression:
    """Measure a byte-level tokenizer on texts.

    Args:
        tokenizer (`transformers.PreTrainedTokenizerFast`):
            A tokenizer from [`~hmm_datasets.text.tokenizers.bpe.train_bpe`], or another byte-level one.
        texts (iterable of `str`):
            The documents, read once.

    Returns:
        [`Compression`].

    Raises:
        `InputError`: the tokenizer is not byte-level, or the texts have no words.

    ```python
    >>> from hmm_datasets.text.tokenizers.bpe import train_bpe
    >>> tokenizer = train_bpe(["low lower lowest"] * 9, 266, show_progress=False)
    >>> measure(tokenizer, ["low low"]).bytes_per_token
    3.5

    ```
    """
    return _total(_counts([tokenizer], texts), 0)


def compare(
    first: "PreTrainedTokenizerFast",
    second: "PreTrainedTokenizerFast",
    texts: Iterable[str],
    *,
    resamples: int = 1000,
    level: float = 0.95,
    seed: int = 0,
) -> Comparison:
    """Compare two byte-level tokenizers on the same texts.

    Args:
        first, second (`transformers.PreTrainedTokenizerFast`), texts (iterable of `str`):
            See [`measure`].
        resamples (`int`, *optional*, defaults to 1000), level (`float`, *optional*, defaults to 0.95),
        seed (`int`, *optional*, defaults to 0):
            Settings of the bootstrap.

    Returns:
        [`Comparison`].

    Raises:
        `InputError`: for the reasons of [`measure`], or because a setting is out of range.
    """
    check_bootstrap(resamples, level)
    counts = _counts([first, second], texts)
    totals = counts.sum(axis=0)
    figures = {"bytes_per_token": (0, 2), "fertility": (2, 1), "tokens_per_document": (2, None)}
    figures["single_byte_share"] = (3, 2)
    differences = {}
    for name, (above, below) in figures.items():
        influences, shares = [], []
        for which in (0, 1):
            sizes = np.ones(len(counts)) if below is None else counts[:, _column(below, which)]
            ratio = totals[_column(above, which)] / sizes.sum()
            influences.append((counts[:, _column(above, which)] - ratio * sizes) / sizes.sum())
            shares.append(sizes / sizes.sum())
        value = float(getattr(_total(counts, 1), name) - getattr(_total(counts, 0), name))
        settings = {"resamples": resamples, "level": level, "seed": seed}
        bounds = influence_interval(value, influences[1] - influences[0], (shares[0] + shares[1]) / 2, **settings)
        differences[name] = Difference(value, *(bounds or (None, None)))
    return Comparison(_total(counts, 0), _total(counts, 1), **differences, level=level)


def tokens_from_test(
    clean: "PreTrainedTokenizerFast",
    leaky: "PreTrainedTokenizerFast",
    train_texts: Iterable[str],
    test_texts: Iterable[str],
) -> TokensFromTest:
    """Find the tokens that a tokenizer trained on train and test text learned from the test text.

    Args:
        clean (`transformers.PreTrainedTokenizerFast`), leaky (`transformers.PreTrainedTokenizerFast`):
            Byte-level tokenizers: `clean` is trained on train text alone, `leaky` on train and test text.
        train_texts (iterable of `str`), test_texts (iterable of `str`):
            The texts, each read once and encoded by `leaky`.

    Returns:
        [`TokensFromTest`].
    """
    from tokenizers import decoders

    known, vocabulary = clean.get_vocab(), leaky.get_vocab()
    new = {number: token for token, number in vocabulary.items() if token not in known}
    encoder, decoder = Encoder(leaky), decoders.ByteLevel()
    in_train, train_bytes = _occurrences(encoder, train_texts, len(leaky))
    in_test, test_bytes = _occurrences(encoder, test_texts, len(leaky))
    if not train_bytes or not test_bytes:
        raise InputError("train_texts or test_texts are empty; pass texts with at least one character each")
    shares = [
        TokenFromTest(
            token_id=number,
            text=decoder.decode([token]),
            in_test=int(in_test[number]),
            in_train=int(in_train[number]),
            rate_in_test=float(1e6 * in_test[number] / test_bytes),
            rate_in_train=float(1e6 * in_train[number] / train_bytes),
        )
        for number, token in new.items()
        if in_test[number] * train_bytes > in_train[number] * test_bytes
    ]
    shares.sort(key=lambda token: (-token.in_test, token.token_id))
    return TokensFromTest(len(new), sum(bool(in_test[number]) for number in new), tuple(shares))


def _batches(texts: Iterable[str]) -> Iterator[list[str]]:
    remaining = iter(texts)
    while batch := list(islice(remaining, _BATCH)):
        yield batch


def _counts(tokenizers: list["PreTrainedTokenizerFast"], texts: Iterable[str]) -> Int64[np.ndarray, "D C"]:
    """Counts per document: bytes and words, then for each tokenizer its tokens and its single-byte tokens."""
    encoders = [(Encoder(tokenizer), token_bytes(tokenizer) == 1) for tokenizer in tokenizers]
    rows = [np.zeros((0, 2 + 2 * len(encoders)), np.int64)]
    for batch in _batches(texts):
        columns = [[len(text.encode()) for text in batch], [len(text.split()) for text in batch]]
        for encoder, is_single in encoders:
            tokens, lengths = encoder.encode_batch(batch)
            before = np.concatenate([[0], np.cumsum(is_single[tokens])])
            ends = np.cumsum(lengths)
            columns += [lengths, before[ends] - before[ends - lengths]]
        rows.append(np.array(columns, np.int64).T)
    counts = np.concatenate(rows)
    with_words = counts[counts[:, 1] > 0]
    if not len(with_words):
        raise InputError(f"no word in {len(counts)} documents; pass texts with at least one word")
    return with_words


def _column(figure: int, which: int) -> int:
    """Column of the counts with a figure (bytes, words, tokens, single bytes) of a tokenizer."""
    return figure if figure < 2 else figure + 2 * which


def _total(counts: np.ndarray, which: int) -> Compression:
    sums = counts.sum(axis=0).tolist()
    return Compression(len(counts), *(sums[_column(figure, which)] for figure in range(4)))


def _occurrences(encoder: Encoder, texts: Iterable[str], vocab_size: int) -> tuple[Int64[np.ndarray, "V"], int]:
    """The number of occurrences of each token in the texts, and the bytes of the texts."""
    occurrences, num_bytes = np.zeros(vocab_size, np.int64), 0
    for batch in _batches(texts):
        num_bytes += sum(len(text.encode()) for text in batch)
        occurrences += np.bincount(encoder.encode_batch(batch)[0], minlength=vocab_size)
    return occurrences, num_bytes
