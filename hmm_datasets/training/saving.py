"""Checkpoints that are whole or absent, and deleted by a policy that speaks.

The Trainer writes into `checkpoint-N` as it goes, so that a killed run leaves a torn one. Here it writes into
`.unfinished/checkpoint-N`; when every rank is done the files are checked and synced, and the folder is renamed into
its place. Beside the Trainer's files stands `identity.json`: what fixes the curve. A run that would go on from a
checkpoint of another curve is refused.
"""

import json
import os
import shutil
from collections.abc import Collection
from pathlib import Path
from typing import Any

from transformers import Trainer

from ..digests import DIGESTS_NAME, check_digests, write_digests
from ..errors import InputError
from ..files import read_json, sync_tree, write_json
from ..ops.checkpoints import IDENTITY_NAME, list_steps, verify_checkpoint, zero_shards
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
    path: str | os.PathLike, before: dict[str, Any], now: dict[str, Any], accepted: Collection[str] = ()
) -> None:
    """Compare two mappings of mappings, those of a run that stopped and of the one that would go on.

    Args:
        path (path): what to name in the error.
        before (`dict`), now (`dict`): such as `{"data": {...}, "settings": {...}}`; sections missing in either are
            not compared.
        accepted (collection of `str`): names such as `data.seed` that may differ.

    Raises:
        `InputError`: something else differs; all of it is named.
    """
    changes = [
        f"{section}.{name} was {before[section].get(name)!r} and is {now[section].get(name)!r}"
        for section in sorted(before.keys() & now.keys())
        for name in sorted(before[section].keys() | now[section].keys())
        if before[section].get(name) != now[section].get(name) and f"{section}.{name}" not in accepted
    ]
    if changes:
        names = " ".join(change.split(" ", 1)[0] for change in changes)
        raise InputError(
            f"{path}: of another run: {'; '.join(changes)}; choose another output_dir, or go on all the same with "
            f"--accept_changes {names}"
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
        unfinished, place = run / UNFINISHED_NAME / name, run / name
        if self.args.should_save:
            shutil.rmtree(run / UNFINISHED_NAME, ignore_errors=True)  # of a run that was killed
        self.accelerator.wait_for_everyone()
        self._is_saving = True
        try:
            super()._save_checkpoint(model, trial)
        finally:
            self._is_saving = False
        self.accelerator.wait_for_everyone()
        if self.args.should_save:
            self._name_best(run, name)
            self.state.save_to_json(str(unfinished / "trainer_state.json"))
            if self.identity is not None:
                whole = not self.args.save_only_model
                kept = {k: v for k, v in self.identity.items() if whole or k != "written_by"}
                write_json(unfinished / IDENTITY_NAME, kept)
            report = verify_checkpoint(unfinished)
            if not report.ok:
                raise InputError(
                    f"{unfinished}: not whole once written: {'; '.join(report.problems)}; output_dir must be on a "
                    "disk with room that all machines share"
                )
            write_digests(unfinished)
            sync_tree(unfinished)
            if place.exists():
                shutil.rmtree(place)
            os.replace(unfinished, place)
            (run / UNFINISHED_NAME).rmdir()
            self._delete_old(run)
        self.accelerator.wait_for_everyone()

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
            shutil.rmtree(run / f"checkpoint-{step}")
            kept = f"the newest {limit}" + (f" and every {every}th step's" if every else "")
            self.say(f"deleted checkpoint-{step}: kept are {kept}")

    def say(self, line: str) -> None:
        """Write a line above the progress bar, on rank 0."""
        from tqdm import tqdm

        if self.is_world_process_zero():
            tqdm.write(line)


def check_checkpoint(folder: Path, identity: dict[str, Any], accepted: Collection[str]) -> None:
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
    check_identity(path, before, {name: part for name, part in identity.items() if name != "written_by"}, accepted)
    if writer is not None and writer["framework"] != reader["framework"]:
        raise InputError(
            f"{folder}: written under {writer['framework']} by {writer['processes']} processes, and this run is under "
            f"{reader['framework']} with {reader['processes']}; launch it with the accelerate config it was begun with"
        )


def _framework(trainer: Trainer) -> str:
    if trainer.is_deepspeed_enabled:
        return f"DeepSpeed ZeRO {trainer.accelerator.state.deepspeed_plugin.zero_stage}"
    return "FSDP" if trainer.is_fsdp_enabled else "plain data parallelism"
