"""The test split of a corpus that has none.

Whether a document is held out depends on a hash of its words (BLAKE2b, RFC 7693); for a preference, on the words of
its prompt. So equal documents are in the same split, on every machine, and a larger `test_fraction` only moves
documents from train to test. In a file with one text, such as a play, the end of the text is held out.
"""

import re
from collections.abc import Iterable, Iterator
from itertools import chain, islice
from typing import Any

from .conversations import as_prompt
from .document_digest import document_digest


def held_out(text: str, test_fraction: float) -> bool:
    """Whether a document is in the test split. This depends on its words, not on the white space between them.

    ```python
    >>> held_out("A cat  sat.", 0.5) == held_out("A cat sat.\\n", 0.5)
    True

    ```
    """
    return document_digest(text) < test_fraction * 2.0**64


def divide_text(text: str, test_fraction: float) -> tuple[str, str]:
    """Split one long text into its beginning, to train on, and its end, which is held out.

    At least `test_fraction` of the characters are held out, and at most twice as many, so that the cut need not divide
    a paragraph. Within that range the text is cut at the last blank line; if there is none, at the last end of a line;
    else at the last white space; else exactly at `test_fraction`. The cut depends on the text and the fraction alone.
    White space around the parts is removed. A text of one character has an empty part.

    ```python
    >>> divide_text("First act.\\n\\nSecond act.\\n\\nThird act.", 0.3)
    ('First act.\\n\\nSecond act.', 'Third act.')

    ```
    """
    latest = int(len(text) * (1 - test_fraction))
    first = max(1, int(len(text) * (1 - 2 * test_fraction)))
    for boundary in (r"\n\s*\n", r"\n", r"\s"):
        ends = [match.end() for match in re.finditer(boundary, text[first:latest])]
        if ends:
            return text[: first + ends[-1]].strip(), text[first + ends[-1] :].strip()
    return text[:latest], text[latest:]


def divided(
    documents: Iterable[dict[str, Any]], test_fraction: float, *, by_position: bool
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Assign each document to a split.

    Args:
        documents (iterable of `dict`): rows of [`~hmm_datasets.text.corpora.loading.load_corpus`].
        test_fraction (`float`): the share that is held out.
        by_position (`bool`): whether to split the text of a corpus that has only one, see [`divide_text`].

    Returns:
        Iterator of `tuple[str, dict]`: `"train"` or `"test"`, and the document.
    """
    documents = iter(documents)
    first = list(islice(documents, 2))
    if by_position and len(first) == 1 and "text" in first[0]:
        parts = zip(("train", "test"), divide_text(first[0]["text"], test_fraction), strict=True)
        yield from ((split, {"text": part}) for split, part in parts if part)
        return
    for document in chain(first, documents):
        yield ("test" if held_out(as_prompt(document), test_fraction) else "train"), document
