"""An HMM of blocks in logarithms: rows of tokens in which a number of the other recursions underflows, one by one.

As in [`~hmm_datasets.hmm.kernels.logs`], which has the reasons: a class may be needed by later tokens although its
belief is below the smallest number. The filter takes `2 R S` exponentials for a token, and the
way back in time `5 R S`.
"""

from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Float, Int

from ..kernels.logs import log_sums, softmax
from .block_paths import candidates

if TYPE_CHECKING:
    from .blocked import BlockedHMM


class BlockLogs:
    """The recursions of a [`~hmm_datasets.hmm.structured.blocked.BlockedHMM`] for one row of symbols.

    A symbol of -1 or `E` is a missing one.
    """

    def __init__(self, hmm: "BlockedHMM"):
        self._hmm = hmm
        with np.errstate(divide="ignore"):
            tables = (hmm.start, hmm.enter, hmm.emission, hmm.leave)
            self._start, self._enter, self._emission, self._leave = map(np.log, tables)

    def _of(self, symbol: int) -> tuple[slice, np.ndarray, np.ndarray | float, np.ndarray]:
        # The states that may emit a symbol, and logarithms of their tables: (R, S), (S,) and (S, R).
        symbol = -1 if symbol == self._hmm.num_symbols else symbol
        states = candidates(self._hmm, symbol)
        return states, self._enter[:, states], 0.0 if symbol < 0 else self._emission[symbol], self._leave[states]

    def filtered(self, tokens: Int[np.ndarray, "T"]) -> tuple[Float[np.ndarray, "T+1 R"], Float[np.ndarray, "T"]]:
        """Logarithms of the beliefs before every token and after the last, and of the probability of every token."""
        beliefs, scales = np.full((len(tokens) + 1, len(self._start)), -np.inf), np.full(len(tokens), -np.inf)
        beliefs[0] = self._start
        for t, symbol in enumerate(tokens):
            _, enter, emitted, leave = self._of(symbol)
            after = log_sums(emitted + log_sums(beliefs[t] + enter.T) + leave.T)
            scales[t] = log_sums(after)
            if scales[t] > -np.inf:
                beliefs[t + 1] = after - scales[t]
        return beliefs, scales

    def posteriors(self, tokens: Int[np.ndarray, "T"]) -> Float[np.ndarray, "T H"]:
        """`P(state that emits token t | all tokens)`; zeros if the tokens are impossible."""
        return self._smoothed(tokens)[0]

    def counts(self, tokens: Int[np.ndarray, "T"]) -> tuple[dict[str, Float[np.ndarray, "..."]], float]:
        """Expected counts by the names of the tables, and `log P(tokens)` in nats."""
        return self._smoothed(tokens)[1:]

    def _smoothed(self, tokens: np.ndarray) -> tuple[np.ndarray, dict[str, np.ndarray], float]:
        (beliefs, scales), ahead = self.filtered(tokens), np.zeros_like(self._start)
        result = np.zeros((len(tokens), self._hmm.num_states))
        counts = {name: np.zeros_like(table) for name, table in self._hmm.tables().items()}
        for t in reversed(range(len(tokens))):
            states, enter, emitted, leave = self._of(tokens[t])
            leaving, following = emitted + log_sums(beliefs[t] + enter.T), log_sums(leave + ahead)
            result[t, states] = posterior = softmax(leaving + following)
            entering = enter + (emitted + following)
            counts["enter"][:, states] += softmax(beliefs[t][:, None] + entering, axis=None)
            if t + 1 < len(tokens):  # after the last token there is no move
                counts["leave"][states] += softmax(leaving[:, None] + leave + ahead, axis=None)
            if 0 <= tokens[t] < self._hmm.num_symbols:
                counts["emission"][tokens[t]] += posterior
            ahead = log_sums(entering)
            ahead -= max(ahead.max(), np.finfo(float).min)
        counts["start"] += softmax(beliefs[0] + ahead) * (len(tokens) > 0)
        return result, counts, float(scales.sum())
