"""The base class of processes: sources of sequences by index whose next-token distribution is known exactly.

An [`~hmm_datasets.HMM`] is a process, and so are families of HMMs, generalized HMMs, grammars and the others. Data
sets, recipes, evaluations and cards ask a process for what this class has, and look at its properties to see which of
it a process can compute. Sequence `i` of the stream `seed` depends on `(process, seed, i)` alone.

A subclass gives `num_symbols`, `next_token_probs`, and `_draw`, which fills rows in one thread, or `_draw_states`,
which also fills their hidden states; the arguments of its constructor as `settings`, `arrays` and `parts`; and a
`stored_name`. Its `next_token_probs` may return an array of NumPy or a tensor: callers get what `tokens` were. Only
processes that `storage` lists can be saved, since no other could be loaded.
"""

import functools
import hashlib
import json
import os
import tempfile
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
from jaxtyping import Float, Int, UInt

from ..errors import InputError
from ..hub.push import push_folder
from .arrays import as_given, tokens_with_gaps
from .process_storage import save_process

if TYPE_CHECKING:
    import torch

    from .analysis.entropy import EntropyRate, EntropyRateBounds, ExcessEntropy, OptimalLoss

Rows = UInt[np.ndarray, "N L"]
"""Rows of symbols or of states to fill."""

_SETTINGS: dict[str, Any] = {
    **dict.fromkeys(("num_chains", "num_values", "num_pairs", "num_keys", "num_queries"), int),
    **dict.fromkeys(("num_letters", "string_length"), int),
    "num_symbols": int | None,
    "vocabulary": list[str] | None,
    "nonterminals": list[str] | None,
    "noise": float,
    "parents": list[Any],
}
"""Types of settings, by their names, which mean the same in every kind; those of others are checked by their class."""


def _of_the_kind_given(method: Callable[..., Any]) -> Callable[..., Any]:
    """A method of tokens whose result is a tensor for a tensor, else a NumPy array, whichever of them it returns."""

    @functools.wraps(method)
    def converted(self: "Process", tokens: Any, *args: Any, **kwargs: Any) -> Any:
        return as_given(tokens, method(self, tokens, *args, **kwargs))

    return converted


class Process:
    """Base class of processes.

    Attributes:
        num_symbols (`int`): `E`.
        vocabulary (`tuple` of `str`, *optional*): a name for every symbol.
        padding (`int`, *optional*): the symbol that fills a row after the end of its sequence, which no loss counts.
        max_states (`int`, *optional*): number of hidden states, or its maximum where sequences have different HMMs;
            None for a process whose sequences have no hidden states.
        belief_width (`int`, *optional*): `W`, the numbers in a belief; None for a process without beliefs.
        has_exact_distribution (`bool`): whether `next_token_probs` gives the Bayes-optimal distribution; otherwise it
            raises an error.
        has_oracle (`bool`): whether sequences differ in something that a predictor could be given, so that
            `oracle_next_token_probs` is better than `next_token_probs`.
        computes_on_devices (`bool`): whether tensors may be on any device; otherwise they must be on the CPU.
        is_stationary (`bool`): whether there is an entropy rate that `entropy_rate` gives.
    """

    stored_name: ClassVar[str]
    """Name of the kind of process in its folder; part of the format and of the fingerprint."""

    stored_in: ClassVar[str] = "process.json"
    """The file that marks its folder; one of `storage.FORMATS`."""

    vocabulary: tuple[str, ...] | None = None
    padding: int | None = None
    has_oracle: bool = False
    computes_on_devices: bool = False
    is_stationary: bool = False

    @property
    def num_symbols(self) -> int:
        raise NotImplementedError

    @property
    def max_states(self) -> int | None:
        return None

    @property
    def has_states(self) -> bool:
        """Whether `sample_with_states` gives the hidden states."""
        return type(self)._draw_states is not Process._draw_states and self.max_states is not None

    @property
    def belief_width(self) -> int | None:
        return None

    @property
    def has_exact_distribution(self) -> bool:
        return True

    def settings(self) -> dict[str, Any]:
        """Arguments of the constructor that JSON can hold, by name."""
        return {}

    def arrays(self) -> dict[str, np.ndarray]:
        """Arguments of the constructor that are arrays, by name."""
        return {}

    def parts(self) -> "tuple[Process, ...]":
        """The processes that this one is made of; a subclass that has some overrides [`Process.from_parts`]."""
        return ()

    @classmethod
    def setting_types(cls, names: Iterable[str]) -> dict[str, Any]:
        """Types of the settings of these names; those without one are checked by the constructor."""
        return {name: _SETTINGS.get(name, Any) for name in names}

    @classmethod
    def from_parts(cls, settings: dict[str, Any], arrays: dict[str, np.ndarray], parts: "tuple[Process, ...]") -> Self:
        """The process with these arguments, as `settings`, `arrays` and `parts` gave them."""
        return cls(**settings, **arrays)

    def fingerprint(self) -> str:
        """The first 32 hexadecimal digits of the SHA-256 of all arguments. Equal fingerprints mean equal streams."""
        if not hasattr(self, "stored_name"):
            raise InputError(
                f"the class {type(self).__qualname__} has no stored_name; give it one, and settings() and arrays() "
                "that return the arguments of its constructor, by which two of its processes differ"
            )
        parts = [part.fingerprint() for part in self.parts()]
        digest = hashlib.sha256(json.dumps([self.stored_name, self.settings(), parts], sort_keys=True).encode())
        for name, array in sorted(self.arrays().items()):
            digest.update(f"{name}{array.shape}{array.dtype.str[1:]}".encode())
            digest.update(np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<")).tobytes())
        return digest.hexdigest()[:32]

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        for name in ("next_token_probs", "oracle_next_token_probs", "beliefs"):
            if name in vars(cls):
                setattr(cls, name, _of_the_kind_given(vars(cls)[name]))

    def __setstate__(self, state: dict) -> None:
        self.__dict__.update(state)
        self._make_read_only()  # NumPy's pickles forget that an array is

    def _make_read_only(self) -> None:
        for array in self.arrays().values():
            array.setflags(write=False)

    def describe(self) -> str:
        """What the process is, in a few words, for cards and tables."""
        return f"a process of kind {self.stored_name} over {self.num_symbols:,} symbols"

    def sample(
        self,
        num_sequences: int,
        length: int,
        seed: int = 0,
        first: int = 0,
        *,
        step: int = 1,
        out: UInt[Any, "N L"] | None = None,
        num_threads: int | None = None,
        prefix: Int[Any, "P"] | Int[Any, "N P"] | None = None,
    ) -> UInt[Any, "N L"]:
        """Draw the sequences with indices `first, first + step, ...` of the stream given by `seed`.

        Sequence `i` depends on `(self, seed, i)` alone, and its first tokens do not depend on `length`.

        Args:
            num_sequences (`int`): `N`.
            length (`int`): `L`, tokens per sequence.
            seed (`int`, *optional*, defaults to 0): which stream to draw from, in `[0, 2**64)`.
            first (`int`, *optional*, defaults to 0): index of the first sequence, in `[0, 2**64)`; larger indices
                wrap.
            step (`int`, *optional*, defaults to 1): difference between consecutive indices. Rank `r` of `W` draws its
                share with `first=r, step=W`.
            out (array or `torch.Tensor` of shape `(N, L)`, *optional*): unsigned array to fill instead of a new one.
                An HMM fills a tensor on a CUDA device there, with the same values.
            num_threads (`int`, *optional*): CPU threads; by default all usable cores for large draws, else one.
            prefix (array of shape `(P,)` or `(N, P)`, *optional*): tokens before the first one drawn, for all
                sequences or for each; some may be missing. Sequence `i` is then drawn given its prefix, and depends
                on that besides; the `L` tokens returned are those after it. HMMs, generalized ones and Markov chains
                can continue a prefix; of another process its `to_hmm()` or `joint_process()`.

        Returns:
            `np.ndarray` of shape `(N, L)`: symbols, in the smallest unsigned type that can store `E - 1`; or `out`.

        Raises:
            `InputError`: an argument is out of range, the process cannot emit the prefix, or cannot continue one.

        ```python
        >>> from hmm_datasets import HMM
        >>> hmm = HMM(transition=[[0.5, 0.5], [0.5, 0.5]], emission=[[0.9, 0.1], [0.1, 0.9]])
        >>> bool((hmm.sample(3, 8, seed=1)[2] == hmm.sample(1, 8, seed=1, first=2)[0]).all())
        True

        ```
        """
        from .sampling import checked_draw, fill_in_parallel

        seed, first, step, out = checked_draw(self.num_symbols, num_sequences, length, seed, first, step, out)
        if prefix is not None:
            from .conditioned import fill_after

            fill_after(self, prefix, seed, first, step, out, num_threads)
            return out
        if not isinstance(out, np.ndarray) and out.device.type != "cpu":
            self._draw_on_device(seed, first, step, out)
            return out
        tokens = out if isinstance(out, np.ndarray) else out.numpy()

        def fill(origin: int, rows: slice) -> None:
            self._draw(np.uint64(seed), np.uint64(origin), np.uint64(step), tokens[rows])

        fill_in_parallel(fill, first, step, tokens, num_threads)
        return out

    def _after(self, prefix: Int[np.ndarray, "P"]) -> "Process":
        """The process of the tokens after a prefix, of which those that are -1 were not observed."""
        raise InputError(
            f"{self!r} cannot continue a prefix of {len(prefix)} tokens; expected an HMM, a generalized one "
            "or a Markov chain, such as its to_hmm() or joint_process()"
        )

    def _draw_on_device(self, seed: int, first: int, step: int, out: "torch.Tensor") -> None:
        """Write sequences `first, first + step, ...` to the rows of a tensor on a CUDA device."""
        raise InputError(f"out is on {out.device}, where only an HMM draws; expected the CPU for {self!r}")

    def _draw(self, seed: np.uint64, first: np.uint64, step: np.uint64, out: Rows) -> None:
        """Write sequences `first, first + step, ...` to the rows of `out`, in one thread."""
        self._draw_states(seed, first, step, out, None)

    def _draw_states(self, seed: np.uint64, first: np.uint64, step: np.uint64, out: Rows, states: Rows | None) -> None:
        """As `_draw`; also write the hidden states that emit the symbols to `states`, if it is given."""
        raise NotImplementedError

    def sample_with_states(
        self, num_sequences: int, length: int, seed: int = 0, first: int = 0, *, step: int = 1, num_threads=None
    ) -> tuple[Rows, Rows]:
        """Draw the sequences that `sample` draws, and the hidden states that emitted them.

        Args:
            num_sequences, length, seed, first, step, num_threads: see `sample`.

        Returns:
            `tuple` of two `np.ndarray` of shape `(N, L)`: the symbols, and the state that emits each of them (an
            edge-emitting HMM leaves that state with the symbol), in the smallest unsigned types.

        Raises:
            `InputError`: the process has no hidden states; see `has_states`.

        ```python
        >>> from hmm_datasets import HMM
        >>> symbols, states = HMM(transition=[[0, 1], [1, 0]], emission=[[1, 0], [0, 1]]).sample_with_states(2, 5)
        >>> bool((symbols == states).all())
        True

        ```
        """
        from .sampling import checked_draw, fill_in_parallel, smallest_unsigned

        if not self.has_states or self.max_states is None:
            raise InputError(f"{self!r} has no hidden states to give; draw its symbols with sample")
        seed, first, step, symbols = checked_draw(self.num_symbols, num_sequences, length, seed, first, step)
        states = np.empty(symbols.shape, smallest_unsigned(self.max_states))

        def fill(origin: int, rows: slice) -> None:
            self._draw_states(np.uint64(seed), np.uint64(origin), np.uint64(step), symbols[rows], states[rows])

        fill_in_parallel(fill, first, step, symbols, num_threads)
        return symbols, states

    def next_token_probs(self, tokens: Int[Any, "B T"]) -> Float[Any, "B T+1 E"]:
        """The Bayes-optimal distribution of token `t` given the tokens before it, for `t = 0 .. T`.

        Zeros after tokens that the process cannot emit.

        Args:
            tokens (array of shape `(B, T)`): symbols. The result for a tensor is a tensor, else a NumPy array.
        """
        raise NotImplementedError

    def oracle_next_token_probs(
        self, tokens: Int[Any, "B T"], seed: int = 0, first: int = 0, *, step: int = 1
    ) -> Float[Any, "B T+1 E"]:
        """The distribution of token `t` for a predictor that knows what varies from sequence to sequence.

        The rows of `tokens` are sequences `first, first + step, ...` of the stream `seed`. A process that
        `has_oracle` has it.
        """
        raise InputError(f"{self!r} has no oracle, since nothing varies from sequence to sequence")

    def beliefs(self, tokens: Int[Any, "B T"]) -> Float[Any, "B T+1 W"]:
        """What the past says about the future, before each token: a process with a `belief_width` has it."""
        raise InputError(f"{self!r} has no beliefs")

    def belief_parts(self) -> dict[str, slice]:
        """Where the beliefs of each factor lie within `beliefs`, by name; empty where a belief is one distribution."""
        return {}

    def log_likelihood(self, tokens: Int[Any, "B T"]) -> Float[Any, "B"]:
        """Log-likelihood (nats) of each sequence; -inf if the process cannot emit it.

        Args:
            tokens (array of shape `(B, T)`): symbols. The result for a tensor is a tensor, else a NumPy array.

        Raises:
            `InputError`: the process has no exact next-token distribution.

        ```python
        >>> from hmm_datasets import RandomChains
        >>> RandomChains(2, alpha=1.0).log_likelihood([[0, 1]]).round(4)
        array([-1.3863])

        ```
        """
        import torch

        values, _, has_missing = tokens_with_gaps(tokens, self.num_symbols)
        # As given where some are missing, for the error of a process that cannot sum over them.
        readable = tokens if has_missing else values
        distribution = torch.as_tensor(self.next_token_probs(readable), device=values.device)[:, :-1]
        # After an impossible token there is no distribution, so the first zero decides.
        probs = distribution.gather(-1, values.clamp(min=0).unsqueeze(-1)).squeeze(-1)
        if has_missing:
            probs = probs.masked_fill(values < 0, 1.0)
        impossible = (probs <= 0).any(-1)
        likelihood = torch.where(impossible, -torch.inf, probs.where(probs > 0, 1.0).log().sum(-1))
        return as_given(tokens, likelihood)

    def entropy_rate(
        self, *, num_sequences: int = 256, length: int = 2048, burn_in: int = 512, seed: int = 0
    ) -> "EntropyRate":
        """The entropy rate in nats per token, and its standard error (0 where the value is a closed form).

        By default it is estimated from sampled sequences: the mean entropy of the exact next-token distribution after
        `burn_in` tokens, which lies slightly above the entropy rate because the past is finite.

        Raises:
            `InputError`: the process is not stationary.
        """
        from .analysis.entropy import sampled_entropy_rate

        return sampled_entropy_rate(self, num_sequences, length, burn_in, seed)

    def entropy_rate_bounds(self) -> "EntropyRateBounds":
        """Lower and upper bounds on the entropy rate in nats per token, and their standard errors.

        Raises:
            `InputError`: none are known for this kind of process.
        """
        raise InputError(
            f"{self!r} has no known bounds on an entropy rate; entropy_rate estimates the rate of a stationary "
            "process, and optimal_loss is an upper bound"
        )

    def optimal_loss(self, length: int, *, num_sequences: int = 1024, seed: int = 0) -> "OptimalLoss":
        """The expected cross-entropy of the Bayes-optimal predictor at each of `length` positions.

        By default they are means over sampled sequences, with their standard errors.

        Returns:
            [`~hmm_datasets.hmm.analysis.entropy.OptimalLoss`]: `nats` (L,) and `standard_error` (L,).
        """
        from .analysis.entropy import sampled_optimal_loss

        return sampled_optimal_loss(self, length, num_sequences, seed)

    def excess_entropy(self) -> "ExcessEntropy":
        """How many nats the past of a stationary process says about its future: the sum of optimal loss minus entropy
        rate over all positions (Crutchfield and Feldman, Chaos 13, 2003, equation 22).

        Returns:
            [`~hmm_datasets.hmm.analysis.entropy.ExcessEntropy`]: `value`, and how far the true one may be from it.

        Raises:
            `InputError`: the process is not stationary.

        ```python
        >>> from hmm_datasets import processes
        >>> round(processes.golden_mean().excess_entropy().value, 6)  # a Markov chain: H[X] - H[X' | X]
        0.174416

        ```
        """
        from .analysis.entropy import sampled_excess_entropy

        return sampled_excess_entropy(self)

    def save_pretrained(self, folder: str | os.PathLike) -> None:
        """Write a folder that [`~hmm_datasets.load_source`] reads, each file atomically.

        Raises:
            `InputError`: the class is not of this package, so no program could load the folder.
        """
        save_process(self, folder)

    def push_to_hub(self, repo_id: str, *, private: bool = False, token: str | None = None):
        """Save and push to the Hub as one commit; returns the [`~hmm_datasets.hub.push.PushResult`]."""
        with tempfile.TemporaryDirectory() as folder:
            self.save_pretrained(folder)
            return push_folder(folder, repo_id, private=private, token=token)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.num_symbols} symbols)"


def possible_belief(process: Process, prefix: Int[np.ndarray, "P"]) -> Float[np.ndarray, "H"]:
    """The belief of a process after tokens that it can emit."""
    belief = process.beliefs(prefix[None])[0, -1]
    if not belief.any():
        raise InputError(f"{process!r} cannot emit {prefix.tolist()!s:.80}; expected tokens of positive probability")
    return belief
