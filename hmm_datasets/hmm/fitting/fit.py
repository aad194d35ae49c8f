"""Fitting an HMM by Baum-Welch: full batch or stochastic, with Dirichlet priors, on one process or many, resumable.

In full batch an epoch is one step of EM, and never lowers the log-posterior, which is part of the history, except by
rounding: about 1e-8 of it in float32. With `update_every=k` the sequences are shuffled in every epoch and the tables
are updated after every `k` batches, by online EM (Cappé and Moulines, J. R. Stat. Soc. B 71, 2009). With `c_t` the
expected counts of the batches under the tables `θ_t`, scaled up to all sequences,

    S_t+1 = S_t + γ_t (c_t - S_t),    γ_t = t^-0.6,    θ_t+1 = mode(S_t+1 + pseudocounts),

for `t = 1, 2, ...`. With an exponent in (1/2, 1] the sum of the `γ_t` is
infinite and that of their squares finite, as the convergence of stochastic approximation requires (Robbins and Monro
1951). With `update_rule="replace"` the tables are the mode given `c_t`, not scaled up, and the pseudocounts alone, as
in libraries that fit a few batches at a time; this does not converge.

The recursions run in float32 by default, which is twice as fast as float64. Beliefs and backward values are rescaled
as they go, and counts are added in float64 after every few tokens, so rounding errors do not accumulate with the
length of the sequences: the counts are exact to about 1e-6 of their value in rows of ten thousand tokens as in rows of
two million. Use float64 for states that are kept for many thousand tokens, and for tables with probabilities below
1e-30, which can arise with pseudocount 0.

An epoch costs `6 N L H^2` operations in matrix products, and memory is `O(B L H)` for each batch being processed.
`hmm_datasets.hmm.fitting.baum_welch` describes how batches are shared among threads and processes, and why the result
does not depend on it.
"""

import contextlib
import copy
import itertools
import logging
import os
import re
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int

from ...errors import InputError, suggestion
from ...files import append_jsonl, write_jsonl
from ...runtime import heartbeats
from ...runtime.lock import exclusive_lock
from ...runtime.progress import progress_bar
from ...runtime.stop_requests import Stopped, StopRequests
from ..arrays import (
    ONE_COLUMN,
    CheckedTokens,
    checked_column,
    counts_in_rows,
    is_column,
    place_in_rows,
    tokens_with_gaps,
)
from ..integers import integer
from ..model import HMM
from ..named_tokens import symbols_of_names
from ..structured.blocked import BlockedHMM
from ..token_files import TokenRows
from .baum_welch import (
    Fitted,
    ImpossibleSequence,
    Model,
    Sequences,
    Statistics,
    Workers,
    batch_rows,
    even_batches,
    free_parameters,
    log_prior,
    maximize,
    mean_log_likelihood,
    sum_counts,
    tied_states,
)
from .initial import random_guess, redrawn
from .labels import check_states, check_weights, paired
from .settings import FitSettings
from .state import (
    HISTORY_NAME,
    STEP_EXPONENT,
    Ending,
    FitResult,
    FitState,
    chosen_restart,
    identity_of,
    load_state,
    newest_checkpoint,
    save_state,
)

_MANY_SYMBOLS = 1 << 18  # more than vocabularies of words and of language models have

_logger = logging.getLogger(__name__)


def fit_hmm(
    tokens: Int[Any, "N L"],
    settings: FitSettings | None = None,
    *,
    num_symbols: int | None = None,
    lengths: Int[Any, "N"] | None = None,
    states: Int[Any, "N L"] | None = None,
    weights: Float[Any, "N"] | None = None,
    test_tokens: Int[Any, "M K"] | None = None,
    test_lengths: Int[Any, "M"] | None = None,
    initial: Model | None = None,
    vocabulary: Any = None,
    checkpoint_dir: str | os.PathLike | None = None,
    device: torch.device | str | None = None,
    show_progress: bool = True,
    requests: StopRequests | None = None,
    on_epoch: Callable[[dict[str, Any], Fitted], None] | None = None,
    **fields: Any,
) -> FitResult[Model]:
    """Fit an HMM to sequences by Baum-Welch.

    In a program launched on several processes, call it on every rank with the same arguments. Each rank processes its
    share of the batches, and all return the same result.

    Args:
        tokens (array of shape `(N, L)`): symbols; or of shape `(N, 1)` with `lengths` that sum to `N`, as hmmlearn has
            them. Those that are masked, NaN, NA or None, or -1, were not observed: the fit is to the others, and they
            alone are the tokens of "nats per token".
        settings ([`FitSettings`], *optional*): settings of the fit.
        num_symbols (`int`, *optional*): `E`; by default that of `initial` or `vocabulary`, or one more than the
            largest token.
        lengths (array of shape `(N,)`, *optional*): number of tokens in each row; the rest is padding.
        states (array of shape `(N, L)`, *optional*): known states, -1 or missing where not known. Counts and
            `train_log_likelihood` are those given tokens and known states together. If all are known, one step is the
            maximum.
        weights (array of shape `(N,)`, *optional*): how often each sequence counts, 0 or more; sequences of weight
            `k` count as `k` copies, in losses per token too.
        test_tokens, test_lengths (*optional*): held-out sequences, for early stopping and the choice among restarts.
        initial ([`HMM`] or [`BlockedHMM`], *optional*): first guess, instead of a random one; what is fitted is of
            its kind. Entries of 0 stay 0 whatever the pseudocounts, as in hmmlearn, so that the graph of a
            left-to-right model is kept; give small positive numbers for what the fit may fill. With `num_restarts` the
            guesses after the first have these zeros and the tables that are `fixed`, and all else drawn anew. States
            with equal emissions are not told apart, which the `reason` of the result says.
        vocabulary (sequence of `str`, *optional*): names of all symbols, also of those that do not occur, kept in the
            HMM; tokens may be names then.
        checkpoint_dir (path, *optional*): folder for the checkpoints `epoch-N/` and `history.jsonl`. If it has
            checkpoints of the same settings and data, the fit resumes from the newest.
        device (*optional*): where to compute; the CPU by default.
        show_progress (`bool`, *optional*, defaults to `True`): show a progress bar on rank 0.
        requests ([`~hmm_datasets.runtime.stop_requests.StopRequests`], *optional*): asked before every batch.
        on_epoch (callable, *optional*): called on rank 0 after each epoch with its row of the history, to which it may
            add numbers, and the HMM that the epoch started with.
        fields: fields of [`FitSettings`] by name, instead of `settings`; `num_states` is that of `initial` by default.

    Returns:
        [`FitResult`].

    Raises:
        `InputError`: there are no tokens, a token is outside the alphabet, the checkpoint is of another fit, the HMM
            cannot emit a sequence (with `pseudocount=0`), or expected counts are not finite.
        `Stopped`: `requests` asked to stop. In `checkpoint_dir` the fit is saved as it was before the current epoch.

    ```python
    >>> result = fit_hmm([[0, 1, 0, 1], [1, 0, 1, 0]], FitSettings(num_states=2, seed=2), show_progress=False)
    >>> bool(result.train_log_likelihood > -0.3)
    True
    >>> fit_hmm([[0], [1], [0], [1], [0]], lengths=[2, 3], num_states=2, show_progress=False).hmm
    HMM(2 states, 2 symbols, state-emitting)

    ```
    """
    settings = _settings(settings, initial, fields)
    names = vocabulary if vocabulary is not None or initial is None else initial.vocabulary
    names = None if names is None else tuple(map(str, names))
    tokens = symbols_of_names(tokens, names)
    states = states if states is None else _rows(states, lengths)[0]
    tokens, lengths = _rows(tokens, lengths)
    if test_tokens is not None:
        with errors_of_test_tokens():
            test_tokens, test_lengths = _rows(symbols_of_names(test_tokens, names), test_lengths)
    if num_symbols is not None:
        num_symbols = integer("num_symbols", num_symbols, 1, 31)
    elif initial is not None:
        num_symbols = initial.num_symbols
    elif names is not None:
        num_symbols = len(names)
    _check_initial(initial, settings, num_symbols)
    checked = _checked(tokens, num_symbols, lengths)
    num_symbols = num_symbols or _number_of_symbols(checked)
    data = _sequences(checked, num_symbols)
    if data.num_tokens == 0:
        raise InputError("there is no token to fit an HMM to; give at least one sequence")
    if data.shape[1] == 1 < min(data.shape[0], settings.num_states):
        raise InputError(f"no sequence has two tokens, so that no transition can be fitted{ONE_COLUMN}")
    data = _with_known(data, states, weights, settings, initial)
    held_out = None
    if test_tokens is not None:
        with errors_of_test_tokens():
            held_out = _sequences(_checked(test_tokens, num_symbols, test_lengths), num_symbols)
        if held_out.num_tokens == 0:
            raise InputError("test_tokens hold no token; give at least one held-out sequence, or None")
    folder = None if checkpoint_dir is None else Path(checkpoint_dir)
    with Workers(device, requests) as workers, contextlib.nullcontext() if folder is None else exclusive_lock(folder):
        fit = _Fit(
            settings,
            data,
            held_out,
            num_symbols,
            initial,
            vocabulary,
            folder,
            workers,
            show_progress,
            requests,
            on_epoch,
        )
        state = fit.resume_or_start()
        fit.run(state, fit.max_epochs, "Baum-Welch", settings.save_every)
        return fit.result(state)


def _settings(settings: Any, initial: Fitted | None, fields: dict[str, Any]) -> FitSettings:
    """The settings, or those that their fields make."""
    if (settings is not None and fields) or (settings is None and not fields and initial is None):
        raise InputError("fit_hmm: give settings, or num_states and other fields of FitSettings, and not both")
    if settings is None:
        known = FitSettings.__dataclass_fields__
        for name in fields:
            if name not in known:
                raise InputError(
                    f"fit_hmm: {name} is no argument and no field of FitSettings{suggestion(name, known)}"
                )
        sizes = {} if initial is None else {"num_states": initial.num_states}
        if "num_states" not in sizes | fields:
            raise InputError("fit_hmm: num_states is not given; give the number of hidden states, or initial")
        settings = FitSettings(**(sizes | fields))
    if not isinstance(settings, FitSettings):
        raise InputError(
            f"settings are {settings!r:.80}; expected FitSettings(num_states=H, ...), or num_states=H alone"
        )
    return settings


@contextlib.contextmanager
def errors_of_test_tokens() -> Iterator[None]:
    """A context whose errors say that they are about the held-out sequences."""
    try:
        yield
    except InputError as error:
        raise InputError(f"of the held-out sequences (test_tokens): {error}") from None


def _sequences(checked: CheckedTokens, num_symbols: int) -> Sequences:
    """The sequences on the CPU, symbol `E` where a token is missing."""
    tokens, lengths, has_missing = checked
    lengths = None if lengths is None else lengths.cpu()
    tokens = tokens.int() if tokens.ndim == 1 else tokens  # half the memory of those that may be many
    if not has_missing:
        return Sequences(tokens.cpu(), lengths)
    missing = tokens.cpu() < 0
    symbols = tokens.cpu().masked_fill(missing, num_symbols)
    if tokens.ndim == 1:
        return Sequences(
            symbols, lengths, lengths - torch.from_numpy(counts_in_rows(missing.numpy(), lengths.numpy()))
        )
    ends = torch.full((len(tokens),), tokens.shape[1]) if lengths is None else lengths
    return Sequences(symbols, lengths, ends - missing.sum(1))


def _with_known(
    data: Sequences, states: Any, weights: Any, settings: FitSettings, initial: Fitted | None
) -> Sequences:
    """The sequences with what is known of their states, and their weights."""
    if states is not None:
        if isinstance(initial, BlockedHMM):
            raise InputError(f"states are given, but initial is {initial}, whose fit takes none; leave them out")
        shape, ends = ((len(data.tokens), 1), None) if data.tokens.ndim == 1 else (data.shape, data.lengths)
        known = check_states(states, shape, ends, settings.num_states).reshape(data.tokens.shape)
        codes, pairs = paired(data.tokens, known, data.lengths)
        data = replace(data, tokens=codes, pairs=pairs)
    if weights is not None:
        data = replace(data, weights=check_weights(weights, data.shape[0]))
        if data.weight == 0:
            raise InputError("the sequences with a weight above 0 have no token; give one with tokens a weight")
    return data


def _number_of_symbols(checked: CheckedTokens) -> int:
    """One more than the largest token, unless the tokens are labels that are not numbered from 0 without gaps."""
    observed = checked.tokens >= 0
    if checked.lengths is not None and observed.ndim == 2:
        observed &= torch.arange(observed.shape[1], device=observed.device) < checked.lengths.unsqueeze(1)
    symbols = checked.tokens[observed]
    if len(symbols) == 0:
        return 1
    least, largest = int(symbols.min()), int(symbols.max())
    if largest >= _MANY_SYMBOLS and largest > 16 * len(used := symbols.unique()):
        raise InputError(
            f"the largest token is {largest:,}, so that the tables would have {largest + 1:,} columns, of which the "
            f"tokens use {len(used):,}; number the symbols without gaps, as "
            "numpy.unique(tokens, return_inverse=True)[1].reshape(tokens.shape) does, or give num_symbols"
        )
    if least == 1 < largest:
        raise InputError(
            f"tokens are 1..{largest}, but symbols are numbered from 0; subtract 1 from labels that begin with 1, or "
            f"give num_symbols={largest + 1} if 0 is a symbol that does not occur"
        )
    return largest + 1


@dataclass
class _Fit:
    settings: FitSettings
    data: Sequences
    held_out: Sequences | None
    num_symbols: int
    initial: Any
    vocabulary: Any
    folder: Path | None
    workers: Workers
    show_progress: bool
    requests: StopRequests | None
    on_epoch: Callable[[dict[str, Any], Fitted], None] | None

    def __post_init__(self):
        self.dtype = getattr(torch, self.settings.dtype)
        device, blocked = self.workers.device, isinstance(self.initial, BlockedHMM)
        if blocked:
            self.initial.check_device(device)
        width = self.settings.num_states if self.initial is None else self.initial.belief_width
        shape = self.data.shape
        if self.data.tokens.ndim == 1:  # of which long ones are taken alone
            shape = shape[0], -(-len(self.data.tokens) // shape[0])
        self.batch_size = self.settings.batch_size or batch_rows(shape, width, self.dtype, device, blocked=blocked)
        self.is_counted = self.data.is_labelled and not self.settings.update_every
        self.max_epochs = min(self.settings.max_epochs, 1) if self.is_counted else self.settings.max_epochs
        self.writes = self.folder is not None and self.workers.rank == 0
        self.show_progress = self.show_progress and self.workers.rank == 0
        self.identity = {}
        if self.folder is not None:
            self.identity = identity_of(
                self.settings, self.batch_size, self.num_symbols, self.data, self.held_out, self.initial
            )

    def resume_or_start(self) -> FitState:
        """The newest checkpoint; without one the first guess, or the best of several after a short run of each."""
        newest = None if self.folder is None else newest_checkpoint(self.folder)
        if newest is not None:
            state = load_state(newest, self.identity)
            self._write_history(state.history)
            return state
        count = self.settings.num_restarts
        if count == 1:
            self._write_history([])
            return FitState(self._first_guess(0))
        states = [load_state(folder, self.identity) for folder in self._finished_restarts()]
        self._write_history([row for state in states for row in state.history])
        states += [self._short_run(restart) for restart in range(len(states), count)]
        return chosen_restart(states)

    def run(self, state: FitState, until: int, title: str, save_every: int | None = None) -> None:
        """Run epochs until `until` are done or the fit has finished; save a checkpoint every `save_every` epochs."""
        num_tokens = (until - state.epoch) * self.data.num_tokens
        with progress_bar(num_tokens, " tokens", shown=self.show_progress, desc=title) as bar:
            seconds, measuring = 0.0, 0.0
            if state.epoch < until:
                bar.set_postfix_str("compiling, once on a machine", refresh=False)
                shown = threading.Timer(2.0, bar.refresh)  # no step of the bar would show it
                shown.start()
                try:
                    self._compile(state.hmm)
                finally:
                    shown.cancel()
            while state.epoch < until and state.ending(self.settings) is None:
                if self.requests is not None and self.workers.rank == 0:
                    # An epoch that the time limit would end is not begun.
                    self.requests.look(needed=seconds + measuring)
                heartbeats.enter("working", state.epoch + 1)
                began, before = time.monotonic(), (state.updates, copy.deepcopy(state.statistics))
                try:
                    before_epoch = state.hmm
                    row = self._epoch(state, bar, f"epoch {state.epoch + 1}/{until}")
                except Stopped:
                    state.updates, state.statistics = before
                    if self.writes and save_every is not None:
                        self._save(state)
                    raise
                seconds = time.monotonic() - began
                row["seconds_left"] = (seconds + measuring) * (until - state.epoch)
                if self.on_epoch is not None and self.workers.rank == 0:
                    self.on_epoch(row, before_epoch)
                    measuring = time.monotonic() - began - seconds
                last = state.epoch == until or state.ending(self.settings) is not None
                if self.writes:
                    append_jsonl(self.folder / HISTORY_NAME, row)
                    if save_every is not None and (last or state.epoch % save_every == 0):
                        self._save(state)

    def _compile(self, hmm: Fitted) -> None:
        """Count and score one token, so that no epoch's time has that of compiling the loops, which is seconds."""
        parameters = self.data.parameters(hmm, self.dtype, self.workers.device)
        tokens, lengths = self.data.rows(np.arange(1), self.workers.device)
        one = tokens[:, :1], None if lengths is None else lengths.clamp(max=tokens[:, :1].shape[1])
        self.workers.alone(lambda: (parameters.log_likelihood(*one), parameters.sums(*one, None)))

    def _save(self, state: FitState) -> None:
        folder = self.folder / f"epoch-{state.epoch}"
        if not folder.exists():
            save_state(folder, state, self.identity)

    def result(self, state: FitState) -> FitResult:
        """The last HMM, or the best on held-out data."""
        hmm, epoch = state.hmm, state.epoch
        test = None
        if self.held_out is not None:
            test = self._score(hmm, self.held_out)
            if test < state.best_score:
                hmm, epoch, test = state.best, state.best_epoch, state.best_score
        converged, reason = self._ending(state)
        # Zeros of the first guess are not fitted; those that EM reaches are.
        guess = random_guess(hmm.num_states, hmm.num_symbols) if self.initial is None else self.initial
        parameters = free_parameters(guess, self.settings.fixed)
        score = self._score(hmm, self.data)
        return FitResult(hmm, epoch, score, test, state.history, converged, reason, parameters, self.data.weight)

    def _ending(self, state: FitState) -> Ending:
        if self.is_counted and state.epoch > 0:
            return Ending(True, "all states are known, so that one step is the maximum")
        ending = state.ending(self.settings)
        if ending is None:
            values = state.objectives()
            last = f", the last of which gained {values[-1] - values[-2]:.2g} nats per token" if values[1:] else ""
            ending = Ending(False, f"max_epochs={self.settings.max_epochs} were done{last}")
        tied = self._still_tied(state.hmm)
        return ending if tied is None else Ending(ending.converged, f"{ending.reason}; {tied}")

    def _still_tied(self, hmm: Fitted) -> str | None:
        """That two states of `initial` have equal emissions after the fit too, since nothing tells them apart."""
        pair = tied_states(self.initial) if isinstance(self.initial, HMM) else None
        if pair is None or tied_states(hmm) is None:
            return None
        return (
            f"states {pair[0]} and {pair[1]} of initial emit symbols with equal probabilities, and Baum-Welch, which "
            "cannot tell them apart, has not moved them; start from emissions that differ, or leave initial out"
        )

    def _epoch(self, state: FitState, bar: Any, title: str) -> dict:
        began = time.perf_counter()
        row = {"epoch": state.epoch, "restart": state.restart, "seed": self.settings.seed + state.restart}
        if self.held_out is not None:
            row["test_log_likelihood"] = self._score(state.hmm, self.held_out)
        seen = 0.0

        def after_batch(log_likelihood: float, batch: np.ndarray) -> None:
            nonlocal seen
            seen += self.data.weight_of(batch)
            mean = log_likelihood / seen if seen > 0 else 0.0
            bar.set_postfix_str(f"{title}, {mean:z.4f} nats/token", refresh=False)
            bar.update(self.data.num_tokens_of(batch))

        hmm, log_likelihood = self._baum_welch_epoch(state, after_batch)
        if self.settings.update_every is None:
            row["log_posterior"] = log_likelihood + log_prior(state.hmm, self.settings.pseudocounts)
        row["train_log_likelihood"] = log_likelihood / self.data.weight
        prior = log_prior(state.hmm, self.settings.pseudocounts)
        row["objective"] = row["train_log_likelihood"] + prior / self.data.weight
        state.observe(row)
        state.hmm, state.epoch = hmm, state.epoch + 1
        if state.epoch == 1 and self.workers.rank == 0 and (tied := self._still_tied(hmm)) is not None:
            _logger.warning("%s", tied)
        row["updates"] = state.updates
        row["tokens"] = state.epoch * self.data.num_tokens
        row["seconds"] = time.perf_counter() - began
        row["tokens_per_second"] = self.data.num_tokens / row["seconds"]
        return row

    def _baum_welch_epoch(
        self, state: FitState, after_batch: Callable[[float, np.ndarray], None]
    ) -> tuple[Fitted, float]:
        hmm, before = state.hmm, 0.0
        for batches in self._updates(state.epoch):
            try:
                counts = sum_counts(
                    hmm,
                    self.data,
                    batches,
                    self.workers,
                    self.dtype,
                    lambda score, batch, before=before: after_batch(before + score, batch),
                )
            except ImpossibleSequence as error:
                raise InputError(f"{error}; {self._remedy_of_zeros()}") from None
            before += counts.log_likelihood
            hmm = self._update(state, hmm, counts)
        return hmm, before

    def _remedy_of_zeros(self) -> str:
        if self.data.pairs is not None and self.initial is not None:
            return "its known states need moves or symbols whose entry of initial is 0; give small positive numbers"
        if self.initial is not None and any((table == 0).any() for table in self.initial.tables().values()):
            return "entries of initial that are 0 stay 0: give small positive numbers for those that it needs"
        zero = [name for name, count in self.settings.pseudocounts.items() if count == 0]
        if zero:
            return "fit with " + ("pseudocount > 0" if len(zero) == 3 else f"{zero[0]}_pseudocount > 0")
        return "its probability underflows; fit with dtype float64, or shorter sequences"

    def _updates(self, epoch: int) -> list[list[np.ndarray]]:
        """The rows of every batch, for every update of an epoch."""
        rows, every = np.arange(self.data.shape[0]), self.settings.update_every
        if every is None:
            return [even_batches(rows, self.batch_size)]
        rows = np.random.default_rng([self.settings.seed, epoch]).permutation(rows)
        batches = even_batches(rows, self.batch_size)
        parts = np.array_split(np.arange(len(batches)), -(-len(batches) // every))
        return [[batches[number] for number in part] for part in parts]

    def _update(self, state: FitState, hmm: Fitted, counts: Statistics) -> Fitted:
        state.updates += 1
        if self.settings.update_every is not None and self.settings.update_rule == "stochastic":
            if state.statistics is None:
                state.statistics = Statistics.zeros(hmm.tables())
            step_size = state.updates**-STEP_EXPONENT
            state.statistics.move_towards(counts, step_size, self.data.num_sequences())
            counts = state.statistics
        return maximize(counts, hmm, self.settings.pseudocounts, self.settings.fixed)

    def _finished_restarts(self) -> list[Path]:
        folders = [] if self.folder is None else map(self._restart_folder, range(self.settings.num_restarts))
        return list(itertools.takewhile(Path.exists, folders))

    def _restart_folder(self, restart: int) -> Path:
        return self.folder / f"restart-{restart}"

    def _short_run(self, restart: int) -> FitState:
        state = FitState(self._first_guess(restart), restart)
        until = min(self.settings.restart_epochs, self.max_epochs)
        self.run(state, until, f"restart {restart + 1}/{self.settings.num_restarts}")
        if self.writes:
            save_state(self._restart_folder(restart), state, self.identity)
        return state

    def _first_guess(self, restart: int) -> Fitted:
        settings = self.settings
        if self.initial is not None:
            seed = settings.seed + restart
            hmm = self.initial if restart == 0 else redrawn(self.initial, settings.fixed, seed=seed)
        else:
            hmm = random_guess(settings.num_states, self.num_symbols, seed=settings.seed + restart)
        return hmm.with_tables(hmm.tables(), self.vocabulary)

    def _score(self, hmm: Fitted, data: Sequences) -> float:
        batches = even_batches(np.arange(data.shape[0]), self.batch_size)
        return mean_log_likelihood(hmm, data, batches, self.workers, self.dtype)

    def _write_history(self, rows: list[dict]) -> None:
        # Removes rows of epochs after the checkpoint, which will be computed again.
        if self.writes:
            write_jsonl(self.folder / HISTORY_NAME, rows)


def _check_initial(initial: Fitted | None, settings: FitSettings, num_symbols: int | None) -> None:
    if initial is None:
        if settings.fixed:
            raise InputError(f"fixed is {' and '.join(settings.fixed)}, but no HMM has these tables; give initial")
        return
    if isinstance(initial, BlockedHMM) and settings.num_restarts > 1:
        raise InputError(f"initial is {initial}, with which num_restarts is 1")
    is_other = isinstance(initial, HMM) and initial.edges is not None
    if (initial.num_states, initial.num_symbols) != (settings.num_states, num_symbols) or is_other:
        raise InputError(
            f"initial is {initial}; expected a state-emitting HMM of {settings.num_states} states and "
            f"{num_symbols} symbols"
        )


def _rows(tokens: Any, lengths: Any) -> tuple[Any, Any]:
    """Tokens and lengths, of which a column of sequences is made into rows unless those would be much larger."""
    if lengths is None or not is_column(tokens, lengths):
        return tokens, lengths
    rows = TokenRows.of_column(*checked_column(tokens, lengths))
    return rows.tokens, rows.lengths


def _checked(tokens: Any, num_symbols: int | None, lengths: Any) -> CheckedTokens:
    """The checked tokens, of shape `(N, L)`, or of a column `(M,)`."""
    if lengths is None or not is_column(tokens, lengths):
        return tokens_with_gaps(tokens, num_symbols, lengths)
    lengths = np.asarray(lengths, np.int64)
    try:
        checked = tokens_with_gaps(tokens, num_symbols)
    except InputError as error:
        raise InputError(re.sub(r"\[(\d+), 0\]", lambda at: place_in_rows(int(at[1]), lengths), str(error))) from None
    return CheckedTokens(checked.tokens.ravel(), torch.from_numpy(lengths), checked.has_missing)
