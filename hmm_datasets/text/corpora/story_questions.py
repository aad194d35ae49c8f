"""Short stories and questions about them, written by rule: conversations whose right answers are known exactly.

There are three kinds: who came after whom, every other time; how many things a friend has; and how a made-up name is
spelled. A story tells one to three facts in the words of TinyStories, and the user asks about all of it. Whoever names
something of the story at random is right one time in three, and one time in four where things are counted: the
`chance` of a row.

Conversation `i` of a split is a pure function of `(seed, split, i)`. A fact (three friends in the order in which they
came; the things that Tom has; a name and its letters) belongs to one split by a hash of its words, and a story tells
facts of its own split alone. So what a test question is about was never told in training, not even in passing; its
words were, in other facts.
"""

import hashlib
import random
from collections.abc import Callable, Iterator
from typing import Any

from ...errors import InputError
from .filters import document_digest

NUM_TRAIN, NUM_TEST = 20_000, 1_000
"""Conversations in the splits of the corpus; their function has no end."""

_FRIENDS = (
    *("Anna", "Ben", "Bob", "Daisy", "Jack", "Jane", "Jill", "Joe", "John", "Lily"),
    *("Lucy", "Mary", "Max", "Mia", "Molly", "Sam", "Sara", "Sue", "Tim", "Tom"),
)
_THINGS = (
    *("bag", "ball", "bed", "boat", "book", "box", "cake", "car", "cup", "doll"),
    *("dress", "duck", "flower", "hat", "kite", "rock", "stick", "table", "train", "truck"),
)
_NUMBERS = ("one", "two", "three", "four")
_PLACES = ("beach", "farm", "garden", "lake", "park", "pond", "river", "school", "store", "zoo")
_CONSONANTS, _VOWELS = "bcdfghjklmnprstvwyz", "aeiou"


def story_question(index: int, split: str = "train", *, seed: int = 0, test_fraction: float = 0.1) -> dict[str, Any]:
    """One conversation.

    Args:
        index (`int`): which.
        split (`str`, *optional*, defaults to `"train"`): `"train"` or `"test"`.
        seed (`int`, *optional*, defaults to 0): of all of them.
        test_fraction (`float`, *optional*, defaults to 0.1): share of the facts, by their hash, that only `"test"`
            tells.

    Returns:
        `dict` with `messages`, the user's questions each with the assistant's answer; their `kind`: `color`, `order`,
        `count` or `spelling`; and their `chance`, how often a guess is right.

    Raises:
        `InputError`: a `test_fraction` that leaves a split without facts.

    ```python
    >>> story_question(0, "test")["messages"][0]["content"]
    'First Mia came to the park, then Ben came, then Sam came. Who came after Mia?'

    ```
    """
    if not (0.01 <= test_fraction <= 0.9 or (test_fraction == 0 and split == "train")):
        raise InputError(
            f"story-questions: test_fraction={test_fraction} leaves too few facts in a split; set it to 0.01 to 0.9"
        )
    kind = _TURN[index % len(_TURN)]
    chance, tell = _KINDS[kind]
    draw = _Draws(f"{seed} {split} {index}", split, test_fraction)
    story, exchanges = tell(draw)
    messages = []
    for number, (question, answer) in enumerate(draw.shuffled(exchanges)):
        messages.append({"role": "user", "content": question if number else f"{story} {question}"})
        messages.append({"role": "assistant", "content": answer})
    return {"messages": messages, "kind": kind, "chance": chance}


def story_questions(split: str = "train", *, seed: int = 0, test_fraction: float = 0.1) -> Iterator[dict[str, Any]]:
    """The rows of the corpus `story-questions`: the first conversations of a split, see [`story_question`]."""
    for index in range(NUM_TRAIN if split == "train" else NUM_TEST):
        yield story_question(index, split, seed=seed, test_fraction=test_fraction)


class _Draws:
    """Random choices that are the same on every machine, and facts of one split."""

    def __init__(self, key: str, split: str, test_fraction: float):
        # Of Python's random numbers `random()`, seeded by an integer, is the same in all versions.
        digest = hashlib.blake2b(key.encode(), digest_size=16).digest()
        self._random = random.Random(int.from_bytes(digest, "little")).random
        self._held_out = split == "test"
        self._threshold = test_fraction * 2.0**64

    def below(self, end: int) -> int:
        return int(self._random() * end)

    def one(self, values):
        return values[self.below(len(values))]

    def shuffled(self, values) -> list:
        values = list(values)
        for last in range(len(values) - 1, 0, -1):
            other = self.below(last + 1)
            values[last], values[other] = values[other], values[last]
        return values

    def some(self, values, count: int) -> list:
        return self.shuffled(values)[:count]

    def fact(self, propose: Callable[[], tuple[str, Any]]) -> Any:
        """The first proposal whose words belong to this split."""
        while True:
            words, value = propose()
            if (document_digest(words) < self._threshold) == self._held_out:
                return value


def _order_story(draw: _Draws):
    def propose():
        friends = draw.some(_FRIENDS, 3)
        return ", ".join(friends), friends

    first, second, third = draw.fact(propose)
    story = f"First {first} came to the {draw.one(_PLACES)}, then {second} came, then {third} came."
    return story, [
        ("Who came first?", f"First came {first}."),
        (f"Who came after {first}?", f"After {first} came {second}."),
        (f"Who came after {second}?", f"After {second} came {third}."),
    ]


def _count_story(draw: _Draws):
    def propose():
        friend, things = draw.one(_FRIENDS), draw.some(_THINGS, 1 + draw.below(len(_NUMBERS)))
        return f"{friend} has {' '.join(sorted(things))}", (friend, things)

    friend, things = draw.fact(propose)
    *others, last = [f"a {thing}" for thing in things]
    listed = f"{', '.join(others)} and {last}" if others else last
    return f"{friend} has {listed}.", [
        (f"How many things does {friend} have?", f"{friend} has {_NUMBERS[len(things) - 1]}.")
    ]


def _spelling_story(draw: _Draws):
    def propose():
        name = draw.one(_CONSONANTS).upper() + draw.one(_VOWELS) + draw.one(_CONSONANTS)
        return f"spell {name}", name

    names = []
    while len(names) < 3:
        name = draw.fact(propose)
        if name not in names:
            names.append(name)
    story = f"{names[0]}, {names[1]} and {names[2]} met at the {draw.one(_PLACES)}."
    return story, [(f"How do you spell {name}?", " ".join(name) + ".") for name in names]


_KINDS = {
    "order": (1 / 3, _order_story),
    "count": (1 / len(_NUMBERS), _count_story),
    "spelling": (1 / 3, _spelling_story),
}

_TURN = ("order", "count", "order", "spelling")
