"""HMMs of many thousand states: each symbol has a block of states, and transitions have a low rank.

A symbol can be emitted by the `S` states of its block alone (blocked emissions: Chiu and Rush, "Scaling hidden Markov
language models", EMNLP 2020). The `(H, H)` table of transitions is a product `leave @ enter` of `(H, R)` and `(R, H)`
(Chiu, Deng and Rush, "Low-rank constraints for fast inference in structured models", NeurIPS 2021; Siddiqi, Boots and
Gordon, "Reduced-rank hidden Markov models", AISTATS 2010). Both factors are distributions. So before each token there
is a hidden class `r`: the class draws a state, the state emits a symbol of its block and draws the class of the next
token. What the past says about the future is a distribution over the `R` classes, which is the belief.

A step of the filter takes `2 R S` products instead of `H^2`, one of Baum-Welch `7 R S`, and the tables `2 R H + E S`
numbers instead of `H^2 + H E`.
"""

from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from jaxtyping import Bool, Float, Int

from ...errors import InputError
from ..arrays import (
    REFUSE,
    RESCALE,
    as_given,
    check_dense,
    checked_names,
    distribution,
    integer_array,
    over_rows,
    probabilities,
    token_array_with_gaps,
    tokens_with_gaps,
)
from ..kernels.structured import draw_blocked
from ..model import HMM
from ..named_tokens import symbols_of_names
from ..process import Process, Rows
from ..sampling import AliasTable
from ..viterbi import Path
from .block_logs import BlockLogs
from .block_paths import best_path, block_posteriors
from .block_tables import BlockTables

if TYPE_CHECKING:
    import torch

    from ..analysis.entropy import EntropyRateBounds

_MAX_BOUNDED = 1024  # states


class BlockedHMM(Process):
    """An HMM with blocked emissions and transitions of a low rank.

    Args:
        start (`np.ndarray` of shape `(R,)`): distribution of the class of the first token.
        enter (`np.ndarray` of shape `(R, H)`): `P(state i | class r)`.
        leave (`np.ndarray` of shape `(H, R)`): `P(class of the next token r | state i)`.
        emission (`np.ndarray` of shape `(E, S)`): `P(symbol x | state s of the block of x)`; the sum over the symbols
            of a block is one for each of its states. The states of block `k` are `k S` to `(k + 1) S - 1`.
        blocks (`np.ndarray` of shape `(E,)`): block of each symbol, in `[0, K)`; each has a symbol, and `H = K S`.
        vocabulary (sequence of `str`, *optional*): a name for every symbol.

    Raises:
        `InputError`: a table is not a distribution, or shapes disagree; the message names the table and the row.

    ```python
    >>> hmm = BlockedHMM([1.0], [[0.5, 0.5]], [[1.0], [1.0]], [[0.3], [0.7], [1.0]], [0, 0, 1])
    >>> hmm.next_token_probs([[0]])[0, 1].tolist()
    [0.15, 0.35, 0.5]

    ```
    """

    stored_name: ClassVar[str] = "blocked"
    is_stationary = True

    def __init__(self, start: Any, enter: Any, leave: Any, emission: Any, blocks: Any, *, vocabulary: Any = None):
        self.start = distribution("start", start, 1)
        self.enter, self.leave = distribution("enter", enter, 2), distribution("leave", leave, 2)
        self.emission = probabilities("emission", emission, 2)
        self.blocks = integer_array("blocks", blocks).astype(np.int64)
        self._check_shapes()
        totals = self.totals("emission", self.emission)
        off = np.argwhere(np.abs(totals - 1) > REFUSE)
        if len(off) > 0:
            block, state = off[0]
            raise InputError(
                f"emission[blocks == {block}, {state}] sums to {totals[block, state]:.6g}, not 1; divide the "
                "entries of each state of a block by their sum"
            )
        sums = self.per_entry("emission", totals)
        self.emission = np.where(np.abs(sums - 1) > RESCALE, self.emission / sums, self.emission)
        self.vocabulary = checked_names(vocabulary, self.num_symbols)
        self._make_read_only()

    def _check_shapes(self) -> None:
        if self.blocks.shape != self.emission.shape[:1]:
            raise InputError(
                f"blocks have shape {self.blocks.shape} and emission {self.emission.shape}; expected (E,) and (E, S)"
            )
        missing = np.setdiff1d(np.arange(self.blocks.max() + 1), self.blocks)
        if self.blocks.min() < 0 or len(missing) > 0:
            at = f"{self.blocks.min()} is a block" if self.blocks.min() < 0 else f"no symbol is in block {missing[0]}"
            raise InputError(f"blocks: {at}; expected 0 .. K - 1, each the block of a symbol")
        shape = self.rank, self.num_blocks * self.block_size
        if (self.enter.shape, self.leave.shape) != (shape, shape[::-1]):
            raise InputError(
                f"enter has shape {self.enter.shape} and leave {self.leave.shape}; expected {shape} and {shape[::-1]} "
                f"for {self.rank} classes and {self.num_blocks} blocks of {self.block_size} states"
            )

    @property
    def num_symbols(self) -> int:
        """`E`."""
        return self.emission.shape[0]

    @property
    def block_size(self) -> int:
        """`S`, the number of states of a block."""
        return self.emission.shape[1]

    @property
    def num_blocks(self) -> int:
        """`K`."""
        return int(self.blocks.max()) + 1

    @property
    def rank(self) -> int:
        """`R`, the number of classes."""
        return len(self.start)

    @property
    def num_states(self) -> int:
        """`H`."""
        return len(self.leave)

    max_states, belief_width = num_states, rank

    def tables(self) -> dict[str, Float[np.ndarray, "..."]]:
        """The tables of probabilities by name."""
        return {"start": self.start, "enter": self.enter, "leave": self.leave, "emission": self.emission}

    def arrays(self) -> dict[str, np.ndarray]:
        """The tables, and `blocks`."""
        return {**self.tables(), "blocks": self.blocks}

    def settings(self) -> dict[str, Any]:
        """The vocabulary, if there is one."""
        return {} if self.vocabulary is None else {"vocabulary": list(self.vocabulary)}

    def with_tables(self, tables: dict[str, Float[np.ndarray, "..."]], vocabulary: Any = None) -> "BlockedHMM":
        """The HMM of other tables, with the same blocks, and names of symbols unless others are given."""
        names = self.vocabulary if vocabulary is None else vocabulary
        return BlockedHMM(**tables, blocks=self.blocks, vocabulary=names)

    def totals(self, name: str, table: Float[np.ndarray, "..."]) -> Float[np.ndarray, "..."]:
        """What the entries of each distribution of the table of this name sum to, once for each distribution."""
        if name != "emission":
            return table.sum(-1)
        sums = np.zeros((self.num_blocks, table.shape[1]))
        np.add.at(sums, self.blocks, table)
        return sums

    def per_entry(self, name: str, totals: Float[np.ndarray, "..."]) -> Float[np.ndarray, "..."]:
        """A number for each distribution, such as `totals` gives, in a shape that divides the table."""
        return totals[self.blocks] if name == "emission" else totals[..., None]

    @staticmethod
    def check_device(device: Any) -> None:
        """Raise `InputError` for a device other than the CPU; None is the CPU."""
        if device is not None and str(device) != "cpu":
            raise InputError(f"device is {str(device)!r}, but HMMs of blocks are computed on the CPU; leave it out")

    def parameters(self, dtype: "torch.dtype | None" = None, device: Any = None) -> BlockTables:
        """The tables for a fit, float64 by default, or float32; see [`check_device`]."""
        self.check_device(device)
        return BlockTables(self, np.float32 if str(dtype) == "torch.float32" else np.float64)

    def describe(self) -> str:
        """What the process is, in a few words."""
        return (
            f"an HMM of {self.num_states:,} states in {self.num_blocks} blocks of {self.block_size}, with transitions "
            f"of rank {self.rank}, over {self.num_symbols:,} symbols"
        )

    def _draw_states(self, seed: np.uint64, first: np.uint64, step: np.uint64, out: Rows, states: Rows | None) -> None:
        draw_blocked(*self._alias_entries, np.uint64(self.block_size), seed, first, step, out, states)

    @cached_property
    def _alias_entries(self) -> tuple[Any, ...]:
        classes = [AliasTable.from_probabilities(table).flat for table in (self.start[None], self.enter, self.leave)]
        # Blocks have different numbers of symbols, so that their tables have different numbers of columns.
        symbols = [np.flatnonzero(self.blocks == k) for k in range(self.num_blocks)]
        tables = [AliasTable.from_probabilities(self.emission[rows].T) for rows in symbols]
        entries = np.concatenate([table.flat[0] for table in tables])
        begins = np.cumsum([0, *(table.entries.size for table in tables[:-1])]).astype(np.uint64)
        firsts = np.cumsum([0, *map(len, symbols[:-1])]).astype(np.uint64)
        bits = np.array([table.bits for table in tables], np.uint64)
        return *(entry for table in classes for entry in table), entries, begins, bits, np.concatenate(symbols), firsts

    @cached_property
    def _block_tables(self) -> BlockTables:
        return BlockTables(self)

    @cached_property
    def _logs(self) -> BlockLogs:
        return BlockLogs(self)

    def _filtered(self, tokens: Any) -> tuple[Float[np.ndarray, "B T_plus_1 R"], Bool[np.ndarray, "B"]]:
        # The beliefs, and rows in which one of them may have underflowed before it was computed again.
        named, tables = symbols_of_names(tokens, self.vocabulary), self._block_tables
        values = token_array_with_gaps(named, self.num_symbols)
        beliefs = np.empty((len(values), values.shape[1] + 1, self.rank))
        in_logs = np.empty(len(values), bool)

        def work(rows: slice) -> None:
            of_rows, _, in_logs[rows] = tables.filtered(values[rows])
            beliefs[rows] = of_rows[:, :, : self.rank]

        over_rows(work, len(values), self._operations(values))
        for row in np.flatnonzero(in_logs):
            beliefs[row] = np.exp(self._logs.filtered(values[row])[0])
        return beliefs, in_logs

    def beliefs(self, tokens: Int[Any, "B T"]) -> Float[Any, "B T+1 R"]:
        """`P(class of token t | tokens before t)`, for `t = 0 .. T`."""
        return as_given(tokens, self._filtered(tokens)[0])

    def next_token_probs(self, tokens: Int[Any, "B T"]) -> Float[Any, "B T+1 E"]:
        """The Bayes-optimal distribution of each token given those before it."""
        return as_given(tokens, self._filtered(tokens)[0] @ self._symbols_of_classes)

    @cached_property
    def _symbols_of_classes(self) -> Float[np.ndarray, "R E"]:
        by_block = self.enter.reshape(self.rank, self.num_blocks, self.block_size)
        # By symbol, since all of them at once would take R E S numbers.
        columns = [by_block[:, block] @ row for block, row in zip(self.blocks, self.emission, strict=True)]
        return np.stack(columns, axis=1)

    def log_likelihood(self, tokens: Int[Any, "B T"], *, lengths: Int[Any, "B"] | None = None) -> Float[Any, "B"]:
        """Log-likelihood (nats) of each sequence; -inf if the process cannot emit it.

        Args:
            tokens (array of shape `(B, T)`): symbols, some of which may be missing.
            lengths (array of shape `(B,)`, *optional*): number of tokens in each row; the rest is padding.
        """
        values, ends, _ = tokens_with_gaps(symbols_of_names(tokens, self.vocabulary), self.num_symbols, lengths)
        values = values.masked_fill(values < 0, self.num_symbols).cpu()
        scores, tables = np.empty(len(values)), self._block_tables

        def work(rows: slice) -> None:
            scores[rows] = tables.log_likelihood(values[rows], None if ends is None else ends[rows].cpu())

        over_rows(work, len(values), self._operations(values))
        return as_given(tokens, scores)

    def posteriors(self, tokens: Int[Any, "B T"], *, lengths: Int[Any, "B"] | None = None) -> Float[Any, "B T H"]:
        """`P(state that emits token t | all tokens)` (smoothing); some tokens may be missing."""
        values, ends = self._rows(tokens, lengths)
        return as_given(tokens, block_posteriors(self, values, ends))

    def viterbi(self, tokens: Int[Any, "B T"], *, lengths: Int[Any, "B"] | None = None) -> Path:
        """The most probable states `(B, T)` and `log P(states, tokens)` `(B,)` in nats, as a named tuple."""
        values, ends = self._rows(tokens, lengths)
        states, scores = np.zeros(values.shape, np.int64), np.zeros(len(values))

        def work(rows: slice) -> None:
            for row in range(len(values))[rows]:
                states[row, : ends[row]], scores[row] = best_path(self, values[row, : ends[row]])

        over_rows(work, len(values), self.block_size * self._operations(values))
        return Path(as_given(tokens, states), as_given(tokens, scores))

    def _rows(self, tokens: Any, lengths: Any) -> tuple[Int[np.ndarray, "B T"], Int[np.ndarray, "B"]]:
        values, ends, _ = tokens_with_gaps(symbols_of_names(tokens, self.vocabulary), self.num_symbols, lengths)
        return values.cpu().numpy(), np.full(len(values), values.shape[1]) if ends is None else ends.cpu().numpy()

    def _operations(self, tokens: Any) -> int:
        return 2 * self.rank * self.block_size * tokens.shape[0] * tokens.shape[1]

    def to_hmm(self) -> HMM:
        """The same process as an HMM with dense tables.

        Raises:
            `InputError`: there are more than 8,192 states.
        """
        check_dense(self.num_states)
        emission = np.zeros((self.num_states, self.num_symbols))
        for symbol, (block, row) in enumerate(zip(self.blocks, self.emission, strict=True)):
            emission[block * self.block_size : (block + 1) * self.block_size, symbol] = row
        tables = {"start": self.start @ self.enter, "transition": self.leave @ self.enter, "emission": emission}
        return HMM(**tables, vocabulary=self.vocabulary, normalize=True)

    def entropy_rate_bounds(self) -> "EntropyRateBounds":
        """Bounds on the entropy rate in nats per token: those of the dense HMM, after 512 tokens.

        Raises:
            `InputError`: there are more than 1,024 states, for which the dense HMM takes minutes.
        """
        if self.num_states > _MAX_BOUNDED:
            return super().entropy_rate_bounds()
        return self.to_hmm().entropy_rate_bounds(length=512)

    def __repr__(self) -> str:
        return (
            f"BlockedHMM({self.num_blocks} blocks of {self.block_size} states, rank {self.rank}, {self.num_symbols} "
            "symbols)"
        )
