"""Exact inference in hidden Markov models: filter, smoother, expected counts, most probable paths.

The forward and backward recursions are Rabiner's (Proceedings of the IEEE 77, 1989, section III), scaled at every
step. The filter keeps a normalized belief and the logarithm of each normalizer, so sequences of any length do not
underflow, and no logarithm of a sum is taken. Where transitions have zeros, a belief may still fall below the smallest
number of the type (5e-324 in float64, 1e-45 in float32), and later tokens may make the state probable again. Rows in
which that may matter are computed again: those of float32 in float64, and where that does not do either, in logarithms
([`.kernels.logs`]), from which no gradient comes. Not so where beliefs to start from are given.

Both kinds of HMM share one recursion over the matrices `T^(x)[i, j] = P(emit x, go to j | in i)`. In a state-emitting
HMM `T^(x)[i, j] = emission[i, x] transition[i, j]`; an edge-emitting one stores the `E` matrices `T^(x)`. Time is
`O(B T H^2)`, by matrix products over the batch. Memory is that of the result plus `O(B H)`, never `(B, T, H, H)`. For
an edge-emitting HMM, a step gathers `T^(x)` for a few rows at a time, in 64 MiB. On a CPU the compiled loops of
`kernels.filter` do the same in less time.

A token that was not observed is one more symbol, `E`, which every state emits with probability 1: a column of ones in
the emissions, or the sum over all symbols of the edges ([`Parameters.with_missing`]). So the same recursions sum over
what the token may have been. This is right where whether a token is lost does not depend on what it was (missing at
random; Rubin, Biometrika 63, 1976).

Shapes: `B` sequences, `T` tokens, `H` states, `E` symbols. `lengths` (B,) gives the lengths of ragged sequences;
tokens beyond them are ignored. A sequence that the HMM cannot emit has log-likelihood -inf, and its distributions are
zeros after the first impossible token.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from .kernels import counts
from .kernels.filter import Tables, filter_rows, log_likelihoods, serves, smooth_rows
from .kernels.logs import LogRecursions

_WORK_BYTES = 1 << 26  # of the matrices gathered at one step
_SUM_CHUNK = 32  # weights that are added in their own type; their sums are added in float64
_PIECE = 1 << 14  # tokens whose moves are counted by one product


@dataclass(frozen=True)
class Parameters:
    """The tables of an HMM as tensors of one type on one device.

    Attributes:
        start (`torch.Tensor` of shape `(H,)`): distribution of the first state.
        transition (`torch.Tensor` of shape `(H, H)`): `P(next j | in i)`.
        emission (`torch.Tensor` of shape `(H, E)`): `P(emit x | in i)`.
        edges (`torch.Tensor` of shape `(E, H, H)`, *optional*): `P(emit x, go to j | in i)`, if edge-emitting.
        has_missing (`bool`): whether the last of the symbols stands for a token that was not observed.
        safe_of_type (`dict`): [`safe`] by the type of the tables, as far as it was asked for. All tables of an HMM
            share it, because to find it takes longer than to filter a few short rows.
    """

    start: Float[Tensor, "H"]
    transition: Float[Tensor, "H H"]
    emission: Float[Tensor, "H E"]
    edges: Float[Tensor, "E H H"] | None = None
    has_missing: bool = False
    safe_of_type: dict[torch.dtype, tuple[float, int]] = field(default_factory=dict)

    def with_missing(self) -> "Parameters":
        """The tables with one more symbol, for tokens that were not observed."""
        emission = torch.cat([self.emission, torch.ones_like(self.emission[:, :1])], dim=1)
        edges = None if self.edges is None else torch.cat([self.edges, self.transition.unsqueeze(0)])
        return Parameters(self.start, self.transition, emission, edges, True, self.safe_of_type)

    def sums(
        self, tokens: Int[Tensor, "B T"], lengths: Int[Tensor, "B"] | None, weights: Float[Tensor, "B"] | None
    ) -> tuple[dict[str, Tensor], Float[Tensor, "B"]]:
        """[`expected_counts`] of each table by its name, and the log-likelihoods: what a step of Baum-Welch needs."""
        counts = expected_counts(self, tokens, lengths, weights)
        tables = {"start": counts.start, "transition": counts.transition, "emission": counts.emission}
        return tables, counts.log_likelihood

    def log_likelihood(self, tokens: Int[Tensor, "B T"], lengths: Int[Tensor, "B"] | None) -> Float[Tensor, "B"]:
        """[`log_likelihood`] of these tables."""
        return log_likelihood(self, tokens, lengths)

    @cached_property
    def logs(self) -> LogRecursions:
        """The tables for rows in which a number underflows."""
        start, moves = (
            t.numpy(force=True) for t in (self.start, self.transition[None] if self.edges is None else self.edges)
        )
        return LogRecursions(start, self.emission.T.numpy(force=True) if self.edges is None else None, moves)

    @property
    def safe(self) -> tuple[float, int]:
        """[`~.kernels.logs.safe_beliefs`] of the tables, which a symbol for missing tokens does not change."""
        if self.start.dtype not in self.safe_of_type:
            self.safe_of_type[self.start.dtype] = self.logs.safe
        return self.safe_of_type[self.start.dtype]

    @property
    def predicted(self) -> Float[Tensor, "H E"]:
        """The emission table of the symbols proper."""
        return self.emission[:, :-1] if self.has_missing else self.emission

    def forward_step(self, weight_BH: Tensor, symbol_B: Tensor) -> Tensor:
        """`weight @ T^(symbol)` for each row: one step forward in time."""
        if self.edges is None:
            return (weight_BH * self.emission.T[symbol_B]) @ self.transition
        return rows_times(weight_BH, self.edges, symbol_B)

    def backward_step(self, value_BH: Tensor, symbol_B: Tensor) -> Tensor:
        """`T^(symbol) @ value` for each row: one step back in time."""
        if self.edges is None:
            return self.emission.T[symbol_B] * (value_BH @ self.transition.T)
        return rows_times(value_BH, self.edges.transpose(1, 2), symbol_B)


def rows_times(
    rows: Float[Tensor, "B N"], tables: Float[Tensor, "K N M"], chosen: Int[Tensor, "B"]
) -> Float[Tensor, "B M"]:
    """`rows[b] @ tables[chosen[b]]` for each row; the tables are gathered for a few rows at a time."""
    count = max(1, _WORK_BYTES // tables[0].nbytes)
    pieces = zip(rows.split(count), chosen.split(count), strict=True)
    products = [torch.bmm(piece.unsqueeze(1), tables[which]).squeeze(1) for piece, which in pieces]
    return torch.cat(products) if len(products) > 1 else products[0]


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
        emission (`torch.Tensor` of shape `(H, E)`): number of times that state `i` emits `x`. Of a token that was not
            observed nothing is counted here.
        log_likelihood (`torch.Tensor` of shape `(B,)`, float64): `log P(tokens)` of each row in nats. A row with -inf
            is impossible and adds nothing to the counts.
        edges (`torch.Tensor` of shape `(E, H, H)` or `None`): for an edge-emitting HMM, number of moves from `i` to
            `j` that emit `x`; `transition` and `emission` are its sums. A move whose symbol was not observed counts
            for each symbol by its probability.
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
        beliefs, log_scale, lost_B = filter_rows(Tables(hmm, initial), tokens, lengths, keep_scales=True)
        log_scale.log_()
    else:
        beliefs = hmm.start.new_empty(batch, length + 1, len(hmm.start))
        log_scale = hmm.start.new_empty(batch, length)
        beliefs[:, 0] = hmm.start if initial is None else initial
        for t, (belief_BH, log_scale_B) in enumerate(filter_steps(hmm, tokens, lengths, beliefs[:, 0])):
            beliefs[:, t + 1] = belief_BH
            log_scale[:, t] = log_scale_B
        lost_B = falls_below(beliefs, hmm.safe[0] if initial is None else 0.0).any(1)
    if lost_B.any():
        beliefs[lost_B], log_scale[lost_B] = _filtered_again(hmm, tokens, lengths, lost_B)
    return Filtered(beliefs, log_scale)


def falls_below(beliefs: Float[Tensor, "... H"], limit: float) -> Bool[Tensor, "..."]:
    """Whether the belief in a state that is possible is below the limit."""
    if limit == 0:
        return torch.zeros(beliefs.shape[:-1], dtype=torch.bool, device=beliefs.device)
    return ((beliefs > 0) & (beliefs < limit)).any(-1)


def beliefs(
    hmm: Parameters,
    tokens: Int[Tensor, "B T"],
    lengths: Int[Tensor, "B"] | None = None,
    initial: Float[Tensor, "B H"] | None = None,
) -> Float[Tensor, "B T+1 H"]:
    """The beliefs of [`forward_filter`] alone."""
    return forward_filter(hmm, tokens, lengths, initial).beliefs


def predictions(
    hmm: Parameters, tokens: Int[Tensor, "B T"], lengths: Int[Tensor, "B"] | None = None
) -> Float[Tensor, "B T+1 E"]:
    """`P(token t | tokens before t)` for `t = 0 .. T`: [`next_token_probs`] of [`beliefs`], which are not kept."""
    if _is_compiled(hmm, tokens, None):
        result, _, lost_B = filter_rows(Tables(hmm), tokens, lengths, readout=hmm.predicted)
        if lost_B.any():
            result[lost_B] = next_token_probs(hmm, _filtered_again(hmm, tokens, lengths, lost_B).beliefs)
        return result
    return next_token_probs(hmm, beliefs(hmm, tokens, lengths))


def _filtered_again(hmm: Parameters, tokens: Tensor, lengths: Tensor | None, chosen_B: Tensor) -> Filtered:
    """The filter of the rows in which a state may have been lost: in float64 after float32, then in logarithms."""
    if hmm.start.dtype == torch.float32:
        wide = replace(hmm, **{name: table.double() for name, table in vars(hmm).items() if torch.is_tensor(table)})
        found = forward_filter(wide, tokens[chosen_B], None if lengths is None else lengths[chosen_B])
        return Filtered(found.beliefs.float(), found.log_scale.float())
    beliefs = hmm.start.new_empty(int(chosen_B.sum()), tokens.shape[1] + 1, len(hmm.start))
    log_scale = beliefs.new_zeros(len(beliefs), tokens.shape[1])
    for row, (_, symbols) in enumerate(chosen_rows(tokens, lengths, chosen_B)):
        logs, scales = hmm.logs.filtered(symbols)
        beliefs[row, len(symbols) :] = torch.from_numpy(np.exp(logs[-1]))
        beliefs[row, : len(logs)] = torch.from_numpy(np.exp(logs))
        log_scale[row, : len(symbols)] = torch.from_numpy(scales)
    return Filtered(beliefs, log_scale)


def _is_compiled(hmm: Parameters, tokens: Tensor, initial: Tensor | None) -> bool:
    # A single step is one call into torch, cheaper than to lay out the tables anew.
    return tokens.shape[1] > 1 and serves(hmm, tokens, initial)


def filter_steps(
    hmm: Parameters,
    tokens: Int[Tensor, "B T"],
    lengths: Int[Tensor, "B"] | None,
    belief_BH: Float[Tensor, "B H"],
) -> Iterator[tuple[Float[Tensor, "B H"], Float[Tensor, "B"]]]:
    """[`forward_filter`] step by step, in memory `(B, H)`: yields the belief after each token, and its log-scale.

    This is the filter through which gradients go, that of a GPU, and that of HMMs too large for the compiled loops.
    """
    for t, symbol_B in enumerate(tokens.T):
        weight_BH = hmm.forward_step(belief_BH, symbol_B)
        scale_B = weight_BH.sum(-1)
        next_BH, log_scale_B = weight_BH / divisor(scale_B), scale_B.log()
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
        total_B = log_likelihoods(Tables(hmm), tokens, lengths)
        lost_B = total_B.isnan()
    else:
        first_BH, limit = hmm.start.expand(tokens.shape[0], -1), hmm.safe[0]
        lost_B = falls_below(first_BH, limit)
        total_B = torch.zeros(len(tokens), dtype=torch.float64, device=tokens.device)
        for belief_BH, log_scale_B in filter_steps(hmm, tokens, lengths, first_BH):
            lost_B = lost_B | falls_below(belief_BH, limit)
            total_B += log_scale_B
    if lost_B.any():
        total_B[lost_B] = _filtered_again(hmm, tokens, lengths, lost_B).log_scale.double().sum(1)
    return total_B.to(hmm.start.dtype)


def next_token_probs(hmm: Parameters, beliefs: Float[Tensor, "B T H"]) -> Float[Tensor, "B T E"]:
    """`P(next token | belief)`: the beliefs times the emission table."""
    return beliefs @ hmm.predicted


def backward_values(
    hmm: Parameters,
    tokens: Int[Tensor, "B T"],
    filtered: Filtered,
    lengths: Int[Tensor, "B"] | None = None,
) -> Float[Tensor, "B T+1 H"]:
    """Rabiner's scaled backward variable.

    Entry `t` is `P(tokens from t on | state at t) / P(tokens from t on | tokens before t)`.
    It is scaled by the filter's normalizers, so that `sum_i beliefs[t, i] * values[t, i] = 1` at every `t`. In states
    that the past rules out it is at most [`~.kernels.counts.backward_bound`].
    """
    batch, length = tokens.shape
    value_BH = hmm.start.new_ones(batch, hmm.start.shape[0])
    values = value_BH.new_empty(batch, length + 1, value_BH.shape[1])
    values[:, length] = value_BH
    scale = filtered.log_scale.exp()
    bound = counts.backward_bound(value_BH.dtype)
    for t in reversed(range(length)):
        previous_BH = hmm.backward_step(value_BH, tokens[:, t]) / divisor(scale[:, t])
        previous_BH = previous_BH.clamp(max=bound)
        value_BH = previous_BH if lengths is None else torch.where((t < lengths).unsqueeze(-1), previous_BH, value_BH)
        values[:, t] = value_BH
    return values


def posteriors(
    hmm: Parameters, tokens: Int[Tensor, "B T"], lengths: Int[Tensor, "B"] | None = None
) -> Float[Tensor, "B T H"]:
    """`P(state that emits token t | all tokens)`; zeros beyond the length, and where the sequence is impossible."""
    if serves(hmm, tokens):
        gamma, lost_B = smooth_rows(Tables(hmm), tokens, lengths)
    else:
        filtered = forward_filter(hmm, tokens, lengths)
        values = backward_values(hmm, tokens, filtered, lengths)
        gamma = values[:, :-1] * filtered.beliefs[:, :-1]
        total = gamma.sum(-1)
        lost_B = _passes_bound(values) | (total == 0).any(1)
        # The sums are 1 up to rounding of the scales, which accumulates with the length.
        gamma /= divisor(total)
        if lengths is not None:
            positions = torch.arange(tokens.shape[1], device=tokens.device)
            gamma *= (positions < lengths.unsqueeze(-1)).unsqueeze(-1)
    if lost_B.any() and hmm.safe[0] > 0:
        for row, symbols in chosen_rows(tokens, lengths, lost_B):
            gamma[row, : len(symbols)] = torch.from_numpy(hmm.logs.posteriors(symbols))
    return gamma


def _passes_bound(values: Float[Tensor, "B T H"]) -> Bool[Tensor, "B"]:
    return (values >= counts.backward_bound(values.dtype)).flatten(1).any(1)


def expected_counts(
    hmm: Parameters,
    tokens: Int[Tensor, "B T"],
    lengths: Int[Tensor, "B"] | None = None,
    weights: Float[Tensor, "B"] | None = None,
) -> ExpectedCounts:
    """The sufficient statistics of Baum-Welch (Rabiner 1989, eqs. 38 and 40), summed over the batch.

    Each step is three products of `(B, H)` and `(H, H)` and some passes over `(B, H)`. One table `(T, B, H)` is kept
    in memory, or two for an edge-emitting HMM. Rows that have ended cost nothing. HMMs with few states on a CPU use
    [`~hmm_datasets.hmm.kernels.counts.fused_counts`].

    Args:
        hmm ([`Parameters`]): the tables; their type is that of the computation and of the counts.
        tokens (`torch.Tensor` of shape `(B, T)`, int64): symbols in `[0, E)`.
        lengths (`torch.Tensor` of shape `(B,)`, *optional*): number of tokens in each row; the rest is padding.
        weights (`torch.Tensor` of shape `(B,)`, *optional*): how often each row counts, 0 or more; 1 by default. The
            log-likelihoods are not weighted.

    Returns:
        [`ExpectedCounts`].
    """

    def compute(weights: Tensor | None) -> tuple[dict[str, Tensor], Tensor]:
        *tables, scores = _expected_counts(hmm, tokens, lengths, weights)
        if scores.isinf().any() and hmm.safe[0] > 0:
            scores = scores.masked_fill(scores.isinf(), torch.nan)
        return dict(zip(("start", "transition", "emission", "edges"), tables, strict=False)), scores

    weights = None if weights is None else weights.to(hmm.start.dtype)
    tables, scores = with_lost_rows(compute, tokens, lengths, weights, lambda row: hmm.logs.counts(row))
    counts = ExpectedCounts(**tables, log_likelihood=scores)
    return _of_symbols(hmm, counts) if hmm.has_missing else counts


def with_lost_rows(
    compute: Callable[[Tensor | None], tuple[dict[str, Tensor], Tensor]],
    tokens: Int[Tensor, "B T"],
    lengths: Int[Tensor, "B"] | None,
    weights: Float[Tensor, "B"] | None,
    of_row: Callable[[Int[np.ndarray, "T"]], tuple[dict[str, np.ndarray], float]],
) -> tuple[dict[str, Tensor], Float[Tensor, "B"]]:
    """What `compute(weights)` returns, summed counts by name and the score of each row, with lost rows by `of_row`.

    A row is lost if its score is NaN; `of_row` gives its counts and its score.
    """
    tables, scores = compute(weights)
    lost_B = scores.isnan()
    if lost_B.any():
        weights = torch.ones_like(scores, dtype=tables["start"].dtype) if weights is None else weights
        tables, scores = compute(weights.masked_fill(lost_B, 0))
        for row, symbols in chosen_rows(tokens, lengths, lost_B):
            counts, scores[row] = of_row(symbols)
            for name, table in counts.items():
                tables[name] += weights[row] * torch.from_numpy(table).to(tables[name])
    return tables, scores


def chosen_rows(
    tokens: Int[Tensor, "B T"], lengths: Int[Tensor, "B"] | None, chosen_B: Bool[Tensor, "B"]
) -> Iterator[tuple[int, Int[np.ndarray, "T"]]]:
    """Rows that are chosen, and their tokens."""
    for row in chosen_B.nonzero().flatten().tolist():
        yield row, tokens[row, : None if lengths is None else lengths[row]].cpu().numpy()


def _of_symbols(hmm: Parameters, counts: ExpectedCounts) -> ExpectedCounts:
    """The counts without the symbol of missing tokens."""
    if hmm.edges is None or counts.edges is None:
        return counts._replace(emission=counts.emission[:, :-1])
    shares = hmm.edges[:-1] / torch.where(hmm.transition > 0, hmm.transition, 1.0)
    edges = counts.edges[:-1] + counts.edges[-1] * shares
    return counts._replace(edges=edges, emission=edges.sum(2).T.contiguous())


def _expected_counts(
    hmm: Parameters, tokens: Tensor, lengths: Tensor | None, weights: Tensor | None
) -> tuple[Tensor, ...]:
    # The tables of counts in the order of `ExpectedCounts`, then the log-likelihoods, NaN where a state may be lost.
    if hmm.edges is not None:
        return _expected_edge_counts(hmm, tokens, lengths, weights)
    if tokens.device.type == "cpu" and len(hmm.start) <= counts.MAX_STATES:
        tables = (table.numpy(force=True) for table in (hmm.start, hmm.transition, hmm.emission))
        ends = None if lengths is None else lengths.numpy()
        of_rows = None if weights is None else weights.numpy()
        *sums, scores = counts.fused_counts(*tables, tokens.numpy(), ends, of_rows)
        return *(torch.from_numpy(table).to(hmm.start.dtype) for table in sums), torch.from_numpy(scores)
    order, num_live, rows = longest_first(tokens, lengths)
    symbols_TB = rows.T.contiguous()
    filtered_TBH, scale_TB = _filter_by_time(hmm, symbols_TB, num_live)
    weight_B = hmm.start.new_ones(len(tokens)) if weights is None else weights if order is None else weights[order]
    *sums, peak_B = _smooth_by_time(hmm, symbols_TB, num_live, filtered_TBH, scale_TB, weight_B)
    scores = scale_TB.double().log_().sum(0)
    scores = scores.masked_fill(peak_B >= counts.backward_bound(peak_B.dtype), torch.nan)
    return *sums, in_given_order(scores, order)


def longest_first(
    tokens: Int[Tensor, "B T"], lengths: Int[Tensor, "B"] | None
) -> tuple[Int[Tensor, "B"] | None, list[int], Int[Tensor, "B T"]]:
    """The order of the rows, longest first, how many of them have a token at each position, and the rows in it."""
    batch, length = tokens.shape
    if lengths is None:
        return None, [batch] * length, tokens.contiguous()
    order = lengths.argsort(descending=True, stable=True)
    num_live = (batch - torch.bincount(lengths, minlength=length + 1).cumsum(0)[:length]).tolist()
    return order, num_live, tokens[order]


def in_given_order(scores: Float[Tensor, "B"], order: Int[Tensor, "B"] | None) -> Float[Tensor, "B"]:
    """A score of each row, in the order before [`longest_first`]."""
    return scores if order is None else torch.empty_like(scores).index_copy_(0, order, scores)


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
    hmm: Parameters,
    symbols_TB: Tensor,
    num_live: list[int],
    filtered_TBH: Tensor,
    scale_TB: Tensor,
    weight_B: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    # With value(i) = P(tokens after t | state i at t) / P(tokens after t | tokens up to t), the posterior is
    # filtered * value, and the flow i -> j is filtered(i) transition(i, j) arriving(j), where
    # arriving = emission * value / scale at position t + 1. Overwrites filtered_TBH with the posterior. Values that
    # begin with the weight of a row instead of 1 multiply its counts by it. Last comes the largest value of each row.
    length, batch = symbols_TB.shape
    emission_EH, to_previous = hmm.emission.T.contiguous(), hmm.transition.T.contiguous()
    inverse_TB = largest_inverse(scale_TB).unsqueeze(2)
    flow_HH, total_HH = torch.zeros_like(hmm.transition), torch.zeros_like(hmm.transition, dtype=torch.float64)
    arriving_BH = hmm.start.new_empty(batch, hmm.start.shape[0])
    value_BH = weight_B.unsqueeze(1).repeat(1, len(hmm.start))
    bound, peak_B = counts.backward_bound(hmm.start.dtype), torch.zeros_like(weight_B)
    for t in reversed(range(length)):
        rows = num_live[t]
        value = value_BH[:rows]
        posterior = filtered_TBH[t, :rows].mul_(value)
        if t % counts.BLOCK == 0:
            value.div_(divisor(posterior.sum(1) / weight_B[:rows])).clamp_(max=bound)
        if t > 0:
            arriving = torch.index_select(emission_EH, 0, symbols_TB[t, :rows], out=arriving_BH[:rows])
            arriving.mul_(value).mul_(inverse_TB[t, :rows]).clamp_(max=bound)
            peak_B[:rows] = torch.maximum(peak_B[:rows], arriving.amax(1))
            flow_HH.addmm_(filtered_TBH[t - 1, :rows].T, arriving)
            torch.mm(arriving, to_previous, out=value)
        if t % counts.BLOCK == 0:
            total_HH += flow_HH
            flow_HH.zero_()
    start = filtered_TBH[0, : num_live[0]].sum(0) if length > 0 else torch.zeros_like(hmm.start)
    emitted = sum_by_symbol(filtered_TBH, symbols_TB, num_live, len(emission_EH))
    return start, total_HH.mul_(hmm.transition).to(start.dtype), emitted, peak_B


def sum_by_symbol(weight_TBH: Tensor, symbols_TB: Tensor, num_live: list[int], num_symbols: int) -> Tensor:
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
    pieces = (ranks % _SUM_CHUNK == 0).nonzero().squeeze(1)
    sums = torch.nn.functional.embedding_bag(indices[:live], weight_TBH.view(-1, states), pieces, mode="sum")
    firsts = torch.searchsorted(symbols[pieces], torch.arange(num_symbols, device=symbols.device))
    pieces = torch.arange(len(sums), device=symbols.device)
    total = torch.nn.functional.embedding_bag(pieces, sums.double(), firsts, mode="sum")
    return total.to(sums.dtype).T.contiguous()


def _expected_edge_counts(
    hmm: Parameters, tokens: Tensor, lengths: Tensor | None, weights: Tensor | None
) -> tuple[Tensor, ...]:
    weight_B = hmm.start.new_ones(len(tokens)) if weights is None else weights
    filtered = forward_filter(hmm, tokens, lengths)
    values = backward_values(hmm, tokens, filtered, lengths)
    live = torch.ones_like(tokens, dtype=torch.bool)
    if lengths is not None:
        live = torch.arange(tokens.shape[1], device=tokens.device) < lengths.unsqueeze(1)
    lost_B = _passes_bound(values)
    live = live & (filtered.log_scale > -torch.inf) & ~lost_B.unsqueeze(1)
    # The posteriors sum to 1 but for rounding of the scales, which accumulates with the length.
    scale = filtered.log_scale.exp() * torch.einsum("bth,bth->bt", filtered.beliefs[:, 1:], values[:, 1:])
    edges = torch.zeros_like(hmm.edges, dtype=torch.float64)
    for symbol, moves in enumerate(hmm.edges):
        rows, positions = ((tokens == symbol) & live).nonzero(as_tuple=True)
        for row, position in zip(rows.split(_PIECE), positions.split(_PIECE), strict=True):
            arriving = values[row, position + 1] / divisor(scale[row, position])
            leaving = filtered.beliefs[row, position].double() * weight_B[row].unsqueeze(1)
            edges[symbol] += leaving.T @ arriving.double()
        edges[symbol] *= moves
    start = filtered.beliefs[:, 0] * values[:, 0]
    weight_B = torch.where(live[:, :1].any(1), weight_B, 0.0)  # a row of no tokens has no first state that emits
    start = (start / divisor(start.sum(1)) * weight_B.unsqueeze(1)).sum(0)
    scores = filtered.log_scale.double().sum(1).masked_fill(lost_B, torch.nan)
    tables = (table.to(start.dtype) for table in (edges.sum(0), edges.sum(2).T.contiguous(), edges))
    return start, *tables, scores


def largest_inverse(scale: Tensor) -> Tensor:
    """`1 / scale`, and 0 for 0; that of the smallest numbers overflows, and infinity times 0 is NaN."""
    return torch.where(scale > 0, scale.reciprocal().clamp(max=torch.finfo(scale.dtype).max), 0)


def divisor(scale_B: Tensor) -> Tensor:
    # An impossible token has scale 0. Dividing by infinity makes its row zeros rather than NaN.
    return torch.where(scale_B > 0, scale_B, torch.inf).unsqueeze(-1)
