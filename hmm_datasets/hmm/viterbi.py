"""The most probable path of states.

It comes from the max-plus recursion (Viterbi, IEEE Trans. Inf. Theory 13, 1967), in logarithms, which cannot
underflow. Scores are kept near 0, so that they do not lose digits as the sequence grows. The path is traced back from
the scores alone. Time is `O(B T H^2)`. Memory is `O(B T H)` for the scores, plus a few MiB, or the `(H, H)` sums of a
row if they are larger. Rows are processed a few at a time, never as `(B, H, H)`. On a CPU the compiled loops of
`kernels.viterbi` find the same path in less time.
"""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from .inference import Parameters
from .kernels.filter import serves
from .kernels.viterbi import MAX_STATES, LogTables, best_paths, logarithms

_CACHE_BYTES = 1 << 22  # of the sums of one step on a CPU: more than fits the caches was ten times slower per row
_VITERBI_BYTES = 1 << 28


class Path(NamedTuple):
    """A most probable path: `states` (B, T) and `log_probability` (B,), `log P(states, tokens)` in nats."""

    states: Int[Tensor, "B T"]
    log_probability: Float[Tensor, "B"]


def viterbi(hmm: Parameters, tokens: Int[Tensor, "B T"], lengths: Int[Tensor, "B"] | None = None) -> Path:
    """The states that emit the tokens with the greatest joint probability.

    Args:
        hmm ([`~hmm_datasets.hmm.inference.Parameters`]): the tables.
        tokens (`torch.Tensor` of shape `(B, T)`, int64): symbols in `[0, E)`.
        lengths (`torch.Tensor` of shape `(B,)`, *optional*): number of tokens in each row; the rest is padding.

    Returns:
        [`Path`]: the best path. Of two paths that tie it is the one whose last differing state is lower. Beyond the
            length of a row the state is 0. An impossible sequence has state 0 throughout and log-probability -inf.
    """
    if serves(hmm, tokens) and len(hmm.start) <= MAX_STATES:
        states, scores = best_paths(LogTables(hmm), tokens, lengths)
        return Path(states, scores.to(hmm.start.dtype))
    if lengths is None:
        lengths = torch.full((len(tokens),), tokens.shape[1], device=tokens.device)
    logs = _Logarithms.of(hmm)
    count = max(1, _VITERBI_BYTES // hmm.start.nbytes)
    parts = zip(tokens.split(count), lengths.split(count), strict=True)
    return Path(*map(torch.cat, zip(*(_best_paths(logs, *part) for part in parts), strict=True)))


class _Logarithms(NamedTuple):
    start_H: Tensor
    emission_EH: Tensor
    moves_XJI: Tensor  # log P(i -> j) at [0, j, i]; if edge-emitting, log P(emit x, i -> j) at [x, j, i]
    on_edges: bool

    @classmethod
    def of(cls, hmm: Parameters) -> "_Logarithms":
        moves = (hmm.transition[None] if hmm.edges is None else hmm.edges).transpose(1, 2).contiguous()
        tables = map(logarithms, (hmm.start, hmm.emission.T, moves))
        return cls(*tables, hmm.edges is not None)

    def leave(self, arrival_BH: Tensor, symbol_B: Tensor) -> tuple[Tensor, Tensor]:
        """Scores with the emission of each state but without the move, and the offset subtracted from each row."""
        # Near 0 the best scores keep their last digits, however long the sequence.
        offset_B = arrival_BH.amax(dim=1)
        offset_B = torch.where(offset_B > -torch.inf, offset_B, 0.0)
        score_BH = arrival_BH - offset_B.unsqueeze(1)
        return (score_BH if self.on_edges else score_BH + self.emission_EH[symbol_B]), offset_B

    def which(self, symbol_B: Tensor) -> Tensor:
        """The first index of `moves_XJI`."""
        return symbol_B if self.on_edges else torch.zeros_like(symbol_B)


def _best_paths(logs: _Logarithms, tokens: Tensor, length_B: Tensor) -> tuple[Tensor, Tensor]:
    batch, length = tokens.shape
    arrivals_TBH = logs.start_H.expand(max(length, 1), batch, -1).clone()
    offset_B = torch.zeros(batch, dtype=torch.float64, device=tokens.device)
    for t in range(length - 1):
        ready_BH, taken_B = logs.leave(arrivals_TBH[t], tokens[:, t])
        offset_B += torch.where(t < length_B - 1, taken_B, 0.0)
        _arrive(logs, ready_BH, tokens[:, t], out=arrivals_TBH[t + 1])
    if length == 0:
        ready_BH = arrivals_TBH[0]
    else:
        row_B, last_B = torch.arange(batch, device=tokens.device), (length_B - 1).clamp(min=0)
        symbol_B = tokens[row_B, last_B]
        ready_BH, taken_B = logs.leave(arrivals_TBH[last_B, row_B], symbol_B)
        offset_B += taken_B
        if logs.on_edges:
            ready_BH = ready_BH + logs.emission_EH[symbol_B]
    best_B = ready_BH.amax(1)
    # A sequence of no tokens has one path, of probability 1.
    score_B = torch.where(length_B == 0, 0.0, best_B + offset_B)
    states_BT = _trace_back(logs, tokens, length_B, arrivals_TBH, _first(ready_BH == best_B.unsqueeze(1)))
    return states_BT.masked_fill_((score_B == -torch.inf).unsqueeze(1), 0), score_B.to(logs.start_H.dtype)


def _first(flags_BH: Bool[Tensor, "B H"]) -> Int[Tensor, "B"]:
    return (flags_BH & (flags_BH.cumsum(1) == 1)).int().argmax(1)


def _arrive(logs: _Logarithms, ready_BH: Tensor, symbol_B: Tensor, out: Tensor) -> None:
    # For every state entered, the best score over all states left.
    states = ready_BH.shape[1]
    work = _CACHE_BYTES if ready_BH.device.type == "cpu" else _VITERBI_BYTES
    count = max(1, work // (ready_BH.element_size() * states**2))
    # Allocated once: the system would zero a block of this size on every allocation, which costs more than the sums.
    sums_BJI = ready_BH.new_empty(min(count, len(ready_BH)), states, states)
    for ready, symbols, best in zip(ready_BH.split(count), symbol_B.split(count), out.split(count), strict=True):
        moves = logs.moves_XJI[symbols] if logs.on_edges else logs.moves_XJI
        torch.amax(torch.add(ready.unsqueeze(1), moves, out=sums_BJI[: len(ready)]), dim=2, out=best)


def _trace_back(logs: _Logarithms, tokens: Tensor, length_B: Tensor, arrivals_TBH: Tensor, final_B: Tensor) -> Tensor:
    batch, length = tokens.shape
    states_BT, state_B = tokens.new_zeros(batch, length), final_B
    for t in reversed(range(length)):
        if t + 1 < length:
            # These sums are bit-identical to those of the forward pass, so the predecessor is found by equality.
            ready_BH, _ = logs.leave(arrivals_TBH[t], tokens[:, t])
            sums_BH = ready_BH + logs.moves_XJI[logs.which(tokens[:, t]), state_B]
            came_B = _first(sums_BH == arrivals_TBH[t + 1].gather(1, state_B.unsqueeze(1)))
            state_B = torch.where(t + 1 < length_B, came_B, final_B)
        states_BT[:, t] = torch.where(t < length_B, state_B, 0)
    return states_BT
