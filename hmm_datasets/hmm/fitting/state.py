"""Where a fit stands: in memory, on disk, and when it is over.

A checkpoint is a folder `epoch-N/` that appears whole or not at all: the HMM, the best one so far, the statistics that
stochastic EM carries from update to update, the history, and what was fitted to what. It holds all that the rest of
the fit depends on, so a resumed fit is the undisturbed one to the last bit.
"""

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ...files import atomic_folder, read_json, write_json
from ...identity import Identity, check_folder_identity, write_identity
from ..model import HMM
from .baum_welch import Sequences, Statistics
from .settings import FitSettings

HISTORY_NAME = "history.jsonl"
_STATISTICS_NAME = "statistics.safetensors"

# What may differ between the runs of one fit: how long it goes on, and how it is cut up.
_FREE = {"max_epochs", "tolerance", "patience", "save_every"}


@dataclass
class FitState:
    """The current HMM, the best on held-out data, and a row for every epoch so far.

    Attributes:
        hmm ([`HMM`]): the tables now.
        restart (`int`): which first guess it grew from.
        best ([`HMM`]), best_epoch (`int`), best_score (`float`): the best on held-out data, nats per token.
        epoch (`int`): epochs done.
        updates (`int`): times the tables were updated.
        statistics ([`Statistics`] or `None`): of stochastic EM, once there are any.
        model (`Any`): what the pomegranate backend keeps from epoch to epoch; not saved.
        history (list of `dict`): rows, those of the other first guesses before them.
    """

    hmm: HMM
    restart: int = 0
    best: HMM | None = None
    best_epoch: int = 0
    best_score: float = -math.inf
    epoch: int = 0
    updates: int = 0
    statistics: Statistics | None = None
    model: Any = None
    history: list[dict] = field(default_factory=list)

    def observe(self, row: dict) -> None:
        """Take the row of the epoch about to end, and keep the HMM it began with if that is the best yet."""
        self.history.append(row)
        if row.get("test_log_likelihood", -math.inf) > self.best_score:
            self.best, self.best_epoch, self.best_score = self.hmm, self.epoch, row["test_log_likelihood"]

    def rows(self) -> list[dict]:
        """The rows of this first guess."""
        return [row for row in self.history if row["restart"] == self.restart]

    def finished(self, settings: FitSettings) -> bool:
        """Whether an epoch gained too little, or held-out data gained nothing for too long."""
        rows = self.rows()
        if len(rows) < 2:
            return False
        gain = rows[-1]["train_log_likelihood"] - rows[-2]["train_log_likelihood"]
        stale = "test_log_likelihood" in rows[-1] and self.epoch - 1 - self.best_epoch >= settings.patience
        return stale or abs(gain) < settings.tolerance


@dataclass(frozen=True)
class FitResult:
    """What `fit_hmm` found.

    Attributes:
        hmm ([`HMM`]): the fitted model, the best on held-out data where there was some.
        epoch (`int`): the epochs it has behind it.
        train_log_likelihood (`float`): nats per token on the training data under `hmm`.
        test_log_likelihood (`float` or `None`): the same on held-out data.
        history (list of `dict`): a row per epoch, as in `history.jsonl`: `epoch`, counted from 0; `restart` and `seed`
            of the first guess; `train_log_likelihood`, and `log_posterior` (nats, all tokens) where an epoch is one
            update, of the HMM the epoch began with (with `update_every`, of the HMMs of the moment);
            `test_log_likelihood` of the HMM it began with; `updates` so far; `tokens_per_second`.
    """

    hmm: HMM
    epoch: int
    train_log_likelihood: float
    test_log_likelihood: float | None
    history: list[dict]


def identity_of(
    settings: FitSettings,
    batch_size: int,
    num_symbols: int,
    data: Sequences,
    held_out: Sequences | None,
    initial: HMM | None,
) -> dict[str, dict[str, Any]]:
    """What a checkpoint must agree on with the fit that goes on from it."""
    free = _FREE | {"batch_size"}
    chosen = {name: value for name, value in vars(settings).items() if name not in free}
    if settings.update_every is not None:
        chosen["batch_size"] = batch_size  # where every update sees a few batches, their size matters
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
    """Write a checkpoint, whole or not at all."""
    from safetensors.numpy import save_file

    with atomic_folder(folder) as temporary:
        state.hmm.save_pretrained(temporary / "hmm")
        if state.best is not None:
            state.best.save_pretrained(temporary / "best")
        if state.statistics is not None:
            save_file(state.statistics.tables(), temporary / _STATISTICS_NAME)
        write_json(
            temporary / "state.json",
            {
                "epoch": state.epoch,
                "restart": state.restart,
                "updates": state.updates,
                "best_epoch": state.best_epoch,
                "best_score": None if math.isinf(state.best_score) else state.best_score,
                "history": state.history,
            },
        )
        write_identity(temporary, identity)


def load_state(folder: Path, identity: Identity) -> FitState:
    """Read a checkpoint back.

    Raises:
        `InputError`: it is of another fit, or not whole.
    """
    from safetensors.numpy import load_file

    saved = read_json(folder / "state.json")
    check_folder_identity(folder, identity, accepted=None, remedy="choose another folder, or delete that one")
    score, best, statistics = saved["best_score"], folder / "best", folder / _STATISTICS_NAME
    return FitState(
        hmm=HMM.from_pretrained(folder / "hmm"),
        restart=saved["restart"],
        best=HMM.from_pretrained(best) if best.exists() else None,
        best_epoch=saved["best_epoch"],
        best_score=-math.inf if score is None else score,
        epoch=saved["epoch"],
        updates=saved["updates"],
        statistics=Statistics(**load_file(statistics)) if statistics.exists() else None,
        history=saved["history"],
    )


def newest_checkpoint(folder: Path) -> Path | None:
    """The `epoch-N` of the greatest N."""
    epochs = [int(path.name.removeprefix("epoch-")) for path in folder.glob("epoch-*") if path.is_dir()]
    return folder / f"epoch-{max(epochs)}" if epochs else None


def chosen_restart(states: Sequence[FitState]) -> FitState:
    """The state whose last row is likeliest, on held-out data where there is some; it takes over all rows."""

    def score(state: FitState) -> float:
        row = state.rows()[-1]
        return row.get("test_log_likelihood", row["train_log_likelihood"])

    best = max(states, key=score)
    best.history = [row for state in states for row in state.rows()]
    return best


def _digest(data: Sequences) -> str:
    """SHA-256 of the data (32 hexadecimal digits)."""
    digest = hashlib.sha256(str(tuple(data.tokens.shape)).encode())
    for table in (data.tokens, data.lengths):
        if table is not None:
            digest.update(np.ascontiguousarray(table.numpy(), dtype="<i8"))
    return digest.hexdigest()[:32]
