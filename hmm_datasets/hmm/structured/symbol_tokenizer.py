"""Deterministic tokenizers of symbols, and the automata that accept the tokens they produce.

A tokenizer cuts symbols in one way, the canonical one, and every part of a canonical cut is canonical. Which token may
follow is thus decided by a *context* of the tokens so far, the state of a finite automaton:

- `BPE`, byte pair encoding: the last token, since a cut is canonical if each token is and each two neighbours are;
- `WordPiece`, the longest piece from the left: the ends of the text that a longer piece might still begin with;
- `Unigram`, the cut of the largest score: how much worse the cuts are that end shortly before.
"""

import json
from collections import defaultdict
from functools import cached_property
from itertools import pairwise, zip_longest
from typing import Any, NamedTuple, Self

import numpy as np
from jaxtyping import Int
from tokenizers import Tokenizer, models, trainers

from ...errors import InputError, check_distinct
from ..arrays import as_tokens
from ..integers import integer
from ..kernels.cuts import draw_cuts

_FIRST = 0x10000
"""Symbol `x` is written as the character of number `x` after this one: none of them is white space or a surrogate."""

_KINDS = ("BPE", "Unigram", "WordPiece")
_CHANGES = ("dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix", "fuse_unk", "byte_fallback")
_HARMLESS = {"version", "decoder", "truncation", "padding"}
_SCORE_BITS = 24
"""Binary places of scores: with these, sums are exact, and equal ones are equal in whatever order they were added."""

_MOST_CONTEXTS = 1 << 13
_LONGEST = 1 << 13  # symbols that are trained on in one piece, since the library's time grows with their square

Piece = tuple[int, ...]


class Contexts(NamedTuple):
    """An automaton that accepts canonical tokens; its context 0 is that before the first one.

    Attributes:
        following (`np.ndarray` of shape `(C + 1, V)`): the context after each context and token, -1 where that is not
            canonical, as after what is not, which is the last row.
        token (`np.ndarray` of shape `(C,)`): the last token of each context; -1 for context 0.
    """

    following: Int[np.ndarray, "C_plus_1 V"]
    token: Int[np.ndarray, "C"]


class SymbolTokenizer:
    """A tokenizer of the symbols of a process.

    Args:
        kind (`str`): `BPE`, `Unigram` or `WordPiece`.
        pieces (sequence of sequences of `int`): the symbols of each of the `V` tokens.
        rules (sequence, *optional*): the merges of `BPE`, pairs of tokens, first those that come first; the scores of
            `Unigram`, rounded to 6e-8.

    Raises:
        `InputError`: there is no such kind, or the rules are not those of the pieces.
    """

    def __init__(self, kind: str, pieces: Any, rules: Any = ()):
        self.kind, self.pieces = kind, tuple(map(tuple, pieces))
        self.token_of: dict[Piece, int] = {piece: token for token, piece in enumerate(self.pieces)}
        check_distinct("pieces", self.pieces)
        if kind not in _KINDS:
            raise InputError(f"kind is {kind!r}; expected one of {', '.join(_KINDS)}")
        if kind == "Unigram":
            if len(rules) != len(self.pieces):
                raise InputError(f"scores are {rules!s:.80}; expected one for each of {len(self.pieces)} pieces")
            rules = [round(score * 2**_SCORE_BITS) / 2**_SCORE_BITS for score in rules]
        self.rules, made = list(rules), {token for token, piece in enumerate(self.pieces) if len(piece) == 1}
        self._merges: dict[tuple[int, int], tuple[int, int]] = {}  # rank and token that is made, by the pair
        for rank, (left, right) in enumerate(rules if kind == "BPE" else ()):
            whole = self.token_of.get(self.pieces[left] + self.pieces[right]) if {left, right} <= made else None
            if whole is None:
                raise InputError(f"merges[{rank}] is {left, right}; expected two tokens that were made before it")
            made.add(whole)
            self._merges.setdefault((left, right), (rank, whole))

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> Self:
        """The tokenizer of symbols that does what one of the library does with the characters `chr(0x10000 + x)`.

        Raises:
            `InputError`: it does more than to cut symbols.
        """
        content = json.loads(tokenizer.to_str())
        model = content.pop("model")
        changes = [name for name, value in content.items() if value and name not in _HARMLESS]
        changes += [name for name in _CHANGES if model.get(name)]
        if model["type"] not in _KINDS or changes:
            found = f"{model['type']} with {', '.join(changes)}" if changes else model["type"]
            raise InputError(f"the tokenizer is {found}; expected a model of {', '.join(_KINDS)} and nothing else")
        texts = model["vocab"]
        if model["type"] == "Unigram":
            texts, rules = zip(*texts, strict=True)
        else:
            rules = [[texts[part] for part in pair] for pair in model.get("merges", [])]
            texts = sorted(texts, key=texts.__getitem__)
        return cls(model["type"], map(_symbols, texts), rules)

    def settings(self) -> dict[str, Any]:
        """The arguments of the constructor."""
        return {"kind": self.kind, "pieces": list(map(list, self.pieces)), "rules": self.rules}

    @cached_property
    def sizes(self) -> Int[np.ndarray, "V"]:
        """The number of symbols in each token."""
        return np.array(list(map(len, self.pieces)))

    @cached_property
    def table(self) -> Int[np.ndarray, "V_plus_1 M"]:
        """The symbols of each token, -1 after the last; the last row is that of no token."""
        return np.array(list(zip_longest(*self.pieces, (), fillvalue=-1))).T

    @cached_property
    def trie(self) -> tuple[Int[np.ndarray, "M E"], Int[np.ndarray, "M"]]:
        """The beginnings of tokens: which one each is with a symbol more, and which token it is; -1 for none."""
        nodes: dict[Piece, int] = {(): 0}
        for piece in self.pieces:
            for size in range(1, len(piece) + 1):
                nodes.setdefault(piece[:size], len(nodes))
        children = np.full((len(nodes), 1 + self.table.max()), -1)
        for node, number in list(nodes.items())[1:]:
            children[nodes[node[:-1]], node[-1]] = number
        return children, np.array([self.token_of.get(node, -1) for node in nodes])

    def cut(self, rows: list[list[int]]) -> list[list[int]]:
        """The tokens of each sequence of symbols, which ends with the last of them.

        Raises:
            `InputError`: a symbol is no token.
        """
        cuts, number = [], np.empty(1, np.int64)
        for row in rows:
            if other := [symbol for symbol in set(row) if (symbol,) not in self.token_of]:
                raise InputError(f"the symbols have {other[0]}; expected those that are tokens")
            tokens = np.empty((1, len(row)), np.int64)
            draw_cuts(np.array([row], np.int64), *self.trie, self.contexts.following, 1, tokens, number)
            cuts.append(tokens[0, : number[0]].tolist())
        return cuts

    @cached_property
    def contexts(self) -> Contexts:
        """The automaton that accepts what `cut` returns.

        Raises:
            `InputError`: it has more than 8,192 contexts.
        """
        if self.kind == "BPE":
            return self._neighbours()
        after, begin = (self._after_best, ((), (0.0,))) if self.kind == "Unigram" else (self._after_longest, ())
        keys: list[tuple[int, Any]] = [(-1, begin)]
        numbers, rows = {keys[0]: 0}, []
        for _, state in keys:  # which grow meanwhile
            reached = [(token, after(state, piece)) for token, piece in enumerate(self.pieces)]
            for key in reached:
                if key[1] is not None and key not in numbers:
                    numbers[key] = len(keys)
                    keys.append(key)
            rows.append([numbers.get(key, -1) for key in reached])
            if len(keys) > _MOST_CONTEXTS:
                raise InputError(f"more than {_MOST_CONTEXTS:,} contexts of tokens; expected fewer or shorter pieces")
        return Contexts(np.array([*rows, [-1] * len(self.pieces)]), np.array([token for token, _ in keys]))

    def _neighbours(self) -> Contexts:
        # The first and the last part of a token stay what they are until a merge takes them up. Two tokens are no
        # neighbours if a merge of the last part of one and the first of the other is due before: of the same merges
        # the left one comes first.
        ends, begins = defaultdict[int, list[tuple[int, float]]](list), defaultdict[int, list[tuple[int, float]]](list)
        alone = np.zeros(len(self.pieces), bool)
        for token, piece in enumerate(self.pieces):
            parts, taken = [self.token_of[symbol,] for symbol in piece], []
            while due := [(*self._merges[p], place) for place, p in enumerate(pairwise(parts)) if p in self._merges]:
                rank, whole, place = min(due)
                taken += [(ends, parts[-1], rank)] * (place == len(parts) - 2)
                taken += [(begins, parts[0], rank)] * (place == 0)
                parts[place : place + 2] = [whole]
            alone[token] = parts == [token]
            if alone[token]:
                for side, part, rank in [*taken, (ends, token, np.inf), (begins, token, np.inf)]:
                    side[part].append((token, rank))
        allowed = np.outer(alone, alone)
        for (left, right), (rank, _) in self._merges.items():
            first = [token for token, taken in ends[left] if taken > rank]
            second = [token for token, taken in begins[right] if taken >= rank]
            allowed[np.ix_(first, second)] = False
        numbers = np.arange(len(self.pieces))
        allowed = np.vstack([alone, allowed, np.zeros_like(alone)])
        return Contexts(np.where(allowed, numbers + 1, -1), np.insert(numbers, 0, -1))

    def _after_longest(self, ends: tuple[Piece, ...], piece: Piece) -> tuple[Piece, ...] | None:
        # The ends of the text that begin with a token and may become a longer piece, which would have been taken.
        longer = (end + piece[:size] for end in ends for size in range(1, len(piece) + 1))
        if not self.token_of.keys().isdisjoint(longer):
            return None
        return tuple(sorted({end + piece for end in (*ends, ())} & self._beginnings - {()}))

    def _after_best(self, state: tuple[Piece, tuple[float, ...]], piece: Piece) -> Any:
        # The end of the text that a piece may begin with, and the scores of the best cuts up to each place in it, less
        # that of the canonical one, which ends where it does. Of equal scores the longer last piece wins.
        text, scores, begin = state[0] + piece, list(state[1]), 0
        for end in range(len(scores), len(text) + 1):
            scores.append(-np.inf)
            for first in range(end):
                token = self.token_of.get(text[first:end])
                if token is not None and scores[first] + self.rules[token] > scores[end]:
                    scores[end], begin = scores[first] + self.rules[token], first
        if begin != len(state[0]):
            return None
        kept = [score - scores[-1] if text[at:] in self._beginnings else -np.inf for at, score in enumerate(scores)]
        begin = next(at for at, score in enumerate(kept) if score > -np.inf)
        return text[begin:], tuple(kept[begin:])

    @cached_property
    def _beginnings(self) -> set[Piece]:
        return {piece[:size] for piece in self.pieces for size in range(len(piece))}


def train_symbol_bpe(symbols: Int[Any, "N L"], num_symbols: int, vocab_size: int) -> SymbolTokenizer:
    """Train byte pair encoding on sequences of symbols instead of text, by the `tokenizers` library.

    Args:
        symbols (array of shape `(N, L)`): the sequences; of more than 8,192 symbols their parts of this length.
        num_symbols (`int`): `E`; each symbol `x` is the token `x`.
        vocab_size (`int`): number of tokens, `E` or more.

    Raises:
        `InputError`: `vocab_size` is below `E`, or the sequences yield fewer tokens.

    ```python
    >>> train_symbol_bpe([[0, 0, 1, 0, 0]] * 9, 2, 3).pieces
    ((0,), (1,), (0, 0))

    ```
    """
    rows, tokenizer = as_tokens(symbols, num_symbols).tolist(), Tokenizer(models.BPE())
    integer("vocab_size", vocab_size, num_symbols, 31)
    alphabet = list(_text(range(num_symbols)))
    trainer = trainers.BpeTrainer(vocab_size=vocab_size, initial_alphabet=alphabet, show_progress=False)
    parts = (_text(row[begin : begin + _LONGEST]) for row in rows for begin in range(0, len(row), _LONGEST))
    tokenizer.train_from_iterator(parts, trainer=trainer)
    if (size := tokenizer.get_vocab_size()) < vocab_size:
        raise InputError(f"vocab_size={vocab_size}, but the sequences yield only {size} tokens; pass more, or {size}")
    return SymbolTokenizer.of(tokenizer)


def _symbols(text: str) -> Piece:
    return tuple(ord(character) - _FIRST for character in text)


def _text(symbols: Any) -> str:
    return "".join(chr(_FIRST + symbol) for symbol in symbols)
