"""Texts to token ids, many at a time, on all cores.

The ids are those of the `tokenizers` library; the work is done by fastokens (Apache-2.0), which reads the same
`tokenizer.json`, remembers the ids of pieces it has met, and hands over one flat buffer where `tokenizers` makes a
Python list a text. Linear in the bytes of text; memory is about 5 bytes a byte of the batch. A text of any length is
encoded whole, so that its ids do not depend on where it might have been cut.
"""

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Int64, UInt32

from ..corpora.local_files import check_text

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

_logger = logging.getLogger(__name__)

_SAMPLE_CHARACTERS = 1 << 16
# Latin, combining marks, Arabic digits, spaces and marks, kana, Han, emoji with their joiners.
_BLOCKS = ((0, 0x250), (0x300, 0x370), (0x660, 0x66A), (0x2000, 0x2070), (0x3000, 0x3060), (0x4E00, 0x4E10))
_CHARACTERS = [
    chr(code) for first, end in (*_BLOCKS, (0xFE00, 0xFE10), (0x1F600, 0x1F610)) for code in range(first, end)
]
_PROBE = [separator.join(_CHARACTERS) for separator in ("", " ", "\n", "a", "1", "!")]
"""What both libraries have to agree on before any text: letters, digits, marks and white space side by side."""


class Encoder:
    """Turns texts into the ids of a tokenizer.

    The names of special tokens in a text are read as text, so that a document can neither end early nor speak out of
    turn; none is added, nothing is cut or padded. The first texts of every encoder (65,536 characters of them, and a
    fixed probe before) are encoded by `tokenizers` too: where the ids differ, or where fastokens does not take the
    tokenizer, `tokenizers` does all the work, and one line of the log says so.

    Args:
        tokenizer (`transformers.PreTrainedTokenizerFast`):
            The tokenizer; it is copied, and stays as it is.

    Attributes:
        backend (`str`): `"fastokens"` or `"tokenizers"`, whichever does the work.

    ```python
    >>> from hmm_datasets.text.tokenizers.bpe import train_bpe
    >>> encoder = Encoder(train_bpe(["low lower lowest"] * 9, 266, show_progress=False))
    >>> tokens, lengths = encoder.encode_batch(["low", "", "lower"])
    >>> tokens.tolist(), lengths.tolist()
    ([264, 264, 75, 88], [1, 0, 3])

    ```
    """

    def __init__(self, tokenizer: "PreTrainedTokenizerFast"):
        from tokenizers import Tokenizer

        self._reference = Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
        self._reference.encode_special_tokens = True
        self._reference.no_truncation()
        self._reference.no_padding()
        self._fast = _fast_tokenizer(self._reference.to_str())
        self._checked = False
        self._check(_PROBE)

    @property
    def backend(self) -> str:
        return "tokenizers" if self._fast is None else "fastokens"

    def encode_batch(self, texts: Sequence[str]) -> tuple[UInt32[np.ndarray, "T"], Int64[np.ndarray, "B"]]:
        """Encode texts.

        Args:
            texts (sequence of `str`):
                Some thousand at a time keep the cores busy; an empty one has no ids.

        Returns:
            `tuple`: the ids of all texts end to end, `(T,)` uint32, not to be written to; and how many each has,
            `(B,)` int64.

        Raises:
            `InputError`: for a text that is none, by its number.
        """
        texts = list(texts)
        if not self._checked:
            self._checked = True
            self._check(_sample(texts))
        try:
            return self._encode_reference(texts) if self._fast is None else self._encode_fast(texts)
        except (TypeError, UnicodeEncodeError):
            for number, text in enumerate(texts):
                check_text(text, f"text {number}")
            raise

    def _encode_fast(self, texts: list[str]) -> tuple[np.ndarray, np.ndarray]:
        ids, offsets = self._fast.encode_batch_flat(texts, add_special_tokens=False, split_special_tokens=True)
        return np.frombuffer(ids, dtype="<u4"), np.diff(np.frombuffer(offsets, dtype="<u8").astype(np.int64))

    def _encode_reference(self, texts: list[str]) -> tuple[np.ndarray, np.ndarray]:
        ids = [encoding.ids for encoding in self._reference.encode_batch_fast(texts, add_special_tokens=False)]
        lengths = np.fromiter(map(len, ids), np.int64, len(ids))
        return np.concatenate([np.zeros(0), *ids]).astype(np.uint32), lengths

    def _check(self, texts: list[str]) -> None:
        """Go over to `tokenizers` if the two libraries differ on `texts`."""
        if self._fast is None:
            return
        pairs = zip(self._encode_fast(texts), self._encode_reference(texts), strict=True)
        if not all(np.array_equal(one, other) for one, other in pairs):
            self._fast = None
            _logger.warning("fastokens and tokenizers differ on a sample of the texts: encoding by tokenizers, slower")


def _fast_tokenizer(state: str):
    import fastokens

    try:
        return fastokens.Tokenizer.from_json_str(state)
    except (ValueError, NotImplementedError) as error:  # a model or split pattern it does not know
        _logger.warning("fastokens does not take this tokenizer (%s): encoding by tokenizers, slower", error)
        return None


def _sample(texts: list[str]) -> list[str]:
    """The first texts, the last of them cut, up to a number of characters."""
    sample, room = [], _SAMPLE_CHARACTERS
    for text in texts:
        if room <= 0:
            break
        sample.append(check_text(text, f"text {len(sample)}")[:room])
        room -= len(text)
    return sample
