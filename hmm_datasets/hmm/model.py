"""The hidden Markov model: its tables, their checks, and everything that can be asked of them.

A state-emitting HMM draws a state from `start` (H,), emits a symbol by `emission` (H, E) and moves by `transition`
(H, H), over and over. An edge-emitting HMM (the presentation computational mechanics uses; Shalizi and Crutchfield,
J. Stat. Phys. 104, 2001) draws symbol and next state together: `edges` (E, H, H) with
`edges[x, i, j] = P(emit x, go to j | in i)`. Both answer the same questions; of an edge-emitting one `transition` and
`emission` are the marginal laws of the next state and of the symbol.

Tables are float64 and read-only: an `HMM` is a value, and so are the data sets drawn from it.
"""

import hashlib
import os
import tempfile
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from jaxtyping import Float, Int, UInt

from ..errors import InputError
from ..files import atomic_file, read_json, write_json
from .chain import cesaro_limit, entropy
from .checks import as_tokens, distribution, integer, probabilities
from .format import FORMAT_VERSION

if TYPE_CHECKING:
    import torch

    from .inference import Parameters
    from .inference import Path as ViterbiPath
    from .sampling import AliasTable

CONFIG_NAME = "config.json"
WEIGHTS_NAME = "model.safetensors"


class EntropyRate(NamedTuple):
    """Nats a token, and the standard error of the estimate (0 where the value is a closed form)."""

    value: float
    standard_error: float


class HMM:
    """A hidden Markov model over `H` states and `E` symbols.

    Args:
        start (`np.ndarray` of shape `(H,)`, *optional*):
            Law of the first state; the stationary law by default.
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
        `InputError`: where a table is not a distribution or the shapes disagree; it names the row.

    ```python
    >>> hmm = HMM(transition=[[0.9, 0.1], [0.2, 0.8]], emission=[[1.0, 0.0], [0.5, 0.5]])
    >>> hmm.sample(2, 5, seed=0).shape
    (2, 5)

    ```
    """

    def __init__(self, *, start=None, transition=None, emission=None, edges=None, vocabulary=None, normalize=False):
        given = [name for name, table in (("transition", transition), ("emission", emission)) if table is not None]
        if len(given) != (2 if edges is None else 0):
            found = " and ".join([*given, *(["edges"] if edges is not None else [])]) or "none of them"
            raise InputError(f"an HMM takes transition= and emission=, or edges= alone; found {found}")
        if edges is None:
            self.edges = None
            self.transition = distribution("transition", transition, 2, normalize)
            self.emission = distribution("emission", emission, 2, normalize)
        else:
            edges = probabilities("edges", edges, 3)
            if edges.shape[1] != edges.shape[2]:
                raise InputError(f"edges has shape {edges.shape}; expected (E, H, H)")
            # One row a state: all the ways to leave it.
            rows = distribution("edges", edges.transpose(1, 0, 2).reshape(edges.shape[1], -1), 2, normalize)
            self.edges = np.ascontiguousarray(rows.reshape(edges.shape[1], edges.shape[0], -1).transpose(1, 0, 2))
            self.transition = self.edges.sum(axis=0)
            self.emission = np.ascontiguousarray(self.edges.sum(axis=2).T)
        states = self.transition.shape[0]
        if self.transition.shape != (states, states) or self.emission.shape[0] != states:
            raise InputError(
                f"transition has shape {self.transition.shape} and emission {self.emission.shape}; "
                "expected (H, H) and (H, E) with the same H"
            )
        if start is None:
            start = cesaro_limit(np.full(states, 1 / states), self.transition)
        self.start = distribution("start", start, 1, normalize)
        if self.start.shape != (states,):
            raise InputError(f"start has shape {self.start.shape}; expected ({states},), one entry a state")
        self.vocabulary = None if vocabulary is None else tuple(map(str, vocabulary))
        if self.vocabulary is not None and len(self.vocabulary) != self.num_symbols:
            raise InputError(f"vocabulary has {len(self.vocabulary)} names; expected {self.num_symbols}, one a symbol")
        for table in self.tables().values():
            table.setflags(write=False)

    @property
    def num_states(self) -> int:
        """`H`."""
        return self.emission.shape[0]

    @property
    def num_symbols(self) -> int:
        """`E`."""
        return self.emission.shape[1]

    def tables(self) -> dict[str, Float[np.ndarray, "..."]]:
        """The tables that define the HMM, by name."""
        if self.edges is None:
            return {"start": self.start, "transition": self.transition, "emission": self.emission}
        return {"start": self.start, "edges": self.edges}

    def fingerprint(self) -> str:
        """SHA-256 of the tables (32 hexadecimal digits): equal laws, equal streams."""
        digest = hashlib.sha256(b"hmm")
        for name, table in self.tables().items():
            digest.update(f"{name}{table.shape}".encode())
            digest.update(np.ascontiguousarray(table, dtype="<f8").tobytes())
        return digest.hexdigest()[:32]

    def __repr__(self) -> str:
        kind = "state" if self.edges is None else "edge"
        return f"HMM({self.num_states} states, {self.num_symbols} symbols, {kind}-emitting)"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, HMM):
            return NotImplemented
        mine, others = self.tables(), other.tables()
        return mine.keys() == others.keys() and all(np.array_equal(mine[k], others[k]) for k in mine)

    __hash__ = None

    def __setstate__(self, state: dict) -> None:
        self.__dict__.update(state)
        # NumPy's pickles forget that an array is read-only.
        for table in self.tables().values():
            table.setflags(write=False)

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
        """Draw sequences `first .. first + num_sequences - 1` of the stream named by `seed`.

        Sequence `i` depends on `(self, seed, i)` alone, and its first tokens do not depend on `length`.

        Args:
            num_sequences (`int`): `N`.
            length (`int`): `L`, tokens a sequence.
            seed (`int`, *optional*, defaults to 0): which stream, in `[0, 2**64)`.
            first (`int`, *optional*, defaults to 0): index of the first sequence, in `[0, 2**64)`.
            step (`int`, *optional*, defaults to 1): from one index to the next; rank `r` of `W` draws its share with
                `first=r, step=W`.
            out (`np.ndarray` of shape `(N, L)`, *optional*): unsigned array to fill instead of a new one.
            num_threads (`int`, *optional*): defaults to all usable cores for large draws.

        Returns:
            `np.ndarray` of shape `(N, L)`: symbols, in the smallest unsigned type that holds `E - 1`.

        ```python
        >>> hmm = HMM(transition=[[0.5, 0.5], [0.5, 0.5]], emission=[[0.9, 0.1], [0.1, 0.9]])
        >>> bool((hmm.sample(3, 8, seed=1)[2] == hmm.sample(1, 8, seed=1, first=2)[0]).all())
        True

        ```
        """
        from .sampling import sample_tokens, smallest_unsigned

        # Python's integers, since NumPy's wrap or refuse where sums pass 2**63.
        num_sequences, length, seed, first, step = (
            integer(name, value, least, exponent)
            for name, value, least, exponent in (
                ("num_sequences", num_sequences, 0, 63),
                ("length", length, 0, 32),
                ("seed", seed, 0, 64),
                ("first", first, 0, 64),
                ("step", step, 1, 64),
            )
        )
        dtype = smallest_unsigned(self.num_symbols)
        if out is None:
            out = np.empty((num_sequences, length), dtype=dtype)
        elif out.shape != (num_sequences, length) or out.dtype.kind != "u" or out.dtype.itemsize < dtype.itemsize:
            raise InputError(
                f"out is {out.dtype} of shape {out.shape}; expected unsigned, at least {dtype}, "
                f"of shape {(num_sequences, length)}"
            )
        sample_tokens(*self._alias_tables, self.num_symbols, seed, first, step, out, num_threads)
        return out

    @cached_property
    def _alias_tables(self) -> "tuple[AliasTable, AliasTable, AliasTable | None]":
        from .sampling import AliasTable

        start = AliasTable.from_probabilities(self.start[None])
        if self.edges is None:
            return start, *map(AliasTable.from_probabilities, (self.emission, self.transition))
        pairs = self.edges.transpose(1, 2, 0).reshape(self.num_states, -1)
        return start, AliasTable.from_probabilities(pairs), None

    def parameters(self, dtype: "torch.dtype | None" = None, device: Any = None) -> "Parameters":
        """The tables as tensors (float64 on the CPU by default), for the functions of `hmm_datasets.hmm.inference`."""
        import torch

        from .inference import Parameters

        dtype = dtype or torch.float64
        return Parameters(
            *(
                None if table is None else torch.tensor(table, dtype=dtype, device=device)
                for table in (self.start, self.transition, self.emission, self.edges)
            )
        )

    def log_likelihood(self, tokens: Int[Any, "B T"], *, lengths=None, dtype=None) -> Float[Any, "B"]:
        """`log P(tokens)` of every sequence in nats; -inf where the HMM cannot emit it.

        Like all inference here it takes an array of integers of shape `(B, T)` and gives an array of the same
        library: tensors on the device of a tensor, NumPy otherwise.

        Args:
            tokens (array of shape `(B, T)`): symbols.
            lengths (array of shape `(B,)`, *optional*): tokens that count in each row, the rest is padding.
            dtype (`torch.dtype`, *optional*, defaults to `torch.float64`): type of the computation.

        Raises:
            `InputError`: a token is no symbol of this HMM; it names the place.

        ```python
        >>> hmm = HMM(transition=[[0.5, 0.5], [0.5, 0.5]], emission=[[0.5, 0.5], [0.5, 0.5]])
        >>> hmm.log_likelihood([[0, 1]]).round(4)
        array([-1.3863])

        ```
        """
        from . import inference

        return self._infer(inference.log_likelihood, tokens, lengths, dtype)

    def beliefs(self, tokens: Int[Any, "B T"], *, lengths=None, dtype=None) -> Float[Any, "B T+1 H"]:
        """`P(state before token t | tokens before t)`; entry 0 is `start`, entry `T` follows the last token."""
        from . import inference

        return self._infer(lambda *a: inference.forward_filter(*a).beliefs, tokens, lengths, dtype)

    def next_token_probs(self, tokens: Int[Any, "B T"], *, lengths=None, dtype=None) -> Float[Any, "B T+1 E"]:
        """The Bayes-optimal law of token `t` given the tokens before it, for `t = 0 .. T`."""
        from . import inference

        def law(hmm, *arguments):
            return inference.next_token_probs(hmm, inference.forward_filter(hmm, *arguments).beliefs)

        return self._infer(law, tokens, lengths, dtype)

    def posteriors(self, tokens: Int[Any, "B T"], *, lengths=None, dtype=None) -> Float[Any, "B T H"]:
        """`P(state that emits token t | all tokens)` (smoothing)."""
        from . import inference

        return self._infer(inference.posteriors, tokens, lengths, dtype)

    def viterbi(self, tokens: Int[Any, "B T"], *, dtype=None) -> "ViterbiPath":
        """The most probable states `(B, T)` and `log P(states, tokens)` `(B,)` in nats, as a named tuple."""
        from . import inference

        return self._infer(lambda hmm, values, _: inference.viterbi(hmm, values), tokens, None, dtype)

    def stationary(self) -> Float[np.ndarray, "H"]:
        """The long-run share of time in each state, started from `start`.

        The stationary law where there is one only; of a reducible chain the one its start leads to.
        """
        return cesaro_limit(self.start, self.transition)

    def is_unifilar(self) -> bool:
        """Whether state and symbol determine the next state, so that the entropy rate has a closed form."""
        if self.edges is not None:
            return bool(((self.edges > 0).sum(axis=2) <= 1).all())
        return bool(((self.transition > 0).sum(axis=1) <= 1).all())

    def entropy_rate(
        self, *, num_sequences: int = 256, length: int = 2048, burn_in: int = 512, seed: int = 0
    ) -> EntropyRate:
        """Nats a token that no predictor can save in the long run.

        Of a unifilar HMM exactly: the mean entropy of the symbol given the state, under the stationary law (Shannon
        1948, theorem 5). Otherwise the mean of `-log P(token | past)` from the exact filter over sequences of its own,
        started in the stationary law, after `burn_in` tokens; the standard error is over sequences.

        Returns:
            [`EntropyRate`]: `value` and `standard_error`, nats a token.
        """
        stationary = self.stationary()
        if self.is_unifilar():
            return EntropyRate(float(stationary @ entropy(self.emission)), 0.0)
        if not 0 <= burn_in < length or num_sequences < 2:
            raise InputError(
                f"burn_in is {burn_in}, length {length}, num_sequences {num_sequences}; "
                "expected 0 <= burn_in < length and 2 sequences or more"
            )
        steady = HMM(**{**self.tables(), "start": stationary})
        tokens = steady.sample(num_sequences, length, seed=seed)
        gain = steady.log_likelihood(tokens) - steady.log_likelihood(tokens[:, :burn_in])
        rates = -gain / (length - burn_in)
        return EntropyRate(float(rates.mean()), float(rates.std(ddof=1) / np.sqrt(num_sequences)))

    def save_pretrained(self, folder: str | os.PathLike) -> None:
        """Write `model.safetensors` and `config.json`, each whole or not at all.

        `transformers.AutoModelForCausalLM` loads the same folder once `hmm_datasets.hmm.causal_lm` is imported.
        """
        from safetensors.numpy import save_file

        folder = Path(folder)
        with atomic_file(folder / WEIGHTS_NAME) as temporary:
            save_file({k: np.ascontiguousarray(v) for k, v in self.tables().items()}, temporary, {"format": "pt"})
        write_json(
            folder / CONFIG_NAME,
            {
                "model_type": "hmm",
                "architectures": ["HMMForCausalLM"],
                "format_version": FORMAT_VERSION,
                "num_states": self.num_states,
                "num_symbols": self.num_symbols,
                "edge_emitting": self.edges is not None,
                "fingerprint": self.fingerprint(),
                "vocabulary": None if self.vocabulary is None else list(self.vocabulary),
            },
        )

    @classmethod
    def from_pretrained(cls, name_or_path: str | os.PathLike, *, revision: str | None = None) -> "HMM":
        """Read an HMM from a folder, or from the Hub by its name.

        Raises:
            `InputError`: no such folder, another format, or tables that are not those `config.json` speaks of.
        """
        folder = Path(name_or_path)
        if not folder.is_dir():
            folder = _download(str(name_or_path), revision)
        path = folder / CONFIG_NAME
        config = read_json(path)
        if not isinstance(config, dict):
            raise InputError(f"{path}: holds a {type(config).__name__}; expected the settings of an HMM")
        if config.get("model_type") != "hmm" or config.get("format_version") != FORMAT_VERSION:
            raise InputError(
                f"{path}: model_type {config.get('model_type')!r}, format_version "
                f"{config.get('format_version')!r}; expected 'hmm' and {FORMAT_VERSION}"
            )
        hmm = cls.from_safetensors(folder / WEIGHTS_NAME, vocabulary=config.get("vocabulary"))
        if hmm.fingerprint() != config.get("fingerprint"):
            raise InputError(
                f"{folder / WEIGHTS_NAME}: tables have fingerprint {hmm.fingerprint()}, {CONFIG_NAME} expects "
                f"{config.get('fingerprint')}; the two files are of different HMMs, copy both again"
            )
        return hmm

    @classmethod
    def from_safetensors(cls, path: str | os.PathLike, *, vocabulary=None) -> "HMM":
        """Read the tables alone, without the names of the symbols; errors as of [`HMM.from_pretrained`]."""
        from safetensors import SafetensorError
        from safetensors.numpy import load_file

        try:
            tables = load_file(path)
        except FileNotFoundError:
            raise InputError(f"{path}: no such file") from None
        except SafetensorError as error:
            raise InputError(f"{path}: not a whole safetensors file ({error})") from None
        unknown = sorted(tables.keys() - {"start", "transition", "emission", "edges"})
        if unknown:
            raise InputError(f"{path}: holds {unknown[0]!r}; expected the tables of an HMM alone")
        try:
            return cls(**tables, vocabulary=vocabulary)
        except InputError as error:
            raise InputError(f"{path}: {error}") from None

    def push_to_hub(self, repo_id: str, *, private: bool = False, token: str | None = None):
        """Save and push to the Hub as one commit; returns the [`~hmm_datasets.hub.push.PushResult`]."""
        from ..hub.push import push_folder

        with tempfile.TemporaryDirectory() as folder:
            self.save_pretrained(folder)
            return push_folder(folder, repo_id, private=private, token=token)

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

    def _infer(self, function, tokens, lengths, dtype):
        import torch

        is_tensor = isinstance(tokens, torch.Tensor)
        values, lengths = as_tokens(tokens, self.num_symbols, lengths)
        result = function(self.parameters(dtype, values.device), values, lengths)
        if is_tensor:
            return result
        return result._make(part.numpy() for part in result) if isinstance(result, tuple) else result.numpy()


def _download(name: str, revision: str | None) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        return Path(snapshot_download(name, revision=revision, allow_patterns=[CONFIG_NAME, WEIGHTS_NAME]))
    except (HFValidationError, HfHubHTTPError, LocalEntryNotFoundError) as error:
        reason = str(error).splitlines()[0]
        raise InputError(f"{name}: neither a folder nor an HMM on the Hub ({reason})") from None
