"""The tokens that symbols begin with, whatever comes after them: a loop over symbols, compiled by numba."""

import numpy as np

from ...compilation import compiled


@compiled
def draw_cuts(rows, children, ends, following, longest, tokens, numbers):
    """Write the first tokens of each row, as many as are sure, and as fit.

    The part of a row up to each place is cut in one way. It ends with a token from an earlier place that may follow
    the cut of the part up to there. A longer text is cut at one of the last `longest` places, and up to there as this
    part is, so that what their cuts have in common is sure. With `longest` of 1 rows are whole texts.

    Args:
        rows (array of shape `(N, L)`): symbols.
        children (array of shape `(M, E)`), ends (array of shape `(M,)`): [`SymbolTokenizer.trie`].
        following (array of shape `(C + 1, V)`): of [`Contexts`].
        longest (`int`): symbols of the longest token.
        tokens (array of shape `(N, T)`): where tokens are written.
        numbers (array of shape `(N,)`): where the number of tokens of each row is written.
    """
    length = rows.shape[1]
    contexts, begins, lasts, depths = np.zeros((4, length + 1), np.int64)
    for row in range(len(rows)):
        for begin in range(length):
            node, place = 0, begin
            while place < length:
                node = children[node, rows[row, place]]
                if node < 0:
                    break
                place += 1
                token = ends[node]
                if token >= 0 and following[contexts[begin], token] >= 0:
                    contexts[place], depths[place] = following[contexts[begin], token], depths[begin] + 1
                    begins[place], lasts[place] = begin, token
        # The last place through which the cuts of all last places go.
        end = length
        for other in range(max(0, length - longest + 1), length):
            while end != other:
                if end > other:
                    end = begins[end]
                else:
                    other = begins[other]
        numbers[row] = min(depths[end], tokens.shape[1])
        while end > 0:
            if depths[end] <= tokens.shape[1]:
                tokens[row, depths[end] - 1] = lasts[end]
            end = begins[end]
