"""Families of one HMM with a new permutation for every group, of its symbols or of its emission rows.

The exact next-token distribution for an unknown permutation is the mean over all permutations by posterior weight. One
filter runs for each of the `n!` permutations, so `n` is at most 7 (5040 permutations). Time is `O(n! B T H^2)`. Beyond
the result, memory is for a few million numbers, whatever the batch size.
"""

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import pad

from ...errors import InputError
from ..arrays import tokens_with_gaps
from ..inference import next_token_probs
from ..kernels.draws import EMISSIONS_STREAM, MAX_SHUFFLED, SYMBOLS, rename_symbols
from ..model import HMM
from ..process import Rows
from ..sampling import draw_tokens
from .family import MAX_ENUMERATED, Family, check_hmm, group_number, permutation_of

_NUMBERS = 1 << 22  # in the beliefs and distributions computed at once


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


@dataclass(frozen=True)
class OfOneHMM(Family):
    """A family whose HMMs are one, permuted from group to group.

    Attributes:
        hmm ([`~hmm_datasets.hmm.model.HMM`]): the base HMM.
        group (`int`): consecutive sequences that share a permutation.
        permuted (`str`): what is permuted, "symbols" or "states".
        stream (`np.uint64`): Philox stream of the permutations.
    """

    hmm: HMM
    group: int = 1
    permuted: ClassVar[str]
    stream: ClassVar[np.uint64]

    def __post_init__(self):
        self._check_group()
        check_hmm("hmm", self.hmm)
        if self.num_permuted > MAX_SHUFFLED:
            size = f"{self.num_permuted:,} {self.permuted}"
            raise InputError(f"the HMM has {size}; expected at most {MAX_SHUFFLED:,} to permute")

    @property
    def num_permuted(self) -> int:
        """The number of symbols or states that are permuted."""
        return self.hmm.num_symbols if self.permuted == "symbols" else self.hmm.num_states

    @property
    def has_exact_distribution(self) -> bool:
        """Whether there are few enough permutations to sum over all of them."""
        return self.num_permuted <= MAX_ENUMERATED

    def permutation_at(self, seed: int, index: int) -> Int[np.ndarray, "N"]:
        """The permutation of sequence `index`."""
        return permutation_of(self.stream, self.num_permuted, *group_number(self, seed, index))

    def _over_all_permutations(
        self, tokens: Any, distribution: Callable[[Int[Tensor, "B T"], Int[Tensor, "P n"]], Float[Tensor, "B T+1 E"]]
    ) -> Float[Tensor, "B T+1 E"]:
        if not self.has_exact_distribution:
            raise InputError(
                f"{type(self).__name__} of {self.num_permuted} {self.permuted} has "
                f"{math.factorial(self.num_permuted)} permutations to sum over; expected {MAX_ENUMERATED} "
                f"{self.permuted} or fewer. oracle_next_token_probs gives a lower bound on every predictor's loss"
            )
        values, _, _ = tokens_with_gaps(tokens, self.num_symbols)
        values = values.masked_fill(values < 0, self.num_symbols)
        permutations = torch.tensor(list(itertools.permutations(range(self.num_permuted))), device=values.device)
        # As many rows at a time as `_NUMBERS` allows.
        numbers = len(permutations) * (self.hmm.num_states + self.num_symbols + values.shape[1])
        return torch.cat([distribution(part, permutations) for part in values.split(max(1, _NUMBERS // numbers))])

    @property
    def num_symbols(self) -> int:
        """`E`."""
        return self.hmm.num_symbols

    def parts(self) -> tuple[HMM]:
        """The base HMM."""
        return (self.hmm,)


@dataclass(frozen=True)
class PermutedSymbols(OfOneHMM):
    """One HMM whose symbols are renamed by a uniform random permutation.

    The tokens of sequence `i` are those of `hmm`, each mapped by the permutation. Their distribution is that of
    `hmm_at(seed, i)`, although `sample` of that HMM draws other tokens. A permutation costs `E / 8` Philox blocks per
    group.

    Args:
        hmm ([`~hmm_datasets.hmm.model.HMM`]): the base HMM.
        group (`int`, *optional*, defaults to 1): consecutive sequences that share a permutation.

    ```python
    >>> from hmm_datasets.hmm import processes
    >>> family = PermutedSymbols(processes.mess3())
    >>> bool((family.sample(4, 9, seed=1)[3] == family.sample(1, 9, seed=1, first=3)[0]).all())
    True

    ```
    """

    stored_name: ClassVar[str] = "PermutedSymbols"
    permuted: ClassVar[str] = "symbols"
    stream: ClassVar[np.uint64] = SYMBOLS

    def hmm_at(self, seed: int, index: int) -> HMM:
        """The HMM of sequence `index` of the stream `seed`: symbol `x` of the base becomes `permutation[x]`."""
        hmm, origin = self.hmm, np.argsort(self.permutation_at(seed, index))
        renamed = {"emission": hmm.emission[:, origin]} if hmm.edges is None else {"edges": hmm.edges[origin]}
        return hmm.with_tables(hmm.tables() | renamed)

    def _draw_states(self, seed: np.uint64, first: np.uint64, step: np.uint64, out: Rows, states: Rows | None) -> None:
        self.hmm._draw_states(seed, first, step, out, states)
        rename_symbols(SYMBOLS, np.uint64(self.num_symbols), np.uint64(self.group), seed, first, step, out)

    def next_token_probs(self, tokens: Int[Any, "B T"]) -> Float[Any, "B T+1 E"]:
        """The Bayes-optimal distribution of token `t` given those before it, for `t = 0 .. T`.

        The permutation is unknown: the distribution is the mean over all `E!` permutations by their posterior weights.
        It is zeros after tokens that no permutation allows. It uses one sequence only, although the other sequences of
        a group could improve it.

        Args:
            tokens (array of shape `(B, T)`): symbols. The result for a tensor is a tensor, else a NumPy array.

        Raises:
            `InputError`: there are more than 7 symbols; then use the lower bound [`~Family.oracle_next_token_probs`].
        """
        hmm = self.hmm

        def distribution(values: Int[Tensor, "B T"], origins: Int[Tensor, "P E"]) -> Float[Tensor, "B T+1 E"]:
            parameters = hmm.parameters(device=values.device)
            moves = parameters.with_missing()
            # The symbols of the base HMM before the permutation; a missing token stays one.
            plain_PBT = pad(origins, (0, 1), value=hmm.num_symbols)[:, values]
            columns_PBE = origins.unsqueeze(1).expand(-1, len(values), -1)

            def advance(belief_PBH: Tensor, t: int) -> Tensor:
                weights = moves.forward_step(belief_PBH.flatten(0, 1), plain_PBT[:, :, t].flatten())
                return weights.view_as(belief_PBH)

            def symbols(belief_PBH: Tensor) -> Tensor:
                return next_token_probs(parameters, belief_PBH).gather(2, columns_PBE)

            start = parameters.start.expand(*plain_PBT.shape[:2], -1)
            return _mean_distribution(start, values.shape[1], advance, symbols)

        return self._over_all_permutations(tokens, distribution)


@dataclass(frozen=True)
class PermutedEmissions(OfOneHMM):
    """One HMM whose rows of the emission table are shuffled among its states by a uniform random permutation.

    The hidden chain stays the same, and so does the set of emission distributions; the permutation decides which state
    has which. It costs `H / 8` Philox blocks and `H` swaps per group.

    Args:
        hmm ([`~hmm_datasets.hmm.model.HMM`]): the base HMM, state-emitting.
        group (`int`, *optional*, defaults to 1): consecutive sequences that share a permutation.

    ```python
    >>> from hmm_datasets.hmm import processes
    >>> PermutedEmissions(processes.dishonest_casino(), group=8).sample(2, 5).shape
    (2, 5)

    ```
    """

    stored_name: ClassVar[str] = "PermutedEmissions"

    permuted: ClassVar[str] = "states"
    stream: ClassVar[np.uint64] = EMISSIONS_STREAM

    def __post_init__(self):
        super().__post_init__()
        if self.hmm.edges is not None:
            raise InputError(
                f"{self.hmm} has no emission rows to permute; PermutedEmissions takes a state-emitting HMM"
            )

    def hmm_at(self, seed: int, index: int) -> HMM:
        """The HMM of sequence `index` of the stream `seed`: state `i` has row `permutation[i]` of the base."""
        emission = self.hmm.emission[self.permutation_at(seed, index)]
        return self.hmm.with_tables(self.hmm.tables() | {"emission": emission})

    def _draw_states(self, seed: np.uint64, first: np.uint64, step: np.uint64, out: Rows, states: Rows | None) -> None:
        draw_tokens(*self.hmm._alias_tables, self.num_symbols, seed, first, step, out, states, group=self.group)

    def next_token_probs(self, tokens: Int[Any, "B T"]) -> Float[Any, "B T+1 E"]:
        """The Bayes-optimal distribution of token `t` given those before it, for `t = 0 .. T`.

        The permutation is unknown: the distribution is the mean over all `H!` permutations by their posterior weights.
        It is zeros after tokens that no permutation allows. It uses one sequence only, although the other sequences of
        a group could improve it.

        Args:
            tokens (array of shape `(B, T)`): symbols. The result for a tensor is a tensor, else a NumPy array.

        Raises:
            `InputError`: there are more than 7 states; then use the lower bound [`~Family.oracle_next_token_probs`].
        """
        hmm = self.hmm

        def distribution(values: Int[Tensor, "B T"], rows: Int[Tensor, "P H"]) -> Float[Tensor, "B T+1 E"]:
            parameters = hmm.parameters(device=values.device)
            emission_EH = parameters.with_missing().emission.T
            origins_PBH = rows.argsort(dim=1).unsqueeze(1).expand(-1, len(values), -1)

            def advance(belief_PBH: Tensor, t: int) -> Tensor:
                likelihood_BH = emission_EH[values[:, t]]
                return (belief_PBH * likelihood_BH[:, rows].transpose(0, 1)) @ parameters.transition

            def symbols(belief_PBH: Tensor) -> Tensor:
                # The belief over the emission rows of the base, each of which belongs to one state.
                return next_token_probs(parameters, belief_PBH.gather(2, origins_PBH))

            return _mean_distribution(parameters.start.expand_as(origins_PBH), values.shape[1], advance, symbols)

        return self._over_all_permutations(tokens, distribution)
