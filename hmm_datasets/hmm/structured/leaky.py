"""A process that forgets: at every token it is interrupted with a fixed probability, and begins anew after it.

What follows an interruption is a new sequence of the process, and whether a token was one cannot be seen. The exact
predictor keeps the posterior of the position of the last one: a token that follows `s` others of its part comes from
the distribution of the process after them. So time is that of the process on all `T` suffixes of a row, `O(T^2 E)`
for one whose tokens cost the same, and memory `O(T^2 E)` for a few rows at a time.
"""

from typing import Any, ClassVar

import numpy as np
import torch
from jaxtyping import Float, Int

from ...errors import InputError
from ..arrays import tokens_with_gaps
from ..kernels.draws import FAMILY_STREAM
from ..process import Process, Rows
from ..sampling import derived_seed, philox
from .wrapped import WrappedProcess

_LEAKS = FAMILY_STREAM | np.uint64(37 << 8)
_BLOCK = 1 << 22  # numbers in the distributions of all suffixes of some rows


class LeakyProcess(WrappedProcess):
    """A process that with probability `epsilon` per token shows a uniform symbol, and then begins anew.

    Part `k` of a row, from its `k`-th interruption on, is the sequence of the same index that the process draws with a
    seed derived from that of the stream and `k`.

    Args:
        process ([`~hmm_datasets.hmm.process.Process`]): any process.
        epsilon (`float`): probability of an interruption, in `[0, 1]`.

    ```python
    >>> from hmm_datasets import processes
    >>> from hmm_datasets.hmm.structured.markov import MarkovChain
    >>> leaky = processes.leaky(MarkovChain([[0.0, 1.0], [1.0, 0.0]]), 0.1)
    >>> leaky.next_token_probs([[0]])[0].round(3).tolist()
    [[0.5, 0.5], [0.095, 0.905]]

    ```
    """

    stored_name: ClassVar[str] = "leaky"

    def __init__(self, process: Process, epsilon: float):
        super().__init__(process)
        if not 0 <= epsilon <= 1:
            raise InputError(f"epsilon is {epsilon}; expected a probability")
        self.epsilon = float(epsilon)
        self.vocabulary = process.vocabulary

    @property
    def num_symbols(self) -> int:
        """`E`."""
        return self.process.num_symbols

    def settings(self) -> dict[str, Any]:
        """`epsilon`."""
        return {"epsilon": self.epsilon}

    def describe(self) -> str:
        """What the process is, in a few words."""
        return f"{self.process.describe()}, interrupted with probability {self.epsilon:g} per token"

    def _draw(self, seed: np.uint64, first: np.uint64, step: np.uint64, out: Rows) -> None:
        count, length = out.shape
        leaks, symbols = self._interruptions(int(seed), int(first), int(step), count, length)
        part = np.cumsum(leaks, axis=1) - leaks
        position = np.arange(length)
        begin = np.maximum.accumulate(np.where(leaks, position + 1, 0), axis=1)
        offset = position - np.where(leaks, 0, begin)
        out[leaks] = symbols[leaks]
        for k in range(int(part.max(initial=-1)) + 1):
            mine = (part == k) & ~leaks
            if mine.any():
                longest, own_seed = int(offset[mine].max()) + 1, derived_seed(int(seed), k)
                drawn = self.process.sample(count, longest, own_seed, int(first), step=int(step), num_threads=1)
                out[mine] = drawn[np.nonzero(mine)[0], offset[mine]]

    def _interruptions(
        self, seed: int, first: int, step: int, count: int, length: int
    ) -> tuple[np.ndarray, Int[np.ndarray, "N L"]]:
        """Whether each token is an interruption, and the symbol that it then is."""
        mask = np.uint64(0xFFFFFFFF)
        index = np.uint64(first) + np.uint64(step) * np.arange(count, dtype=np.uint64)
        counter = np.empty((count, length, 4), np.uint64)
        counter[..., 0], counter[..., 1] = (index & mask)[:, None], (index >> np.uint64(32))[:, None]
        counter[..., 2], counter[..., 3] = np.arange(length), _LEAKS
        key = np.broadcast_to(np.array([seed & int(mask), seed >> 32], np.uint64), (count * length, 2))
        words = philox(counter.reshape(-1, 4), key).reshape(count, length, 4)
        leaks = words[..., 0] < np.uint64(round(self.epsilon * (1 << 32)))
        return leaks, (words[..., 1] * np.uint64(self.num_symbols) >> np.uint64(32)).astype(np.int64)

    def next_token_probs(self, tokens: Int[Any, "B T"]) -> Float[Any, "B T+1 E"]:
        """The Bayes-optimal distribution of token `t` given those before it, for `t = 0 .. T`; see the module."""
        values = tokens_with_gaps(tokens, self.num_symbols).tokens
        rows = max(1, _BLOCK // ((values.shape[1] + 1) ** 2 * self.num_symbols))
        return torch.cat([self._probs(block) for block in values.split(rows)])

    def _probs(self, values: torch.Tensor) -> torch.Tensor:
        batch, length = values.shape
        after = [torch.as_tensor(self.process.next_token_probs(values[:, s:])).double() for s in range(length + 1)]
        begun = values.new_zeros((batch, length + 1), dtype=torch.float64)  # of the part since token s
        begun[:, 0] = 1.0
        probs, fresh = begun.new_zeros((batch, length + 1, self.num_symbols)), self.epsilon / self.num_symbols
        for t in range(length + 1):
            parts = torch.stack([after[s][:, t - s] for s in range(t + 1)], dim=1)
            kept = (1 - self.epsilon) * begun[:, : t + 1, None] * parts
            # After a token that nothing explains all weights are zero, and so are the distributions.
            probs[:, t] = kept.sum(1) + fresh * begun.sum(1, keepdim=True)
            if t < length:
                # How likely each part makes the token; of one that is missing all symbols together.
                is_missing, symbol = values[:, t] < 0, values[:, t].clamp(min=0)
                kept = torch.where(is_missing[:, None], kept.sum(2), kept[torch.arange(batch), :, symbol])
                new = fresh * begun.sum(1)
                new = torch.where(is_missing, self.num_symbols * new, new)
                total = kept.sum(1) + new
                begun[:, : t + 2] = (
                    torch.cat([kept, new[:, None]], dim=1) / torch.where(total > 0, total, 1.0)[:, None]
                )
        return probs

    def __repr__(self) -> str:
        return f"LeakyProcess({self.process!r}, epsilon={self.epsilon:g})"
