"""Encoding of texts as token ids, in batches, on all cores.

The ids are those of the `tokenizers` library, but they are computed by fastokens (Apache-2.0). It reads the same
`tokenizer.json`, caches the ids of pieces, and returns one flat buffer, whereas `tokenizers` makes a Python list per
text. Time is linear in the bytes of text; memory is about 5 bytes per byte of the batch. A text of any length is
encoded as a whole, so that its ids do not depend on cuts.

What a text spells never becomes a control token. Control tokens are those with a meaning for the model rather than
words: the special tokens of a tokenizer, other added tokens that its chat template writes (such as Qwen's
`<tool_call>`), and added tokens of the form `<|name|>`. White space and words that were added to a vocabulary (as in
GPT-NeoX) are text.
"""

import functools
import json
import logging
import re
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

import msgspec
import numpy as np
from jaxtyping import Int64, UInt32

from ...compat.rust import panics_as_errors
from ...errors import InputError, first_line
from ..corpora.local_files import check_text, shorten
from .bpe import EXPONENTIAL, check_pieces, is_byte_level

if TYPE_CHECKING:
    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

_logger = logging.getLogger(__name__)

_LARGEST_ID = 1 << 24
_SAMPLE_CHARACTERS = 1 << 16
# Latin, combining marks, Arabic digits, spaces and marks, kana, Han, emoji with their joiners.
_BLOCKS = ((0, 0x250), (0x300, 0x370), (0x660, 0x66A), (0x2000, 0x2070), (0x3000, 0x3060), (0x4E00, 0x4E10))
_CHARACTERS = [
    chr(code)
    for first, end in (*_BLOCKS, (0x180E, 0x180F), (0xFE00, 0xFE10), (0x1F600, 0x1F610))
    for code in range(first, end)
]


_NAMED = re.compile(r"<\|.*\|>", re.DOTALL)
_PLAIN: "WeakKeyDictionary[PreTrainedTokenizerBase, tuple[str, Tokenizer]]" = WeakKeyDictionary()


def control_tokens(tokenizer: "PreTrainedTokenizerBase", template: str | None = None) -> frozenset[str]:
    """The control tokens of a tokenizer, with those that a chat template writes; by default its own."""
    template = tokenizer.chat_template if template is None else template
    written = " ".join(template.values()) if isinstance(template, Mapping) else template or ""
    named = {*(getattr(tokenizer, "chat_control_tokens", None) or ()), *tokenizer.all_special_tokens}
    for token in tokenizer.added_tokens_decoder.values():
        word = token.content
        if token.special or _NAMED.fullmatch(word) or (word in written and not word.isspace() and _is_marked(word)):
            named.add(word)
    return frozenset(named)


def _is_marked(word: str) -> bool:
    """Whether an added token is no plain word, which a template may have in its sentences."""
    return not re.fullmatch(r"[\w\s]*", word)


def encode_texts(tokenizer: "PreTrainedTokenizerBase", texts: Sequence[str]) -> list[list[int]]:
    """The token ids of texts, without added special tokens; what spells a control token is encoded as text."""
    if not texts:
        return []
    if tokenizer.is_fast:
        plain = plain_tokenizer(tokenizer)
        with encoding_errors(tokenizer):
            return [encoding.ids for encoding in plain.encode_batch_fast(list(texts), add_special_tokens=False)]
    # verbose=False: no warning about texts that are too long for the model, since they are cut later.
    return tokenizer(list(texts), add_special_tokens=False, split_special_tokens=True, verbose=False)["input_ids"]


def encoding_errors(tokenizer: "PreTrainedTokenizerBase") -> AbstractContextManager[None]:
    """A context in which a tokenizer that cannot encode a text raises an [`InputError`]."""
    return panics_as_errors(f"{tokenizer.name_or_path or 'the tokenizer'}: {EXPONENTIAL}", "take another tokenizer")


class _Model(msgspec.Struct):
    vocab: dict[str, int] | list | None = None


class _Token(msgspec.Struct):
    id: int


class _TokenizerFile(msgspec.Struct):
    model: _Model
    added_tokens: list[_Token] = []


def check_ids(path: Path) -> None:
    """Refuse a `tokenizer.json` with a token id so large that the library would end the process for lack of memory.

    Raises:
        `InputError`: an id is negative or above 2**24; whatever else is wrong the library reports.
    """
    try:
        content = msgspec.json.decode(path.read_bytes(), type=_TokenizerFile)
    except (msgspec.MsgspecError, OSError, RecursionError, ValueError):
        return
    vocabulary = content.model.vocab if isinstance(content.model.vocab, dict) else {}
    ids = [*vocabulary.values(), *(token.id for token in content.added_tokens)]
    bad = next((number for number in ids if not 0 <= number <= _LARGEST_ID), None)
    if bad is not None:
        raise InputError(f"{path}: a token has the id {bad}, expected 0 to {_LARGEST_ID:,}; copy the file again")


def plain_tokenizer(tokenizer: "PreTrainedTokenizerBase") -> "Tokenizer":
    """The tokenizer of the library `tokenizers` that takes control tokens in a text for text, and does not cut or pad.

    It is made once, and again when tokens have been added.
    """
    from tokenizers import Tokenizer

    control = control_tokens(tokenizer)
    state = f"{len(tokenizer)} {sorted(control)}"
    known = _PLAIN.get(tokenizer)
    if known is not None and known[0] == state:
        return known[1]
    if tokenizer.backend_tokenizer.pre_tokenizer is not None:
        check_pieces(tokenizer.backend_tokenizer.pre_tokenizer, tokenizer.name_or_path or "the tokenizer")
    if not isinstance(tokenizer.model_max_length, int | float):
        raise InputError(
            f"{tokenizer.name_or_path or 'the tokenizer'}: model_max_length is {shorten(tokenizer.model_max_length)}, "
            "expected a number; mend it in tokenizer_config.json"
        )
    written = json.loads(tokenizer.backend_tokenizer.to_str())
    for token in written["added_tokens"]:
        token["special"] = token["content"] in control  # the library leaves out those that are special
    try:
        plain = Tokenizer.from_str(json.dumps(written))
    except Exception as error:  # the library raises a plain Exception
        raise InputError(
            f"{tokenizer.name_or_path or 'the tokenizer'}: cannot encode text ({first_line(error)}); copy it again"
        ) from None
    plain.encode_special_tokens = True
    plain.no_truncation()
    plain.no_padding()
    _PLAIN[tokenizer] = (state, plain)
    return plain


class Encoder:
    """Encodes texts as ids of a tokenizer.

    The names of control tokens in a text are encoded as text, so that a document can contain neither an EOS nor a role
    token. No special tokens are added, and nothing is truncated or padded. Every encoder also encodes a fixed probe
    and its first texts (65,536 characters) with `tokenizers`. If the ids differ, or if fastokens is not there or
    does not take the tokenizer, it uses `tokenizers` for everything and logs a warning. A batch with a byte that has
    no token, which fastokens refuses, is encoded by `tokenizers`.

    Args:
        tokenizer (`transformers.PreTrainedTokenizerFast`):
            The tokenizer; it is copied and not changed.

    Attributes:
        backend (`str`): the library in use, `"fastokens"` or `"tokenizers"`.

    ```python
    >>> from hmm_datasets.text.tokenizers.bpe import train_bpe
    >>> encoder = Encoder(train_bpe(["low lower lowest"] * 9, 266, show_progress=False))
    >>> tokens, lengths = encoder.encode_batch(["low", "", "lower"])
    >>> tokens.tolist(), lengths.tolist()
    ([264, 264, 75, 88], [1, 0, 3])

    ```
    """

    def __init__(self, tokenizer: "PreTrainedTokenizerFast"):
        plain = plain_tokenizer(tokenizer)
        with ThreadPoolExecutor(1) as thread:  # fastokens releases the GIL, for most of the time that this takes
            fast = thread.submit(_fast_tokenizer, plain.to_str())
            self._reference = plain
        self._tokenizer = tokenizer
        self._fast = fast.result()
        self._checked = False
        with encoding_errors(tokenizer):
            self._check(_probe(tokenizer))

    @property
    def backend(self) -> str:
        return "tokenizers" if self._fast is None else "fastokens"

    def encode_batch(self, texts: Sequence[str]) -> tuple[UInt32[np.ndarray, "T"], Int64[np.ndarray, "B"]]:
        """Encode texts.

        Args:
            texts (sequence of `str`):
                The texts; pass about a thousand at a time to keep the cores busy. An empty text has no ids.

        Returns:
            `tuple`: the ids of all texts, concatenated, a read-only array `(T,)` of uint32; and the number of ids of
            each text, `(B,)` int64.

        Raises:
            `InputError`: a text is not a valid string; the message gives its number.
        """
        texts = list(texts)
        try:
            with encoding_errors(self._tokenizer):
                if not self._checked:
                    self._checked = True
                    self._check(_sample(texts))
                return self._encode_reference(texts) if self._fast is None else self._encode_fast(texts)
        except (TypeError, UnicodeEncodeError):
            for number, text in enumerate(texts):
                check_text(text, f"text {number}")
            raise

    def _encode_fast(self, texts: list[str]) -> tuple[np.ndarray, np.ndarray]:
        try:
            ids, offsets = self._fast.encode_batch_flat(texts, add_special_tokens=False, split_special_tokens=True)
        except ValueError:  # a byte that has no token; what is not text is refused by both
            return self._encode_reference(texts)
        return np.frombuffer(ids, dtype="<u4"), np.diff(np.frombuffer(offsets, dtype="<u8").astype(np.int64))

    def _encode_reference(self, texts: list[str]) -> tuple[np.ndarray, np.ndarray]:
        ids = [encoding.ids for encoding in self._reference.encode_batch_fast(texts, add_special_tokens=False)]
        lengths = np.fromiter(map(len, ids), np.int64, len(ids))
        return np.concatenate([np.zeros(0), *ids]).astype(np.uint32), lengths

    def _check(self, texts: list[str]) -> None:
        """Switch to `tokenizers` if the two libraries differ on `texts`."""
        if self._fast is None:
            return
        pairs = zip(self._encode_fast(texts), self._encode_reference(texts), strict=True)
        if not all(np.array_equal(ids, other) for ids, other in pairs):
            self._fast = None
            _logger.warning("fastokens and tokenizers differ on a sample of the texts; using the slower tokenizers")


def _probe(tokenizer: "PreTrainedTokenizerFast") -> list[str]:
    """Texts on which both libraries are compared first: letters, digits, marks and white space in many combinations.

    Characters are left out of which a byte has no token in a byte-level vocabulary, such as SmolLM2's.
    """
    from tokenizers.pre_tokenizers import ByteLevel

    characters = _CHARACTERS
    if is_byte_level(tokenizer):
        letters, known = ByteLevel(add_prefix_space=False, use_regex=False), tokenizer.get_vocab().keys()
        characters = [
            character for character in _CHARACTERS if known >= set(letters.pre_tokenize_str(character)[0][0])
        ]
    return [separator.join(characters) for separator in ("", " ", "\n", "a", "1", "!")]


@functools.cache
def _warn_of_slower_encoding() -> None:
    _logger.warning("fastokens is not installed, so texts are encoded slower; pip install 'hmm-datasets[fastokens]'")


def _fast_tokenizer(state: str):
    try:
        import fastokens
    except ImportError:
        _warn_of_slower_encoding()
        return None
    try:
        fast = fastokens.Tokenizer.from_json_str(state)
        fast.no_truncation()
        fast.no_padding()
        return fast
    except (ValueError, NotImplementedError) as error:  # an unsupported model or split pattern
        _logger.warning("fastokens does not support this tokenizer (%s); using the slower tokenizers", error)
        return None


def _sample(texts: list[str]) -> list[str]:
    """The first texts up to a number of characters; the last one may be cut."""
    sample, room = [], _SAMPLE_CHARACTERS
    for text in texts:
        if room <= 0:
            break
        sample.append(check_text(text, f"text {len(sample)}")[:room])
        room -= len(text)
    return sample
