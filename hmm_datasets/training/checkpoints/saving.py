"""Checkpoints that are whole or absent, and deleted by a policy that speaks.

The Trainer writes into `checkpoint-N` as it goes, so that a killed run leaves a torn one. Here it writes into
`.unfinished/checkpoint-N`; when every rank is done the files are checked and synced, and the folder is renamed into
its place. Beside the Trainer's files stands `identity.json`: what fixes the curve. A run that would go on from a
checkpoint of another curve is refused.
"""

import contextlib
import json
import os
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import torch
from transformers import Trainer

from ...digests import DIGESTS_NAME, check_digests, write_digests
from ...errors import (
    InputError,
    disk_full,
    format_bytes,
    is_disk_full,
)
from ...files import (
    move_into,
    read_json,
    remove,
    size_of,
    sync,
    sync_tree,
    unfinished,
    write_json,
)
from .inspection import (
    IDENTITY_NAME,
    good_checkpoints,
    list_steps,
    verify_checkpoint,
    zero_shards,
)
from .sharded_saving import ShardedCheckpoints

UNFINISHED_NAME = ".unfinished"

_SETTINGS = (
    *("global_batch_size", "learning_rate", "lr_scheduler_type", "lr_scheduler_kwargs", "warmup_steps"),
    *("optim", "optim_args", "weight_decay", "adam_beta1", "adam_beta2", "adam_epsilon", "max_grad_norm"),
    *("seed", "data_seed", "bf16", "fp16"),
    *("matrix_optimizer", "learning_rate_factors", "decay_steps", "z_loss", "batch_ramp"),
)


def identity_of(trainer: Trainer, data: dict[str, Any]) -> dict[str, Any]:
    """What fixes the curve of a run: data, model, and the settings of the optimizer; and who writes its checkpoints.

    The budget is not part of it (a run may go on for longer, which stretches its schedule), nor are world size,
    micro-batch, workers and the pace of logging and saving, which leave the curve as it is but for rounding.
    """
    settings = trainer.args.to_dict()
    model = trainer.model.config.to_diff_dict()
    # What moves with versions and loading and fixes nothing.
    model = {
        k: v for k, v in model.items() if k not in ("_name_or_path", "transformers_version", "use_cache", "dtype")
    }
    found = {
        "data": data,
        "model": model,
        "settings": {name: settings.get(name) for name in _SETTINGS},
        "written_by": {"framework": _framework(trainer), "processes": trainer.args.world_size},
    }
    return json.loads(json.dumps(found, default=str))  # as it will be read again


def check_identity(
    path: str | os.PathLike,
    before: dict[str, Any],
    now: dict[str, Any],
    accepted: Collection[str] = (),
    fixed: Collection[str] = (),
) -> None:
    """Compare two mappings of mappings, those of a run that stopped and of the one that would go on.

    Args:
        path (path): what to name in the error.
        before (`dict`), now (`dict`): such as `{"data": {...}, "settings": {...}}`; sections missing in either are
            not compared.
        accepted (collection of `str`): names such as `data.seed` that may differ.
        fixed (collection of `str`): names that may not, accepted or not.

    Raises:
        `InputError`: something else differs; all of it is named.
    """
    changes = {
        f"{section}.{name}": f"was {before[section].get(name)!r} and is {now[section].get(name)!r}"
        for section in sorted(before.keys() & now.keys())
        for name in sorted(before[section].keys() | now[section].keys())
        if before[section].get(name) != now[section].get(name)
    }
    if lasting := [f"{name} {change}" for name, change in changes.items() if name in fixed]:
        raise InputError(
            f"{path}: of another run: {'; '.join(lasting)}, with which it cannot go on; set it back, or choose "
            "another output_dir"
        )
    changes = {name: change for name, change in changes.items() if name not in accepted}
    if changes:
        raise InputError(
            f"{path}: of another run: {'; '.join(map(' '.join, changes.items()))}; choose another output_dir, or go "
            f"on all the same with --accept_changes {' '.join(changes)}"
        )


class WholeCheckpoints(ShardedCheckpoints):
    """Mixed into a Trainer: checkpoints appear whole, and go by the policy of its settings.

    `save_total_limit` newest ones stay, every one whose step `keep_every` divides, and the best one where
    `metric_for_best_model` names a measure.
    """

    identity: dict[str, Any] | None = None
    random_state_of: Path | None = None
    _is_saving = False

    def get_batch_samples(self, *args, **kwargs):
        """The micro-batches of a step; after the first of a resumed run, random numbers go on as the checkpoint's do.

        The Trainer restores them before the loader begins, which draws one.
        """
        found = super().get_batch_samples(*args, **kwargs)
        if self.random_state_of is not None:
            self._load_rng_state(str(self.random_state_of))
            self.random_state_of = None
        return found

    def _get_output_dir(self, trial) -> str:
        folder = super()._get_output_dir(trial)
        return os.path.join(folder, UNFINISHED_NAME) if self._is_saving else folder

    def _save_checkpoint(self, model, trial) -> None:
        run = Path(super()._get_output_dir(trial))
        name = f"checkpoint-{self.state.global_step}"
        with self._writing(run, run / name):
            self._is_saving = True
            try:
                super()._save_checkpoint(model, trial)
            finally:
                self._is_saving = False
            self.accelerator.wait_for_everyone()
            if self.args.should_save:
                self._complete(run, name)
        if self.args.should_save:
            if self.args.push_to_hub:
                self._push_from_checkpoint(str(run / name))  # only now does it have its name
            self._delete_old(run)
        self.accelerator.wait_for_everyone()

    def save_finished(self) -> None:
        """Save the model in the run's folder, each of its files whole, the others as they were until it is."""
        run = Path(self.args.output_dir)
        folder = run / UNFINISHED_NAME / "model"
        with self._writing(run, run):
            self.save_model(str(folder), _internal_call=True)
            self.accelerator.wait_for_everyone()
            if self.args.should_save:
                write_digests(folder)
                move_into(folder, run)
        self.accelerator.wait_for_everyone()

    @contextlib.contextmanager
    def _writing(self, run: Path, place: Path) -> Iterator[None]:
        """Around what all ranks write to `.unfinished`, of which nothing is left after it.

        Raises:
            `InputError`: the disk is full.
        """
        if self.args.should_save:
            remove(run / UNFINISHED_NAME)  # of a run that was killed
        self.accelerator.wait_for_everyone()
        try:
            with unfinished(run / UNFINISHED_NAME) if self.args.should_save else contextlib.nullcontext():
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
        states = [] if self.optimizer is None else self.optimizer.state.values()
        tensors = [value for state in states for value in state.values() if torch.is_tensor(value)]
        return sum(tensor.nbytes for tensor in [*self.model.parameters(), *tensors])

    def _complete(self, run: Path, name: str) -> None:
        """Add what the Trainer does not write, check the checkpoint, and give it its place."""
        folder, place = run / UNFINISHED_NAME / name, run / name
        self._name_best(run, name)
        self.state.save_to_json(str(folder / "trainer_state.json"))
        if self.identity is not None:
            whole = not self.args.save_only_model
            kept = {k: v for k, v in self.identity.items() if whole or k != "written_by"}
            write_json(folder / IDENTITY_NAME, kept)
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

    def _finalize_training(self, *args, **kwargs):
        # With a limit of one the Trainer would now delete all but the best, the newest among them, without a word.
        limit, self.args.save_total_limit = self.args.save_total_limit, None
        try:
            return super()._finalize_training(*args, **kwargs)
        finally:
            self.args.save_total_limit = limit

    def _name_best(self, run: Path, newest: str) -> None:
        best = f"checkpoint-{self.state.best_global_step}" if self.state.best_global_step else None
        if best is not None and (best == newest or (run / best).is_dir()):
            self.state.best_model_checkpoint = str(run / best)

    def _delete_old(self, run: Path) -> None:
        limit, every = self.args.save_total_limit, self.args.keep_every
        if not limit or limit < 1:
            return
        steps = list_steps(run)
        for step in steps[limit:]:
            if (every and step % every == 0) or step == self.state.best_global_step:
                continue
            # Under another name first: a run that is killed meanwhile leaves no half of a checkpoint.
            os.renames(run / f"checkpoint-{step}", run / UNFINISHED_NAME / "deleted")
            remove(run / UNFINISHED_NAME)
            kept = f"the newest {limit}" + (f" and every {every}th step's" if every else "")
            self.say(f"deleted checkpoint-{step}: kept are {kept}")

    def say(self, line: str) -> None:
        """Write a line above the progress bar, on rank 0."""
        from tqdm import tqdm

        if self.is_world_process_zero():
            tqdm.write(line)


def check_checkpoint(
    folder: Path, identity: dict[str, Any], accepted: Collection[str], fixed: Collection[str] = ()
) -> None:
    """Refuse to go on from a checkpoint whose `identity.json` is another's; one without it is taken as it is.

    The number of processes may be another. The framework and stage that shard may not: each reads its own files alone.

    Raises:
        `InputError`: it is of another run, or of another framework, or holds weights alone.
    """
    if zero_shards(folder) is None and not any(folder.glob("optimizer*")):
        raise InputError(
            f"{folder}: holds weights and no state of the optimizer, as save_only_model leaves it; choose another "
            "output_dir, and start from these weights"
        )
    check_digests(
        folder,
        f"delete {folder.name} to go on from the checkpoint before it, or its {DIGESTS_NAME} to take it as it is",
    )
    path = folder / IDENTITY_NAME
    if not path.exists():
        return
    before = read_json(path)
    writer, reader = before.pop("written_by", None), identity["written_by"]
    now = {name: part for name, part in identity.items() if name != "written_by"}
    check_identity(path, before, now, accepted, fixed)
    if writer is not None and writer["framework"] != reader["framework"]:
        raise InputError(
            f"{folder}: written under {writer['framework']} by {writer['processes']} processes, and this run is under "
            f"{reader['framework']} with {reader['processes']}; launch it with the accelerate config it was begun with"
        )


def _framework(trainer: Trainer) -> str:
    if trainer.is_deepspeed_enabled:
        return f"DeepSpeed ZeRO {trainer.accelerator.state.deepspeed_plugin.zero_stage}"
    return "FSDP" if trainer.is_fsdp_enabled else "plain data parallelism"
