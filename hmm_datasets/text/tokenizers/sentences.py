"""The rules by which text of any script is cut into sentences and words.

Text is normalized to NFC and lower-cased; soft hyphens are left out, and the apostrophe ’ becomes '. Words follow the
default rules of Unicode (UAX 29), except that numbers are cut at a point or comma: a word is a run of letters and
digits with their combining marks and joiners, Armenian marks of tone, and apostrophes, middle dots, geresh and
gershayim inside. Scripts without spaces between words (Han, Hiragana, Thai, Lao, Khmer, Myanmar) are cut into
characters, each with its marks, or by a segmenter that the caller names. White space, the zero-width space, the
Ethiopic word space and the Tibetan tsheg separate words. Everything else is a mark.

A sentence ends at `.`, `!`, `?` or, after Greek letters, `;` before white space, at the marks of other scripts (such
as `。` `؟` `।` `።` `།`) wherever they are, and at blank lines. In Thai and Lao, which have no such marks, white space
ends a sentence, and a full stop is added.
"""

import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator

import regex

from ...errors import InputError

REPLACED = (("’", "'"), ("\u00ad", ""))
"""What is replaced in texts before they are composed: a form of the apostrophe, and soft hyphens."""

FULL_STOP = "."

FULL_STOPS = frozenset(".。｡．۔।॥։።။។៕།᠃")
"""Marks that end a statement, each in the scripts that use it."""

Segmenter = Callable[[str], Iterable[str]]
"""Cuts a run of a script without spaces into words, which together are the run."""

_UNSPACED = r"\p{Han}\p{Hiragana}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}"
# The Khmer coeng and the Burmese virama stack the letter that follows them.
_LETTER = r"[\p{L}\p{N}](?:[\p{M}\u200c\u200d՛՜՞]|(?<=[\u17d2\u1039])\p{L})*"
_SPACED = rf"(?:(?![{_UNSPACED}]){_LETTER})+"
_WORD = rf"{_SPACED}(?:['·׳״]{_SPACED})*"
_CHARACTER = rf"(?=[{_UNSPACED}]){_LETTER}"
_MARK = r"[^\s\u200b\u1361\u0f0b]"
_BY_CHARACTER = regex.compile(rf"{_WORD}|{_CHARACTER}|{_MARK}")
"""Words and marks, where characters of scripts without spaces are words."""
_BY_RUN = regex.compile(rf"{_WORD}|(?:{_CHARACTER})+|{_MARK}")
"""The same, where spaces separate words in every script."""
_ASCII = re.compile(r"[a-z0-9]+(?:'[a-z0-9]+)*|\S")  # the same in a third of the time
_UNSPACED_RUN = regex.compile(rf"(?:{_CHARACTER})+")
_UNSPACED_LETTER = regex.compile(rf"[{_UNSPACED}]")
_PARAGRAPH = re.compile(r"\n\s*\n")
_SENTENCE_END = re.compile(
    r"""(?:(?:[.!?]+|(?<=[\u0370-\u03ff\u1f00-\u1fff]);)["'”)\]»]*(?=\s|$)"""  # NFC makes ";" the Greek question mark
    r"""|[。｡．！？؟۔।॥։።፧။។៕།᠃]+["'”’)\]»」』）》]*)"""
)
_THAI_OR_LAO = regex.compile(r"[\p{Thai}\p{Lao}]")
_UNMARKED_END = regex.compile(r"(?<=[\p{Thai}\p{Lao}])(?=\s+[^\sๆໆ]|\s*$)")  # not before the mark of repetition


def split_sentences(
    document: str, *, marks: str = "", segmenter: Segmenter | None = None
) -> Iterator[tuple[list[str], str | None]]:
    """Yield each sentence as words and marks, and what it lacks to be a plain one, which ends in its only full stop.

    Args:
        document (`str`): the text.
        marks (`str`, *optional*): marks besides the full stop that a plain sentence may have, such as `",;"`.
        segmenter (callable, *optional*): cuts runs of scripts without spaces into words; by default they are cut
            into characters.

    Raises:
        `InputError`: the words of the segmenter are not the text that it was given.

    ```python
    >>> list(split_sentences("The cat sat. It's late!"))
    [(['the', 'cat', 'sat', '.'], None), (["it's", 'late', '!'], 'no full stop at the end')]
    >>> [words for words, lack in split_sentences("猫坐。 बिल्ली बैठी।")]
    [['猫', '坐', '。'], ['बिल्ली', 'बैठी', '।']]

    ```
    """
    for paragraph in _PARAGRAPH.split(fold(document)):
        if not paragraph.isascii() and _is_unmarked(paragraph):
            paragraph = _UNMARKED_END.sub(FULL_STOP, paragraph)
        start = 0
        for end in [*(match.end() for match in _SENTENCE_END.finditer(paragraph)), len(paragraph)]:
            words = _words(paragraph[start:end], segmenter)
            start = end
            if words:
                yield words, _lack(words, marks)


def fold(text: str) -> str:
    """The text in NFC and lower case, with one form of the apostrophe and no soft hyphens."""
    if text.isascii():
        return text.lower()
    # A soft hyphen may stand between a letter and its accent, and lower case may be composed where capitals are not.
    # The capital sigma is replaced first, since str.lower considers its neighbours and the tokenizers library does
    # not.
    for written, plain in REPLACED:
        text = text.replace(written, plain)
    return unicodedata.normalize("NFC", unicodedata.normalize("NFC", text).replace("Σ", "σ").lower())


def is_mark(word: str) -> bool:
    """Whether this is a mark, not a word."""
    return not word[0].isalnum()


def as_text(words: Iterable[str]) -> str:
    """Words as they are read: no space before a mark, nor between characters of scripts without spaces.

    ```python
    >>> as_text(["the", "cat", ",", "sat", ".", "it", "ran", "."]), as_text(["猫", "坐", "。"])
    ('the cat, sat. it ran.', '猫坐。')

    ```
    """
    text = ""
    for word in words:
        unspaced = text and _UNSPACED_LETTER.match(word) and _UNSPACED_LETTER.search(text, len(text) - 1)
        text += word if not text or is_mark(word) or unspaced else f" {word}"
    return text


def _is_unmarked(paragraph: str) -> bool:
    """Whether most letters are Thai or Lao."""
    return 2 * len(_THAI_OR_LAO.findall(paragraph)) > sum(map(str.isalpha, paragraph))


def _words(text: str, segmenter: Segmenter | None) -> list[str]:
    if text.isascii():
        return _ASCII.findall(text)
    if segmenter is None:
        return _BY_CHARACTER.findall(text)
    return _BY_RUN.findall(_UNSPACED_RUN.sub(lambda run: _segmented(run[0], segmenter), text))


def _segmented(run: str, segmenter: Segmenter) -> str:
    words = list(segmenter(run))
    if "".join(words) != run:
        raise InputError(f"the segmenter cuts {run!r} into {words!r:.200}; expected words that together are the text")
    return "\u200b".join(words)


def _lack(words: list[str], marks: str) -> str | None:
    stops = [word for word in words if word in FULL_STOPS]
    if words[-1] not in FULL_STOPS or len(words) == 1:
        return "no full stop at the end"
    if len(stops) > 1:
        return "a full stop inside"
    others = [word for word in words[:-1] if is_mark(word) and word not in marks]
    return f"the mark {others[0]}" if others else None
