"""The optimum of post-training on a reward: the distribution of an HMM, tilted by the exponential of the reward.

Reward a sequence `x` of `L` tokens of an HMM `p` by `r(x) = sum_t w[x_t]`, or `sum_t w[x_{t-1}, x_t]`. Over all
distributions `q`, the maximum of `E_q[r] - beta KL(q || p)` is reached by

    q(x) = p(x) exp(r(x) / beta) / Z

(the objective of RLHF; Rafailov et al., "Direct preference optimization", 2023, eq. 4). For an HMM this is a weighted
automaton, and all but its entropy is exact. With the HMM's `T^x[s, s'] = P(emit x, go to s' | in s)`, backward
messages

    b_L(s) = 1,    b_t(s) = sum_x exp(w[x] / beta) sum_s' T^x[s, s'] b_{t+1}(s')

give the partition function `Z = sum_s start[s] b_0(s)` and the distribution of the next token, given the belief
`alpha_t` of the HMM's filter: proportional to `exp(w[x] / beta) (alpha_t T^x) . b_{t+1}`. With rewards of pairs the
messages also depend on the symbol before. They cost `O(L E H^2)` time, or `O(L (H^2 + E H))` for a state-emitting HMM
with rewards of symbols, and `8 L E H` bytes.

The regret of any other policy `q'`, that is, by how much its objective is below the optimum, is `beta KL(q' || q)`.
DPO with this `beta` leads to the same `q` if `x` is preferred to `y` with probability `sigmoid(r(x) - r(y))` (the
Bradley-Terry model with reward `r`): its loss is least where `beta log(q(x) / p(x))` is `r(x)` plus a constant.
"""

import hashlib
import math
import os
from collections.abc import Iterator
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from jaxtyping import Float, Int, UInt

from ..array_input import finite, numbers
from ..errors import InputError
from .analysis.stationary import entropy
from .arrays import as_given, as_tokens
from .integers import integer
from .model import HMM
from .tilted_storage import load_tilted, save_tilted

if TYPE_CHECKING:
    import torch

    from .filters import TiltedFilter

_MAX_TILT = 1e9  # largest reward over beta


class Estimate(NamedTuple):
    """A mean over sampled sequences, and its standard error."""

    value: float
    standard_error: float


class TiltedHMM:
    """The distribution `p(x) exp(r(x) / beta) / Z` of sequences of `L` tokens, for an HMM `p` and a reward `r`.

    It maximizes `E_q[r] - beta KL(q || p)`, so it is where reinforcement learning with a penalty on the divergence
    from `p` should end, and DPO with the same `beta` on preferences with reward `r` too.

    Args:
        hmm ([`HMM`]): the reference `p`.
        rewards (`np.ndarray` of shape `(E,)` or `(E, E)`):
            Reward of every symbol `x_t`; or of every pair `[x_{t-1}, x_t]` of neighbours, where the first symbol of a
            sequence gets no reward.
        beta (`float`): weight of the divergence from the reference, above 0. A large one gives the HMM itself, a small
            one the sequence with the highest reward.
        length (`int`): `L`, tokens per sequence.

    Attributes:
        hmm, beta, length: as given.
        rewards (`np.ndarray`): as given, float64 and read-only.

    Raises:
        `InputError`: an argument has a wrong shape or value.

    ```python
    >>> from hmm_datasets import processes
    >>> tilted = TiltedHMM(processes.mess3(0.05, 0.85), rewards=[0, 0.3, -0.3], beta=1.0, length=16)
    >>> round(tilted.log_partition, 4), round(tilted.expected_reward, 4), round(tilted.kl_to_reference, 4)
    (1.9999, 3.3396, 1.3398)

    ```
    """

    def __init__(self, hmm: HMM, rewards: Any, beta: float, length: int):
        if not isinstance(hmm, HMM):
            raise InputError(f"hmm is a {type(hmm).__name__}; expected an HMM")
        self.hmm = hmm
        self.rewards = _as_rewards(rewards, hmm.num_symbols)
        self.length = integer("length", length, 1, 32)
        self.beta = _as_beta(beta, self.rewards)
        self.rewards.setflags(write=False)

    @property
    def num_symbols(self) -> int:
        """`E`."""
        return self.hmm.num_symbols

    @property
    def log_partition(self) -> float:
        """`log Z` in nats; `beta log Z` is the maximum of the objective."""
        return self._backward[2]

    @cached_property
    def expected_reward(self) -> float:
        """`E_q[r]`, the mean reward of a sequence, exact."""
        total, weight_YH = 0.0, np.zeros((len(self._tilts), self.hmm.num_states))
        weight_YH[-1] = self._start
        rewards_YE = self.rewards[None] if self.rewards.ndim == 1 else np.pad(self.rewards, ((0, 1), (0, 0)))
        for symbol_YHE, state_NHH in self._steps():
            joint_YHE = weight_YH[:, :, None] * symbol_YHE
            total += float((joint_YHE.sum(1) * rewards_YE).sum())
            by_symbol_EH = joint_YHE.sum(0).T
            if len(state_NHH) == 1:
                after_EH = by_symbol_EH @ state_NHH[0]
            else:
                after_EH = np.matmul(by_symbol_EH[:, None], state_NHH)[:, 0]
            # The beginning of the sequence is the context of no later symbol.
            weight_YH = after_EH.sum(0)[None] if len(weight_YH) == 1 else np.pad(after_EH, ((0, 1), (0, 0)))
        return total

    @property
    def kl_to_reference(self) -> float:
        """`KL(q || p)` in nats per sequence, exact: `E_q[r] / beta - log Z`."""
        return max(0.0, self.expected_reward / self.beta - self.log_partition)

    def entropy(self, num_sequences: int = 1024, *, seed: int = 0) -> Estimate:
        """The entropy of a sequence in nats, estimated from sampled ones.

        For an HMM that is not unifilar it has no closed form. The estimate is the mean of the sums of the exact
        entropies of the next token.
        """
        tokens = self.sample(integer("num_sequences", num_sequences, 2, 63), seed=seed)
        probs = self.next_token_probs(tokens)[:, :-1]
        sums = entropy(probs).sum(1)
        return Estimate(float(sums.mean()), float(sums.std(ddof=1) / math.sqrt(len(sums))))

    def reward(self, tokens: Int[Any, "B T"]) -> Float[Any, "B"]:
        """The reward of every sequence, or of the first `T <= L` tokens of one."""
        import torch

        values = self._as_tokens(tokens)
        rewards = values.new_tensor(self.rewards.tolist(), dtype=torch.float64)
        terms = rewards[values] if self.rewards.ndim == 1 else rewards[values[:, :-1], values[:, 1:]]
        return as_given(tokens, terms.sum(-1))

    def next_token_probs(self, tokens: Int[Any, "B T"]) -> Float[Any, "B T+1 E"]:
        """The distribution of token `t` given the tokens before it, for `t = 0 .. T`.

        After an impossible token it is all zeros. Entry `L`, which follows the last rewarded token, is the next-token
        distribution of the HMM.

        Args:
            tokens (array of shape `(B, T)`): symbols, `T <= L`.
        """
        values = self._as_tokens(tokens)
        return as_given(tokens, self._log_probs(values).exp())

    def log_likelihood(self, tokens: Int[Any, "B T"]) -> Float[Any, "B"]:
        """`log q(tokens)` in nats, for whole sequences or their first `T <= L` tokens; -inf for impossible ones."""
        values = self._as_tokens(tokens)
        return as_given(tokens, self._log_probs(values)[:, :-1].gather(-1, values[..., None]).sum((1, 2)))

    def divergence(self, log_probs: Float[Any, "B T E"], tokens: Int[Any, "B T"]) -> Float[Any, "B T"]:
        """`KL(policy || q)` of the next token in nats, exact at every position of given sequences, and never negative.

        If the policy has drawn the sequences, the sum over the positions of all `L` tokens, averaged over sequences,
        is an unbiased estimate of `KL(policy || q)`, with far less noise than that from log-ratios. Times `beta` it is
        the regret of the policy.

        Args:
            log_probs (array of shape `(B, T, E)`): the policy's log-probabilities of token `t` given those before.
            tokens (array of shape `(B, T)`): symbols, `T <= L`.

        Returns:
            array of shape `(B, T)`: infinite where the policy gives an impossible symbol a positive probability, if
                that is one in float64: a log-probability below -746 counts as impossible.
        """
        import torch

        from .analysis.divergence import kl_divergence

        values = self._as_tokens(tokens)
        table = log_probs if isinstance(log_probs, torch.Tensor) else torch.tensor(numbers("log_probs", log_probs))
        policy = table.to(values.device).double()
        if policy.shape != (*values.shape, self.num_symbols):
            raise InputError(
                f"log_probs has shape {tuple(policy.shape)}; expected {(*values.shape, self.num_symbols)}, a "
                "log-probability of every symbol at every token"
            )
        sums = policy.logsumexp(-1)
        if not bool(((sums.abs() < 1e-3) | (policy == -torch.inf).all(-1)).all()):
            raise InputError(
                f"log_probs: probabilities sum to {sums.exp().flatten()[sums.abs().argmax()]:.6g}, not 1; take the "
                "log_softmax of the logits of the symbols"
            )
        optimum = self._log_probs(values)[:, :-1]
        return as_given(tokens, kl_divergence(policy.exp(), optimum).clamp(min=0))

    def sample(self, num_sequences: int, seed: int = 0, first: int = 0, *, step: int = 1) -> UInt[np.ndarray, "N L"]:
        """Draw the sequences with indices `first, first + step, ...` of the stream given by `seed`.

        Sequence `i` depends on `(self, seed, i)` alone, as for [`HMM.sample`].

        Args:
            num_sequences (`int`): `N`.
            seed (`int`, *optional*, defaults to 0): which stream to draw from, in `[0, 2**64)`.
            first (`int`, *optional*, defaults to 0): index of the first sequence, in `[0, 2**64)`.
            step (`int`, *optional*, defaults to 1): difference between consecutive indices.

        Returns:
            `np.ndarray` of shape `(N, L)`: symbols, in the smallest unsigned type that can store `E - 1`.
        """
        from .kernels.tilted import draw_start, draw_step
        from .sampling import AliasTable, checked_draw

        seed, first, step, out = checked_draw(self.num_symbols, num_sequences, self.length, seed, first, step)
        keys = np.uint64(seed), np.uint64(first), np.uint64(step)
        states = self.hmm.num_states
        state = np.empty(len(out), np.uint64)
        table = AliasTable.from_probabilities(self._start[None])
        draw_start(*table.flat, *keys, state)
        for position, rows in enumerate(self._steps()):
            symbol, following = (AliasTable.from_probabilities(part.reshape(-1, part.shape[-1])) for part in rows)
            draw_step(*symbol.flat, *following.flat, len(self._tilts), states, position, *keys, state, out)
        return out

    def fingerprint(self) -> str:
        """The first 32 hexadecimal digits of the SHA-256 of the HMM, rewards, beta and length."""
        content = f"{self.hmm.fingerprint()}{self.rewards.shape}{self.beta!r} {self.length}".encode()
        return hashlib.sha256(content + np.ascontiguousarray(self.rewards, dtype="<f8").tobytes()).hexdigest()[:32]

    def __repr__(self) -> str:
        kind = "symbols" if self.rewards.ndim == 1 else "pairs of symbols"
        return f"TiltedHMM({self.hmm!r}, rewards of {kind}, beta {self.beta:g}, length {self.length})"

    def save_pretrained(self, folder: str | os.PathLike) -> None:
        """Write `model.safetensors`, `config.json` and the tokenizer, each of them atomically.

        `transformers.AutoModelForCausalLM` loads the same folder, with `trust_remote_code=True` or once
        `hmm_datasets.hmm.tilted_causal_lm` is imported.
        """
        save_tilted(self, folder)

    @classmethod
    def from_pretrained(cls, name_or_path: str | os.PathLike, *, revision: str | None = None) -> "TiltedHMM":
        """Read a tilted HMM from a folder, or from the Hub by its name.

        Raises:
            `InputError`: there is no such folder, its format is another, or its tables do not match `config.json`.
        """
        return load_tilted(cls, name_or_path, revision)

    def filter(self, device: "torch.device") -> "TiltedFilter":
        """The tables as tensors on a device, for step-by-step inference; they are kept for the next call."""
        import torch

        from .filters import TiltedFilter

        if device not in self._filters:
            values = torch.empty(self.length + 1, self.num_symbols, self.hmm.num_states, dtype=torch.float64)
            values[:-1] = torch.from_numpy(self._backward[0])
            values[-1] = torch.tensor(self.hmm.emission.T).log()
            tables = self.hmm.parameters(device=device), values.to(device), torch.tensor(self._tilts).to(device)
            self._filters[device] = TiltedFilter(*tables)
        return self._filters[device]

    def __getstate__(self) -> dict:
        # Messages are computed again where they are needed: they are larger than what they come from.
        return {name: value for name, value in self.__dict__.items() if not name.startswith("_")}

    def __setstate__(self, state: dict) -> None:
        self.__dict__.update(state)
        self.rewards.setflags(write=False)

    @cached_property
    def _tilts(self) -> Float[np.ndarray, "Y E"]:
        tilts = self.rewards / self.beta
        return tilts[None].copy() if tilts.ndim == 1 else np.pad(tilts, ((0, 1), (0, 0)))

    @cached_property
    def _tables(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """`moves` (M, H, H), their logarithms, and `log_emission` (H, E); see `kernels.tilted`."""
        from .kernels.tilted import log_entries

        hmm = self.hmm
        moves = np.ascontiguousarray(hmm.transition[None] if hmm.edges is None else hmm.edges)
        emission = hmm.emission if hmm.edges is None else np.ones_like(hmm.emission)
        logs = [np.empty(table.size) for table in (moves, emission)]
        for table, out in zip((moves, emission), logs, strict=True):
            log_entries(np.ravel(table), out)
        return moves, logs[0].reshape(moves.shape), logs[1].reshape(emission.shape)

    @cached_property
    def _backward(self) -> tuple[Float[np.ndarray, "L E H"], Float[np.ndarray, "H"], float]:
        """The values of every position, the distribution of the first state, and `log Z`."""
        from .kernels.tilted import fill_values, log_entries, log_sum

        values = np.empty((self.length, self.num_symbols, self.hmm.num_states))
        message, log_scale = fill_values(*self._tables, self._tilts, values)
        start = np.empty(self.hmm.num_states)
        log_entries(self.hmm.start, start)
        return values, start + message[-1], float(log_scale + log_sum(start + message[-1]))

    @cached_property
    def _start(self) -> Float[np.ndarray, "H"]:
        from .kernels.tilted import fill_state_rows

        out = np.empty((1, 1, self.hmm.num_states))
        fill_state_rows(self._backward[1][None, None], np.zeros((1, self.hmm.num_states)), out)
        return out[0, 0]

    def _steps(self) -> Iterator[tuple[Float[np.ndarray, "Y H E"], Float[np.ndarray, "N H H"]]]:
        """For every position `P(symbol | context, state)`, and `P(next state | symbol, state)` (`N` is 1 or `E`)."""
        from .kernels.tilted import fill_message, fill_state_rows, fill_symbol_rows

        values = self._backward[0]
        _, log_moves, _ = self._tables
        contexts, states, symbols = len(self._tilts), self.hmm.num_states, self.num_symbols
        for position in range(self.length):
            message = np.zeros((contexts, states))
            if position + 1 < self.length:
                fill_message(values[position + 1], self._tilts, message)
            symbol_YHE = np.empty((contexts, states, symbols))
            fill_symbol_rows(values[position], self._tilts, symbol_YHE)
            state_NHH = np.empty((1 if contexts == len(log_moves) == 1 else symbols, states, states))
            fill_state_rows(log_moves, message, state_NHH)
            yield symbol_YHE, state_NHH

    def _log_probs(self, tokens: "torch.Tensor") -> "torch.Tensor":
        import torch

        tables = self.filter(tokens.device)
        memory = tables.start.expand(len(tokens), -1)
        moves = torch.ones(len(tokens), dtype=torch.bool, device=tokens.device)
        rows = [tables.log_probs(memory)]
        for symbol_B in tokens.T:
            memory = tables.read(memory, symbol_B, moves)
            rows.append(tables.log_probs(memory))
        return torch.stack(rows, dim=1)

    @cached_property
    def _filters(self) -> "dict[torch.device, TiltedFilter]":
        return {}

    def _as_tokens(self, tokens: Any) -> "torch.Tensor":
        values = as_tokens(tokens, self.num_symbols)
        if values.shape[1] > self.length:
            raise InputError(
                f"tokens have shape {tuple(values.shape)}; expected at most length = {self.length} columns"
            )
        return values


def _as_rewards(rewards: Any, symbols: int) -> np.ndarray:
    table = finite("rewards", np.array(numbers("rewards", rewards)))
    if table.shape not in ((symbols,), (symbols, symbols)):
        raise InputError(
            f"rewards has shape {table.shape}; expected ({symbols},), one per symbol, or ({symbols}, {symbols}), one "
            "per pair of neighbouring symbols"
        )
    return table


def _as_beta(beta: Any, rewards: np.ndarray) -> float:
    try:
        value = float(beta)
    except (TypeError, ValueError):
        value = math.nan
    if not 0 < value < math.inf:
        raise InputError(f"beta is {beta}; expected a number above 0, the weight of the divergence from the HMM")
    largest = float(np.abs(rewards).max())
    if largest > value * _MAX_TILT:
        raise InputError(
            f"beta is {beta} and the largest reward {largest:g}; expected a ratio of at most {_MAX_TILT:g}, beside "
            "which logarithms of probabilities keep seven digits"
        )
    return value
