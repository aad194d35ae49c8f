"""Which documents are held out, where a corpus has no test split of its own.

A document is held out by a hash of its words (BLAKE2b, RFC 7693), a preference by those of its prompt: equal documents
are on the same side, on every machine, and a larger `test_fraction` only moves documents from train to test. A file
that holds one text, such as a play, has no documents to divide: its end is held out.
"""

import re
from collections.abc import Iterable, Iterator
from itertools import chain, islice
from typing import Any

from .conversations import as_prompt
from .filters import document_digest


def held_out(text: str, test_fraction: float) -> bool:
    """Whether a document is in the test split: a fixed function of its words, whatever the white space between them.

    ```python
    >>> held_out("A cat  sat.", 0.5) == held_out("A cat sat.\\n", 0.5)
    True

    ```
    """
    return document_digest(text) < test_fraction * 2.0**64


def divide_text(text: str, test_fraction: float) -> tuple[str, str]:
    """Divide one long text: its beginning is to train on, its end is held out.

    `test_fraction` of the characters are held out, and at most as many again, so that no paragraph is divided: the cut
    is at the last blank line there; where there is none at the last end of a line, else at the last white space, else
    at `test_fraction` itself. It is a function of the text and the fraction alone. White space around either part is
    left out; a text of one character has an empty part.

    ```python
    >>> divide_text("First act.\\n\\nSecond act.\\n\\nThird act.", 0.3)
    ('First act.\\n\\nSecond act.', 'Third act.')

    ```
    """
    place = int(len(text) * (1 - test_fraction))
    first = max(1, int(len(text) * (1 - 2 * test_fraction)))
    for boundary in (r"\n\s*\n", r"\n", r"\s"):
        ends = [found.end() for found in re.finditer(boundary, text[first:place])]
        if ends:
            return text[: first + ends[-1]].strip(), text[first + ends[-1] :].strip()
    return text[:place], text[place:]


def divided(
    documents: Iterable[dict[str, Any]], test_fraction: float, *, by_position: bool
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Say of each document which split it is in.

    Args:
        documents (iterable of `dict`): rows as [`~hmm_datasets.text.corpora.loading.load_corpus`] gives them.
        test_fraction (`float`): the share that is held out.
        by_position (`bool`): whether a text that is all there is becomes two, see [`divide_text`].

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
