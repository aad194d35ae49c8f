"""Prefix probabilities of a grammar in Chomsky normal form, one token at a time.

The distribution of the next token needs, at every position, the expected number of times that a derivation of the
tokens so far starts each nonterminal here, `F[i, A]`. With the inside probabilities `I[i, k, A] = P(A derives tokens i
.. k - 1)`

    I[i, k, A] = sum over A -> B C and j of p(A -> B C) I[i, j, B] I[j, k, C]
    G[k, C]    = sum over A -> B C and i of F[i, A] p(A -> B C) I[i, k, B]
    F[k]       = G[k] (I - P)^-1,        P[A, B] = sum over C of p(A -> B C)

Here `(I - P)^-1` is the closure over left corners, and the next token is `x` with probability `sum over A of F[k, A]
p(A -> x)` (Jelinek and Lafferty, "Computation of the probability of initial substring generation by stochastic
context-free grammars", Computational Linguistics 17, 1991; in the form of Stolcke, Computational Linguistics 21, 1995,
section 4.4). A sentence ends here with probability `I[0, k, start]`.

All numbers are divided by the probability of the tokens that they span, given those before, so that nothing
underflows: the probability of the tokens so far is one at every position, and the log-likelihood is the sum of the
logarithms of the probabilities that were divided by.

Only what is positive is stored and visited: the spans `(i, A)` that end at a position, and of these only nonterminals
that can start at `i` after the tokens before (`F[i, A] > 0`). A dense chart takes `O(n^3 R)` time for `n` tokens and
`R` rules. In a hierarchical grammar, whose nonterminals derive only a few lengths, almost all of it is zero. Memory is
that of the positive spans, and `O(n N)`.

A sentence is drawn by expanding the leftmost nonterminal, over and over, with a stack of those to its right. The
random numbers of a row are those of Philox4x32-10 with the seed as key and the counter `(index, block,
TOKENS_STREAM)` (see `sampling`). The choices of a row are numbered in the order in which they are made, and
nonterminals with only one rule make none. Choice `n` uses words `2 (n mod 2)` and `2 (n mod 2) + 1` of block `n // 2`,
with the alias table of its nonterminal. So the tokens do not depend on how many are drawn, and because alias tables
are integers, they are the same on every machine.

numba's cache would not notice a change in `draws`. That is safe, because the format fixes the functions imported
from there.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int, UInt

from ...compilation import compiled
from ..sampling import AliasTable
from .draws import TOKENS_STREAM, block_of, pick

_SMALLEST = 1e-280
"""Expected counts below this are taken for zero, because what they are multiplied by could overflow."""


class ExpansionTables(NamedTuple):
    """The ways to expand every nonterminal.

    Attributes:
        offsets (`np.ndarray` of shape `(N + 1,)`): where the ways of each nonterminal begin.
        left (`np.ndarray` of shape `(M,)`): left child, or word.
        right (`np.ndarray` of shape `(M,)`): right child, or -1 for a word.
        entries, bits: the flat alias table of the nonterminals; see [`AliasTable`].
    """

    offsets: Int[np.ndarray, "N+1"]
    left: Int[np.ndarray, "M"]
    right: Int[np.ndarray, "M"]
    entries: UInt[np.ndarray, "M"]
    bits: np.uint64


def expansion_tables(
    size: int,
    rules: Int[np.ndarray, "R 3"],
    rule_probs: Float[np.ndarray, "R"],
    words: Int[np.ndarray, "M 2"],
    word_probs: Float[np.ndarray, "M"],
) -> ExpansionTables:
    """Sort rules, then words, by nonterminal, and make an alias table of them."""
    parent = np.concatenate([rules[:, 0], words[:, 0]])
    order = np.argsort(parent, kind="stable")
    offsets = np.searchsorted(parent[order], np.arange(size + 1))
    probs = np.concatenate([rule_probs, word_probs])[order]
    table = np.zeros((size, np.diff(offsets).max()))
    for a in range(size):
        table[a, : offsets[a + 1] - offsets[a]] = probs[offsets[a] : offsets[a + 1]]
    left = np.concatenate([rules[:, 1], words[:, 1]])[order]
    right = np.concatenate([rules[:, 2], np.full(len(words), -1)])[order]
    return ExpansionTables(offsets, left, right, *AliasTable.from_probabilities(table).flat)


@compiled
def draw_sentences(tables, end, seed, first, step, out):
    """Fill the rows of `out` (N, L) with sentences, each followed by `end`, and the last one cut off."""
    stack = np.empty(256, np.int64)
    for r in range(out.shape[0]):
        index = first + step * np.uint64(r)
        choices = np.uint64(0)
        w0 = w1 = w2 = w3 = np.uint64(0)
        t, depth = 0, 1
        stack[0] = 0
        while t < out.shape[1]:
            if depth == 0:
                out[r, t] = end
                t, depth = t + 1, 1
                stack[0] = 0
                continue
            depth -= 1
            a = stack[depth]
            way = tables.offsets[a]
            if tables.offsets[a + 1] - way > 1:
                if choices & np.uint64(1):
                    way += np.int64(pick(tables.entries, np.uint64(a), tables.bits, w2, w3))
                else:
                    draw = (choices >> np.uint64(1)) & np.uint64(0xFFFFFFFF)
                    w0, w1, w2, w3 = block_of(index, draw, TOKENS_STREAM, seed)
                    way += np.int64(pick(tables.entries, np.uint64(a), tables.bits, w0, w1))
                choices += np.uint64(1)
            if tables.right[way] < 0:
                out[r, t] = tables.left[way]
                t += 1
                continue
            if depth + 2 > len(stack):
                stack = doubled(stack)
            stack[depth], stack[depth + 1] = tables.right[way], tables.left[way]
            depth += 2


class LawTables(NamedTuple):
    """The rules of a grammar, sorted for the kernel.

    Attributes:
        by_right (`np.ndarray` of shape `(N + 1,)`): where the rules `A -> B C` of each right child `C` begin.
        right_rules (`np.ndarray` of shape `(R, 2)`): their `B, A`.
        right_probs (`np.ndarray` of shape `(R,)`).
        by_left (`np.ndarray` of shape `(N + 1,)`): where the rules of each left child `B` begin.
        left_rules (`np.ndarray` of shape `(R, 2)`): their `A, C`.
        left_probs (`np.ndarray` of shape `(R,)`).
        lexical (`np.ndarray` of shape `(N, E - 1)`): `p(A -> x)`.
        closure (`np.ndarray` of shape `(N, N)`): `(I - P)^-1`.
    """

    by_right: Int[np.ndarray, "N+1"]
    right_rules: Int[np.ndarray, "R 2"]
    right_probs: Float[np.ndarray, "R"]
    by_left: Int[np.ndarray, "N+1"]
    left_rules: Int[np.ndarray, "R 2"]
    left_probs: Float[np.ndarray, "R"]
    lexical: Float[np.ndarray, "N E-1"]
    closure: Float[np.ndarray, "N N"]


def law_tables(
    rules: Int[np.ndarray, "R 3"], probs: Float[np.ndarray, "R"], lexical: Float[np.ndarray, "N E-1"]
) -> LawTables:
    """Sort the rules `A, B, C` by their right and by their left children, and compute the left-corner closure."""
    size = len(lexical)
    corners = np.zeros((size, size))
    np.add.at(corners, (rules[:, 0], rules[:, 1]), probs)
    right, left = (np.argsort(rules[:, column], kind="stable") for column in (2, 1))
    return LawTables(
        np.searchsorted(rules[right, 2], np.arange(size + 1)),
        np.ascontiguousarray(rules[right][:, [1, 0]]),
        probs[right],
        np.searchsorted(rules[left, 1], np.arange(size + 1)),
        np.ascontiguousarray(rules[left][:, [0, 2]]),
        probs[left],
        np.ascontiguousarray(lexical),
        closure(corners),
    )


def closure(steps: Float[np.ndarray, "N N"]) -> Float[np.ndarray, "N N"]:
    """`(I - steps)^-1`, the sum of all powers of a matrix without negative entries; zeros stay exact zeros."""
    paths = steps.copy()
    for through in range(len(paths)):
        around = 1 / (1 - paths[through, through])
        paths += np.outer(paths[:, through] * around, paths[through])
    return paths + np.eye(len(paths))


@compiled
def fill_next_token_probs(tables, tokens, out):
    """Fill `out` (B, T+1, E) with the distribution of every token of `tokens` (B, T); zeros after impossible tokens.

    Every row begins with a sentence, and token `E - 1` ends one.
    """
    length = tokens.shape[1]
    size, end = tables.lexical.shape
    counts = np.zeros((length + 1, size))  # F
    column = np.zeros((length + 1, size))  # I[., k, .] of the current end k
    newest = np.empty(length + 1, np.int64)
    begin, symbol, older = np.empty(1024, np.int64), np.empty(1024, np.int64), np.empty(1024, np.int64)
    offsets = np.zeros((length + 1, size + 1), np.int64)  # where the spans of an end and a nonterminal begin
    starts, values = np.empty(1024, np.int64), np.empty(1024)  # of these spans
    seeds = np.zeros(size)  # G
    out[:] = 0
    for b in range(len(tokens)):
        k = stored = 0
        counts[0] = tables.closure[0]
        add_words(tables.lexical, counts[0], out[b, 0])
        for t in range(length):
            token = tokens[b, t]
            found = out[b, t, token]
            if not found > 0:
                break
            if token == end:
                k = stored = 0
                add_words(tables.lexical, counts[0], out[b, t + 1])
                continue
            k += 1
            begin, symbol, older, used = complete_spans(
                tables, token, found, counts, offsets, starts, values, k, column, newest, begin, symbol, older
            )
            while stored + used > len(starts):
                starts, values = doubled(starts), doubled(values)
            store_spans(column, begin[:used], symbol[:used], offsets[k], starts, values, stored)
            stored += used
            out[b, t + 1, end] = column[0, 0]
            seeds[:] = 0
            for item in range(used):
                i, left = begin[item], symbol[item]
                for rule in range(tables.by_left[left], tables.by_left[left + 1]):
                    a, c = tables.left_rules[rule, 0], tables.left_rules[rule, 1]
                    seeds[c] += counts[i, a] * tables.left_probs[rule] * column[i, left]
            for item in range(used):
                column[begin[item], symbol[item]] = 0
            close_left_corners(tables.closure, seeds, counts[k])
            add_words(tables.lexical, counts[k], out[b, t + 1])


@compiled
def complete_spans(tables, token, found, counts, offsets, starts, values, k, column, newest, begin, symbol, older):
    # Fill `column` with the inside probabilities of the spans that end at `k`, after `token` of probability `found`.
    # The spans are numbered as they are found; `newest[i]` is the last one that starts at `i`, and `older` the one
    # found before a span with the same start. Returns these lists, which grow, and their length.
    newest[:k] = -1
    used = 0
    for a in range(len(tables.lexical)):
        if tables.lexical[a, token] > 0 and counts[k - 1, a] > 0:
            column[k - 1, a] = tables.lexical[a, token] / found
            if used == len(begin):
                begin, symbol, older = doubled(begin), doubled(symbol), doubled(older)
            begin[used], symbol[used], older[used] = k - 1, a, newest[k - 1]
            newest[k - 1] = used
            used += 1
    for j in range(k - 1, 0, -1):
        # Spans that start at j are complete: they are made of spans that start later.
        item = newest[j]
        while item >= 0:
            c = symbol[item]
            for rule in range(tables.by_right[c], tables.by_right[c + 1]):
                left, a = tables.right_rules[rule, 0], tables.right_rules[rule, 1]
                weight = tables.right_probs[rule] * column[j, c]
                for span in range(offsets[j, left], offsets[j, left + 1]):
                    i = starts[span]
                    if not counts[i, a] > 0:
                        continue
                    if column[i, a] == 0:
                        if used == len(begin):
                            begin, symbol, older = doubled(begin), doubled(symbol), doubled(older)
                        begin[used], symbol[used], older[used] = i, a, newest[i]
                        newest[i] = used
                        used += 1
                    column[i, a] += weight * values[span]
            item = older[item]
    return begin, symbol, older, used


@compiled
def doubled(array):
    result = np.empty(2 * len(array), array.dtype)
    for i in range(len(array)):  # an assignment of arrays compiles the message of an error, for seconds
        result[i] = array[i]
    return result


@compiled
def store_spans(column, begin, symbol, offset, starts, values, stored):
    # Sort the spans of one end by nonterminal; `offset` gets where those of each begin.
    offset[:] = 0
    for a in symbol:
        offset[a + 1] += 1
    offset[0] = stored
    for a in range(len(offset) - 1):
        offset[a + 1] += offset[a]
    place = offset.copy()
    for item in range(len(begin)):
        i, a = begin[item], symbol[item]
        starts[place[a]], values[place[a]] = i, column[i, a]
        place[a] += 1


@compiled
def close_left_corners(closure, seeds, counts):
    counts[:] = 0
    for c in range(len(seeds)):
        if seeds[c] > 0:
            for a in range(len(counts)):
                counts[a] += seeds[c] * closure[c, a]
    for a in range(len(counts)):
        if counts[a] < _SMALLEST:
            counts[a] = 0


@compiled
def add_words(lexical, counts, out):
    for a in range(len(lexical)):
        if counts[a] > 0:
            for x in range(lexical.shape[1]):
                out[x] += counts[a] * lexical[a, x]
