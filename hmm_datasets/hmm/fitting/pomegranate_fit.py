"""An epoch of Baum-Welch by pomegranate (1.x), with the settings and the result of `fit_hmm`.

An epoch calls pomegranate's `summarize` on each batch and then `from_summaries`, as pomegranate's own `fit` does. It
computes in float32 and needs tables `(B, T, H, H)`. Beside the three tables it learns end probabilities, which give
the length of a sequence a distribution: a row of transitions and its end sum to one. The pomegranate model keeps its
ends from epoch to epoch. The HMM made from it leaves them out and rescales the rows
([`~hmm_datasets.hmm.convert.from_pomegranate`] with `ends="drop"`). So `train_log_likelihood` in the history is that
of pomegranate and includes the ends, except in the first row, where the model has none. On held-out data and in the
result the log-likelihood is that of the HMM.
"""

import os
from collections.abc import Callable, Iterator

import numpy as np
import torch
from jaxtyping import Int

from ...errors import InputError
from ..convert import from_pomegranate, to_pomegranate
from ..model import HMM
from .baum_welch import Sequences, even_batches
from .settings import FitSettings
from .state import FitState

_TABLE_BYTES = 1 << 28  # of one table (B, T, H, H) in float32; pomegranate keeps a few of them


def check_pomegranate(
    settings: FitSettings,
    checkpoint_dir: str | os.PathLike | None,
    num_ranks: int,
    initial: HMM | None = None,
    data: Sequences | None = None,
) -> None:
    """Check that pomegranate supports the settings and the data.

    Raises:
        `InputError`: a setting is not supported; the message names the first one.
    """
    if settings.pseudocount > 0:
        raise InputError(
            f"pseudocount is {settings.pseudocount}, but pomegranate has a prior on emissions only; set pseudocount "
            "to 0, and emission_pseudocount for that"
        )
    if settings.pseudocounts["emission"] > 0 and initial is not None and (initial.emission == 0).any():
        state, symbol = np.argwhere(initial.emission == 0)[0].tolist()
        raise InputError(
            f"initial.emission[{state}, {symbol}] is 0, which pomegranate's prior would fill; set "
            "emission_pseudocount to 0, or use backend torch, which keeps it"
        )
    if data is not None and data.observed is not None:
        place = (data.tokens == data.tokens.max()).nonzero()[0].tolist()  # symbol `E` is the largest
        raise InputError(
            f"tokens{place} is missing, which the pomegranate backend does not take; leave such sequences "
            "out, or use backend torch"
        )
    refused = (
        ("fixed", settings.fixed or None, "updates all tables"),
        ("update_every", settings.update_every, "has no stochastic EM"),
        ("dtype", settings.dtype if settings.dtype == "float64" else None, "computes in float32"),
        ("checkpoint_dir", checkpoint_dir, "cannot resume a fit here"),
        ("the number of processes", num_ranks if num_ranks > 1 else None, "fits on one"),
    )
    for name, value, reason in refused:
        if value is not None:
            raise InputError(f"{name} is {value}, but pomegranate {reason}; leave it out, or use backend torch")


def pomegranate_epoch(
    state: FitState,
    data: Sequences,
    settings: FitSettings,
    device: torch.device,
    after_batch: Callable[[float, Int[np.ndarray, "B"]], None],
) -> tuple[HMM, float]:
    """One step of EM; returns the HMM after it, and pomegranate's log-likelihood (nats, all tokens) before it.

    Raises:
        `InputError`: a sequence has only one token, a sequence is impossible, or a table is no longer finite.
    """
    if state.model is None:
        state.model = to_pomegranate(HMM(**state.hmm.tables())).to(device)
        for node in state.model.distributions:
            node.pseudocount = settings.pseudocounts["emission"]
    total = 0.0
    for number, (rows, length) in enumerate(_batches(data, settings)):
        if length == 1:
            raise InputError(f"sequence {rows[0]} has 1 token, but pomegranate needs 2 or more; use backend torch")
        tokens = data.rows(rows, device)[0][:, :length].unsqueeze(-1)
        scores = state.model.summarize(tokens)
        if not torch.isfinite(scores).all():
            row = rows[int((~torch.isfinite(scores)).int().argmax())]
            raise InputError(f"batch {number}, sequence {row}: pomegranate gives it probability 0 or NaN")
        total += float(scores.double().sum())
        after_batch(total, rows)
    state.model.from_summaries()
    state.updates += 1
    emission = torch.stack([node.probs for node in state.model.distributions])
    tables = {"start": state.model.starts, "transition": state.model.edges, "ends": state.model.ends}
    for name, table in ({name: values.exp() for name, values in tables.items()} | {"emission": emission}).items():
        if not torch.isfinite(table).all():
            raise InputError(f"epoch {state.epoch}: pomegranate's {name} table is not finite; use backend torch")
    hmm = from_pomegranate(state.model, ends="drop")
    return HMM(**hmm.tables(), vocabulary=state.hmm.vocabulary), total


def _batches(data: Sequences, settings: FitSettings) -> Iterator[tuple[Int[np.ndarray, "B"], int]]:
    """Batches of rows of equal length, and their length."""
    lengths = np.full(*data.shape) if data.lengths is None else data.lengths.numpy()
    for length in np.unique(lengths[lengths > 0]).tolist():
        size = settings.batch_size or max(1, _TABLE_BYTES // (4 * length * settings.num_states**2))
        for rows in even_batches(np.flatnonzero(lengths == length), size):
            yield rows, length
