"""The state of a fit, its checkpoints on disk, and the rule that ends it.

A checkpoint is a folder `epoch-N/` that is written atomically. It has the HMM, the best one so far, the statistics
that stochastic EM keeps from update to update, the history, and the identity of settings and data. That is everything
the rest of the fit depends on, so a resumed fit is bit-identical to an uninterrupted one.

EM converges linearly near a maximum, often slowly, and on a plateau it may gain less per epoch than it will later. So
a small gain of one epoch does not show that a fit has converged. A fit ends when what is left to gain is less than
`tolerance`, by Aitken's estimate over steps of five epochs: where the last five gained `b`, and the five before them
`a > b`, it is `b^2 / (a - b)` (Böhning, Dietz, Schaub, Schlattmann and Lindsay, Ann. Inst. Stat. Math. 46, 1994).
While gains grow there is no estimate. It is of the maximum that this first guess leads to; another may lead to a
higher one.
Updates of stochastic EM have noise and shrink as a power of their number, so that such an estimate fails: with
`update_every` a fit ends when five epochs together gained less than `tolerance`.
"""

import hashlib
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, NamedTuple

import numpy as np

from ...errors import InputError
from ...files import atomic_folder, check_digests, restore_all, write_digests, write_json
from ...records import Count, Finite, read_record
from ...runtime.run_identity import IDENTITY_NAME, Identity, check_identity, read_identity, write_identity
from ..arrays import rows_from
from ..process_storage import load_process
from ..storage import read_tables
from .baum_welch import Fitted, Model, Sequences, Statistics, even_batches
from .settings import FitSettings

HISTORY_NAME = "history.jsonl"
_STATISTICS_NAME = "statistics.safetensors"
_MOST_PADDED, _PADDED_TOGETHER = 1 << 27, 1 << 18  # tokens

_STEP = 5  # epochs, over which rounding of float32 is far below the gains

STEP_EXPONENT = 0.6
"""Update `t` of stochastic EM, counted from 1, has the step size `t**-STEP_EXPONENT`."""

# Settings that may differ between the runs of one fit, because they change only how long it runs and what it saves.
_FREE = {"max_epochs", "tolerance", "patience", "save_every"}


class Ending(NamedTuple):
    """Whether a fit ended because it had converged, and the reason as a sentence."""

    converged: bool
    reason: str


@dataclass
class FitState:
    """The current HMM, the best on held-out data, and a row for every epoch so far.

    Attributes:
        hmm ([`HMM`]): the current tables.
        restart (`int`): index of the first guess that the fit started from.
        best ([`HMM`]), best_epoch (`int`), best_score (`float`): the best on held-out data, nats per token.
        epoch (`int`): epochs done.
        updates (`int`): number of updates of the tables.
        statistics ([`Statistics`] or `None`): statistics of stochastic EM, after its first update.
        history (list of `dict`): a row per epoch; for several first guesses, the rows of all of them.
    """

    hmm: Fitted
    restart: int = 0
    best: Fitted | None = None
    best_epoch: int = 0
    best_score: float = -math.inf
    epoch: int = 0
    updates: int = 0
    statistics: Statistics | None = None
    history: list[dict] = field(default_factory=list)

    def observe(self, row: dict) -> None:
        """Add the row of the epoch about to end, and keep the HMM it started with if that is the best so far."""
        self.history.append(row)
        if row.get("test_log_likelihood", -math.inf) > self.best_score:
            self.best, self.best_epoch, self.best_score = self.hmm, self.epoch, row["test_log_likelihood"]

    def rows(self) -> list[dict]:
        """The rows of the history that belong to this first guess."""
        return [row for row in self.history if row["restart"] == self.restart]

    def objectives(self) -> list[float]:
        """What the updates maximize, in nats per token, of the last epochs that [`left`] compares."""
        rows = self.rows()[-2 * _STEP - 1 :]
        # Rows of fits that began before it was written have no objective.
        name = "objective" if all("objective" in row for row in rows) else "train_log_likelihood"
        return [row[name] for row in rows]

    def left(self, settings: FitSettings) -> float:
        """Aitken's estimate of what is left to gain, in nats per token, or what the last epochs gained if that is
        more or updates are stochastic; infinite while gains grow, and before there are enough epochs."""
        values = self.objectives()
        if len(values) <= 2 * _STEP:
            return math.inf
        before, last = abs(values[_STEP] - values[0]), abs(values[-1] - values[_STEP])
        if last == 0 or settings.update_every:
            return last
        return max(last, last**2 / (before - last)) if last < before else math.inf

    def ending(self, settings: FitSettings) -> Ending | None:
        """Why the fit is finished: what is left to gain is less than the tolerance, or held-out data has not improved
        for too long. None if it is not."""
        left, stale = self.left(settings), self.epoch - 1 - self.best_epoch
        if left < settings.tolerance:
            of = "log-posterior" if any(settings.pseudocounts.values()) else "log-likelihood"
            reason = f"an estimated {left:.2g} nats per token of the {of} are left to gain from this first guess"
            if settings.update_every:
                reason = f"the last {_STEP} epochs changed the {of} by {left:.2g} nats per token"
            return Ending(True, f"{reason}, less than tolerance={settings.tolerance:g}")
        if self.epoch > 1 and "test_log_likelihood" in self.rows()[-1] and stale >= settings.patience:
            return Ending(False, f"held-out data had not improved for {stale} epochs, patience={settings.patience}")
        return None


@dataclass(frozen=True)
class FitResult(Generic[Model]):
    """The result of `fit_hmm`.

    Attributes:
        hmm ([`HMM`]): the fitted model; if there is held-out data, the best on it.
        epoch (`int`): number of epochs after which `hmm` was reached.
        train_log_likelihood (`float`): nats per observed token on the training data under `hmm`.
        test_log_likelihood (`float` or `None`): the same on held-out data.
        converged (`bool`): whether the fit ended because an estimate of what is left to gain is below `tolerance`, and
            not at `max_epochs` or because held-out data no longer improved. The maximum is a local one.
        reason (`str`): why it ended, in a sentence, which also names states that the fit cannot tell apart.
        history (list of `dict`): a row per epoch, as in `history.jsonl`. It has `epoch`, counted from 0; `restart` and
            `seed` of the first guess; `train_log_likelihood` of the HMM that the epoch started with (with
            `update_every`, of the changing HMM); `log_posterior` (nats, all tokens) of the same HMM, without
            `update_every`; `objective`, the log-likelihood and the log-density of the prior, which the fit maximizes
            and stops by (nats per token); `test_log_likelihood` of the HMM that the epoch started with; `updates` so
            far; `tokens` seen by its end; `seconds` that it took and `seconds_left`, the time until `max_epochs` at
            that pace; `tokens_per_second`; and what `on_epoch` added.
        num_parameters (`int`): free parameters: entries of the tables that are fitted, without zeros of `initial` and
            one for each row, since rows sum to one.
        num_tokens (`float`): tokens of the training data, each times the weight of its sequence.
    """

    hmm: Model
    epoch: int
    train_log_likelihood: float
    test_log_likelihood: float | None
    history: list[dict]
    converged: bool = False
    reason: str = ""
    num_parameters: int = 0
    num_tokens: float = 0.0

    @property
    def aic(self) -> float:
        """The information criterion of Akaike (IEEE Trans. Autom. Control 19, 1974): `2 k - 2 log L`, in nats.

        `k` is `num_parameters`, and `L` the likelihood of the training data, of which EM has a local maximum, or of
        the posterior if there are pseudocounts.
        """
        return 2 * self.num_parameters - 2 * self.train_log_likelihood * self.num_tokens

    @property
    def bic(self) -> float:
        """The criterion of Schwarz (Ann. Stat. 6, 1978): `k log n - 2 log L`, in nats, for `n` tokens."""
        penalty = self.num_parameters * math.log(self.num_tokens)
        return penalty - 2 * self.train_log_likelihood * self.num_tokens


def identity_of(
    settings: FitSettings,
    batch_size: int,
    num_symbols: int,
    data: Sequences,
    held_out: Sequences | None,
    initial: Fitted | None,
) -> dict[str, dict[str, Any]]:
    """The settings and data that must be the same for a fit to resume from a checkpoint."""
    free = _FREE | {"batch_size"}
    chosen = {name: value for name, value in vars(settings).items() if name not in free}
    chosen |= {"backend": "torch", "step_exponent": STEP_EXPONENT}  # as in fits that began when there was a choice
    chosen["fixed"] = settings.fixed or None  # fits that began before there was this setting have none of it
    if settings.update_rule == "stochastic":
        del chosen["update_rule"]  # as in fits that began before there was a choice
    if settings.update_every is not None:
        chosen["batch_size"] = batch_size  # the batch size decides which sequences an update sees
    return {
        "settings": chosen,
        "data": {
            "num_symbols": num_symbols,
            "train": _digest(data),
            "test": None if held_out is None else _digest(held_out),
            "initial": None if initial is None else initial.fingerprint(),
        },
    }


def save_state(folder: Path, state: FitState, identity: Identity) -> None:
    """Write a checkpoint atomically."""
    from safetensors.numpy import save_file

    with atomic_folder(folder) as temporary:
        state.hmm.save_pretrained(temporary / "hmm")
        if state.best is not None:
            state.best.save_pretrained(temporary / "best")
        if state.statistics is not None:
            save_file(state.statistics.tables, temporary / _STATISTICS_NAME)
        saved = {name: getattr(state, name) for name in _Saved.__dataclass_fields__}
        saved["best_score"] = None if math.isinf(state.best_score) else state.best_score
        write_json(temporary / "state.json", saved)
        write_identity(temporary, identity)
        write_digests(temporary)


def load_state(folder: Path, identity: Identity) -> FitState:
    """Read a checkpoint.

    Raises:
        `InputError`: the checkpoint is of another fit, incomplete, or has changed since it was written.
    """
    remedy = f"delete {folder} to continue from the checkpoint before it"
    saved = read_record(folder / "state.json", _Saved, remedy)
    check_digests(folder, remedy)
    before = read_identity(folder)
    if "settings" in before:  # without those that do not exist any more, if they had no effect
        known, before["settings"] = FitSettings.__dataclass_fields__, dict(before["settings"])
        before["settings"].pop("init", None)  # which is of no effect after the first guess
        before["settings"] = {name: value for name, value in before["settings"].items() if name in known or value}
    check_identity(
        folder / IDENTITY_NAME, before, identity, accepted=None, remedy="choose another folder, or delete that one"
    )
    best, statistics = folder / "best", folder / _STATISTICS_NAME
    hmm = load_process(folder / "hmm")
    found = vars(saved) | {"best_score": -math.inf if saved.best_score is None else saved.best_score}
    return FitState(
        hmm=hmm,
        best=load_process(best) if best.exists() else None,
        statistics=_read_statistics(statistics, hmm) if statistics.exists() else None,
        **found,
    )


@dataclass(frozen=True)
class _Saved:
    """What `state.json` of a checkpoint holds: fields of [`FitState`], of which `best_score` is null if it is -inf."""

    epoch: Count
    restart: Count
    updates: Count
    best_epoch: Count
    best_score: Finite | None
    history: list[dict[str, Any]]


def _read_statistics(path: Path, hmm: Fitted) -> Statistics:
    """The statistics of stochastic EM, which are counts of an HMM of this size."""
    expected, saved = Statistics.zeros(hmm.tables()).tables, read_tables(path)
    for name in expected.keys() | saved.keys():
        table, like = saved.get(name), expected.get(name)
        if table is None or like is None or (table.shape, table.dtype) != (like.shape, like.dtype):
            raise InputError(f"{path}: {name} is not a table of counts of {hmm}; delete {path.parent}")
        if not (np.isfinite(table) & (table >= 0)).all():
            raise InputError(f"{path}: {name} has entries that are no counts; delete {path.parent}")
    return Statistics(saved)


def checkpoints(folder: Path) -> list[tuple[int, Path]]:
    """Number of epochs and folder of every checkpoint `epoch-N`, in ascending order."""
    restore_all(folder)
    folders = [path for path in folder.glob("epoch-*") if path.is_dir() and path.name[6:].isdecimal()]
    return sorted((int(path.name[6:]), path) for path in folders)


def newest_checkpoint(folder: Path) -> Path | None:
    """The checkpoint with the most epochs, if there is one."""
    epochs = checkpoints(folder)
    return epochs[-1][1] if epochs else None


def chosen_restart(states: Sequence[FitState]) -> FitState:
    """The state whose last row has the highest log-likelihood on held-out data, or without them the highest objective.

    Its history becomes the rows of all states.
    """

    def score(state: FitState) -> float:
        row = state.rows()[-1]
        return row.get("test_log_likelihood", row.get("objective", row["train_log_likelihood"]))

    best = max(states, key=score)
    best.history = [row for state in states for row in state.rows()]
    return best


def _digest(data: Sequences) -> str:
    """SHA-256 of the data (32 hexadecimal digits)."""
    digest = hashlib.sha256(str(data.shape).encode())
    parts = [data.tokens.numpy()]
    if data.tokens.ndim == 1 and math.prod(data.shape) < _MOST_PADDED:  # as fits that padded such rows have it
        batches = even_batches(np.arange(data.shape[0]), max(1, _PADDED_TOGETHER // data.shape[1]))
        lengths = data.lengths.numpy()
        parts = (rows_from(data.tokens.numpy(), data.starts[rows], lengths[rows], data.shape[1]) for rows in batches)
    for table in itertools.chain(parts, [] if data.lengths is None else [data.lengths.numpy()]):
        digest.update(np.ascontiguousarray(table, dtype="<i8"))
    if data.pairs is not None:
        digest.update(np.stack([data.pairs.symbols, data.pairs.states]).astype("<i8"))
    if data.weights is not None:
        digest.update(np.ascontiguousarray(data.weights.numpy(), dtype="<f8"))
    return digest.hexdigest()[:32]
