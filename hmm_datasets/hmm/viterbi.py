"""The most probable paths of states: the best one, or the best `k`.

They come from the max-plus recursion (Viterbi, IEEE Trans. Inf. Theory 13, 1967). It runs in logarithms and cannot
underflow. Scores are kept near 0, so that they do not lose digits as the sequence grows. Every state keeps the scores
of the `k` best ways to reach it (the parallel list Viterbi algorithm of Seshadri and Sundberg, IEEE Trans. Commun. 42,
1994). Paths are traced back from the scores alone, so that the `k` best paths are exact. Time is `O(B T H (H + k^2))`
besides sorting. Memory is `O(B T k H)` for the scores, plus a few MiB, or the `(H, H)` sums of one row if they are
larger. Rows are processed a few at a time, never as `(B, H, H)`. On a CPU the compiled loops of `kernels.viterbi` find
the same paths in less time.
"""

from typing import NamedTuple

import torch
from jaxtyping import Float, Int
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


class Paths(NamedTuple):
    """The `k` most probable paths, best first: `states` (B, k, T) and `log_probability` (B, k) in nats."""

    states: Int[Tensor, "B k T"]
    log_probability: Float[Tensor, "B k"]


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
    best = viterbi_k_best(hmm, tokens, 1, lengths)
    return Path(best.states[:, 0], best.log_probability[:, 0])


def viterbi_k_best(
    hmm: Parameters, tokens: Int[Tensor, "B T"], k: int, lengths: Int[Tensor, "B"] | None = None
) -> Paths:
    """The `k` paths of greatest joint probability, all different, best first.

    Args:
        k (`int`): number of paths, 1 or more. The other arguments are those of [`viterbi`].

    Returns:
        [`Paths`]: ties are broken as in [`viterbi`]. Where fewer than `k` paths are possible, the rest have
            log-probability -inf and state 0 throughout.
    """
    if serves(hmm, tokens) and len(hmm.start) <= MAX_STATES:
        states, scores = best_paths(LogTables(hmm), tokens, lengths, k)
        return Paths(states, scores.to(hmm.start.dtype))
    if lengths is None:
        lengths = torch.full((len(tokens),), tokens.shape[1], device=tokens.device)
    logs = _Logarithms.of(hmm)
    count = max(1, _VITERBI_BYTES // (hmm.start.nbytes * k**2))
    parts = zip(tokens.split(count), lengths.split(count), strict=True)
    return Paths(*map(torch.cat, zip(*(_best_paths(logs, *part, k) for part in parts), strict=True)))


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

    def leave(self, arrival_BHk: Tensor, symbol_B: Tensor) -> tuple[Tensor, Tensor]:
        """Scores with the emission of each state but without the move, and the offset subtracted from each row."""
        # Near 0 the best scores keep their last digits, however long the sequence.
        offset_B = arrival_BHk.amax(dim=(1, 2))
        offset_B = torch.where(offset_B > -torch.inf, offset_B, 0.0)
        score_BHk = arrival_BHk - offset_B[:, None, None]
        return (score_BHk if self.on_edges else score_BHk + self.emission_EH[symbol_B].unsqueeze(2)), offset_B

    def which(self, symbol_B: Tensor) -> Tensor:
        """The first index of `moves_XJI`."""
        return symbol_B if self.on_edges else torch.zeros_like(symbol_B)


def _best_paths(logs: _Logarithms, tokens: Tensor, length_B: Tensor, k: int) -> tuple[Tensor, Tensor]:
    batch, length = tokens.shape
    arrivals_TBHk = logs.start_H.new_full((max(length, 1), batch, len(logs.start_H), k), -torch.inf)
    arrivals_TBHk[0, :, :, 0] = logs.start_H
    offset_B = torch.zeros(batch, dtype=torch.float64, device=tokens.device)
    for t in range(length - 1):
        ready_BHk, taken_B = logs.leave(arrivals_TBHk[t], tokens[:, t])
        offset_B += torch.where(t < length_B - 1, taken_B, 0.0)
        _arrive(logs, ready_BHk, tokens[:, t], out=arrivals_TBHk[t + 1])
    if length == 0:
        ready_BHk = arrivals_TBHk[0]
    else:
        row_B, last_B = torch.arange(batch, device=tokens.device), (length_B - 1).clamp(min=0)
        symbol_B = tokens[row_B, last_B]
        ready_BHk, taken_B = logs.leave(arrivals_TBHk[last_B, row_B], symbol_B)
        offset_B += taken_B
        if logs.on_edges:
            ready_BHk = ready_BHk + logs.emission_EH[symbol_B].unsqueeze(2)
    score_Bn, index_Bn = ready_BHk.flatten(1).sort(dim=1, descending=True, stable=True)
    score_Bk = score_Bn[:, :k] + offset_B.unsqueeze(1)
    # A sequence of no tokens has one path, of probability 1.
    none = torch.where(torch.arange(k, device=tokens.device) == 0, 0.0, -torch.inf).to(score_Bk)
    score_Bk = torch.where((length_B == 0).unsqueeze(1), none, score_Bk)
    states_BkT = _trace_back(logs, tokens, length_B, arrivals_TBHk, index_Bn[:, :k])
    return states_BkT.masked_fill_((score_Bk == -torch.inf).unsqueeze(2), 0), score_Bk.to(logs.start_H.dtype)


def _arrive(logs: _Logarithms, ready_BHk: Tensor, symbol_B: Tensor, out: Tensor) -> None:
    # For every state entered, the k best scores over all states left and their ranks.
    states, k = ready_BHk.shape[1:]
    work = _CACHE_BYTES if ready_BHk.device.type == "cpu" else _VITERBI_BYTES
    count = max(1, work // (ready_BHk.element_size() * states * max(states, k * k)))
    # Allocated once: the system would zero a block of this size on every allocation, which costs more than the sums.
    first_BJI = ready_BHk.new_empty(min(count, len(ready_BHk)), states, states)
    for ready, symbols, best in zip(ready_BHk.split(count), symbol_B.split(count), out.split(count), strict=True):
        moves = logs.moves_XJI[symbols] if logs.on_edges else logs.moves_XJI
        first = torch.add(ready[:, None, :, 0], moves, out=first_BJI[: len(ready)])
        if k == 1:
            torch.amax(first, dim=2, keepdim=True, out=best)
            continue
        # The k best ways come through the k states whose best ways are best: a way through any other state has at
        # least k better ones.
        through = first.topk(min(k, states), dim=2).indices
        lists = ready.gather(1, through.flatten(1).unsqueeze(2).expand(-1, -1, k)).unflatten(1, through.shape[1:])
        sums = lists + moves.expand(len(ready), -1, -1).gather(2, through).unsqueeze(3)
        best.copy_(sums.flatten(2).topk(k, dim=2).values)


def _trace_back(
    logs: _Logarithms, tokens: Tensor, length_B: Tensor, arrivals_TBHk: Tensor, final_Bk: Tensor
) -> Tensor:
    # An index is state * k + rank.
    (batch, length), k = tokens.shape, final_Bk.shape[1]
    states_BkT = tokens.new_zeros(batch, k, length)
    index_Bk = final_Bk
    for t in reversed(range(length)):
        if t + 1 < length:
            state_Bk, rank_Bk = index_Bk // k, index_Bk % k
            ranked_Bkk = arrivals_TBHk[t + 1].gather(1, state_Bk.unsqueeze(2).expand(-1, -1, k))
            reached_Bk1 = ranked_Bkk.gather(2, rank_Bk.unsqueeze(2))
            # These sums are bit-identical to those of the forward pass, so the predecessor is found by equality. Where
            # several sums equal the score, better ranks with the same score have taken the first of them.
            ready_BHk, _ = logs.leave(arrivals_TBHk[t], tokens[:, t])
            moves_BkI = logs.moves_XJI[logs.which(tokens[:, t]).unsqueeze(1), state_Bk]
            equal = (ready_BHk.unsqueeze(1) + moves_BkI.unsqueeze(3)).flatten(2) == reached_Bk1
            above = torch.arange(k, device=tokens.device) < rank_Bk.unsqueeze(2)
            taken_Bk1 = ((ranked_Bkk == reached_Bk1) & above).sum(2, keepdim=True)
            came_Bk = (equal & (equal.cumsum(2) == taken_Bk1 + 1)).int().argmax(2)
            index_Bk = torch.where((t + 1 < length_B).unsqueeze(1), came_Bk, final_Bk)
        states_BkT[:, :, t] = torch.where((t < length_B).unsqueeze(1), index_Bk // k, 0)
    return states_BkT
