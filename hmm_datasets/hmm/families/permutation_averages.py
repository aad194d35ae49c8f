"""Exact next-token distributions for an unknown permutation: the mean over all permutations by posterior weight.

One filter runs for each of the `n!` permutations, so `n` is at most 7 (5040 permutations). Time is `O(n! B T H^2)`.
Beyond the result, memory is for a few million numbers, whatever the batch size.
"""

import itertools
import math
from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ...errors import InputError
from ..checks import as_tokens
from ..inference.forward_backward import next_token_probs
from ..model import HMM
from .family import MAX_ENUMERATED

_NUMBERS = 1 << 22  # in the beliefs and distributions computed at once


def permuted_symbol_probs(hmm: HMM, tokens: Int[Any, "B T"]) -> Float[Any, "B T+1 E"]:
    """See [`~hmm_datasets.hmm.families.PermutedSymbols.next_token_probs`]."""

    def distribution(values: Int[Tensor, "B T"], origins: Int[Tensor, "P E"]) -> Float[Tensor, "B T+1 E"]:
        parameters = hmm.parameters(device=values.device)
        plain_PBT = origins[:, values]  # the symbols of the base HMM before the permutation
        columns_PBE = origins.unsqueeze(1).expand(-1, len(values), -1)

        def advance(belief_PBH: Tensor, t: int) -> Tensor:
            return parameters.advance(belief_PBH.flatten(0, 1), plain_PBT[:, :, t].flatten()).view_as(belief_PBH)

        def symbols(belief_PBH: Tensor) -> Tensor:
            return next_token_probs(parameters, belief_PBH).gather(2, columns_PBE)

        return _mean_distribution(parameters.start.expand(*plain_PBT.shape[:2], -1), values.shape[1], advance, symbols)

    return _over_all_permutations("PermutedSymbols", "symbols", hmm.num_symbols, hmm, tokens, distribution)


def permuted_emission_probs(hmm: HMM, tokens: Int[Any, "B T"]) -> Float[Any, "B T+1 E"]:
    """See [`~hmm_datasets.hmm.families.PermutedEmissions.next_token_probs`]."""

    def distribution(values: Int[Tensor, "B T"], rows: Int[Tensor, "P H"]) -> Float[Tensor, "B T+1 E"]:
        parameters = hmm.parameters(device=values.device)
        origins_PBH = rows.argsort(dim=1).unsqueeze(1).expand(-1, len(values), -1)

        def advance(belief_PBH: Tensor, t: int) -> Tensor:
            likelihood_BH = parameters.emission.T[values[:, t]]
            return (belief_PBH * likelihood_BH[:, rows].transpose(0, 1)) @ parameters.transition

        def symbols(belief_PBH: Tensor) -> Tensor:
            # The belief over the emission rows of the base, each of which belongs to one state.
            return next_token_probs(parameters, belief_PBH.gather(2, origins_PBH))

        return _mean_distribution(parameters.start.expand_as(origins_PBH), values.shape[1], advance, symbols)

    return _over_all_permutations("PermutedEmissions", "states", hmm.num_states, hmm, tokens, distribution)


def _over_all_permutations(
    family: str,
    what: str,
    size: int,
    hmm: HMM,
    tokens: Any,
    distribution: Callable[[Int[Tensor, "B T"], Int[Tensor, "P n"]], Float[Tensor, "B T+1 E"]],
) -> Float[Any, "B T+1 E"]:
    if size > MAX_ENUMERATED:
        raise InputError(
            f"{family} of {size} {what} has {math.factorial(size)} permutations to sum over; expected "
            f"{MAX_ENUMERATED} {what} or fewer. oracle_next_token_probs gives a lower bound on every predictor's loss"
        )
    values, _ = as_tokens(tokens, hmm.num_symbols)
    permutations = torch.tensor(list(itertools.permutations(range(size))), device=values.device)
    # As many rows at a time as `_NUMBERS` allows.
    numbers = len(permutations) * (hmm.num_states + hmm.num_symbols + values.shape[1])
    result = torch.cat([distribution(part, permutations) for part in values.split(max(1, _NUMBERS // numbers))])
    return result if isinstance(tokens, Tensor) else result.numpy()


def _mean_distribution(
    belief_PBH: Tensor, length: int, advance: Callable[[Tensor, int], Tensor], symbols: Callable[[Tensor], Tensor]
) -> Float[Tensor, "B T+1 E"]:
    log_weight_PB = belief_PBH.new_zeros(belief_PBH.shape[:2])
    distributions = []
    for t in range(length + 1):
        # If no permutation allows the tokens, the maximum is -inf, and -inf - -inf would be NaN. The clamp makes those
        # distributions zero.
        weight_PB = (log_weight_PB - log_weight_PB.max(dim=0).values.clamp(min=-1e300)).exp()
        total_B = weight_PB.sum(dim=0)
        weight_PB = weight_PB / torch.where(total_B > 0, total_B, 1.0)
        distributions.append((weight_PB.unsqueeze(-1) * symbols(belief_PBH)).sum(dim=0))
        if t < length:
            belief_PBH = advance(belief_PBH, t)
            scale_PB = belief_PBH.sum(dim=-1)
            belief_PBH = belief_PBH / torch.where(scale_PB > 0, scale_PB, 1.0).unsqueeze(-1)
            log_weight_PB = log_weight_PB + scale_PB.log()
    return torch.stack(distributions, dim=1)
