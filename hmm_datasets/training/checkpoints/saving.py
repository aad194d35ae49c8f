"""Checkpoints that are whole or absent, and deleted by a policy that speaks.

The Trainer writes into `checkpoint-N` as it goes, so that a killed run leaves a torn one. Here it writes into
`.unfinished/checkpoint-N`; when every rank is done the files are checked and synced, and the folder is renamed into
its place. Beside the Trainer's files stands `identity.json`: what fixes the curve. A run that would go on from a
checkpoint of another curve is refused.
"""

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from ...digests import write_digests
from ...errors import InputError, disk_full, is_disk_full
from ...files import move_into, remove, size_of, sync, sync_tree, unfinished
from ...identity import write_identity
from ...quantities import format_bytes
from .inspection import good_checkpoints, list_steps, verify_checkpoint

if TYPE_CHECKING:
    from ..trainer import StepTrainer

UNFINISHED_NAME = ".unfinished"

_SETTINGS = (
    *("global_batch_size", "learning_rate", "lr_scheduler_type", "lr_scheduler_kwargs", "warmup_steps"),
    *("optim", "optim_args", "weight_decay", "adam_beta1", "adam_beta2", "adam_epsilon", "max_grad_norm"),
    *("seed", "data_seed", "bf16", "fp16"),
    *("matrix_optimizer", "learning_rate_factors", "decay_steps", "z_loss", "batch_ramp"),
)


def curve_identity(trainer: "StepTrainer", data: dict[str, Any]) -> dict[str, Any]:
    """What fixes the curve of a run: data, model, and the settings of the optimizer.

    The budget is not part of it (a run may go on for longer, which stretches its schedule), nor are world size,
    micro-batch, workers and the pace of logging and saving, which leave the curve as it is but for rounding.
    """
    settings = trainer.args.to_dict()
    # What moves with versions and loading and fixes nothing.
    apart = ("_name_or_path", "transformers_version", "use_cache", "dtype")
    model = {name: value for name, value in trainer.model.config.to_diff_dict().items() if name not in apart}
    return {"data": data, "model": model, "settings": {name: settings.get(name) for name in _SETTINGS}}


def writer_of(trainer: "StepTrainer") -> dict[str, Any]:
    """Who writes the checkpoints of a run: the framework that shards, and the number of processes."""
    if trainer.is_deepspeed_enabled:
        framework = f"DeepSpeed ZeRO {trainer.accelerator.state.deepspeed_plugin.zero_stage}"
    else:
        framework = "FSDP" if trainer.is_fsdp_enabled else "plain data parallelism"
    return {"framework": framework, "processes": trainer.args.world_size}


class Checkpoints:
    """The checkpoints of a run: written whole, and kept by the policy of its settings.

    `save_total_limit` newest ones stay, every one whose step `keep_every` divides, and the best one where
    `metric_for_best_model` names a measure.

    Args:
        trainer ([`~hmm_datasets.training.trainer.StepTrainer`]): whose run it is.
    """

    def __init__(self, trainer: "StepTrainer"):
        self._trainer = trainer

    def save(self, write: Callable[[Path], None]) -> None:
        """Save the step just done, on all ranks; then delete those that the policy does not keep.

        Args:
            write (callable): has the Trainer write its files into `checkpoint-N` of the folder it is given.
        """
        trainer = self._trainer
        run, name = Path(trainer.args.output_dir), f"checkpoint-{trainer.state.global_step}"
        with self._writing(run / name):
            write(run / UNFINISHED_NAME)
            trainer.accelerator.wait_for_everyone()
            if trainer.args.should_save:
                self._complete(run, name)
        if trainer.args.should_save:
            if trainer.args.push_to_hub:
                trainer.hub_pushes.push_checkpoint(run / name)  # only now does it have its name
            self._delete_old(run)
        trainer.accelerator.wait_for_everyone()

    def save_model(self) -> None:
        """Save the model in the run's folder, each of its files whole, the others as they were until it is."""
        trainer = self._trainer
        run = Path(trainer.args.output_dir)
        folder = run / UNFINISHED_NAME / "model"
        with self._writing(run):
            trainer.write_model(folder)
            trainer.accelerator.wait_for_everyone()
            if trainer.args.should_save:
                write_digests(folder)
                move_into(folder, run)
        trainer.accelerator.wait_for_everyone()

    @contextlib.contextmanager
    def _writing(self, place: Path) -> Iterator[None]:
        """Around what all ranks write to `.unfinished`, of which nothing is left after it.

        Raises:
            `InputError`: the disk is full.
        """
        trainer = self._trainer
        run = Path(trainer.args.output_dir)
        if trainer.args.should_save:
            remove(run / UNFINISHED_NAME)  # of a run that was killed
        trainer.accelerator.wait_for_everyone()
        try:
            with unfinished(run / UNFINISHED_NAME) if trainer.args.should_save else contextlib.nullcontext():
                yield
        except Exception as error:
            if not is_disk_full(error):
                raise
            newest = next(good_checkpoints(run), None)
            going_on = "start" if newest is None else f"go on from {newest.name} with"
            size = self._bytes_held() if newest is None else size_of(newest)
            raise disk_full(place, f"about {format_bytes(size)}", f"{going_on} the same command") from error

    def _bytes_held(self) -> int:
        """Bytes of the weights and of the optimizer's state on this rank."""
        optimizer = self._trainer.optimizer
        states = [] if optimizer is None else optimizer.state.values()
        tensors = [value for state in states for value in state.values() if torch.is_tensor(value)]
        return sum(tensor.nbytes for tensor in [*self._trainer.model.parameters(), *tensors])

    def _complete(self, run: Path, name: str) -> None:
        """Add what the Trainer does not write, check the checkpoint, and give it its place."""
        folder, place = run / UNFINISHED_NAME / name, run / name
        self._name_best(run, name)
        trainer = self._trainer
        trainer.state.save_to_json(str(folder / "trainer_state.json"))
        if trainer.identity is not None:
            writer = {} if trainer.args.save_only_model else {"written_by": writer_of(trainer)}
            write_identity(folder, trainer.identity | writer)
        report = verify_checkpoint(folder)
        if not report.ok:
            raise InputError(
                f"{folder}: not whole once written: {'; '.join(report.problems)}; output_dir must be on a "
                "disk with room that all machines share"
            )
        write_digests(folder)
        sync_tree(folder)
        if place.exists():
            os.replace(place, run / UNFINISHED_NAME / "replaced")
        os.replace(folder, place)
        sync(run)

    def _name_best(self, run: Path, newest: str) -> None:
        state = self._trainer.state
        best = f"checkpoint-{state.best_global_step}" if state.best_global_step else None
        if best is not None and (best == newest or (run / best).is_dir()):
            state.best_model_checkpoint = str(run / best)

    def _delete_old(self, run: Path) -> None:
        trainer = self._trainer
        limit, every = trainer.args.save_total_limit, trainer.args.keep_every
        if not limit or limit < 1:
            return
        steps = list_steps(run)
        for step in steps[limit:]:
            if (every and step % every == 0) or step == trainer.state.best_global_step:
                continue
            # Under another name first: a run that is killed meanwhile leaves no half of a checkpoint.
            os.renames(run / f"checkpoint-{step}", run / UNFINISHED_NAME / "deleted")
            remove(run / UNFINISHED_NAME)
            kept = f"the newest {limit}" + (f" and every {every}th step's" if every else "")
            trainer.say(f"deleted checkpoint-{step}: kept are {kept}")
