"""The checkpoints of a run as a list: what each has, who wrote it, how good it was, and whether it is whole."""

import os
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ...errors import InputError
from ...files import read_json, read_log
from ...identity import IDENTITY_NAME
from ...quantities import format_bytes, format_duration
from ..record import HISTORY_NAME
from .inspection import STATE_NAME, CheckpointReport, list_checkpoints
from .parts import resuming_names
from .set_aside import list_set_aside

LOSSES = ("eval_loss", "loss")


@dataclass(frozen=True)
class Listed:
    """A checkpoint of a run.

    Attributes:
        step (`int`): its step.
        folder (`str`): where it is.
        bytes (`int`), weight_bytes (`int`): of all its files, and of the weights in safetensors files.
        framework (`str`, *optional*), processes (`int`, *optional*): who wrote it.
        tokens (`int`, *optional*): tokens consumed by then.
        loss (`float`, *optional*), loss_name (`str`, *optional*): held-out loss at its step, or else training loss.
        age (`float`): seconds since it was written.
        can_resume (`bool`): whether it has the state of an optimizer.
        problems (`tuple[str, ...]`): what is wrong with it; empty if it is whole.
        set_aside (`str`, *optional*): why it has been moved aside.
    """

    step: int
    folder: str
    bytes: int
    weight_bytes: int
    framework: str | None
    processes: int | None
    tokens: int | None
    loss: float | None
    loss_name: str | None
    age: float
    can_resume: bool
    problems: tuple[str, ...]
    set_aside: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """The values for JSON, with the bytes per byte of weights."""
        ratio = self.bytes / self.weight_bytes if self.weight_bytes else None
        return asdict(self) | {"bytes_per_byte_of_weights": ratio}

    def cells(self) -> list[str]:
        """The values as a row of [`HEADER`]."""
        ratio = f"{self.bytes / self.weight_bytes:.1f}" if self.weight_bytes else "-"
        loss = (
            "-" if self.loss is None else f"{self.loss:.4f} {'held out' if self.loss_name == LOSSES[0] else 'train'}"
        )
        state = "TORN" if self.problems else "whole" if self.can_resume else "weights only"
        return [
            f"{self.step:,}",
            format_bytes(self.weight_bytes) if self.weight_bytes else "-",
            format_bytes(self.bytes),
            ratio,
            self.framework or "-",
            "-" if self.processes is None else str(self.processes),
            "-" if self.tokens is None else f"{self.tokens:,}",
            loss,
            format_duration(self.age),
            state,
        ]


HEADER = ("step", "weights", "all", "ratio", "written by", "processes", "tokens", "loss", "age", "state")


def list_run(run: str | os.PathLike) -> list[Listed]:
    """The checkpoints of a run, newest first, and then those that have been moved aside.

    Raises:
        `InputError`: no such folder, or it has no checkpoints.
    """
    run = Path(run)
    absolute = run.absolute()
    if not run.exists() and any(absolute.name in entry.names for entry in list_set_aside(absolute.parent)):
        raise InputError(f"{run}: has been moved aside; bring it back: hmm-datasets checkpoint restore {run}")
    losses = _losses(run)
    found = [_listed(report, losses) for report in list_checkpoints(run)]
    for entry in list_set_aside(run):
        own = _losses(entry.folder) if HISTORY_NAME in entry.names else losses
        whole = [report for report in list_checkpoints(entry.folder) if report.folder.name in entry.names]
        found += [_listed(report, own, entry.reason) for report in whole]
    if not found:
        raise InputError(f"{run}: has no checkpoint-N; name the output_dir of a run that saved some (save_steps)")
    return found


def _listed(report: CheckpointReport, losses: dict[int, tuple[str, float]], reason: str | None = None) -> Listed:
    folder = report.folder
    identity = _mapping(folder / IDENTITY_NAME)
    writer = identity.get("written_by") or identity.get("slimmed_from") or {}
    name, loss = losses.get(report.step, (None, None))
    state = folder / STATE_NAME
    return Listed(
        report.step,
        str(folder),
        report.total_bytes,
        report.tensor_bytes,
        writer.get("framework"),
        writer.get("processes"),
        _mapping(state).get("num_input_tokens_seen"),
        loss,
        name,
        max(0.0, time.time() - (state if state.is_file() else folder).stat().st_mtime),
        any(resuming.startswith(("optimizer", "global_step")) for resuming in resuming_names(folder)),
        report.problems,
        reason,
    )


def _losses(run: Path) -> dict[int, tuple[str, float]]:
    """The held-out loss at each step of the history, or else the training loss, with its name."""
    path = run / HISTORY_NAME
    rows = read_log(path) if path.is_file() else []
    found: dict[int, tuple[str, float]] = {}
    for name in reversed(LOSSES):
        found |= {row["step"]: (name, row[name]) for row in rows if isinstance(row.get(name), int | float)}
    return found


def _mapping(path: Path) -> dict[str, Any]:
    try:
        content = read_json(path)
    except (InputError, OSError):
        return {}
    return content if isinstance(content, dict) else {}
