"""Families of one HMM with a new permutation for every group, of its symbols or of its emission rows."""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from jaxtyping import Float, Int

from ...errors import InputError
from ..model import HMM
from ..sampling.kernels import EMISSIONS_STREAM, rename_symbols
from ..sampling.sequences import sample_tokens
from .family import (
    MAX_ENUMERATED,
    SYMBOLS,
    Family,
    check_hmm,
    check_permutable,
    group_number,
    permutation_of,
)


@dataclass(frozen=True)
class PermutedSymbols(Family):
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

    hmm: HMM
    group: int = 1

    def __post_init__(self):
        self._check_group()
        check_hmm("hmm", self.hmm)
        check_permutable("symbols", self.num_symbols)

    @property
    def num_symbols(self) -> int:
        """`E`."""
        return self.hmm.num_symbols

    def parts(self) -> tuple[HMM]:
        """The base HMM."""
        return (self.hmm,)

    @property
    def has_exact_distribution(self) -> bool:
        """Whether there are few enough permutations to sum over all of them."""
        return self.num_symbols <= MAX_ENUMERATED

    def permutation_at(self, seed: int, index: int) -> Int[np.ndarray, "E"]:
        """The permutation of sequence `index`: symbol `x` of the base becomes `permutation[x]`."""
        return permutation_of(SYMBOLS, self.num_symbols, *group_number(self, seed, index))

    def hmm_at(self, seed: int, index: int) -> HMM:
        """The HMM of sequence `index` of the stream `seed`."""
        origin = np.argsort(self.permutation_at(seed, index))
        hmm = self.hmm
        if hmm.edges is not None:
            return HMM(start=hmm.start, edges=hmm.edges[origin], vocabulary=hmm.vocabulary)
        return HMM(
            start=hmm.start,
            transition=hmm.transition,
            emission=hmm.emission[:, origin],
            vocabulary=hmm.vocabulary,
        )

    def _fill(self, rows: np.ndarray, states: np.ndarray | None, seed: int, first: int, step: int) -> None:
        sample_tokens(*self.hmm._alias_tables, self.num_symbols, seed, first, step, rows, 1, states=states)
        numbers = map(np.uint64, (self.num_symbols, self.group, seed, first, step))
        rename_symbols(SYMBOLS, *numbers, rows)

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
        from .permutation_averages import permuted_symbol_probs

        return permuted_symbol_probs(self.hmm, tokens)


@dataclass(frozen=True)
class PermutedEmissions(Family):
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

    hmm: HMM
    group: int = 1

    def __post_init__(self):
        self._check_group()
        check_hmm("hmm", self.hmm)
        check_permutable("states", self.hmm.num_states)
        if self.hmm.edges is not None:
            raise InputError(
                f"{self.hmm} has no emission rows to permute; PermutedEmissions takes a state-emitting HMM"
            )

    @property
    def num_symbols(self) -> int:
        """`E`."""
        return self.hmm.num_symbols

    def parts(self) -> tuple[HMM]:
        """The base HMM."""
        return (self.hmm,)

    @property
    def has_exact_distribution(self) -> bool:
        """Whether there are few enough permutations to sum over all of them."""
        return self.hmm.num_states <= MAX_ENUMERATED

    def permutation_at(self, seed: int, index: int) -> Int[np.ndarray, "H"]:
        """The permutation of sequence `index`: state `i` has emission row `permutation[i]` of the base."""
        return permutation_of(EMISSIONS_STREAM, self.hmm.num_states, *group_number(self, seed, index))

    def hmm_at(self, seed: int, index: int) -> HMM:
        """The HMM of sequence `index` of the stream `seed`."""
        hmm = self.hmm
        emission = hmm.emission[self.permutation_at(seed, index)]
        return HMM(start=hmm.start, transition=hmm.transition, emission=emission, vocabulary=hmm.vocabulary)

    def _fill(self, rows: np.ndarray, states: np.ndarray | None, seed: int, first: int, step: int) -> None:
        tables = self.hmm._alias_tables
        sample_tokens(*tables, self.num_symbols, seed, first, step, rows, 1, self.group, states=states)

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
        from .permutation_averages import permuted_emission_probs

        return permuted_emission_probs(self.hmm, tokens)
