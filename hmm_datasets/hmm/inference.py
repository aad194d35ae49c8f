"""Exact inference in hidden Markov models: filter, smoother, expected counts, most probable paths.

The forward and backward recursions are Rabiner's (Proceedings of the IEEE 77, 1989, section III), scaled at every
step. The filter keeps a normalized belief and the logarithm of each normalizer, so sequences of any length do not
underflow, and no logarithm of a sum is taken. A state is lost if its belief falls below the smallest number of the
type (5e-324 in float64, 1e-45 in float32), even if later tokens would have made it probable again. In a state-emitting
HMM no belief falls below the minimum transition probability. So a state can be lost only in a chain whose parts have
almost no transitions between them. The likelihood computed is then that of the remaining states, a lower bound.
Viterbi works with logarithms and has no such limit.

Both kinds of HMM share one recursion over the matrices `T^(x)[i, j] = P(emit x, go to j | in i)`. In a state-emitting
HMM `T^(x)[i, j] = emission[i, x] transition[i, j]`; an edge-emitting one stores the `E` matrices `T^(x)`. Time is
`O(B T H^2)`, by matrix products over the batch. Memory is that of the result plus `O(B H)`, never `(B, T, H, H)`. For
an edge-emitting HMM, a step gathers `T^(x)` for a few rows at a time, in 64 MiB. On a CPU the compiled loops of
`kernels.filter` do the same in less time.

Shapes: `B` sequences, `T` tokens, `H` states, `E` symbols. `lengths` (B,) gives the lengths of ragged sequences;
tokens beyond them are ignored. A sequence that the HMM cannot emit has log-likelihood -inf, and its distributions are
zeros after the first impossible token.

The most probable paths of states, the best one or the best `k`, come from the max-plus recursion (Viterbi, IEEE Trans.
Inf. Theory 13, 1967). It runs in logarithms and cannot underflow. Scores are kept near 0, so that they do not lose
digits as the sequence grows. Every state keeps the scores of the `k` best ways to reach it (the parallel list Viterbi
algorithm of Seshadri and Sundberg, IEEE Trans. Commun. 42, 1994). Paths are traced back from the scores alone, so that
the `k` best paths are exact. Time is `O(B T H (H + k^2))` besides sorting. Memory is `O(B T k H)` for the scores, plus
a few MiB, or the `(H, H)` sums of one row if they are larger. Rows are processed a few at a time, never as `(B, H,
H)`. On a CPU the compiled loops of `kernels.viterbi` find the same paths in less time.

A [`Filter`] reads one symbol at a time, as the forward pass of a language model does. What it remembers of a sequence
is a vector of `M` numbers: for an HMM the belief, so that `M = H`. The filter of a tilted HMM is that of the HMM
itself, `log P(state, tokens so far)` up to a constant. It keeps logarithms, because a state that the past makes nearly
impossible may be the only one from which a high reward can be reached. The next token at position `t`, after symbol
`y`, is distributed in proportion to

    exp(w[y, x] / beta) sum_s P(s | tokens so far) values[t, x, s]

where `values` come from the backward pass of `kernels.tilted`. A step costs `O(B H^2 + B E H)`. From position `L` on
nothing is rewarded, and the next token is that of the HMM. This filter remembers `M = H + 2` numbers of a row: the
logarithms of the belief, the number of tokens read, and the context of the reward (0, or the last symbol, or `E` at
the beginning).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from .kernels import counts
from .kernels.filter import Tables, filter_rows, log_likelihoods, serves, smooth_rows
from .kernels.viterbi import MAX_STATES, LogTables, best_paths, logarithms

_WORK_BYTES = 1 << 26  # of the matrices gathered at one step
_BAG = 32  # weights that are added in their own type; their sums are added in float64
_PIECE = 1 << 14  # tokens whose moves are counted by one product


_WORK_NUMBERS = 1 << 23  # of float64 in the largest temporary array
_FAR = 300.0  # nats: a state less probable than the most probable one by this much may underflow in a product
_CACHE_BYTES = 1 << 22  # of the sums of one step on a CPU: more than fits the caches was ten times slower per row
_VITERBI_BYTES = 1 << 28


@dataclass(frozen=True)
class Parameters:
    """The tables of an HMM as tensors of one type on one device.

    Attributes:
        start (`torch.Tensor` of shape `(H,)`): distribution of the first state.
        transition (`torch.Tensor` of shape `(H, H)`): `P(next j | in i)`.
        emission (`torch.Tensor` of shape `(H, E)`): `P(emit x | in i)`.
        edges (`torch.Tensor` of shape `(E, H, H)`, *optional*): `P(emit x, go to j | in i)`, if edge-emitting.
    """

    start: Float[Tensor, "H"]
    transition: Float[Tensor, "H H"]
    emission: Float[Tensor, "H E"]
    edges: Float[Tensor, "E H H"] | None = None

    def advance(self, weight_BH: Tensor, symbol_B: Tensor) -> Tensor:
        """`weight @ T^(symbol)` for each row: one step forward in time."""
        if self.edges is None:
            return (weight_BH * self.emission.T[symbol_B]) @ self.transition
        return self._by_rows(
            lambda weight, edges: torch.bmm(weight.unsqueeze(1), edges).squeeze(1), weight_BH, symbol_B
        )

    def retreat(self, value_BH: Tensor, symbol_B: Tensor) -> Tensor:
        """`T^(symbol) @ value` for each row: one step back in time."""
        if self.edges is None:
            return self.emission.T[symbol_B] * (value_BH @ self.transition.T)
        return self._by_rows(lambda row, edges: torch.bmm(edges, row.unsqueeze(2)).squeeze(2), value_BH, symbol_B)

    def _by_rows(self, product, rows_BH: Tensor, symbol_B: Tensor) -> Tensor:
        count = max(1, _WORK_BYTES // self.edges[0].nbytes)
        if len(rows_BH) <= count:
            return product(rows_BH, self.edges[symbol_B])
        pieces = zip(rows_BH.split(count), symbol_B.split(count), strict=True)
        return torch.cat([product(rows, self.edges[symbols]) for rows, symbols in pieces])


class Filtered(NamedTuple):
    """The result of the forward pass.

    Attributes:
        beliefs (`torch.Tensor` of shape `(B, T+1, H)`): `P(state before token t | tokens before t)`.
        log_scale (`torch.Tensor` of shape `(B, T)`): `log P(token t | tokens before t)` in nats; 0 beyond the length.
    """

    beliefs: Float[Tensor, "B T+1 H"]
    log_scale: Float[Tensor, "B T"]


class ExpectedCounts(NamedTuple):
    """Expected counts given the tokens, summed over the batch.

    Attributes:
        start (`torch.Tensor` of shape `(H,)`): number of sequences whose first state is `i`.
        transition (`torch.Tensor` of shape `(H, H)`): number of moves from `i` to `j`. A state-emitting HMM moves
            `T - 1` times, between the states that emit; an edge-emitting one moves at every token.
        emission (`torch.Tensor` of shape `(H, E)`): number of times that state `i` emits `x`.
        log_likelihood (`torch.Tensor` of shape `(B,)`, float64): `log P(tokens)` of each row in nats. A row with -inf
            is impossible and adds nothing to the counts.
        edges (`torch.Tensor` of shape `(E, H, H)` or `None`): for an edge-emitting HMM, number of moves from `i` to
            `j` that emit `x`; `transition` and `emission` are its sums.
    """

    start: Float[Tensor, "H"]
    transition: Float[Tensor, "H H"]
    emission: Float[Tensor, "H E"]
    log_likelihood: Float[Tensor, "B"]
    edges: Float[Tensor, "E H H"] | None = None


def forward_filter(
    hmm: Parameters,
    tokens: Int[Tensor, "B T"],
    lengths: Int[Tensor, "B"] | None = None,
    initial: Float[Tensor, "B H"] | None = None,
) -> Filtered:
    """The filter: belief before every token and after the last, and the log-probability of every token.

    Args:
        hmm ([`Parameters`]): the tables.
        tokens (`torch.Tensor` of shape `(B, T)`, int64): symbols in `[0, E)`.
        lengths (`torch.Tensor` of shape `(B,)`, *optional*): number of tokens in each row; the rest is padding.
        initial (`torch.Tensor` of shape `(B, H)`, *optional*): beliefs to start from instead of `start`.

    Returns:
        [`Filtered`].
    """
    batch, length = tokens.shape
    if _is_compiled(hmm, tokens, initial):
        tables = Tables(hmm, initial)
        beliefs, scales = filter_rows(tables, tokens, lengths, keep_scales=True)
        return Filtered(beliefs, scales.log_())
    initial = hmm.start.expand(batch, -1) if initial is None else initial
    beliefs = initial.new_empty(batch, length + 1, initial.shape[1])
    log_scale = initial.new_empty(batch, length)
    beliefs[:, 0] = initial
    for t, (belief_BH, log_scale_B) in enumerate(filter_steps(hmm, tokens, lengths, initial)):
        beliefs[:, t + 1] = belief_BH
        log_scale[:, t] = log_scale_B
    return Filtered(beliefs, log_scale)


def beliefs(
    hmm: Parameters,
    tokens: Int[Tensor, "B T"],
    lengths: Int[Tensor, "B"] | None = None,
    initial: Float[Tensor, "B H"] | None = None,
) -> Float[Tensor, "B T+1 H"]:
    """The beliefs of [`forward_filter`] alone, without the logarithms."""
    if _is_compiled(hmm, tokens, initial):
        return filter_rows(Tables(hmm, initial), tokens, lengths)[0]
    return forward_filter(hmm, tokens, lengths, initial).beliefs


def predictions(
    hmm: Parameters, tokens: Int[Tensor, "B T"], lengths: Int[Tensor, "B"] | None = None
) -> Float[Tensor, "B T+1 E"]:
    """`P(token t | tokens before t)` for `t = 0 .. T`: [`next_token_probs`] of [`beliefs`], which are not kept."""
    if _is_compiled(hmm, tokens, None):
        tables = Tables(hmm)
        return filter_rows(tables, tokens, lengths, readout=hmm.emission)[0]
    return next_token_probs(hmm, beliefs(hmm, tokens, lengths))


def _is_compiled(hmm: Parameters, tokens: Tensor, initial: Tensor | None) -> bool:
    # A single step is one call into torch, cheaper than to lay out the tables anew.
    return tokens.shape[1] > 1 and serves(hmm, tokens, initial)


def filter_steps(
    hmm: Parameters,
    tokens: Int[Tensor, "B T"],
    lengths: Int[Tensor, "B"] | None,
    belief_BH: Float[Tensor, "B H"],
) -> Iterator[tuple[Float[Tensor, "B H"], Float[Tensor, "B"]]]:
    """[`forward_filter`] step by step, in memory `(B, H)`: yields the belief after each token, and its log-scale."""
    for t, symbol_B in enumerate(tokens.T):
        weight_BH = hmm.advance(belief_BH, symbol_B)
        scale_B = weight_BH.sum(-1)
        next_BH, log_scale_B = weight_BH / _divisor(scale_B), scale_B.log()
        if lengths is not None:
            live_B = t < lengths
            next_BH = torch.where(live_B.unsqueeze(-1), next_BH, belief_BH)
            log_scale_B = torch.where(live_B, log_scale_B, 0.0)
        belief_BH = next_BH
        yield belief_BH, log_scale_B


def log_likelihood(
    hmm: Parameters, tokens: Int[Tensor, "B T"], lengths: Int[Tensor, "B"] | None = None
) -> Float[Tensor, "B"]:
    """`log P(tokens)` in nats, in memory `(B, H)`; the logarithms are summed in float64."""
    if serves(hmm, tokens):
        return log_likelihoods(Tables(hmm), tokens, lengths).to(hmm.start.dtype)
    belief_BH = hmm.start.expand(tokens.shape[0], -1)
    total_B = torch.zeros(len(tokens), dtype=torch.float64, device=tokens.device)
    for _, log_scale_B in filter_steps(hmm, tokens, lengths, belief_BH):
        total_B += log_scale_B
    return total_B.to(hmm.start.dtype)


def next_token_probs(hmm: Parameters, beliefs: Float[Tensor, "B T H"]) -> Float[Tensor, "B T E"]:
    """`P(next token | belief)`: the beliefs times the emission table."""
    return beliefs @ hmm.emission


def backward_values(
    hmm: Parameters,
    tokens: Int[Tensor, "B T"],
    filtered: Filtered,
    lengths: Int[Tensor, "B"] | None = None,
) -> Float[Tensor, "B T+1 H"]:
    """Rabiner's scaled backward variable.

    Entry `t` is `P(tokens from t on | state at t) / P(tokens from t on | tokens before t)`.
    It is scaled by the filter's normalizers, so that `sum_i beliefs[t, i] * values[t, i] = 1` at every `t`. It is 0 in
    states that the past rules out.
    """
    batch, length = tokens.shape
    value_BH = hmm.start.new_ones(batch, hmm.start.shape[0])
    values = value_BH.new_empty(batch, length + 1, value_BH.shape[1])
    values[:, length] = value_BH
    scale = filtered.log_scale.exp()
    # In a state of belief p the value is at most 1 / p. In an impossible state it has no bound, and could become
    # infinity times 0, which is NaN.
    possible = filtered.beliefs >= torch.finfo(value_BH.dtype).tiny
    for t in reversed(range(length)):
        previous_BH = hmm.retreat(value_BH, tokens[:, t]) / _divisor(scale[:, t])
        previous_BH = torch.where(possible[:, t], previous_BH, 0.0)
        value_BH = previous_BH if lengths is None else torch.where((t < lengths).unsqueeze(-1), previous_BH, value_BH)
        values[:, t] = value_BH
    return values


def posteriors(
    hmm: Parameters, tokens: Int[Tensor, "B T"], lengths: Int[Tensor, "B"] | None = None
) -> Float[Tensor, "B T H"]:
    """`P(state that emits token t | all tokens)`; zeros beyond the length, and where the sequence is impossible."""
    if serves(hmm, tokens):
        return smooth_rows(Tables(hmm), tokens, lengths)
    filtered = forward_filter(hmm, tokens, lengths)
    values = backward_values(hmm, tokens, filtered, lengths)
    gamma = values[:, :-1].mul_(filtered.beliefs[:, :-1])
    # The sums are 1 up to rounding of the scales, which accumulates with the length.
    gamma /= _divisor(gamma.sum(-1))
    if lengths is not None:
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        gamma *= (positions < lengths.unsqueeze(-1)).unsqueeze(-1)
    return gamma


def expected_counts(
    hmm: Parameters, tokens: Int[Tensor, "B T"], lengths: Int[Tensor, "B"] | None = None
) -> ExpectedCounts:
    """The sufficient statistics of Baum-Welch (Rabiner 1989, eqs. 38 and 40), summed over the batch.

    Each step is three products of `(B, H)` and `(H, H)` and some passes over `(B, H)`. One table `(T, B, H)` is kept
    in memory, or two for an edge-emitting HMM. Rows that have ended cost nothing. HMMs with few states on a CPU use
    [`~hmm_datasets.hmm.kernels.counts.fused_counts`].

    Args:
        hmm ([`Parameters`]): the tables; their type is that of the computation and of the counts.
        tokens (`torch.Tensor` of shape `(B, T)`, int64): symbols in `[0, E)`.
        lengths (`torch.Tensor` of shape `(B,)`, *optional*): number of tokens in each row; the rest is padding.

    Returns:
        [`ExpectedCounts`].
    """
    if hmm.edges is not None:
        return _expected_edge_counts(hmm, tokens, lengths)
    if tokens.device.type == "cpu" and len(hmm.start) <= counts.MAX_STATES:
        tables = (table.numpy(force=True) for table in (hmm.start, hmm.transition, hmm.emission))
        ends = None if lengths is None else lengths.numpy()
        *sums, scores = counts.fused_counts(*tables, tokens.numpy(), ends, _bound(hmm))
        return ExpectedCounts(
            *(torch.from_numpy(table).to(hmm.start.dtype) for table in sums), torch.from_numpy(scores)
        )
    batch, length = tokens.shape
    order = None if lengths is None else lengths.argsort(descending=True, stable=True)
    # Longest rows first: the rows with a token at position t are the first `num_live[t]`.
    num_live = [batch] * length if order is None else _num_live(lengths, length)
    symbols_TB = (tokens if order is None else tokens[order]).T.contiguous()
    filtered_TBH, scale_TB = _filter_by_time(hmm, symbols_TB, num_live)
    sums = _smooth_by_time(hmm, symbols_TB, num_live, filtered_TBH, scale_TB)
    scores = scale_TB.double().log_().sum(0)
    return ExpectedCounts(*sums, scores if order is None else torch.empty_like(scores).index_copy_(0, order, scores))


def _filter_by_time(hmm: Parameters, symbols_TB: Tensor, num_live: list[int]) -> tuple[Tensor, Tensor]:
    # P(state at t | tokens up to and including t), and P(token t | tokens before it).
    length, batch = symbols_TB.shape
    emission_EH = hmm.emission.T.contiguous()
    filtered_TBH = hmm.start.new_empty(length, batch, hmm.start.shape[0])
    scale_TB = hmm.start.new_ones(length, batch)
    work_BH = hmm.start.expand(batch, -1).clone()
    limits = torch.finfo(scale_TB.dtype)
    smallest = limits.tiny * limits.eps  # an impossible token has scale 0; 0 divided by this is 0, not NaN
    for rows, current_BH, symbol_B, scale_B in zip(num_live, filtered_TBH, symbols_TB, scale_TB, strict=True):
        current_BH, scale_B = current_BH[:rows], scale_B[:rows]
        torch.index_select(emission_EH, 0, symbol_B[:rows], out=current_BH)
        current_BH *= work_BH[:rows]
        torch.sum(current_BH, 1, out=scale_B)
        current_BH /= scale_B.clamp(min=smallest).unsqueeze(1)
        torch.mm(current_BH, hmm.transition, out=work_BH[:rows])
    return filtered_TBH, scale_TB


def _smooth_by_time(
    hmm: Parameters, symbols_TB: Tensor, num_live: list[int], filtered_TBH: Tensor, scale_TB: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    # With value(i) = P(tokens after t | state i at t) / P(tokens after t | tokens up to t), the posterior is
    # filtered * value, and the flow i -> j is filtered(i) transition(i, j) arriving(j), where
    # arriving = emission * value / scale at position t + 1. Overwrites filtered_TBH with the posterior.
    length, batch = symbols_TB.shape
    emission_EH, to_previous = hmm.emission.T.contiguous(), hmm.transition.T.contiguous()
    # The inverse of the smallest numbers overflows, and infinity times 0 is NaN.
    largest = torch.finfo(scale_TB.dtype).max
    inverse_TB = torch.where(scale_TB > 0, scale_TB.reciprocal().clamp_(max=largest), 0).unsqueeze(2)
    flow_HH, total_HH = torch.zeros_like(hmm.transition), torch.zeros_like(hmm.transition, dtype=torch.float64)
    arriving_BH = hmm.start.new_empty(batch, hmm.start.shape[0])
    value_BH = torch.ones_like(arriving_BH)
    bound = _bound(hmm)
    for t in reversed(range(length)):
        rows = num_live[t]
        value = value_BH[:rows]
        posterior = filtered_TBH[t, :rows].mul_(value)
        if t % counts.BLOCK == 0:
            value.div_(_divisor(posterior.sum(1))).clamp_(max=bound)
        if t > 0:
            arriving = torch.index_select(emission_EH, 0, symbols_TB[t, :rows], out=arriving_BH[:rows])
            arriving.mul_(value).mul_(inverse_TB[t, :rows]).clamp_(max=bound)
            flow_HH.addmm_(filtered_TBH[t - 1, :rows].T, arriving)
            torch.mm(arriving, to_previous, out=value)
        if t % counts.BLOCK == 0:
            total_HH += flow_HH
            flow_HH.zero_()
    start = filtered_TBH[0, : num_live[0]].sum(0) if length > 0 else torch.zeros_like(hmm.start)
    emitted = _sum_by_symbol(filtered_TBH, symbols_TB, num_live, len(emission_EH))
    return start, total_HH.mul_(hmm.transition).to(start.dtype), emitted


def _sum_by_symbol(weight_TBH: Tensor, symbols_TB: Tensor, num_live: list[int], num_symbols: int) -> Tensor:
    # (H, E): for each symbol the sum of the weights where it occurs. The order of addition is fixed on a GPU too,
    # where index_add_ would add in any order. Only few weights are added in their own type, then in float64.
    live, states = sum(num_live), weight_TBH.shape[2]
    if live == 0:
        return weight_TBH.new_zeros(states, num_symbols)
    if live < symbols_TB.numel():
        ends = torch.tensor(num_live, device=symbols_TB.device).unsqueeze(1)
        ended = torch.arange(symbols_TB.shape[1], device=symbols_TB.device) >= ends
        symbols_TB = symbols_TB.masked_fill(ended, num_symbols)
    symbols, indices = symbols_TB.flatten().sort(stable=True)
    firsts = torch.searchsorted(symbols, torch.arange(num_symbols, device=symbols.device))
    ranks = torch.arange(live, device=symbols.device) - firsts[symbols[:live]]
    pieces = (ranks % _BAG == 0).nonzero().squeeze(1)
    sums = torch.nn.functional.embedding_bag(indices[:live], weight_TBH.view(-1, states), pieces, mode="sum")
    firsts = torch.searchsorted(symbols[pieces], torch.arange(num_symbols, device=symbols.device))
    pieces = torch.arange(len(sums), device=symbols.device)
    total = torch.nn.functional.embedding_bag(pieces, sums.double(), firsts, mode="sum")
    return total.to(sums.dtype).T.contiguous()


def _expected_edge_counts(hmm: Parameters, tokens: Tensor, lengths: Tensor | None) -> ExpectedCounts:
    filtered = forward_filter(hmm, tokens, lengths)
    values = backward_values(hmm, tokens, filtered, lengths)
    live = torch.ones_like(tokens, dtype=torch.bool)
    if lengths is not None:
        live = torch.arange(tokens.shape[1], device=tokens.device) < lengths.unsqueeze(1)
    live = live & (filtered.log_scale > -torch.inf)
    # The posteriors sum to 1 but for rounding of the scales, which accumulates with the length.
    scale = filtered.log_scale.exp() * torch.einsum("bth,bth->bt", filtered.beliefs[:, 1:], values[:, 1:])
    edges = torch.zeros_like(hmm.edges, dtype=torch.float64)
    for symbol, moves in enumerate(hmm.edges):
        rows, positions = ((tokens == symbol) & live).nonzero(as_tuple=True)
        for row, position in zip(rows.split(_PIECE), positions.split(_PIECE), strict=True):
            arriving = values[row, position + 1] / _divisor(scale[row, position])
            leaving = filtered.beliefs[row, position].double()
            edges[symbol] += leaving.T @ arriving.clamp_(max=_bound(hmm)).double()
        edges[symbol] *= moves
    start = filtered.beliefs[:, 0] * values[:, 0]
    start = (start / _divisor(start.sum(1))).sum(0)
    scores = filtered.log_scale.double().sum(1)
    tables = (table.to(start.dtype) for table in (edges.sum(0), edges.sum(2).T.contiguous()))
    return ExpectedCounts(start, *tables, scores, edges.to(start.dtype))


def _num_live(lengths: Tensor, length: int) -> list[int]:
    # The number of rows with more than t tokens, for every position t.
    return (len(lengths) - torch.bincount(lengths, minlength=length + 1).cumsum(0)[:length]).tolist()


def _bound(hmm: Parameters) -> float:
    # In a state of probability p the backward value is at most 1 / p. In an impossible state it has no bound. There it
    # is multiplied by 0, and infinity times 0 would be NaN.
    return 1e290 if hmm.start.dtype == torch.float64 else 1e30


def _divisor(scale_B: Tensor) -> Tensor:
    # An impossible token has scale 0. Dividing by infinity makes its row zeros rather than NaN.
    return torch.where(scale_B > 0, scale_B, torch.inf).unsqueeze(-1)


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


@dataclass(frozen=True)
class TiltedFilter:
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
        result = self.hmm.advance((log_belief - peak).exp(), symbol).log()
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
