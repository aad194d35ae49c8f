"""Non-ergodic mixtures of any processes: each sequence is drawn from one component.

The distribution of a token is the mean of those of the components by their posterior probabilities, which are computed
from running sums of logarithms. It costs what the components cost. A mixture of HMMs is better made as an
[`~hmm_datasets.HMMMixture`], whose beliefs name the states of each HMM, one of Markov chains as a
[`~hmm_datasets.hmm.chain_mixture.ChainMixture`].
"""

import itertools
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
from jaxtyping import Float, Int, UInt

from ..errors import InputError
from .checks import as_tokens, distribution
from .integers import integer
from .process import Process
from .sampling.chain_kernels import PROCESS_COMPONENTS
from .sampling.derived_seeds import components_of, derived_seed
from .sampling.sequences import checked_draw, integer_weights

if TYPE_CHECKING:
    import torch

_CALL_TOKENS = 1 << 14  # tokens that could be drawn in the time of one call


class ProcessMixture(Process):
    """A mixture of finitely many processes: each sequence is drawn from one of them, chosen by its weight.

    Component `c` draws its sequences with a seed derived from that of the mixture and `c`; sequence `i` of the mixture
    is sequence `i` of its component.

    Args:
        components (sequence of [`~hmm_datasets.hmm.process.Process`]): processes over the same symbols.
        weights (`np.ndarray` of shape `(C,)`, *optional*): their probabilities, rounded to multiples of 2^-32 for
            drawing; by default uniform.

    ```python
    >>> from hmm_datasets.hmm import processes
    >>> from hmm_datasets.hmm.markov import MarkovChain
    >>> mixture = ProcessMixture([processes.even(), MarkovChain([[0.9, 0.1], [0.1, 0.9]])])
    >>> mixture.component_posteriors([[0, 1, 0]])[0].round(3).tolist()
    [[0.5, 0.5], [0.4, 0.6], [0.769, 0.231], [0.0, 1.0]]

    ```
    """

    stored_name: ClassVar[str] = "process_mixture"
    has_oracle = True

    def __init__(self, components: Sequence[Process], weights: Any = None):
        self.components = tuple(components)
        count = len(self.components)
        if count == 0:
            raise InputError("a mixture has no components; expected one or more processes")
        for index, component in enumerate(self.components):
            if not isinstance(component, Process):
                raise InputError(f"components[{index}] is a {type(component).__name__}; expected a process")
            if component.num_symbols != self.num_symbols:
                raise InputError(
                    f"components[{index}] has {component.num_symbols} symbols; expected {self.num_symbols}, as in "
                    "components[0]"
                )
        even = np.full(count, 1 / count)
        self.weights = even if weights is None else distribution("weights", weights, 1, False)
        if self.weights.shape != (count,):
            raise InputError(f"weights has shape {self.weights.shape}; expected ({count},), one per component")
        self.weights.setflags(write=False)

    @property
    def num_symbols(self) -> int:
        """`E`."""
        return self.components[0].num_symbols

    @property
    def max_states(self) -> int | None:
        """Maximum number of states of a component."""
        found = [component.max_states for component in self.components]
        return None if None in found else max(states for states in found if states is not None)

    @property
    def belief_width(self) -> int | None:
        """Sum of the widths of the components' beliefs, if all have beliefs."""
        found = [component.belief_width for component in self.components]
        return None if None in found else sum(width for width in found if width is not None)

    def belief_parts(self) -> dict[str, slice]:
        """Where the belief of each component lies, times its posterior: `component_0`, ..."""
        widths = [component.belief_width or 0 for component in self.components]
        ends = list(itertools.accumulate(widths, initial=0))
        return {f"component_{c}": slice(*ends[c : c + 2]) for c in range(len(widths))}

    @property
    def has_exact_distribution(self) -> bool:
        """Whether all components have exact distributions."""
        return all(component.has_exact_distribution for component in self.components)

    def arrays(self) -> dict[str, np.ndarray]:
        """`weights`."""
        return {"weights": self.weights}

    def parts(self) -> tuple[Process, ...]:
        """The components."""
        return self.components

    @classmethod
    def made_of(cls, settings: dict[str, Any], arrays: dict[str, np.ndarray], parts: tuple[Process, ...]) -> Self:
        """The mixture of these parts."""
        return cls(parts, **arrays)

    def describe(self) -> str:
        """What the process is, in a few words."""
        return f"a mixture of {len(self.components)} processes over {self.num_symbols:,} symbols"

    @cached_property
    def _bounds(self) -> np.ndarray:
        return integer_weights(self.weights[None])[0].cumsum()

    def components_at(self, num_sequences: int, seed: int = 0, first: int = 0, *, step: int = 1) -> Int[Any, "N"]:
        """The component of each of the sequences that `sample` draws with these arguments."""
        seed, first, step = integer("seed", seed, 0, 64), integer("first", first, 0, 64), integer("step", step, 1, 64)
        count = integer("num_sequences", num_sequences, 0, 63)
        return components_of(self._bounds, PROCESS_COMPONENTS, seed, first, step, count)

    def sample(
        self,
        num_sequences: int,
        length: int,
        seed: int = 0,
        first: int = 0,
        *,
        step: int = 1,
        out: UInt[np.ndarray, "N L"] | None = None,
        num_threads: int | None = None,
    ) -> UInt[np.ndarray, "N L"]:
        """Draw sequences; see [`Process.sample`].

        A component draws all rows, of which its own are kept, where that is faster than one call for each of its rows.
        So short sequences cost up to `C` times those of a component.
        """
        seed, first, step, out = checked_draw(self.num_symbols, num_sequences, length, seed, first, step, out)
        chosen = self.components_at(len(out), seed, first, step=step)
        for c in np.unique(chosen).tolist():
            rows, own = np.flatnonzero(chosen == c), derived_seed(seed, c)
            draw = self.components[c].sample
            if len(rows) * _CALL_TOKENS < out.size:
                for row in rows.tolist():
                    out[row] = draw(1, out.shape[1], own, (first + step * row) % (1 << 64), num_threads=num_threads)[0]
            else:
                out[rows] = draw(len(out), out.shape[1], own, first, step=step, num_threads=num_threads)[rows]
        return out

    def _hypotheses(self, values: "torch.Tensor") -> "Iterator[tuple[torch.Tensor, torch.Tensor]]":
        # log P(component, tokens before t), and the distribution of token t given both.
        from torch.nn.functional import pad

        for component, weight in zip(self.components, self.weights, strict=True):
            own = component.next_token_probs(values)
            drawn = own[:, :-1].gather(2, values.unsqueeze(2)).squeeze(2).clamp(min=0.0)
            yield own.new_tensor(weight).log() + pad(drawn.log().cumsum(1), (1, 0)), own

    def next_token_probs(self, tokens: Int[Any, "B T"]) -> Float[Any, "B T+1 E"]:
        """The Bayes-optimal distribution of each token, with the component unknown."""
        import torch

        from .families.posterior_averages import posterior_mean

        values, _ = as_tokens(tokens, self.num_symbols)
        found = posterior_mean(self._hypotheses(values))
        return found if isinstance(tokens, torch.Tensor) else found.numpy()

    def component_posteriors(self, tokens: Int[Any, "B T"]) -> Float[Any, "B T+1 C"]:
        """`P(component | tokens before t)` for `t = 0 .. T`; zeros after tokens that no component can emit."""
        import torch

        values, _ = as_tokens(tokens, self.num_symbols)
        weights = torch.stack([log_weight for log_weight, _ in self._hypotheses(values)], dim=-1)
        found = weights.softmax(-1).nan_to_num_(0.0)
        return found if isinstance(tokens, torch.Tensor) else found.numpy()

    def beliefs(self, tokens: Int[Any, "B T"]) -> Float[Any, "B T+1 W"]:
        """The components' beliefs side by side, each times the posterior probability of its component."""
        import torch

        if self.belief_width is None:
            raise InputError(f"{self!r} has a component without beliefs; expected beliefs of all, or use posteriors")
        values, _ = as_tokens(tokens, self.num_symbols)
        posteriors = self.component_posteriors(values)
        own = [component.beliefs(values) for component in self.components]
        found = torch.cat([part * posteriors[:, :, c : c + 1] for c, part in enumerate(own)], dim=-1)
        return found if isinstance(tokens, torch.Tensor) else found.numpy()

    def oracle_next_token_probs(
        self, tokens: Int[Any, "B T"], seed: int = 0, first: int = 0, *, step: int = 1
    ) -> Float[Any, "B T+1 E"]:
        """The distribution of token `t` given those before it and the component of the row, for `t = 0 .. T`.

        Args:
            tokens (array of shape `(B, T)`): row `r` is sequence `first + step r` of the stream `seed`.
            seed, first, step (`int`): see [`Process.sample`].
        """
        import torch

        values, _ = as_tokens(tokens, self.num_symbols)
        chosen = torch.from_numpy(self.components_at(len(values), seed, first, step=step)).to(values.device)
        shape = len(values), values.shape[1] + 1, self.num_symbols
        found = torch.empty(shape, dtype=torch.float64, device=values.device)
        for c in chosen.unique().tolist():
            found[chosen == c] = self.components[c].next_token_probs(values[chosen == c]).double()
        return found if isinstance(tokens, torch.Tensor) else found.numpy()

    def __repr__(self) -> str:
        return f"ProcessMixture({len(self.components)} components, {self.num_symbols} symbols)"
