"""Experiment trackers (TensorBoard, trackio, W&B and others) that get the rows of `history.jsonl` too.

The Trainer's own callbacks send every value of a row. By default nothing is sent anywhere. All starts of a run are one
run of a tracker: TensorBoard continues in the same folder, without what it has of steps that are repeated, W&B is
given the same id again, and trackio the same name.
"""

import importlib.util
import os
import sys
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
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
    if trainer.is_world_process_zero():
        step = 0 if trainer.start is None else trainer.start.step
        _continue(trainer.args, trainer.callback_handler.callbacks, step, resumes=trainer.args.resume)


def _continue(args: TrainingArguments, callbacks: list[TrainerCallback], step: int, *, resumes: bool) -> None:
    folder = Path(args.output_dir)
    if "trackio" in args.report_to and args.run_name is None:
        args.run_name = folder.absolute().name
    if "wandb" in args.report_to and "WANDB_RUN_ID" not in os.environ:
        path = folder / _IDS_NAME
        if not (resumes and path.exists()):
            write_json(path, {"wandb": uuid.uuid4().hex[:8]})
        os.environ |= {"WANDB_RUN_ID": read_json(path)["wandb"], "WANDB_RESUME": "allow"}
    for callback in callbacks:
        if isinstance(callback, TensorBoardCallback) and resumes and callback.tb_writer is None:
            _continue_tensorboard(callback, folder, step)


class RowTrackers:
    """Sends rows of a history that no Trainer writes, such as that of a fit, by the callbacks of the Trainer.

    Args:
        names (list of `str`): trackers, as in `TrainingArguments.report_to`.
        output_dir (path): folder of the run, by which trackers know it again.
        settings (mapping): settings of the run, which trackers show.

    Raises:
        `InputError`: see [`check_trackers`].
    """

    def __init__(self, names: list[str], output_dir: str | os.PathLike, settings: Mapping[str, Any]):
        check_trackers(names)
        self._args = _RowArguments(output_dir=str(output_dir), report_to=names, use_cpu=True)
        self._args.settings = dict(settings)
        self._callbacks = [INTEGRATION_TO_CALLBACK[name]() for name in self._args.report_to]
        self._state, self._control = TrainerState(), TrainerControl()
        self._names_run = "WANDB_RUN_ID" not in os.environ

    def log(self, row: Mapping[str, Any], step: int) -> None:
        """Send the numbers of a row; the first one of a run that continues decides where it continues."""
        common = self._args, self._state, self._control
        if self._state.global_step == 0:
            _continue(self._args, self._callbacks, step - 1, resumes=step > 1)
            for callback in self._callbacks:
                callback.on_train_begin(*common, model=None)
        self._state.global_step = step
        numbers = {name: value for name, value in row.items() if isinstance(value, int | float)}
        for callback in self._callbacks:
            callback.on_log(*common, model=None, logs=dict(numbers))

    def end(self) -> None:
        """Close what was opened, so that a further run of this process is another one of the trackers too."""
        if self._state.global_step == 0:
            return
        for callback in self._callbacks:
            callback.on_train_end(self._args, self._state, self._control, model=None, processing_class=None)
        if "wandb" in self._args.report_to:
            wandb = sys.modules["wandb"]  # which its callback has imported
            wandb.finish()
            if self._names_run:
                os.environ.pop("WANDB_RUN_ID", None)
                wandb.teardown()  # which has read the variable, and would give it to the next run


class _RowArguments(TrainingArguments):
    """Arguments of a run without a Trainer, which trackers show as the settings of the run."""

    def to_dict(self) -> dict[str, Any]:
        return self.settings


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
