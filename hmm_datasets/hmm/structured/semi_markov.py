"""Hidden semi-Markov models with bounded durations (Yu, Artificial Intelligence 174, 2010).

A state is kept for a segment of `d` tokens, drawn from its distribution of durations (the explicit-duration model),
and every token of the segment is emitted by it. This is an HMM whose states are pairs of a state and the number of
tokens left, but the filter need not treat it as one: most pairs have one successor. A step takes `O(H D + H^2)`
instead of `O(H^2 D^2)`, and a draw reads tables of `H (E + H D)` numbers instead of `H D (E + H D)`.
"""

from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from jaxtyping import Float, Int

from ...array_input import numbers
from ...errors import InputError
from ..analysis.stationary import cesaro_limit
from ..arrays import as_given, check_dense, distribution, over_rows, summed_logs, token_array_with_gaps
from ..kernels.structured import draw_segments, filter_segments
from ..model import HMM
from ..process import Process, Rows, possible_belief
from ..sampling import AliasTable

if TYPE_CHECKING:
    from ..analysis.entropy import EntropyRateBounds


class SemiMarkov(Process):
    """A hidden semi-Markov model over `H` states, durations up to `D` and `E` symbols.

    Args:
        duration (`np.ndarray` of shape `(H, D)`): `P(d + 1 tokens | a segment of state i begins)` at `[i, d]`.
        transition (`np.ndarray` of shape `(H, H)`): `P(next state j | a segment of state i ends)`, with zeros on the
            diagonal.
        emission (`np.ndarray` of shape `(H, E)`): `P(symbol x | state i)`.
        start (`np.ndarray` of shape `(H,)` or `(H, D)`, *optional*): distribution of the first state, whose segment
            begins with the first token; or of the first state and `d + 1` tokens left of it. By default stationary.

    Raises:
        `InputError`: a table is not a distribution, shapes disagree, or a state follows itself.

    ```python
    >>> blocks = SemiMarkov(duration=[[0, 1], [0.5, 0.5]], transition=[[0, 1], [1, 0]], emission=np.eye(2))
    >>> blocks.next_token_probs([[1, 0, 0]])[0, 1:].round(3).tolist()  # a block of zeros has two tokens
    [[0.667, 0.333], [1.0, 0.0], [0.0, 1.0]]

    ```
    """

    stored_name: ClassVar[str] = "semi_markov"
    is_stationary = True

    def __init__(self, duration: Any, transition: Any, emission: Any, start: Any = None):
        self.duration = distribution("duration", duration, 2)
        self.transition = distribution("transition", transition, 2)
        self.emission = distribution("emission", emission, 2)
        states, longest = self.duration.shape
        if self.transition.shape != (states, states) or len(self.emission) != states:
            raise InputError(
                f"duration has shape {self.duration.shape}, transition {self.transition.shape}, emission "
                f"{self.emission.shape}; expected (H, D), (H, H) and (H, E) with the same H"
            )
        if (self.transition.diagonal() > 0).any():
            at = int(np.argmax(self.transition.diagonal() > 0))
            raise InputError(
                f"transition[{at}, {at}] is {self.transition[at, at]:g}; expected 0, since duration says how long "
                "a state is kept"
            )
        if start is None:
            start = self.stationary()
        else:
            start = numbers("start", start)
            start = start.reshape(-1, 1) * self.duration if start.shape == (states,) else start
        if np.shape(start) != (states, longest):
            raise InputError(f"start has shape {np.shape(start)}; expected ({states},) or ({states}, {longest})")
        flat = distribution("start", np.ravel(start), 1)
        self.start = flat.reshape(states, longest)
        self._make_read_only()

    @property
    def num_states(self) -> int:
        """`H`."""
        return self.duration.shape[0]

    @property
    def max_duration(self) -> int:
        """`D`."""
        return self.duration.shape[1]

    @property
    def num_symbols(self) -> int:
        """`E`."""
        return self.emission.shape[1]

    @property
    def max_states(self) -> int:
        """`H D`: entry `i D + d` of a belief is state `i` with `d + 1` tokens left of its segment."""
        return self.duration.size

    belief_width = max_states

    def arrays(self) -> dict[str, np.ndarray]:
        """`duration`, `transition`, `emission` and `start`."""
        tables = {"duration": self.duration, "transition": self.transition, "emission": self.emission}
        return {**tables, "start": self.start}

    def describe(self) -> str:
        """What the process is, in a few words."""
        return f"a hidden semi-Markov model of {self.num_states} states and durations up to {self.max_duration}"

    def stationary(self) -> Float[np.ndarray, "H D"]:
        """The long-run share of time in each state with `d + 1` tokens left: its segments times `P(duration > d)`."""
        segments = cesaro_limit(np.full(self.num_states, 1 / self.num_states), self.transition)
        longer = self.duration[:, ::-1].cumsum(axis=1)[:, ::-1]
        share = segments[:, None] * longer
        return share / share.sum()

    def _draw_states(self, seed: np.uint64, first: np.uint64, step: np.uint64, out: Rows, states: Rows | None) -> None:
        tables = [entry for table in self._alias_tables for entry in table.flat]
        draw_segments(*tables, np.uint64(self.max_duration), seed, first, step, out, states)

    @cached_property
    def _alias_tables(self) -> tuple[AliasTable, AliasTable, AliasTable]:
        segments = (self.transition[:, :, None] * self.duration).reshape(self.num_states, -1)
        rows = self.start.reshape(1, -1), self.emission, segments
        start, symbol, following = map(AliasTable.from_probabilities, rows)
        return start, symbol, following

    def _after(self, prefix: Int[np.ndarray, "P"]) -> "SemiMarkov":
        start = possible_belief(self, prefix).reshape(self.duration.shape)
        return SemiMarkov(self.duration, self.transition, self.emission, start)

    def _filtered(self, tokens: Any, *, keep: bool = True) -> tuple[np.ndarray, np.ndarray]:
        values = token_array_with_gaps(tokens, self.num_symbols)
        beliefs = np.empty((values.shape[0], values.shape[1] + 1 if keep else 2, *self.duration.shape))
        scales = np.empty(values.shape)
        emission = np.vstack([self.emission.T, np.ones(self.num_states)])  # the last for tokens that are missing

        def work(rows: slice) -> None:
            tables = self.start, self.duration, self.transition, emission
            filter_segments(*tables, values[rows], beliefs[rows], scales[rows])

        over_rows(work, len(values), values.size * (self.duration.size + self.transition.size))
        return beliefs, scales

    def beliefs(self, tokens: Int[Any, "B T"]) -> Float[Any, "B T+1 W"]:
        """The filtering distribution over states and tokens left, before each token."""
        beliefs, _ = self._filtered(tokens)
        return as_given(tokens, beliefs.reshape(*beliefs.shape[:2], self.belief_width))

    def next_token_probs(self, tokens: Int[Any, "B T"]) -> Float[Any, "B T+1 E"]:
        """The Bayes-optimal distribution of each token given those before it."""
        probs, _ = self._filtered(tokens)
        return as_given(tokens, probs.sum(axis=3) @ self.emission)

    def log_likelihood(self, tokens: Int[Any, "B T"]) -> Float[Any, "B"]:
        """Log-likelihood (nats) of each sequence; -inf if the process cannot emit it."""
        _, scales = self._filtered(tokens, keep=False)
        return summed_logs(tokens, scales)

    def to_hmm(self) -> HMM:
        """The same process as an HMM with `H D` states, in the order of the beliefs, and dense tables (Yu 2010).

        Raises:
            `InputError`: there are more than 8,192 states.
        """
        check_dense(self.max_states)
        states, longest = self.duration.shape
        transition = np.zeros((states, longest, states, longest))
        transition[:, 0] = self.transition[:, :, None] * self.duration
        for left in range(1, longest):
            transition[np.arange(states), left, np.arange(states), left - 1] = 1.0
        return HMM(
            start=self.start.reshape(-1),
            transition=transition.reshape(states * longest, -1),
            emission=np.repeat(self.emission, longest, axis=0),
        )

    def entropy_rate_bounds(self) -> "EntropyRateBounds":
        """Bounds on the entropy rate in nats per token: those of the HMM, after 512 tokens."""
        return self.to_hmm().entropy_rate_bounds(length=512)

    def __repr__(self) -> str:
        return f"SemiMarkov({self.num_states} states, {self.max_duration} durations, {self.num_symbols} symbols)"
