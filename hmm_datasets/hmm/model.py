"""The hidden Markov model: its tables, and methods to sample from it, do inference, analyse it, save it and load it.

A state-emitting HMM draws its first state from `start` (H,). At every step it emits a symbol according to `emission`
(H, E) and moves to the next state according to `transition` (H, H). An edge-emitting HMM (the form used in
computational mechanics; Shalizi and Crutchfield, J. Stat. Phys. 104, 2001) draws the symbol and the next state
together: `edges` (E, H, H) with `edges[x, i, j] = P(emit x, go to j | in i)`. Both kinds have the same methods. For an
edge-emitting HMM, `transition` and `emission` are the marginal distributions of the next state and of the symbol.

Tables are float64 and read-only, so an `HMM` never changes, and neither do the data sets drawn from it.
"""

import copy
import hashlib
import os
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float, Int

from ..errors import InputError
from .analysis.causal_states import (
    StatisticalComplexity,
    epsilon_machine,
    statistical_complexity,
)
from .analysis.mixed_states import mixed_states
from .analysis.stationary import cesaro_limit
from .arrays import as_tables, checked_names, tokens_with_gaps
from .named_tokens import symbols_of_names
from .process import Process, Rows
from .storage import load, save

if TYPE_CHECKING:
    import torch

    from .analysis.entropy import EntropyRate, EntropyRateBounds, ExcessEntropy, OptimalLoss
    from .analysis.mixed_states import MixedStates
    from .inference import ExpectedCounts, Parameters
    from .kernels.cuda import DeviceTable
    from .kernels.logs import LogRecursions
    from .sampling import AliasTable
    from .viterbi import Path


class HMM(Process):
    """A hidden Markov model over `H` states and `E` symbols.

    Args:
        start (`np.ndarray` of shape `(H,)`, *optional*):
            Distribution of the first state; the stationary distribution by default.
        transition (`np.ndarray` of shape `(H, H)`, *optional*):
            `P(next state j | state i)`; rows sum to one.
        emission (`np.ndarray` of shape `(H, E)`, *optional*):
            `P(symbol x | state i)`; rows sum to one.
        edges (`np.ndarray` of shape `(E, H, H)`, *optional*):
            `P(symbol x, next state j | state i)` instead of `transition` and `emission`.
        vocabulary (sequence of `str`, *optional*):
            A name for every symbol.
        normalize (`bool`, *optional*, defaults to `False`):
            Rescale rows that do not sum to one instead of refusing them.

    Raises:
        `InputError`: a table is not a distribution, or shapes disagree; the message names the table and the row.

    ```python
    >>> hmm = HMM(transition=[[0.9, 0.1], [0.2, 0.8]], emission=[[1.0, 0.0], [0.5, 0.5]])
    >>> hmm.sample(2, 5, seed=0).shape
    (2, 5)

    ```
    """

    is_stationary = computes_on_devices = True

    def __init__(self, *, start=None, transition=None, emission=None, edges=None, vocabulary=None, normalize=False):
        self.start, self.transition, self.emission, self.edges = as_tables(
            start, transition, emission, edges, normalize
        )
        self.vocabulary = checked_names(vocabulary, self.num_symbols)
        self._make_read_only()

    @property
    def num_states(self) -> int:
        """`H`."""
        return self.emission.shape[0]

    max_states = belief_width = num_states

    @property
    def num_symbols(self) -> int:
        """`E`."""
        return self.emission.shape[1]

    def tables(self) -> dict[str, Float[np.ndarray, "..."]]:
        """The tables that define the HMM, by name."""
        if self.edges is None:
            return {"start": self.start, "transition": self.transition, "emission": self.emission}
        return {"start": self.start, "edges": self.edges}

    def arrays(self) -> dict[str, np.ndarray]:
        """The tables."""
        return self.tables()

    def with_tables(self, tables: dict[str, Float[np.ndarray, "..."]], vocabulary: Any = None) -> "HMM":
        """The HMM of other tables, with the same names of symbols unless others are given."""
        return HMM(**tables, vocabulary=self.vocabulary if vocabulary is None else vocabulary)

    def totals(self, name: str, table: Float[np.ndarray, "..."]) -> Float[np.ndarray, "..."]:
        """What the entries of each distribution of the table of this name sum to, once for each distribution."""
        return table.sum(-1)

    def per_entry(self, name: str, totals: Float[np.ndarray, "..."]) -> Float[np.ndarray, "..."]:
        """A number for each distribution, such as `totals` gives, in a shape that divides the table."""
        return totals[..., None]

    def fingerprint(self) -> str:
        """The first 32 hexadecimal digits of the SHA-256 of the tables. Equal fingerprints mean equal streams."""
        digest = hashlib.sha256(b"hmm")
        for name, table in self.tables().items():
            digest.update(f"{name}{table.shape}".encode())
            digest.update(np.ascontiguousarray(table, dtype="<f8").tobytes())
        return digest.hexdigest()[:32]

    def __repr__(self) -> str:
        kind = "state" if self.edges is None else "edge"
        return f"HMM({self.num_states} states, {self.num_symbols} symbols, {kind}-emitting)"

    def describe(self) -> str:
        """What the HMM is, in a few words, for cards and tables."""
        kind = "a state" if self.edges is None else "an edge"
        return f"{kind}-emitting HMM of {self.num_states:,} states over {self.num_symbols:,} symbols"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, HMM):
            return NotImplemented
        mine, others = self.tables(), other.tables()
        return mine.keys() == others.keys() and all(np.array_equal(mine[k], others[k]) for k in mine)

    __hash__ = None

    def __getstate__(self) -> dict:
        # Tensors on a device belong to this process and cannot be pickled for another one. A copy with another start
        # finds the rest anew.
        lazy = ("_device_tables", "_tables_with_missing", "_log_tables", "_safe_of_type")
        return {name: value for name, value in self.__dict__.items() if name not in lazy}

    def _draw_states(self, seed: np.uint64, first: np.uint64, step: np.uint64, out: Rows, states: Rows | None) -> None:
        from .sampling import draw_tokens

        draw_tokens(*self._alias_tables, self.num_symbols, seed, first, step, out, states)

    def _after(self, prefix: Int[np.ndarray, "P"]) -> "HMM":
        from .conditioned import belief_after
        from .sampling import AliasTable

        belief = belief_after(self, np.where(prefix < 0, self.num_symbols, prefix))
        # The other tables are the same, and may be large.
        following = copy.copy(self)
        following.start = belief
        following._alias_tables = AliasTable.from_probabilities(belief[None]), *self._alias_tables[1:]
        following._make_read_only()
        return following

    def _draw_on_device(self, seed: int, first: int, step: int, out: "torch.Tensor") -> None:
        from .kernels import cuda

        cuda.sample_tokens(*self._tables_on(out.device), self.num_symbols, seed, first, step, out)

    def _tables_on(self, device: "torch.device") -> "tuple[DeviceTable, DeviceTable, DeviceTable | None]":
        from .kernels.cuda import device_table

        if device not in self._device_tables:
            start, symbol, transition = self._alias_tables
            last = None if transition is None else device_table(transition, device)
            self._device_tables[device] = device_table(start, device), device_table(symbol, device), last
        return self._device_tables[device]

    @cached_property
    def _device_tables(self) -> "dict[torch.device, tuple[DeviceTable, DeviceTable, DeviceTable | None]]":
        return {}

    @cached_property
    def _tables_with_missing(self) -> "tuple[Float[np.ndarray, 'E_plus_1 H'] | None, Float[np.ndarray, 'X H H']]":
        """Emissions by symbol (None if edge-emitting) and moves, with a last symbol for tokens that are missing."""
        if self.edges is not None:
            return None, np.concatenate([self.edges, self.transition[None]])
        return np.vstack([self.emission.T, np.ones(self.num_states)]), self.transition[None]

    @cached_property
    def _log_tables(self) -> "LogRecursions":
        from .kernels.logs import LogRecursions

        return LogRecursions(self.start, *self._tables_with_missing)

    @cached_property
    def _alias_tables(self) -> "tuple[AliasTable, AliasTable, AliasTable | None]":
        from .sampling import AliasTable

        start = AliasTable.from_probabilities(self.start[None])
        if self.edges is None:
            symbol, transition = map(AliasTable.from_probabilities, (self.emission, self.transition))
            return start, symbol, transition
        pairs = self.edges.transpose(1, 2, 0).reshape(self.num_states, -1)
        return start, AliasTable.from_probabilities(pairs), None

    def parameters(self, dtype: "torch.dtype | None" = None, device: Any = None) -> "Parameters":
        """The tables as tensors for the functions of `inference`, float64 on the CPU by default, or float32."""
        import torch

        from .inference import Parameters

        dtype = torch.float64 if dtype is None else dtype
        if dtype not in (torch.float32, torch.float64):
            raise InputError(f"dtype is {dtype}; expected torch.float32 or torch.float64, of which rows sum to one")
        # NumPy converts in this thread. Those of torch would keep the cores busy for milliseconds after it.
        kind = np.float32 if dtype == torch.float32 else np.float64

        def tensor(table: np.ndarray) -> torch.Tensor:
            return torch.from_numpy(table.astype(kind)).to(device, dtype)

        edges = None if self.edges is None else tensor(self.edges)
        tables = tensor(self.start), tensor(self.transition), tensor(self.emission), edges
        return Parameters(*tables, safe_of_type=self._safe_of_type)

    @cached_property
    def _safe_of_type(self) -> "dict[torch.dtype, tuple[float, int]]":
        return {}

    def log_likelihood(self, tokens: Int[Any, "B T"], *, lengths=None, dtype=None) -> Float[Any, "B"]:
        """`log P(tokens)` of every sequence in nats; -inf where the HMM cannot emit it.

        Like all inference methods, it takes an array of integers of shape `(B, T)`. For a tensor it returns tensors
        on the same device, for anything else NumPy arrays. Tokens that were not observed are summed over: those that
        are masked, NaN, NA or None, or the integer -1. The probability is that of the others. If the HMM has a
        vocabulary, tokens may be names.

        Args:
            tokens (array of shape `(B, T)`): symbols, some of which may be missing.
            lengths (array of shape `(B,)`, *optional*): number of tokens in each row; the rest is padding.
            dtype (`torch.dtype`, *optional*, defaults to `torch.float64`): type of the computation, or
                `torch.float32`.

        Raises:
            `InputError`: a token is not a symbol of this HMM; the message gives its row and position.

        ```python
        >>> hmm = HMM(transition=[[0.5, 0.5], [0.5, 0.5]], emission=[[0.5, 0.5], [0.5, 0.5]])
        >>> hmm.log_likelihood([[0, 1], [0, None]]).round(4)
        array([-1.3863, -0.6931])

        ```
        """
        from . import inference

        return self._infer(inference.log_likelihood, tokens, lengths, dtype)

    def beliefs(self, tokens: Int[Any, "B T"], *, lengths=None, dtype=None) -> Float[Any, "B T+1 H"]:
        """`P(state before token t | tokens before t)`; entry 0 is `start`, entry `T` follows the last token."""
        from . import inference

        return self._infer(inference.beliefs, tokens, lengths, dtype)

    def next_token_probs(self, tokens: Int[Any, "B T"], *, lengths=None, dtype=None) -> Float[Any, "B T+1 E"]:
        """The Bayes-optimal distribution of token `t` given the tokens before it, for `t = 0 .. T`."""
        from . import inference

        return self._infer(inference.predictions, tokens, lengths, dtype)

    def posteriors(self, tokens: Int[Any, "B T"], *, lengths=None, dtype=None) -> Float[Any, "B T H"]:
        """`P(state that emits token t | all tokens)` (smoothing)."""
        from . import inference

        return self._infer(inference.posteriors, tokens, lengths, dtype)

    def viterbi(self, tokens: Int[Any, "B T"], *, lengths=None, dtype=None) -> "Path":
        """The most probable states `(B, T)` and `log P(states, tokens)` `(B,)` in nats, as a named tuple."""
        from .viterbi import viterbi

        return self._infer(viterbi, tokens, lengths, dtype)

    def expected_counts(self, tokens: Int[Any, "B T"], *, lengths=None, dtype=None) -> "ExpectedCounts":
        """Expected counts of first states, transitions and emissions given the tokens, summed over the batch.

        A step of Baum-Welch divides each row of counts by its sum; see [`ExpectedCounts`].
        """
        from . import inference

        return self._infer(inference.expected_counts, tokens, lengths, dtype)

    def stationary(self) -> Float[np.ndarray, "H"]:
        """The long-run share of time that the chain, started from `start`, spends in each state.

        This is the stationary distribution where that is unique. For a reducible chain it is the stationary
        distribution that `start` leads to.
        """
        return cesaro_limit(self.start, self.transition)

    def is_unifilar(self) -> bool:
        """Whether state and symbol determine the next state, so that the entropy rate has a closed form."""
        if self.edges is not None:
            return bool(((self.edges > 0).sum(axis=2) <= 1).all())
        return bool(((self.transition > 0).sum(axis=1) <= 1).all())

    def entropy_rate(
        self, *, num_sequences: int = 256, length: int = 2048, burn_in: int = 512, seed: int = 0
    ) -> "EntropyRate":
        """The entropy rate: the minimum loss, in nats per token, that any predictor reaches in the long run.

        The value is exact for a unifilar HMM. Otherwise it is estimated from sampled sequences that start in the
        stationary distribution: it is the mean entropy of the exact filter's next-token distribution after `burn_in`
        tokens, and the standard error is over sequences. This mean lies slightly above the entropy rate because the
        past is finite; [`HMM.entropy_rate_bounds`] bounds the difference.

        Returns:
            [`~hmm_datasets.hmm.analysis.entropy.EntropyRate`]: `value` and `standard_error`, nats per token.
        """
        from .analysis.entropy import entropy_rate

        return entropy_rate(self, num_sequences, length, burn_in, seed)

    def entropy_rate_bounds(
        self, length: int = 2048, *, burn_in: int | None = None, num_sequences: int = 256, seed: int = 0
    ) -> "EntropyRateBounds":
        """Lower and upper bounds on the entropy rate, in nats per token, for any HMM.

        The bounds are `H[X_n | X_0 .. X_{n-1}, S_0]` and `H[X_n | X_0 .. X_{n-1}]` for `n = length - 1` (Cover and
        Thomas, theorem 4.5.1). They are exact, with standard errors of 0, where there are few enough mixed states to
        that depth, for example for a small `length` over a small alphabet. Otherwise they are estimated as means over
        `burn_in <= n < length`, which bound the rate too, from one sample of sequences for both bounds. `burn_in` is a
        quarter of `length` by default.

        Returns:
            [`~hmm_datasets.hmm.analysis.entropy.EntropyRateBounds`]: `lower`, `upper`, `lower_error`, `upper_error`.

        ```python
        >>> hmm = HMM(transition=[[0.9, 0.1], [0.2, 0.8]], emission=[[0.9, 0.1], [0.3, 0.7]])
        >>> bounds = hmm.entropy_rate_bounds(12)
        >>> round(bounds.lower, 3), round(bounds.upper, 3), bounds.upper_error
        (0.567, 0.567, 0.0)

        ```
        """
        from .analysis.entropy import entropy_rate_bounds

        return entropy_rate_bounds(self, length, burn_in, num_sequences, seed)

    def optimal_loss(self, length: int, *, num_sequences: int = 1024, seed: int = 0) -> "OptimalLoss":
        """The expected cross-entropy of the Bayes-optimal predictor at each of `length` positions, from `start`.

        No model that has seen the `t` tokens before a position can have a lower expected loss there. Values are exact
        for as many positions as the number of mixed states stays small. From there on they are means over sampled
        sequences, with a standard error above 0.

        Returns:
            [`~hmm_datasets.hmm.analysis.entropy.OptimalLoss`]: `nats` (L,) and `standard_error` (L,).
        """
        from .analysis.entropy import optimal_loss

        return optimal_loss(self, length, num_sequences, seed)

    def excess_entropy(self) -> "ExcessEntropy":
        """How many nats the past says about the future; see [`~hmm_datasets.hmm.process.Process.excess_entropy`]."""
        from .analysis.entropy import excess_entropy

        return excess_entropy(self)

    def epsilon_machine(self, *, max_states: int = 1024) -> "HMM":
        """The minimal unifilar presentation of the stationary process: an edge-emitting HMM of the causal states.

        It starts in its stationary distribution, so that the distribution of its sequences is that of this HMM once
        it is stationary (Shalizi and Crutchfield, J. Stat. Phys. 104, 2001).

        Args:
            max_states (`int`, *optional*, defaults to 1024): causal states, transient ones too, up to which it is
                looked for.

        Raises:
            `InputError`: there are more, perhaps infinitely many.

        ```python
        >>> from hmm_datasets import processes
        >>> processes.noisy(processes.coin(), [[0.9, 0.1], [0.3, 0.7]]).epsilon_machine()
        HMM(1 states, 2 symbols, edge-emitting)

        ```
        """
        return epsilon_machine(self, max_states)

    def statistical_complexity(self) -> "StatisticalComplexity":
        """The entropy of the causal states in nats: what a predictor has to remember (Shalizi and Crutchfield 2001).

        Exact, with an error of 0, where there are finitely many and few. Otherwise the entropy of the causal state
        after as many symbols as are tractable, with an estimate of its error from the last increments, which is inf
        where it grows without a bound, as for Mess3.

        ```python
        >>> from hmm_datasets import processes
        >>> round(processes.even().statistical_complexity().value, 4)  # of states with shares 2/3 and 1/3
        0.6365

        ```
        """
        return statistical_complexity(self)

    def mixed_states(self, depth: int, *, max_states: int = 1_000_000) -> "MixedStates":
        """The distinct beliefs after at most `depth` tokens; see [`mixed_states`]."""
        return mixed_states(self, depth, max_states=max_states)

    @classmethod
    def from_pomegranate(cls, model: Any, *, ends: str = "refuse") -> "HMM":
        """The HMM of a pomegranate `DenseHMM`; see [`~hmm_datasets.hmm.convert.from_pomegranate`]."""
        from .convert import from_pomegranate

        return from_pomegranate(model, ends=ends)

    def to_pomegranate(self) -> Any:
        """This HMM as a pomegranate `DenseHMM`; see [`~hmm_datasets.hmm.convert.to_pomegranate`]."""
        from .convert import to_pomegranate

        return to_pomegranate(self)

    @classmethod
    def from_hmmlearn(cls, model: Any) -> "HMM":
        """The HMM of an hmmlearn `CategoricalHMM`; see [`~hmm_datasets.hmm.convert.from_hmmlearn`]."""
        from .convert import from_hmmlearn

        return from_hmmlearn(model)

    def to_hmmlearn(self) -> Any:
        """This HMM as an hmmlearn `CategoricalHMM`; see [`~hmm_datasets.hmm.convert.to_hmmlearn`]."""
        from .convert import to_hmmlearn

        return to_hmmlearn(self)

    def save_pretrained(self, folder: str | os.PathLike) -> None:
        """Write `model.safetensors`, `config.json` and a tokenizer (see [`.tokenizer`]), each of them atomically.

        `transformers.AutoModelForCausalLM` loads the same folder, with `trust_remote_code=True` or once
        `hmm_datasets.hmm.causal_lm` is imported.
        """
        save(self, folder)

    @classmethod
    def from_pretrained(cls, name_or_path: str | os.PathLike, *, revision: str | None = None) -> "HMM":
        """Read an HMM from a folder, or from the Hub by its name.

        Raises:
            `InputError`: there is no such folder, its format is another, or its tables do not match `config.json`.
        """
        return load(cls, name_or_path, revision)

    def _infer(self, function, tokens, lengths, dtype):
        import torch

        is_tensor = isinstance(tokens, torch.Tensor)
        tokens = symbols_of_names(tokens, self.vocabulary)
        values, lengths, has_missing = tokens_with_gaps(tokens, self.num_symbols, lengths)
        parameters = self.parameters(dtype, values.device)
        if has_missing:
            parameters, values = parameters.with_missing(), values.masked_fill(values < 0, self.num_symbols)
        result = function(parameters, values, lengths)
        if is_tensor:
            return result
        if not isinstance(result, tuple):
            return result.numpy()
        return result._make(None if part is None else part.numpy() for part in result)
