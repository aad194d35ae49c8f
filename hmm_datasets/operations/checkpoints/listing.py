"""The checkpoints of a run as a list: size, framework, loss, and whether each is complete."""

import os
from dataclasses import dataclass
from pathlib import Path

from ...display import format_bytes
from ...errors import InputError
from ...records import Record, is_record, read_record
from ...runtime.run_identity import IDENTITY_NAME
from ...runtime.run_records import CheckpointState, read_history
from ...training.checkpoints.inspection import CheckpointReport, list_checkpoints
from ...training.checkpoints.parts import STATE_NAME, resuming_names
from ...training.record import HISTORY_NAME

HEADER = ("step", "weights", "all", "written by", "tokens", "loss", "state")
"""Of the columns of a list of checkpoints."""

_MEASURES = ("eval_reward", "reward", "eval_loss", "loss")  # the loss of a run on rewards says little


@dataclass(frozen=True)
class CheckpointInfo:
    """A checkpoint of a run.

    Attributes:
        step (`int`): its step.
        folder (`str`): where it is.
        bytes (`int`), weight_bytes (`int`): of all its files, and of the weights in safetensors files.
        framework (`str`, *optional*): what wrote it.
        tokens (`int`, *optional*): tokens consumed by then.
        loss (`float`, *optional*), loss_name (`str`, *optional*): held-out loss at its step, or else training loss;
            of a run on rewards the reward.
        can_resume (`bool`): whether it has the state of an optimizer.
        problems (`tuple[str, ...]`): what is wrong with it; empty if it is complete.
    """

    step: int
    folder: str
    bytes: int
    weight_bytes: int
    framework: str | None
    tokens: int | None
    loss: float | None
    loss_name: str | None
    can_resume: bool
    problems: tuple[str, ...]

    def cells(self) -> list[str]:
        """The values as a row of [`HEADER`]."""
        name = self.loss_name or ""
        where = f"{'reward, ' * name.endswith('reward')}{'held out' if name.startswith('eval_') else 'train'}"
        loss = "-" if self.loss is None else f"{self.loss:z.4f} {where}"
        state = "incomplete" if self.problems else "complete" if self.can_resume else "weights only"
        return [
            f"{self.step:,}",
            format_bytes(self.weight_bytes) if self.weight_bytes else "-",
            format_bytes(self.bytes),
            self.framework or "-",
            "-" if self.tokens is None else f"{self.tokens:,}",
            loss,
            state,
        ]


def list_run(run: str | os.PathLike) -> list[CheckpointInfo]:
    """The checkpoints of a run, newest first.

    Raises:
        `InputError`: no such folder, or it has no checkpoints.
    """
    run = Path(run)
    losses = _losses(run)
    checkpoints = [_info(report, losses) for report in list_checkpoints(run)]
    if not checkpoints:
        raise InputError(f"{run}: has no checkpoint-N; name the output_dir of a run that saved some (save_steps)")
    return checkpoints


def _info(report: CheckpointReport, losses: dict[int, tuple[str, float]]) -> CheckpointInfo:
    folder = report.folder
    identity = _readable(folder / IDENTITY_NAME, _Identity, _Identity())
    writer = identity.written_by or identity.slimmed_from or _Writer()
    name, loss = losses.get(report.step, (None, None))
    return CheckpointInfo(
        report.step,
        str(folder),
        report.total_bytes,
        report.tensor_bytes,
        writer.framework,
        _readable(folder / STATE_NAME, CheckpointState, CheckpointState(0)).num_input_tokens_seen,
        loss,
        name,
        any(resuming.startswith(("optimizer", "global_step")) for resuming in resuming_names(folder)),
        report.problems,
    )


def _losses(run: Path) -> dict[int, tuple[str, float]]:
    """The first of the measures that each step of the history has, with its name."""
    path = run / HISTORY_NAME
    rows = read_history(path) if path.is_file() else []
    losses: dict[int, tuple[str, float]] = {}
    for name in reversed(_MEASURES):
        losses |= {row["step"]: (name, row[name]) for row in rows if "step" in row and is_record(row.get(name), float)}
    return losses


@dataclass(frozen=True)
class _Writer:
    """Who wrote a checkpoint, as far as it is known."""

    framework: str | None = None


@dataclass(frozen=True)
class _Identity:
    """The sections of a checkpoint's identity that are listed."""

    written_by: _Writer | None = None
    slimmed_from: _Writer | None = None


def _readable(path: Path, kind: type[Record], otherwise: Record) -> Record:
    """A record; the other one where it is missing or damaged, which is listed as the checkpoint's problem."""
    try:
        return read_record(path, kind)
    except InputError:
        return otherwise
