"""Finite mixtures of HMMs: each sequence, or group of sequences, is drawn from one component.

If the components are concepts, which have the same symbols but different transition matrices, this is the prior of
GINC (Xie, Raghunathan, Liang and Ma, "An explanation of in-context learning as implicit Bayesian inference", ICLR
2022). See the example of [`HMMMixture`].
"""

import itertools
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from jaxtyping import Float, Int, UInt

from ...errors import InputError
from ..checks import as_tokens
from ..model import HMM
from ..sampling.sequences import integer_weights, sample_tokens
from .family import (
    MIXTURE,
    Family,
    check_hmm,
    first_words,
    group_number,
)


@dataclass(frozen=True)
class HMMMixture(Family):
    """A mixture of finitely many HMMs: each sequence is drawn from one component, chosen by its weight.

    Args:
        hmms (`tuple` of [`~hmm_datasets.hmm.model.HMM`]): the components, with the same symbols.
        weights (`tuple` of `float`): their probabilities, which are rounded to multiples of 2^-32 for drawing.
        group (`int`, *optional*, defaults to 1): number of consecutive sequences from one component.

    ```python
    >>> from hmm_datasets.hmm import processes
    >>> family = HMMMixture((processes.golden_mean(), processes.even()), (0.25, 0.75))
    >>> family.next_token_probs([[0, 0]])[0, 2].round(3).tolist()
    [0.5, 0.5]

    ```

    Four concepts that share their emission table, as in GINC:

    ```python
    >>> import numpy as np
    >>> from hmm_datasets.hmm.families import RandomChains
    >>> emission = processes.random(8, 50, alpha=0.1, seed=0).emission
    >>> tables = [RandomChains(8, alpha=0.2).hmm_at(seed=0, index=concept).transition for concept in range(4)]
    >>> concepts = HMMMixture([HMM(transition=table, emission=emission) for table in tables], [0.25] * 4)

    ```
    """

    stored_name: ClassVar[str] = "Mixture"

    hmms: tuple[HMM, ...]
    weights: tuple[float, ...]
    group: int = 1

    def __post_init__(self):
        self._check_group()
        object.__setattr__(self, "hmms", tuple(self.hmms))
        object.__setattr__(self, "weights", tuple(float(w) for w in self.weights))
        if len(self.hmms) == 0 or len(self.hmms) != len(self.weights):
            raise InputError(
                f"{len(self.hmms)} hmms and {len(self.weights)} weights; expected one weight per HMM, and one or more"
            )
        for index, hmm in enumerate(self.hmms):
            check_hmm(f"hmms[{index}]", hmm)
            if hmm.num_symbols != self.num_symbols:
                raise InputError(
                    f"hmms[{index}] has {hmm.num_symbols} symbols; expected {self.num_symbols}, as in hmms[0]"
                )
        if not all(w >= 0 for w in self.weights) or not abs(sum(self.weights) - 1) <= 1e-9:
            raise InputError(f"weights sum to {sum(self.weights):.10g}; expected probabilities that sum to 1")

    @property
    def num_symbols(self) -> int:
        """`E`."""
        return self.hmms[0].num_symbols

    def parts(self) -> tuple[HMM, ...]:
        """The components."""
        return self.hmms

    @property
    def has_exact_distribution(self) -> bool:
        """Always true."""
        return True

    @property
    def belief_width(self) -> int:
        """Sum of the numbers of states of the components."""
        return sum(hmm.num_states for hmm in self.hmms)

    def belief_parts(self) -> dict[str, slice]:
        """Where the states of each component lie: `component_0`, `component_1`, ..."""
        ends = list(itertools.accumulate((hmm.num_states for hmm in self.hmms), initial=0))
        return {f"component_{c}": slice(*ends[c : c + 2]) for c in range(len(self.hmms))}

    @cached_property
    def _bounds(self) -> np.ndarray:
        return integer_weights(np.array([self.weights]))[0].cumsum()

    def component_at(self, seed: int, index: int) -> int:
        """Index into `hmms` of the component of sequence `index`."""
        number, key = group_number(self, seed, index)
        return int(self._components(np.array([number]), key)[0])

    def _components(self, numbers: UInt[np.ndarray, "N"], seed: np.uint64) -> Int[np.ndarray, "N"]:
        return np.searchsorted(self._bounds, first_words(MIXTURE, numbers, seed)[:, 0], side="right")

    def hmm_at(self, seed: int, index: int) -> HMM:
        """The HMM of sequence `index` of the stream `seed`."""
        return self.hmms[self.component_at(seed, index)]

    def _fill(self, rows: np.ndarray, states: np.ndarray | None, seed: int, first: int, step: int) -> None:
        with np.errstate(over="ignore"):
            indices = np.uint64(first) + np.uint64(step) * np.arange(len(rows), dtype=np.uint64)
        component = self._components(indices // np.uint64(self.group), np.uint64(seed))
        for index in np.unique(component):
            own = np.flatnonzero(component == index)
            start, symbol, transition = self.hmms[index]._alias_tables
            draw = self.num_symbols, seed, first, step, rows
            sample_tokens(start, symbol, transition, *draw, rows=own, states=states)

    def next_token_probs(self, tokens: Int[Any, "B T"]) -> Float[Any, "B T+1 E"]:
        """The Bayes-optimal distribution of token `t` given those before it, for `t = 0 .. T`.

        The component is unknown: the distribution is the mean of those of the components by their posterior
        probabilities given the tokens so far. It is zeros after tokens that no component can emit. It uses one
        sequence only, although the other sequences of a group could improve it.

        Args:
            tokens (array of shape `(B, T)`): symbols. The result for a tensor is a tensor, else a NumPy array.
        """
        import torch

        from .posterior_averages import components, posterior_mean

        values, _ = as_tokens(tokens, self.num_symbols)
        distribution = posterior_mean(components(self.hmms, self.weights, values))
        return distribution if isinstance(tokens, torch.Tensor) else distribution.numpy()

    def component_posteriors(self, tokens: Int[Any, "B T"]) -> Float[Any, "B T+1 C"]:
        """`P(component | tokens before t)` for `t = 0 .. T`; zeros after tokens that no component can emit."""
        beliefs = self.beliefs(tokens)
        found = beliefs[:, :, : len(self.hmms)] * 0
        for c, part in enumerate(self.belief_parts().values()):
            found[:, :, c] = beliefs[:, :, part].sum(-1)
        return found

    def beliefs(self, tokens: Int[Any, "B T"]) -> Float[Any, "B T+1 W"]:
        """`P(component, its state before token t | tokens before t)`, component after component.

        [`belief_parts`][HMMMixture.belief_parts] says where the states of a component lie. All entries of a position
        sum to one, those of a component to its posterior probability.
        """
        import torch
        from torch.nn.functional import pad

        from ..inference import forward_backward as inference

        values, _ = as_tokens(tokens, self.num_symbols)
        filtered = [inference.forward_filter(hmm.parameters(device=values.device), values) for hmm in self.hmms]
        log_weights = torch.stack([pad(each.log_scale.cumsum(1), (1, 0)) for each in filtered], dim=-1)
        log_weights += log_weights.new_tensor(self.weights).log()
        posteriors = log_weights.softmax(-1).nan_to_num_(0.0)
        found = torch.cat([each.beliefs * posteriors[:, :, c : c + 1] for c, each in enumerate(filtered)], dim=-1)
        return found if isinstance(tokens, torch.Tensor) else found.numpy()
