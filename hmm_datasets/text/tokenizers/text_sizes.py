"""Bytes and characters of a text that each of its tokens stands for, and what of a text a tokenizer loses.

Nothing is counted from decoded pieces: a token that is a part of a character is decoded as U+FFFD, of three bytes. For
a byte-level tokenizer the bytes are those of its tokens. For any other one they follow from where each token ends in
the text: a token has all that stands between the end of the token before it and its own, the last one also what is
left, so that the bytes of the tokens of a text are those of the text. Of a character in several tokens of a byte each
(`<0xE2>`, as in SentencePiece) each has one, otherwise the first has all. Characters are counted in the same way.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from jaxtyping import Int, Int64

from ...errors import InputError
from .bpe import is_byte_level
from .encoding import encode_texts, encoding_errors, plain_tokenizer

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

_PROBE = "Aé e\u0301 ﬁ ½  Å"  # cases, compositions, compatibility forms and two spaces
_REPLACEMENT, _SPACE = "\ufffd", "▁"  # what stands for a part of a character, and for a space in SentencePiece


def byte_characters() -> list[str]:
    """The character that stands for each byte in a byte-level vocabulary, as in GPT-2.

    A byte that is a printable character of Latin-1 is written as that character. The other 68 bytes, in order, are
    written as the characters from U+0100 on.

    ```python
    >>> byte_characters()[32:35]
    ['Ġ', '!', '"']

    ```
    """
    printable = {*range(33, 127), *range(161, 173), *range(174, 256)}
    others = iter(range(256, 512))
    return [chr(byte if byte in printable else next(others)) for byte in range(256)]


def token_bytes(tokenizer: "PreTrainedTokenizerFast") -> Int[np.ndarray, "V"]:
    """Number of bytes of text that each token of a byte-level tokenizer stands for; 0 for special tokens.

    A token that was added and is not special, such as white space in GPT-NeoX, stands for its characters, and one for
    unknown bytes, as `hmm-datasets tokenize --vocabulary characters` makes it, for one byte.

    Args:
        tokenizer (`transformers.PreTrainedTokenizerFast`):
            A byte-level BPE tokenizer, for example from [`train_bpe`] or GPT-2.

    Returns:
        `np.ndarray` of shape `(V,)`, int64.

    Raises:
        `InputError`: the tokenizer is not byte-level.
    """
    return _token_sizes(tokenizer, lambda token: len(token))


def token_characters(tokenizer: "PreTrainedTokenizerFast") -> Int[np.ndarray, "V"]:
    """Number of characters of text that begin in each token of a byte-level tokenizer; 0 for special tokens.

    So the characters of a text are the sum over its tokens, also where tokens are parts of characters, but for unknown
    bytes, of which it is not known. Arguments, shape and errors are those of [`token_bytes`].
    """
    # In UTF-8 the bytes 0x80 to 0xBF continue a character.
    continuing = set(byte_characters()[0x80:0xC0])
    return _token_sizes(tokenizer, lambda token: sum(byte not in continuing for byte in token), len, unknown_size=0)


def _token_sizes(
    tokenizer: "PreTrainedTokenizerFast",
    size: Callable[[str], int],
    size_of_text: Callable[[str], int] = lambda text: len(text.encode()),
    unknown_size: int = 1,
) -> Int[np.ndarray, "V"]:
    """A size of each token: `size` of the bytes of one, written as characters, and `size_of_text` of an added word."""
    if not is_byte_level(tokenizer):
        raise InputError("the tokenizer is not byte-level; bits per byte need a tokenizer whose tokens are bytes")
    sizes = np.zeros(len(tokenizer), dtype=np.int64)
    for token, number in tokenizer.get_vocab().items():
        # A byte-level vocabulary writes every byte as one character.
        sizes[number] = size(token)
    for number, token in tokenizer.added_tokens_decoder.items():
        sizes[number] = 0 if token.special else size_of_text(token.content)
    sizes[tokenizer.all_special_ids] = 0
    model: Any = tokenizer.backend_tokenizer.model
    unknown = getattr(model, "unk_token", None)
    if unknown and not model.fuse_unk and not set(byte_characters()) <= tokenizer.get_vocab().keys():
        sizes[tokenizer.convert_tokens_to_ids(unknown)] = unknown_size
    return sizes


class SizedText(NamedTuple):
    """The tokens of a text, without special ones, and what each stands for.

    Attributes:
        tokens (`list` of `int`): ids of the tokens.
        bytes (`np.ndarray` of shape `(T,)`), characters (`np.ndarray` of shape `(T,)`): sizes in the text, int64.
    """

    tokens: list[int]
    bytes: Int64[np.ndarray, "T"]
    characters: Int64[np.ndarray, "T"]


@dataclass
class LostText:
    """What is not in texts any more once they have been encoded and decoded.

    White space that a tokenizer adds, or puts elsewhere, is not counted; what it leaves out is.

    Attributes:
        documents (`int`), characters (`int`): texts that lose something, and the number of characters they lose.
        of_documents (`int`), of_characters (`int`): numbers of all texts, and of their characters.
        unknown (`int`): tokens that stand for something unknown.
        normalizer (`str`, *optional*): what changes a stream's texts, whose characters are not there to be compared.
        changed_bytes (`int`): bytes of a stream's texts less those of its tokens, which is not 0 if the tokenizer
            changes texts before it encodes them.
        examples (`list` of `str`): the characters that are lost most often.
    """

    documents: int = 0
    characters: int = 0
    of_documents: int = 0
    of_characters: int = 0
    unknown: int = 0
    changed_bytes: int = 0
    normalizer: str | None = None
    counts: Counter[str] = field(default_factory=Counter)

    def add(self, text: str, decoded: str) -> None:
        """Count what one of the texts loses."""
        lost = Counter() if text == decoded else Counter(text) - Counter(decoded)
        self.counts += lost
        self.documents += bool(lost)
        self.characters += sum(lost.values())
        self.of_documents += 1
        self.of_characters += len(text)

    @property
    def examples(self) -> list[str]:
        return [character for character, _ in self.counts.most_common(5)]

    def describe(self) -> str:
        """A sentence about the loss, for one line; empty if nothing is lost."""
        if not (self.characters or self.unknown or self.changed_bytes or self.normalizer):
            return ""
        parts = []
        if self.characters:
            shown = " ".join(map(repr, self.examples))
            parts.append(
                f"{self.characters:,} of {self.of_characters:,} characters, in {self.documents:,} of "
                f"{self.of_documents:,} documents, are not in the decoded text (such as {shown})"
            )
        if self.unknown:
            parts.append(f"{self.unknown:,} tokens stand for something unknown")
        if self.normalizer:
            parts.append(f"its normalizer ({self.normalizer}) changes texts before they are encoded")
        if self.changed_bytes:
            parts.append(
                f"tokens stand for {abs(self.changed_bytes):,} bytes "
                f"{'less' if self.changed_bytes > 0 else 'more'} than the texts have"
            )
        return (
            f"the tokenizer loses text: {'; '.join(parts)}; the loss is that of predicting less than the text, so its "
            "bits per byte and per character do not compare with those of other tokenizers"
        )

    def report(self) -> dict[str, Any] | None:
        """The counts for a report, None if nothing is lost."""
        if not self.describe():
            return None
        return {
            "documents": self.documents,
            "characters": self.characters,
            "unknown_tokens": self.unknown,
            "changed_bytes": self.changed_bytes,
            "normalizer": self.normalizer,
            "examples": self.examples,
        }


def changing_normalizer(tokenizer: "PreTrainedTokenizerFast") -> str | None:
    """The name of a tokenizer's normalizer if it changes letters, or None: lower case, accents, or compositions."""
    normalizer: Any = tokenizer.backend_tokenizer.normalizer
    changes = normalizer is not None and normalizer.normalize_str(_PROBE).strip() != _PROBE
    return type(normalizer).__name__ if changes else None


def sized_texts(tokenizer: "PreTrainedTokenizerBase", texts: Sequence[str], lost: LostText) -> list[SizedText]:
    """Encode texts, without special tokens; see [`SizedText`].

    Args:
        tokenizer ([`~transformers.PreTrainedTokenizerBase`]): a tokenizer of any kind.
        texts (sequence of `str`): the texts.
        lost ([`LostText`]): counts what is lost; changed in place.
    """
    if not texts:
        return []
    if tokenizer.is_fast:
        plain = plain_tokenizer(tokenizer)
        with encoding_errors(tokenizer):
            encodings = plain.encode_batch(list(texts), add_special_tokens=False)
        rows = [encoding.ids for encoding in encodings]
        decoded = plain.decode_batch(rows, skip_special_tokens=False)
        places = [np.array(encoding.offsets, np.int64).reshape(-1, 2) for encoding in encodings]
    else:
        rows = encode_texts(tokenizer, texts)
        decoded = [_decoded(tokenizer, row) for row in rows]
        places = [_places(tokenizer, text, row) for text, row in zip(texts, rows, strict=True)]
    fast: Any = tokenizer
    byte_level = tokenizer.is_fast and is_byte_level(fast)
    known = (token_bytes(fast), token_characters(fast)) if byte_level else None
    sizes = []
    for text, row, again, place in zip(texts, rows, decoded, places, strict=True):
        sized = _from_places(tokenizer, text, row, place)
        if known is not None and known[0][row].sum() == sized.bytes.sum():  # else it changes texts before encoding
            has_characters = known[1][row].sum() == sized.characters.sum()
            sized = SizedText(row, known[0][row], known[1][row] if has_characters else sized.characters)
        sizes.append(sized)
        lost.add(text, again)
        lost.unknown += row.count(tokenizer.unk_token_id)
    return sizes


def _from_places(
    tokenizer: "PreTrainedTokenizerBase", text: str, tokens: list[int], places: Int64[np.ndarray, "T 2"]
) -> SizedText:
    """Sizes from where each token begins and ends in the text, in characters."""
    before = np.concatenate([[0], np.cumsum(_character_bytes(text))])
    if not tokens:
        return SizedText(tokens, np.zeros(0, np.int64), np.zeros(0, np.int64))
    names = tokenizer.convert_ids_to_tokens(tokens)
    ends = np.maximum.accumulate(places[:, 1])
    if not names[0].strip(_SPACE) and not text.startswith(" "):  # a space that was put before the text
        ends[0] = 0
    ends[-1] = len(text)
    starts = np.concatenate([[0], ends[:-1]])
    sizes = before[ends] - before[starts]
    first = 0
    while first < len(tokens):
        stop = first + 1
        while stop < len(tokens) and sizes[stop] == 0 and (places[stop] == places[first]).all():
            stop += 1
        if stop - first > 1 and sizes[first] == stop - first and all(map(_is_byte, names[first:stop])):
            sizes[first:stop] = 1
        first = stop
    return SizedText(tokens, sizes, ends - starts)


def _character_bytes(text: str) -> Int64[np.ndarray, "C"]:
    """Number of bytes of each character in UTF-8."""
    codes = np.frombuffer(text.encode("utf-32-le"), np.uint32)
    return 1 + (codes >= 0x80).astype(np.int64) + (codes >= 0x800) + (codes >= 0x10000)


def _is_byte(name: str) -> bool:
    return len(name) == 6 and name.startswith("<0x") and name.endswith(">")


def _decoded(tokenizer: "PreTrainedTokenizerBase", tokens: list[int]) -> str:
    return str(tokenizer.decode(tokens, clean_up_tokenization_spaces=False))


def _places(tokenizer: "PreTrainedTokenizerBase", text: str, tokens: list[int]) -> Int64[np.ndarray, "T 2"]:
    """Where tokens end in a text, for a tokenizer that does not say so: where all tokens up to them end, decoded."""
    ends = []
    for count in range(1, len(tokens) + 1):
        whole = _decoded(tokenizer, tokens[:count]).rstrip(_REPLACEMENT)
        ends.append(min(len(whole), len(text)))
    return np.stack([[0, *ends[:-1]], ends], 1).astype(np.int64) if ends else np.zeros((0, 2), np.int64)
