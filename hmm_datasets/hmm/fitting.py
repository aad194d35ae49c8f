"""Learning an HMM: Baum-Welch with Dirichlet priors, batched, over one process or many, resumable.

The E-step runs the scaled forward and backward recursions over batches of sequences and accumulates expected counts
as matrix products: transitions as `sum_t (belief * emission)^T backward`, an `(H, H)` table, never `(B, T, H, H)`.
The M-step is the posterior mode of each row under a symmetric Dirichlet whose pseudocounts keep every probability
positive (Baum, Petrie, Soules and Weiss, Ann. Math. Stat. 41, 1970; Rabiner 1989, eqs. 40a-c; MAP form: Gauvain and
Lee, IEEE Trans. Speech Audio Process. 2, 1994). Each step cannot lower the log-posterior that `History` rows carry.

One step costs `O(N L H^2)` in products that BLAS runs; memory is `O(B L H)` for one batch. Under a launcher every rank
takes its share of the batches and the counts are summed, in float64.
"""

import hashlib
import math
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from ..errors import InputError
from ..files import append_jsonl, atomic_folder, read_json, write_json, write_jsonl
from . import inference
from .checks import as_tokens
from .model import HMM

HISTORY_NAME = "history.jsonl"


@dataclass(frozen=True)
class FitSettings:
    """How to fit.

    Args:
        num_states (`int`): `H`.
        max_steps (`int`, *optional*, defaults to 100): passes over the data at most.
        tolerance (`float`, *optional*, defaults to 1e-5): stop when a step gains less, in nats a token.
        patience (`int`, *optional*, defaults to 5): with held-out data, stop after so many steps without a gain there;
            the best HMM on the held-out data is returned.
        pseudocount (`float`, *optional*, defaults to 1e-2): added to every expected count of the three tables.
        batch_size (`int`, *optional*, defaults to 512): sequences in memory at once; the result does not depend on it
            but for rounding.
        seed (`int`, *optional*, defaults to 0): of the random first guess.
        save_every (`int`, *optional*, defaults to 10): steps between checkpoints, where a folder is given.
    """

    num_states: int
    max_steps: int = 100
    tolerance: float = 1e-5
    patience: int = 5
    pseudocount: float = 1e-2
    batch_size: int = 512
    seed: int = 0
    save_every: int = 10

    def __post_init__(self):
        for name, least in (
            ("num_states", 1),
            ("max_steps", 0),
            ("patience", 1),
            ("batch_size", 1),
            ("save_every", 1),
        ):
            if getattr(self, name) < least:
                raise InputError(f"{name} is {getattr(self, name)}; expected {least} or more")
        for name in ("pseudocount", "tolerance"):
            if not (math.isfinite(getattr(self, name)) and getattr(self, name) >= 0):
                raise InputError(f"{name} is {getattr(self, name)}; expected a finite number, 0 or more")


@dataclass(frozen=True)
class FitResult:
    """What `fit_hmm` found.

    Attributes:
        hmm ([`HMM`]): the fitted model, the best on held-out data where there was some.
        step (`int`): the step it comes from.
        train_log_likelihood (`float`): nats a token on the training data under `hmm`.
        test_log_likelihood (`float` or `None`): the same on held-out data.
        history (list of `dict`): a row a step: `step`, `train_log_likelihood`, `log_posterior`,
            `test_log_likelihood`, `tokens_per_second`.
    """

    hmm: HMM
    step: int
    train_log_likelihood: float
    test_log_likelihood: float | None
    history: list[dict]


def fit_hmm(
    tokens: Int[Any, "N L"],
    settings: FitSettings,
    *,
    num_symbols: int | None = None,
    lengths: Int[Any, "N"] | None = None,
    test_tokens: Int[Any, "M K"] | None = None,
    test_lengths: Int[Any, "M"] | None = None,
    initial: HMM | None = None,
    vocabulary: Any = None,
    checkpoint_dir: str | os.PathLike | None = None,
    device: torch.device | str | None = None,
    progress: bool = True,
) -> FitResult:
    """Fit an HMM to sequences by Baum-Welch.

    Call it on every rank of a launched program with the same arguments: each takes its share and all return the same.

    Args:
        tokens (array of shape `(N, L)`): symbols.
        settings ([`FitSettings`]): how.
        num_symbols (`int`, *optional*): `E`; one more than the largest token by default.
        lengths (array of shape `(N,)`, *optional*): tokens that count in each row.
        test_tokens, test_lengths (*optional*): held-out sequences, for early stopping.
        initial ([`HMM`], *optional*): first guess; random by default (see [`random_guess`]).
        vocabulary (sequence of `str`, *optional*): names of the symbols, kept in the HMM.
        checkpoint_dir (path, *optional*): where `step-N/` checkpoints and `history.jsonl` go. If checkpoints of the
            same settings and data are there, the fit goes on from the newest.
        device (*optional*): where to compute; float64 on the CPU by default.
        progress (`bool`, *optional*, defaults to `True`): show a progress bar on rank 0.

    Returns:
        [`FitResult`].

    Raises:
        `InputError`: no tokens, tokens outside the alphabet, a checkpoint of another fit, or a sequence that the
            HMM cannot emit (with `pseudocount=0`); it names the batch.
    """
    values, lengths = as_tokens(tokens, num_symbols or _count_symbols(tokens), lengths)
    if values.numel() == 0 or (lengths is not None and int(lengths.sum()) == 0):
        raise InputError("there is no token to fit an HMM to; give at least one sequence")
    num_symbols = num_symbols or int(values.max()) + 1
    held_out = None if test_tokens is None else as_tokens(test_tokens, num_symbols, test_lengths)
    if held_out is not None and (held_out[0].numel() if held_out[1] is None else int(held_out[1].sum())) == 0:
        raise InputError("test_tokens hold no token; give at least one held-out sequence, or None")
    num_tokens = values.numel() if lengths is None else int(lengths.sum())
    hmm = initial or random_guess(settings.num_states, num_symbols, seed=settings.seed)
    if (hmm.num_states, hmm.num_symbols) != (settings.num_states, num_symbols) or hmm.edges is not None:
        raise InputError(
            f"initial is {hmm}; expected a state-emitting HMM of {settings.num_states} states and "
            f"{num_symbols} symbols"
        )
    if vocabulary is not None:
        hmm = HMM(**hmm.tables(), vocabulary=vocabulary)
    rank = int(os.environ.get("RANK", "0")) if _is_distributed() else 0
    folder = None if checkpoint_dir is None else Path(checkpoint_dir)
    state = _State(hmm, best=hmm)
    identity = {}
    if folder is not None:
        identity = {
            "settings": _identity(settings),
            "data": _digest(values, lengths),
            "test data": None if held_out is None else _digest(*held_out),
            "num_symbols": num_symbols,
            "initial": hmm.fingerprint(),
        }
        state = _load_newest(folder, identity) or state
        if rank == 0:
            # Rows of steps after the checkpoint are about to be written again.
            write_jsonl(folder / HISTORY_NAME, state.history)

    bar = _progress_bar(settings, state.step, progress and rank == 0)
    while state.step < settings.max_steps and not state.finished(settings):
        began = time.perf_counter()
        counts = _expected_counts(state.hmm, values, lengths, settings.batch_size, device)
        row = {
            "step": state.step,
            "train_log_likelihood": counts.log_likelihood / num_tokens,
            "log_posterior": counts.log_likelihood + _log_prior(state.hmm, settings.pseudocount),
        }
        if held_out is not None:
            row["test_log_likelihood"] = _log_likelihood(state.hmm, *held_out, settings.batch_size, device)
        state.observe(row)
        state.hmm = _maximize(counts, state.hmm, settings.pseudocount)
        state.step += 1
        row["tokens_per_second"] = num_tokens / (time.perf_counter() - began)
        if rank == 0 and folder is not None:
            append_jsonl(folder / HISTORY_NAME, row)
            if state.step % settings.save_every == 0:
                _save(folder, state, identity)
        bar.set_postfix_str(_describe(row))
        bar.update()
    bar.close()

    train = _log_likelihood(state.hmm, values, lengths, settings.batch_size, device)
    test = None
    hmm, step = state.hmm, state.step
    if held_out is not None:
        test = _log_likelihood(hmm, *held_out, settings.batch_size, device)
        if test < state.best_score:
            hmm, step, test = state.best, state.best_step, state.best_score
            train = state.history[step]["train_log_likelihood"]
    return FitResult(hmm, step, train, test, state.history)


def random_guess(num_states: int, num_symbols: int, *, seed: int = 0, vocabulary: Any = None) -> HMM:
    """A first guess: rows drawn uniformly from the simplex (Dirichlet laws of concentration 1).

    Flatter guesses leave the states alike, and Baum-Welch spends its steps on a plateau.
    """
    generator = np.random.default_rng(seed)

    def rows(count: int, width: int) -> np.ndarray:
        return generator.dirichlet(np.ones(width), count)

    return HMM(
        start=rows(1, num_states)[0],
        transition=rows(num_states, num_states),
        emission=rows(num_states, num_symbols),
        vocabulary=vocabulary,
        normalize=True,
    )


@dataclass
class _Counts:
    start: Tensor
    transition: Tensor
    emission: Tensor
    log_likelihood: float


@dataclass
class _State:
    """Where a fit stands: the current HMM, the best on held-out data, and a row for every step so far."""

    hmm: HMM
    best: HMM
    step: int = 0
    best_step: int = 0
    best_score: float = -math.inf
    history: list[dict] = None

    def __post_init__(self):
        self.history = [] if self.history is None else self.history

    def observe(self, row: dict) -> None:
        self.history.append(row)
        if row.get("test_log_likelihood", -math.inf) > self.best_score:
            self.best, self.best_step, self.best_score = self.hmm, self.step, row["test_log_likelihood"]

    def finished(self, settings: FitSettings) -> bool:
        if len(self.history) < 2:
            return False
        gain = self.history[-1]["train_log_likelihood"] - self.history[-2]["train_log_likelihood"]
        stale = "test_log_likelihood" in self.history[-1] and self.step - 1 - self.best_step >= settings.patience
        return stale or abs(gain) < settings.tolerance


def _expected_counts(hmm: HMM, tokens: Tensor, lengths: Tensor | None, batch_size: int, device: Any) -> _Counts:
    parameters = hmm.parameters(device=device)
    start = torch.zeros_like(parameters.start)
    transition = torch.zeros_like(parameters.transition)
    emission = torch.zeros_like(parameters.emission.T)
    total = torch.zeros((), dtype=start.dtype, device=start.device)
    for number, chunk, ends in _batches(tokens, lengths, batch_size, device):
        filtered = inference.forward_filter(parameters, chunk, ends)
        likelihood = filtered.log_scale.sum()
        if not torch.isfinite(likelihood):
            row = int((~torch.isfinite(filtered.log_scale.sum(1))).nonzero()[0])
            raise InputError(
                f"batch {number}, sequence {number * batch_size + row}: the HMM gives it probability 0; "
                "fit with pseudocount > 0, or start from an HMM that can emit it"
            )
        values = inference.backward_values(parameters, chunk, filtered, ends)
        gamma = filtered.beliefs[:, :-1] * values[:, :-1]
        # What flows along i -> j at place t: belief(i) P(token | i) / scale, then transition[i, j], then value(j).
        leaving = filtered.beliefs[:, :-1] * parameters.emission.T[chunk] * (-filtered.log_scale).exp().unsqueeze(-1)
        arriving = values[:, 1:]
        places = torch.arange(chunk.shape[1], device=chunk.device)
        stop = torch.full_like(chunk[:, 0], chunk.shape[1]) if ends is None else ends
        gamma = gamma * (places < stop.unsqueeze(-1)).unsqueeze(-1)
        leaving = leaving * (places < stop.unsqueeze(-1) - 1).unsqueeze(-1)
        states = start.shape[0]
        start += (gamma[:, 0]).sum(0)
        transition += leaving.reshape(-1, states).T @ arriving.reshape(-1, states) * parameters.transition
        emission.index_add_(0, chunk.reshape(-1), gamma.reshape(-1, states))
        total += likelihood
    emission = emission.T.contiguous()
    if _is_distributed():
        for table in (start, transition, emission, total):
            torch.distributed.all_reduce(table)
    return _Counts(start, transition, emission, float(total))


def _maximize(counts: _Counts, hmm: HMM, pseudocount: float) -> HMM:
    tables = {}
    for name in ("start", "transition", "emission"):
        table = getattr(counts, name).cpu().numpy() + pseudocount
        if not np.isfinite(table).all():
            raise InputError(f"the expected counts of {name} are not finite; the previous step's HMM is kept")
        totals = table.sum(-1, keepdims=True)
        # A state nothing visits has no counts; without a prior its row stays what it was.
        tables[name] = np.where(totals > 0, table / np.where(totals > 0, totals, 1.0), getattr(hmm, name))
    return HMM(**tables, vocabulary=hmm.vocabulary)


def _log_prior(hmm: HMM, pseudocount: float) -> float:
    if pseudocount == 0:
        return 0.0
    with np.errstate(divide="ignore"):  # a first guess may hold zeros: -inf
        return float(pseudocount * sum(np.log(table).sum() for table in hmm.tables().values()))


def _log_likelihood(hmm: HMM, tokens: Tensor, lengths: Tensor | None, batch_size: int, device: Any) -> float:
    parameters = hmm.parameters(device=device)
    total = torch.zeros((), dtype=torch.float64, device=parameters.start.device)
    for _, chunk, ends in _batches(tokens, lengths, batch_size, device):
        total += inference.log_likelihood(parameters, chunk, ends).sum()
    if _is_distributed():
        torch.distributed.all_reduce(total)
    return float(total) / (tokens.numel() if lengths is None else int(lengths.sum()))


def _batches(tokens: Tensor, lengths: Tensor | None, batch_size: int, device: Any):
    """Yield this rank's batches: number, tokens, lengths."""
    rank, world_size = 0, 1
    if _is_distributed():
        rank, world_size = torch.distributed.get_rank(), torch.distributed.get_world_size()
    for number in range(rank, math.ceil(len(tokens) / batch_size), world_size):
        rows = slice(number * batch_size, (number + 1) * batch_size)
        yield number, tokens[rows].to(device), None if lengths is None else lengths[rows].to(device)


def _is_distributed() -> bool:
    return torch.distributed.is_available() and torch.distributed.is_initialized()


def _count_symbols(tokens: Any) -> int:
    try:
        values = tokens if torch.is_tensor(tokens) else np.asarray(tokens)
        return max(1, int(values.max()) + 1) if math.prod(values.shape) > 0 else 1
    except (TypeError, ValueError, OverflowError):
        return 1  # not integers: `as_tokens` says so


def _digest(tokens: Tensor, lengths: Tensor | None) -> str:
    """SHA-256 of the data (32 hexadecimal digits)."""
    digest = hashlib.sha256(str(tuple(tokens.shape)).encode())
    for table in (tokens, lengths):
        if table is not None:
            digest.update(np.ascontiguousarray(table.cpu().numpy(), dtype="<i8"))
    return digest.hexdigest()[:32]


def _identity(settings: FitSettings) -> dict:
    # What may differ between the runs of one fit: how long it goes on, and how it is cut up.
    free = {"max_steps", "tolerance", "patience", "batch_size", "save_every"}
    return {name: value for name, value in vars(settings).items() if name not in free}


def _save(folder: Path, state: _State, identity: dict) -> None:
    with atomic_folder(folder / f"step-{state.step}") as temporary:
        state.hmm.save_pretrained(temporary / "hmm")
        state.best.save_pretrained(temporary / "best")
        write_json(
            temporary / "state.json",
            {
                "step": state.step,
                "best_step": state.best_step,
                "best_score": None if math.isinf(state.best_score) else state.best_score,
                "identity": identity,
                "history": state.history,
            },
        )


def _load_newest(folder: Path, identity: dict) -> _State | None:
    steps = sorted(int(path.name.removeprefix("step-")) for path in folder.glob("step-*") if path.is_dir())
    if not steps:
        return None
    newest = folder / f"step-{steps[-1]}"
    saved = read_json(newest / "state.json")
    differing = [name for name in identity if saved["identity"].get(name) != identity[name]]
    if differing:
        name = differing[0]
        raise InputError(
            f"{newest}: a fit with {name} {saved['identity'].get(name)}, this one has {identity[name]}; "
            "choose another folder or delete that one"
        )
    score = saved["best_score"]
    return _State(
        hmm=HMM.from_pretrained(newest / "hmm"),
        best=HMM.from_pretrained(newest / "best"),
        step=saved["step"],
        best_step=saved["best_step"],
        best_score=-math.inf if score is None else score,
        history=saved["history"],
    )


def _progress_bar(settings: FitSettings, step: int, shown: bool):
    from tqdm.auto import tqdm

    return tqdm(total=settings.max_steps, initial=step, desc="Baum-Welch", unit="step", disable=not shown)


def _describe(row: dict) -> str:
    parts = [f"train {row['train_log_likelihood']:.4f}"]
    if "test_log_likelihood" in row:
        parts.append(f"test {row['test_log_likelihood']:.4f}")
    return ", ".join([*parts, "nats/token", f"{row['tokens_per_second']:,.0f} tokens/s"])
