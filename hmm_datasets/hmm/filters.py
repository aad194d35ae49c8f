"""Filters that read one symbol at a time, as the forward pass of a language model does.

What a [`Filter`] remembers of a sequence is a vector of `M` numbers: for an HMM the belief, so that `M = H`. The
filter of a tilted HMM is that of the HMM itself, `log P(state, tokens so far)` up to a constant. It keeps logarithms,
because a state that the past makes nearly impossible may be the only one from which a high reward can be reached. The
next token at position `t`, after symbol `y`, is distributed in proportion to

    exp(w[y, x] / beta) sum_s P(s | tokens so far) values[t, x, s]

where `values` come from the backward pass of `kernels.tilted`. A step costs `O(B H^2 + B E H)`. From position `L` on
nothing is rewarded, and the next token is that of the HMM. This filter remembers `M = H + 2` numbers of a row: the
logarithms of the belief, the number of tokens read, and the context of the reward (0, or the last symbol, or `E` at
the beginning).
"""

from dataclasses import dataclass
from typing import Protocol

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from .inference import Parameters, forward_filter, next_token_probs

_WORK_NUMBERS = 1 << 23  # of float64 in the largest temporary array
_FAR = 300.0  # nats: a state less probable than the most probable one by this much may underflow in a product


class Filter(Protocol):
    """What the forward pass of the model needs of a process: how it reads symbols, and what it then predicts."""

    @property
    def start(self) -> Float[Tensor, "M"]:
        """What is remembered of a sequence before its first token."""
        ...

    def step(
        self,
        memory: Float[Tensor, "B M"],
        symbol: Int[Tensor, "B"],
        begins: Bool[Tensor, "B"],
        moves: Bool[Tensor, "B"],
    ) -> Float[Tensor, "B M"]:
        """What is remembered after one more position, where another sequence `begins`, and where a symbol is read."""
        ...

    def log_probs(self, memories: Float[Tensor, "B T M"]) -> Float[Tensor, "B T E"]:
        """Log-probabilities of the next token."""
        ...


class SymbolFilter(Filter, Protocol):
    """A filter whose memory is changed by symbols alone."""

    def read(
        self, memory: Float[Tensor, "B M"], symbol: Int[Tensor, "B"], moves: Bool[Tensor, "B"]
    ) -> Float[Tensor, "B M"]:
        """What is remembered after one more symbol, where `moves`."""
        ...

    def step(self, memory: Tensor, symbol: Tensor, begins: Tensor, moves: Tensor) -> Tensor:
        """As of every filter."""
        return self.read(torch.where(begins[:, None], self.start, memory), symbol, moves)


@dataclass(frozen=True)
class BeliefFilter(SymbolFilter):
    """The filter of an HMM, which remembers the belief."""

    parameters: Parameters

    @property
    def start(self) -> Float[Tensor, "H"]:
        return self.parameters.start

    def read(self, memory: Tensor, symbol: Tensor, moves: Tensor) -> Tensor:
        return forward_filter(self.parameters, symbol.unsqueeze(1), moves.long(), memory).beliefs[:, 1]

    def log_probs(self, memories: Tensor) -> Tensor:
        return next_token_probs(self.parameters, memories).log()


@dataclass(frozen=True)
class TiltedFilter(SymbolFilter):
    """The tables of a tilted HMM as tensors on one device.

    Attributes:
        hmm ([`Parameters`]): the tables of the HMM.
        values (`torch.Tensor` of shape `(L+1, E, H)`): the backward values; entry `L` is `log emission`.
        tilts (`torch.Tensor` of shape `(Y, E)`): rewards over beta; `Y` is 1, or `E + 1` for rewards of pairs.
    """

    hmm: Parameters
    values: Float[Tensor, "N_plus_1 E H"]
    tilts: Float[Tensor, "Y E"]

    @property
    def start(self) -> Float[Tensor, "M"]:
        """The memory of a row before its first token."""
        rest = self.values.new_tensor([0.0, len(self.tilts) - 1])
        return torch.cat([self.hmm.start.log(), rest])

    def read(self, memory: Float[Tensor, "B M"], symbol: Int[Tensor, "B"], moves: Bool[Tensor, "B"]) -> Tensor:
        """The memory after one more symbol, where `moves`."""
        position = memory[:, -2] + 1
        context = symbol.to(memory) if len(self.tilts) > 1 else memory[:, -1]
        after = torch.cat([self._advance(memory[:, :-2], symbol), position[:, None], context[:, None]], dim=1)
        return torch.where(moves[:, None], after, memory)

    def _advance(self, log_belief: Tensor, symbol: Tensor) -> Tensor:
        peak = log_belief.amax(-1, keepdim=True)
        peak = torch.where(peak > -torch.inf, peak, 0.0)
        result = self.hmm.forward_step((log_belief - peak).exp(), symbol).log()
        far = (log_belief - peak < -_FAR) & (log_belief > -torch.inf)
        rows = far.any(-1).nonzero().squeeze(-1)
        for part in rows.split(max(1, _WORK_NUMBERS // log_belief.shape[1] ** 2)):
            terms = (log_belief - peak)[part].unsqueeze(-1) + self._log_moves(symbol[part])
            result[part] = terms.logsumexp(-2)
        top = result.amax(-1, keepdim=True)
        return result - torch.where(top > -torch.inf, top, 0.0)

    def _log_moves(self, symbol: Tensor) -> Tensor:
        if self.hmm.edges is not None:
            return self.hmm.edges[symbol].log()
        return self.hmm.emission.T[symbol].log().unsqueeze(-1) + self.hmm.transition.log()

    def log_probs(self, memories: Float[Tensor, "... M"]) -> Float[Tensor, "... E"]:
        """Log-probabilities of the next token; all -inf after an impossible one."""
        rows = memories.reshape(-1, memories.shape[-1])
        size = max(1, _WORK_NUMBERS // self.values[0].numel())
        parts = [self._log_probs(part) for part in rows.split(size)] if len(rows) > 0 else [rows[:, :0]]
        return torch.cat(parts).reshape(*memories.shape[:-1], self.tilts.shape[1])

    def _log_probs(self, memory: Float[Tensor, "B M"]) -> Float[Tensor, "B E"]:
        position, context = memory[:, -2].long(), memory[:, -1].long()
        last = len(self.values) - 1
        scores = (memory[:, None, :-2] + self.values[position.clamp(max=last)]).logsumexp(-1)
        scores = scores + torch.where((position < last)[:, None], self.tilts[context], 0.0)
        # Near 0 first: beside a large reward over beta the logarithm of a sum would be lost.
        peak = scores.amax(-1, keepdim=True)
        scores = scores - torch.where(peak > -torch.inf, peak, 0.0)
        total = scores.logsumexp(-1, keepdim=True)
        return scores - torch.where(total > -torch.inf, total, 0.0)
