"""Experiment trackers (TensorBoard, trackio, W&B and others) that get the rows of `history.jsonl` too.

The Trainer's own callbacks send every value of a row. By default nothing is sent anywhere. All starts of a run are one
run of a tracker: TensorBoard continues in the same folder, without what it has of steps that are repeated, W&B is
given the same id again, and trackio the same name.
"""

import importlib.util
import os
import uuid
from pathlib import Path
from typing import TYPE_CHECKING

from transformers.integrations import INTEGRATION_TO_CALLBACK, TensorBoardCallback

from ..errors import InputError, suggestion
from ..files import read_json, write_json

if TYPE_CHECKING:
    from .trainer import StepTrainer

_PACKAGES = ("tensorboard", "trackio", "wandb")
_IDS_NAME = ".trackers.json"
_TENSORBOARD_FOLDER = "runs"


def check_trackers(names: str | list[str] | None) -> None:
    """Refuse a tracker that is not available, before a run starts.

    Args:
        names (`str` or list of `str`, *optional*): the value of `TrainingArguments.report_to`.

    Raises:
        `InputError`: a tracker that transformers does not know, or whose package is not installed.
    """
    known = ["none", "all", *INTEGRATION_TO_CALLBACK]
    for name in [names] if isinstance(names, str) else names or []:
        if name not in known:
            hint = suggestion(name, known) or f"; expected one of {', '.join(known)}"
            raise InputError(f"report_to: {name} is not a tracker{hint}")
        if name in _PACKAGES and importlib.util.find_spec(name) is None:
            raise InputError(f"report_to: {name} is not installed; pip install {name}, or leave it out")


def continue_trackers(trainer: "StepTrainer") -> None:
    """Let trackers continue the run that they have of this folder, on rank 0, before training begins.

    Args:
        trainer ([`~hmm_datasets.training.trainer.StepTrainer`]): a trainer that has begun.
    """
    if not trainer.is_world_process_zero():
        return
    args, folder = trainer.args, Path(trainer.args.output_dir)
    step = 0 if trainer.start is None else trainer.start.step
    if "trackio" in args.report_to and args.run_name is None:
        args.run_name = folder.absolute().name
    if "wandb" in args.report_to and "WANDB_RUN_ID" not in os.environ:
        path = folder / _IDS_NAME
        if not (args.resume and path.exists()):
            write_json(path, {"wandb": uuid.uuid4().hex[:8]})
        os.environ |= {"WANDB_RUN_ID": read_json(path)["wandb"], "WANDB_RESUME": "allow"}
    for callback in trainer.callback_handler.callbacks:
        if isinstance(callback, TensorBoardCallback) and args.resume and callback.tb_writer is None:
            _continue_tensorboard(callback, folder, step)


def _continue_tensorboard(callback: TensorBoardCallback, folder: Path, step: int) -> None:
    """Write into the folder of the earlier starts, in which everything after a step is to be left out."""
    places = folder / _TENSORBOARD_FOLDER
    before = (
        [Path(callback.logging_dir)] if callback.logging_dir else sorted(places.iterdir()) if places.is_dir() else []
    )
    before = [place for place in before if place.is_dir() and any(place.glob("events.out.tfevents.*"))]
    if before:
        from torch.utils.tensorboard import SummaryWriter  # imports tensorboard, which may not be there

        callback.tb_writer = SummaryWriter(log_dir=str(before[-1]), purge_step=step + 1)
