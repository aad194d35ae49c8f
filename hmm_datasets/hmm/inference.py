"""Exact inference in hidden Markov models: filter, smoother, most probable path.

The forward and backward recursions are Rabiner's (Proceedings of the IEEE 77, 1989, section III), scaled at every
step: the filter keeps a normalized belief and the logarithm of each normalizer, so no length underflows and no
logarithm of a sum is taken. What is lost is a state whose belief falls below 1e-308 (float64) and which later tokens
would have brought back: only chains with parts that hardly ever meet have such. Time is `O(B T H^2)` by matrix
products over the batch; memory is that of the result, never `(B, T, H, H)`.

Both kinds of HMM share one recursion. With `T^(x)[i, j] = P(emit x, go to j | in i)`, a state-emitting HMM has
`T^(x)[i, j] = emission[i, x] transition[i, j]`, an edge-emitting one keeps the `E` matrices `T^(x)` themselves.

Shapes: `B` sequences, `T` tokens, `H` states, `E` symbols. `lengths` (B,) marks where ragged sequences end; what lies
beyond is ignored. A sequence the HMM cannot emit has log-likelihood -inf, and laws of zeros after the token that made
it impossible.
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor


@dataclass(frozen=True)
class Parameters:
    """The tables of an HMM as tensors of one type on one device.

    Attributes:
        start (`torch.Tensor` of shape `(H,)`): law of the first state.
        transition (`torch.Tensor` of shape `(H, H)`): `P(next j | in i)`.
        emission (`torch.Tensor` of shape `(H, E)`): `P(emit x | in i)`.
        edges (`torch.Tensor` of shape `(E, H, H)`, *optional*): `P(emit x, go to j | in i)`, of an edge-emitting HMM.
    """

    start: Float[Tensor, "H"]
    transition: Float[Tensor, "H H"]
    emission: Float[Tensor, "H E"]
    edges: Float[Tensor, "E H H"] | None = None

    def advance(self, weight_BH: Tensor, symbol_B: Tensor) -> Tensor:
        """`weight @ T^(symbol)`: emit each row's symbol and move on."""
        if self.edges is None:
            return (weight_BH * self.emission.T[symbol_B]) @ self.transition
        return torch.bmm(weight_BH.unsqueeze(1), self.edges[symbol_B]).squeeze(1)

    def retreat(self, value_BH: Tensor, symbol_B: Tensor) -> Tensor:
        """`T^(symbol) @ value`: the step back in time."""
        if self.edges is None:
            return self.emission.T[symbol_B] * (value_BH @ self.transition.T)
        return torch.bmm(self.edges[symbol_B], value_BH.unsqueeze(2)).squeeze(2)


class Filtered(NamedTuple):
    """What the forward pass knows.

    Attributes:
        beliefs (`torch.Tensor` of shape `(B, T+1, H)`): `P(state before token t | tokens before t)`.
        log_scale (`torch.Tensor` of shape `(B, T)`): `log P(token t | tokens before t)` in nats; 0 beyond the length.
    """

    beliefs: Float[Tensor, "B T+1 H"]
    log_scale: Float[Tensor, "B T"]


class Path(NamedTuple):
    """A most probable path: `states` (B, T) and `log_probability` (B,), `log P(states, tokens)` in nats."""

    states: Int[Tensor, "B T"]
    log_probability: Float[Tensor, "B"]


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
        lengths (`torch.Tensor` of shape `(B,)`, *optional*): tokens that count in each row.
        initial (`torch.Tensor` of shape `(B, H)`, *optional*): beliefs to start from instead of `start`.

    Returns:
        [`Filtered`].
    """
    batch, length = tokens.shape
    belief_BH = hmm.start.expand(batch, -1) if initial is None else initial
    beliefs = belief_BH.new_empty(batch, length + 1, belief_BH.shape[1])
    log_scale = belief_BH.new_zeros(batch, length)
    beliefs[:, 0] = belief_BH
    for t in range(length):
        weight_BH = hmm.advance(belief_BH, tokens[:, t])
        scale_B = weight_BH.sum(-1)
        next_BH = _divide(weight_BH, scale_B)
        if lengths is None:
            belief_BH = next_BH
            log_scale[:, t] = scale_B.log()
        else:
            live_B = t < lengths
            belief_BH = torch.where(live_B.unsqueeze(-1), next_BH, belief_BH)
            log_scale[:, t] = torch.where(live_B, scale_B.log(), 0.0)
        beliefs[:, t + 1] = belief_BH
    return Filtered(beliefs, log_scale)


def log_likelihood(
    hmm: Parameters, tokens: Int[Tensor, "B T"], lengths: Int[Tensor, "B"] | None = None
) -> Float[Tensor, "B"]:
    """`log P(tokens)` in nats, in memory `(B, H)`."""
    belief_BH = hmm.start.expand(tokens.shape[0], -1)
    total_B = belief_BH.new_zeros(tokens.shape[0])
    for t in range(tokens.shape[1]):
        one = tokens[:, t : t + 1]
        step = forward_filter(hmm, one, None if lengths is None else (lengths - t).clamp(0, 1), belief_BH)
        belief_BH = step.beliefs[:, 1]
        total_B = total_B + step.log_scale[:, 0]
    return total_B


def next_token_probs(hmm: Parameters, beliefs: Float[Tensor, "B T H"]) -> Float[Tensor, "B T E"]:
    """`P(next token | belief)`: the beliefs times the emission table."""
    return beliefs @ hmm.emission


def backward_values(
    hmm: Parameters,
    tokens: Int[Tensor, "B T"],
    filtered: Filtered,
    lengths: Int[Tensor, "B"] | None = None,
) -> Float[Tensor, "B T+1 H"]:
    """Rabiner's scaled backward variable: entry `t` is `P(tokens from t on | state at t)` over its law given the past.

    Scaled by the filter's normalizers, so that `sum_i beliefs[t, i] * values[t, i] = 1` at every `t`; 0 in states that
    the past rules out.
    """
    batch, length = tokens.shape
    value_BH = hmm.start.new_ones(batch, hmm.start.shape[0])
    values = value_BH.new_empty(batch, length + 1, value_BH.shape[1])
    values[:, length] = value_BH
    scale = filtered.log_scale.exp()
    # A state of belief p has a value of at most 1 / p. In one ruled out it has no bound, and infinity times 0 is NaN.
    possible = filtered.beliefs >= torch.finfo(value_BH.dtype).tiny
    for t in reversed(range(length)):
        previous_BH = _divide(hmm.retreat(value_BH, tokens[:, t]), scale[:, t])
        previous_BH = torch.where(possible[:, t], previous_BH, 0.0)
        value_BH = previous_BH if lengths is None else torch.where((t < lengths).unsqueeze(-1), previous_BH, value_BH)
        values[:, t] = value_BH
    return values


def posteriors(
    hmm: Parameters, tokens: Int[Tensor, "B T"], lengths: Int[Tensor, "B"] | None = None
) -> Float[Tensor, "B T H"]:
    """`P(state that emits token t | all tokens)`; zeros beyond the length, and where the sequence is impossible."""
    filtered = forward_filter(hmm, tokens, lengths)
    values = backward_values(hmm, tokens, filtered, lengths)
    gamma = filtered.beliefs[:, :-1] * values[:, :-1]
    if lengths is not None:
        places = torch.arange(tokens.shape[1], device=tokens.device)
        gamma = gamma * (places < lengths.unsqueeze(-1)).unsqueeze(-1)
    return gamma


def viterbi(hmm: Parameters, tokens: Int[Tensor, "B T"]) -> Path:
    """The states that emit the tokens with the greatest joint probability (Viterbi 1967), ties to the lower state.

    Max-plus recursion in logarithms, which neither underflows nor rounds differently at length 10 or 10,000.

    Returns:
        [`Path`]: with -inf as log-probability, and state 0 throughout, where the sequence is impossible.
    """
    batch, length = tokens.shape
    if length == 0:
        return Path(tokens, hmm.start.new_zeros(batch))
    log_emission = hmm.emission.log()
    log_edges = None if hmm.edges is None else hmm.edges.log()
    log_transition = hmm.transition.log()
    score_BH = hmm.start.log().expand(batch, -1)
    origin = torch.zeros(batch, length, hmm.start.shape[0], dtype=torch.int64, device=tokens.device)
    for t in range(length - 1):
        if log_edges is None:
            step = (score_BH + log_emission.T[tokens[:, t]]).unsqueeze(2) + log_transition
        else:
            step = score_BH.unsqueeze(2) + log_edges[tokens[:, t]]
        score_BH, origin[:, t + 1] = step.max(dim=1)
    score_BH = score_BH + log_emission.T[tokens[:, -1]]
    log_probability, state_B = score_BH.max(dim=1)
    states = tokens.new_empty(batch, length, dtype=torch.int64)
    for t in reversed(range(length)):
        states[:, t] = state_B
        state_B = origin[:, t].gather(1, state_B.unsqueeze(1)).squeeze(1)
    states[log_probability == -torch.inf] = 0
    return Path(states, log_probability)


def _divide(weight_BH: Tensor, scale_B: Tensor) -> Tensor:
    # An impossible token has scale 0: its row becomes zeros rather than NaN.
    possible_B = scale_B > 0
    quotient_BH = weight_BH / torch.where(possible_B, scale_B, 1.0).unsqueeze(-1)
    return torch.where(possible_B.unsqueeze(-1), quotient_BH, 0.0)
