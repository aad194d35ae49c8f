"""Filters one symbol at a time, as the forward pass of a language model uses them.

What a filter remembers of a sequence is a vector of `M` numbers: for an HMM the belief, so that `M = H`. The filter of
a tilted HMM is in [`.tilted_filter`].
"""

from dataclasses import dataclass
from typing import Protocol

from jaxtyping import Bool, Float, Int
from torch import Tensor

from .forward_backward import Parameters, forward_filter, next_token_probs


class Filter(Protocol):
    """What the forward pass of the model needs of a process: how it reads symbols, and what it then predicts."""

    @property
    def start(self) -> Float[Tensor, "M"]:
        """What is remembered of a sequence before its first token."""
        ...

    def read(
        self, memory: Float[Tensor, "B M"], symbol: Int[Tensor, "B"], moves: Bool[Tensor, "B"]
    ) -> Float[Tensor, "B M"]:
        """What is remembered after one more symbol, where `moves`."""
        ...

    def log_probs(self, memories: Float[Tensor, "B T M"]) -> Float[Tensor, "B T E"]:
        """Log-probabilities of the next token."""
        ...


@dataclass(frozen=True)
class BeliefFilter:
    """The filter of an HMM, which remembers the belief."""

    parameters: Parameters

    @property
    def start(self) -> Float[Tensor, "H"]:
        return self.parameters.start

    def read(self, memory: Tensor, symbol: Tensor, moves: Tensor) -> Tensor:
        return forward_filter(self.parameters, symbol.unsqueeze(1), moves.long(), memory).beliefs[:, 1]

    def log_probs(self, memories: Tensor) -> Tensor:
        return next_token_probs(self.parameters, memories).log()
