"""The two halves of a Baum-Welch step: expected counts summed over batches, and new tables from the counts.

The counts of a batch come from [`expected_counts`]; this module distributes batches over threads and ranks. One thread
computes a batch, with single-threaded matrix products, and every rank adds the counts of all batches in float64 in
the order of the batches. So the sum is bit-identical for any number of threads or processes, on processors of one
kind. At these sizes this is also the fastest way on a CPU, because no thread waits for another between two steps in
time.

Communication is one gather of `H + H^2 + HE` numbers per batch, which is negligible beside `6 H^2` operations per
token.

The new tables are the mode of each row under a Dirichlet distribution of concentration `1 + pseudocount` (Baum,
Petrie, Soules and Weiss, Ann. Math. Stat. 41, 1970; Rabiner 1989, eqs. 40a-c; MAP form: Gauvain and Lee, IEEE Trans.
Speech Audio Process. 2, 1994). So a step never lowers the log-likelihood plus [`log_prior`], except by rounding.
"""

import itertools
import math
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor
from typing_extensions import TypeVar

from ...errors import InputError, first_line
from ...runtime.stop_requests import STOP, Stopped, StopRequests
from .. import inference
from ..arrays import in_similar_lengths, rows_from
from ..model import HMM
from ..structured.block_tables import BlockTables
from ..structured.blocked import BlockedHMM
from .labels import KnownPaths, Pairs

Fitted = HMM | BlockedHMM
"""What can be fitted: it has tables by name, and the counts of each."""

Model = TypeVar("Model", HMM, BlockedHMM, default=HMM)

_SAME = 1e-6  # difference of probabilities that rounding of float32 explains
_CACHED_ENTRIES = 1 << 16  # of the beliefs of one step, which should stay in the cache of a core
_MIN_ROWS, _MAX_ROWS = 64, 512  # fewer make products slow, more do not make them faster
_MAX_BLOCKED_ROWS = 2048
_TABLE_BYTES = {"cpu": 1 << 28, "cuda": 1 << 31}  # of the (T, B, H) table; a GPU needs thousands of rows


class ImpossibleSequence(InputError):
    """The HMM cannot emit a sequence that it is fitted to."""


@dataclass(frozen=True)
class Sequences:
    """Checked tokens, and the number of tokens in each row.

    Attributes:
        tokens (`torch.Tensor` of shape `(N, L)` or `(M,)`): symbols, `E` where a token was not observed; a row for
            each sequence, or all of them one after the other.
        lengths (`torch.Tensor` of shape `(N,)` or `None`): number of tokens in each row; the rest is padding.
        observed (`torch.Tensor` of shape `(N,)` or `None`): how many of them were observed, if some were not.
        pairs ([`Pairs`] or `None`): if states are known, the pairs of which `tokens` are the numbers.
        weights (`torch.Tensor` of shape `(N,)` or `None`): weight of each row, float64, if it is not 1.
    """

    tokens: Int[Tensor, "N L"] | Int[Tensor, "M"]
    lengths: Int[Tensor, "N"] | None = None
    observed: Int[Tensor, "N"] | None = None
    pairs: Pairs | None = None
    weights: Float[Tensor, "N"] | None = None

    @cached_property
    def shape(self) -> tuple[int, int]:
        """The number of sequences, and of tokens in the longest."""
        if self.tokens.ndim == 1:
            return len(self.lengths), int(self.lengths.max())
        return len(self.tokens), self.tokens.shape[1]

    @cached_property
    def starts(self) -> Int[np.ndarray, "N"]:
        """Where each sequence of a column begins."""
        return (self.lengths.cumsum(0) - self.lengths).numpy()

    @property
    def num_tokens(self) -> int:
        """The number of observed tokens."""
        return self.num_tokens_of(np.arange(self.shape[0]))

    def num_tokens_of(self, rows: Int[np.ndarray, "B"]) -> int:
        """The number of observed tokens in some rows."""
        counts = self.lengths if self.observed is None else self.observed
        return len(rows) * self.tokens.shape[1] if counts is None else int(counts[torch.from_numpy(rows)].sum())

    @cached_property
    def weight(self) -> float:
        """Number of observed tokens, each times the weight of its row."""
        return self.weight_of(np.arange(self.shape[0]))

    def weight_of(self, index: Int[np.ndarray, "B"]) -> float:
        """Number of observed tokens in some rows, each times its weight."""
        if self.weights is None:
            return self.num_tokens_of(index)
        rows, counts = torch.from_numpy(index), self.lengths if self.observed is None else self.observed
        weights = self.weights[rows]
        return float(weights.sum() * self.tokens.shape[1] if counts is None else counts[rows].double() @ weights)

    def weights_of(self, index: Int[np.ndarray, "B"], device: torch.device) -> Float[Tensor, "B"] | None:
        """The weights of some rows, if they have any."""
        return None if self.weights is None else self.weights[torch.from_numpy(index)].to(device)

    @property
    def is_labelled(self) -> bool:
        """Whether the state of every token is known."""
        return self.pairs is not None and self.pairs.are_known

    def num_sequences(self, index: Int[np.ndarray, "B"] | None = None) -> float:
        """Number of rows, or of some of them, each times its weight."""
        if self.weights is None:
            return self.shape[0] if index is None else len(index)
        return float(self.weights.sum() if index is None else self.weights[torch.from_numpy(index)].sum())

    def parameters(
        self, hmm: Fitted, dtype: torch.dtype, device: torch.device
    ) -> inference.Parameters | BlockTables | KnownPaths:
        """The tables of `hmm`, with a symbol for missing tokens if there are any, and one for each pair if states are
        known."""
        if isinstance(hmm, HMM) and self.is_labelled:
            return KnownPaths(hmm, self.pairs)
        parameters = hmm.parameters(dtype, device)
        parameters = parameters if self.observed is None else parameters.with_missing()
        if self.pairs is None or not isinstance(parameters, inference.Parameters):
            return parameters
        return replace(parameters, emission=self.pairs.columns(parameters.emission), has_missing=False)

    def rows(self, index: Int[np.ndarray, "B"], device: torch.device) -> tuple[Tensor, Tensor | None]:
        """The tokens (B, T) and lengths (B,) of some rows."""
        rows = torch.from_numpy(index)
        lengths = None if self.lengths is None else self.lengths[rows]
        if lengths is not None and self.tokens.ndim == 1:
            tokens = torch.from_numpy(rows_from(self.tokens.numpy(), self.starts[index], lengths.numpy())).long()
        else:
            tokens = self.tokens[rows]
        return tokens.to(device), None if lengths is None else lengths.to(device)

    def parts(self, batch: Int[np.ndarray, "B"]) -> Iterator[Int[np.ndarray, "R"]]:
        """Which of the rows of a batch to take together, so that padding is no more than their tokens."""
        if self.lengths is None or self.tokens.ndim == 2:
            return iter([np.arange(len(batch))])
        mean = -(-len(self.tokens) // self.shape[0])
        return in_similar_lengths(self.lengths.numpy()[batch], len(batch) * mean)


@dataclass
class Statistics:
    """Expected counts of some sequences in float64, and their log-likelihood in nats."""

    tables: dict[str, Float[np.ndarray, "..."]]
    log_likelihood: float = 0.0
    num_sequences: float = 0.0

    @classmethod
    def zeros(cls, tables: Mapping[str, Float[np.ndarray, "..."]]) -> "Statistics":
        """No counts, for tables of these shapes."""
        return cls({name: np.zeros(table.shape) for name, table in tables.items()})

    def move_towards(self, counts: "Statistics", step_size: float, num_sequences: float) -> None:
        """Online EM: `S <- S + step_size (S' - S)`, where S' is the counts scaled up to `num_sequences`."""
        if counts.num_sequences == 0:
            return  # all of these sequences have weight 0
        for name, table in self.tables.items():
            table += step_size * (counts.tables[name] * (num_sequences / counts.num_sequences) - table)


class Workers:
    """The threads of this process and the ranks of this launch, which share batches.

    Args:
        device: where to compute; on the CPU with `torch.get_num_threads()` threads.
        requests ([`~hmm_datasets.runtime.stop_requests.StopRequests`], *optional*): asked before every batch.

    Raises:
        `InputError`: the device cannot be used.
    """

    def __init__(self, device: torch.device | str | None, requests: StopRequests | None = None):
        self._requests = requests
        try:
            self.device = torch.zeros(0, device=device or "cpu").device
        except (RuntimeError, AssertionError) as error:
            raise InputError(f"device is {str(device)!r}, and cannot be used: {first_line(error)}") from None
        distributed = torch.distributed.is_available() and torch.distributed.is_initialized()
        self.rank = torch.distributed.get_rank() if distributed else 0
        self.num_ranks = torch.distributed.get_world_size() if distributed else 1

    def __enter__(self) -> "Workers":
        self._threads = torch.get_num_threads()
        count = self._threads if self.device.type == "cpu" else 1
        self._ahead = count + 1
        # Products are single-threaded, since two threads would wait for each other at every step in time.
        self._pool = ThreadPoolExecutor(count, initializer=torch.set_num_threads, initargs=(1,))
        return self

    def __exit__(self, *exception: object) -> None:
        self._pool.shutdown(cancel_futures=True)
        torch.set_num_threads(self._threads)

    def alone(self, function: Callable[[], Any]) -> Any:
        """`function()` in one of the threads, with single-threaded products, so that results do not depend on the
        machine's number of cores."""
        return self._pool.submit(function).result()

    def in_order(
        self, function: Callable[[Any], Tensor], batches: Sequence[Any], size: int
    ) -> Iterator[Float[np.ndarray, "S"]]:
        """`function(batch)`, a float64 vector of `size` numbers, for every batch in turn; the same on every rank.

        Raises:
            `Stopped`: on every rank at the same batch, if one of them is asked to stop.
        """
        mine = iter(batches[self.rank :: self.num_ranks])
        waiting = deque(self._pool.submit(function, batch) for batch in itertools.islice(mine, self._ahead))
        for first in range(0, len(batches), self.num_ranks):
            nothing = torch.zeros(size, dtype=torch.float64, device=self.device)
            result = waiting.popleft().result() if waiting else nothing
            waiting.extend(self._pool.submit(function, batch) for batch in itertools.islice(mine, 1))
            vectors = self._gather(torch.cat([result, self._asked_to_stop()]))
            if any(bool(vector[-1]) for vector in vectors):
                reason = None if self._requests is None else self._requests.reason
                raise Stopped(reason or "requested on another rank")
            for vector in vectors[: len(batches) - first]:
                yield vector[:-1].cpu().numpy()

    def _asked_to_stop(self) -> Tensor:
        stop = self._requests is not None and self._requests.look(main=self.rank == 0) == STOP
        return torch.full((1,), float(stop), dtype=torch.float64, device=self.device)

    def _gather(self, vector: Tensor) -> list[Tensor]:
        if self.num_ranks == 1:
            return [vector]
        vectors = [torch.empty_like(vector) for _ in range(self.num_ranks)]
        torch.distributed.all_gather(vectors, vector)
        return vectors


def batch_rows(
    shape: tuple[int, int], width: int, dtype: torch.dtype, device: torch.device, *, blocked: bool = False
) -> int:
    """Sequences per batch by default: the beliefs of one step fit the cache of a core, and `(T, B, H)` fits memory.

    A small data set is cut into four batches for threads to share. The number does not depend on how many threads or
    processes there are, and so neither do the results. Beliefs have `width` entries. In an HMM of blocks the more
    sequences there are, the more of them share what is read of the tables.
    """
    num_rows, length = shape
    memory = _TABLE_BYTES.get(device.type, _TABLE_BYTES["cuda"])
    fitting = memory // (max(length, 1) * width * dtype.itemsize)
    if device.type == "cpu":
        cached = _MAX_BLOCKED_ROWS if blocked else min(_MAX_ROWS, max(_CACHED_ENTRIES // width, _MIN_ROWS))
        fitting = min(fitting, cached, max(num_rows // 4, _MIN_ROWS))
    return max(1, fitting)


def even_batches(rows: Int[np.ndarray, "N"], batch_size: int) -> list[Int[np.ndarray, "B"]]:
    """Split the rows into as few batches of at most `batch_size` as possible, whose sizes differ by at most one."""
    return np.array_split(rows, max(1, math.ceil(len(rows) / batch_size)))


def sum_counts(
    hmm: Fitted,
    data: Sequences,
    batches: Sequence[Int[np.ndarray, "B"]],
    workers: Workers,
    dtype: torch.dtype,
    after_batch: Callable[[float, Int[np.ndarray, "B"]], None] = lambda log_likelihood, batch: None,
) -> Statistics:
    """The expected counts of all `batches` under `hmm`.

    Args:
        hmm ([`HMM`] or [`BlockedHMM`]): a state-emitting HMM.
        data ([`Sequences`]): the sequences.
        batches (sequence of arrays): indices of the rows of each batch.
        workers ([`Workers`]): threads and ranks that compute.
        dtype (`torch.dtype`): type of the recursions.
        after_batch (callable, *optional*): called with the log-likelihood so far and the batch just added.

    Raises:
        `InputError`: a sequence has probability 0, or a count is not finite; the message names the batch, and the
            sequence or the table.
    """
    parameters = data.parameters(hmm, dtype, workers.device)

    def counts_of(batch: Int[np.ndarray, "B"]) -> Tensor:
        vectors = [counts_of_part(batch, rows) for rows in data.parts(batch)]
        total = torch.stack(vectors).sum(0) if len(vectors) > 1 else vectors[0]
        total[1] = max(vector[1] for vector in vectors)
        return total

    def counts_of_part(batch: Int[np.ndarray, "B"], rows: Int[np.ndarray, "R"]) -> Tensor:
        weights = data.weights_of(batch[rows], workers.device)
        counts, scores = parameters.sums(*data.rows(batch[rows], workers.device), weights)
        scores = _weighted(scores, weights)
        impossible = (~torch.isfinite(scores)).to(torch.float64)
        # Index of an impossible row of the batch, or -1.
        index = torch.where(impossible.any(), torch.from_numpy(rows).to(scores.device)[impossible.argmax()], -1)
        parts = (scores.sum(), index, *counts.values())
        return torch.cat([part.to(torch.float64).reshape(-1) for part in parts])

    total = Statistics.zeros(hmm.tables())
    pairs = None if data.is_labelled else data.pairs
    if pairs is not None:
        total.tables["emission"] = np.zeros((hmm.num_states, len(pairs.symbols)))
    size = 2 + sum(table.size for table in total.tables.values())
    for number, vector in enumerate(workers.in_order(counts_of, batches, size)):
        add_batch(total, vector, number, batches[number])
        total.num_sequences += data.num_sequences(batches[number])
        after_batch(total.log_likelihood, batches[number])
    if pairs is not None:
        total.tables["emission"] = pairs.of_symbols(total.tables["emission"], hmm.num_symbols)
    return total


def _weighted(scores: Float[Tensor, "B"], weights: Float[Tensor, "B"] | None) -> Float[Tensor, "B"]:
    # Not a product alone: a row of weight 0 may be impossible, and 0 times infinity is NaN.
    return scores if weights is None else torch.where(weights > 0, weights * scores, 0.0)


def add_batch(total: Statistics, vector: Float[np.ndarray, "S"], number: int, rows: Int[np.ndarray, "B"]) -> None:
    """Add the result of a batch to `total`: log-likelihood, index of an impossible row or -1, and the tables.

    Raises:
        `ImpossibleSequence`: a row is impossible.
        `InputError`: a count is not finite.
    """
    (score, index), tables = vector[:2], vector[2:]
    if index >= 0:
        raise ImpossibleSequence(f"batch {number}, sequence {rows[int(index)]}: the HMM gives it probability 0")
    parts = np.split(tables, np.cumsum([table.size for table in total.tables.values()])[:-1])
    for (name, table), part in zip(total.tables.items(), parts, strict=True):
        if not np.isfinite(part).all():
            raise InputError(
                f"batch {number}: the expected counts of {name} are not finite, and the tables were not changed; "
                "resume from the last checkpoint with dtype float64"
            )
        table += part.reshape(table.shape)
    total.log_likelihood += float(score)


def mean_log_likelihood(
    hmm: Fitted, data: Sequences, batches: Sequence[Int[np.ndarray, "B"]], workers: Workers, dtype: torch.dtype
) -> float:
    """Log-likelihood of `data` under `hmm` in nats per observed token; -inf if a sequence is impossible."""
    parameters = data.parameters(hmm, dtype, workers.device)

    def score(batch: Int[np.ndarray, "B"]) -> Tensor:
        sums = []
        for rows in (batch[part] for part in data.parts(batch)):
            scores = parameters.log_likelihood(*data.rows(rows, workers.device))
            sums.append(_weighted(scores.to(torch.float64), data.weights_of(rows, workers.device)).sum())
        return torch.stack(sums).sum().reshape(1)

    return float(sum(workers.in_order(score, batches, 1))[0]) / data.weight


def maximize(
    counts: Statistics, previous: Fitted, pseudocounts: Mapping[str, float], fixed: Collection[str] = ()
) -> Fitted:
    """The HMM whose rows are the expected counts plus pseudocounts, normalized; zeros of `previous` stay zero.

    EM keeps zeros by itself, which is how left-to-right models are written down, and so does hmmlearn with a prior.
    Tables that are `fixed` are those of `previous`. The others maximize the same function as without that, since it is
    a sum of a term for each row.
    """
    tables = {name: table for name, table in previous.tables().items() if setting_of(name) in fixed}
    for name, table in counts.tables.items():
        if name in tables:
            continue
        table = np.where(getattr(previous, name) > 0, table + pseudocounts[setting_of(name)], 0.0)
        totals = previous.per_entry(name, previous.totals(name, table))
        # A state that is never visited has no counts; without a prior its row stays the same.
        tables[name] = np.where(totals > 0, table / np.where(totals > 0, totals, 1.0), getattr(previous, name))
    return previous.with_tables(tables)


def log_prior(hmm: Fitted, pseudocounts: Mapping[str, float]) -> float:
    """Log-density of the Dirichlet prior at the tables of `hmm`, up to a constant; it is on entries that are not 0."""
    counts = {name: pseudocounts[setting_of(name)] for name in hmm.tables()}
    tables = {name: table[table > 0] for name, table in hmm.tables().items() if counts[name]}
    return float(sum(counts[name] * np.log(table).sum() for name, table in tables.items()))


def setting_of(table: str) -> str:
    """The name that settings of a fit have for a table: both factors of transitions are `transition`."""
    return "transition" if table in ("enter", "leave") else table


def free_parameters(hmm: Fitted, fixed: Collection[str] = ()) -> int:
    """Number of free parameters of the tables that are not `fixed`: entries that are not 0, less one for each row.

    ```python
    >>> free_parameters(HMM(transition=[[1.0, 0.0], [0.5, 0.5]], emission=[[0.2, 0.8], [0.5, 0.5]], start=[1.0, 0.0]))
    3

    ```
    """
    tables = {name: table for name, table in hmm.tables().items() if setting_of(name) not in fixed}
    return sum(int((table > 0).sum()) - hmm.totals(name, table).size for name, table in tables.items())


def tied_states(hmm: HMM) -> tuple[int, int] | None:
    """The first two states whose emissions are the same, which Baum-Welch cannot tell apart; None without such."""
    for state, row in enumerate(hmm.emission):
        (same,) = np.nonzero(np.abs(hmm.emission[:state] - row).max(axis=1, initial=0.0) <= _SAME)
        if len(same) > 0:
            return int(same[0]), state
    return None
