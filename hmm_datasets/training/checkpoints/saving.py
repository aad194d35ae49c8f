"""Checkpoints that are either complete or absent.

The Trainer writes directly into `checkpoint-N`, so a killed run leaves an incomplete one. Here it writes into
`.unfinished/checkpoint-N`; when every rank is done, the files are checked and synced, and the folder is renamed. Each
checkpoint also has an `identity.json`, which says what determines the loss curve. A run is refused if it would
continue from a checkpoint with another identity.
"""

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from ...display import format_bytes
from ...errors import InputError, disk_full, is_disk_full
from ...files import check_may_write, inside, move_into, put_folder, size_of, sync_tree, unfinished, write_digests
from ...runtime.run_identity import write_identity
from .frameworks import FRAMEWORKS
from .inspection import good_checkpoints, list_steps, verify_checkpoint
from .rotation import outdated_steps
from .unfinished import remove_unfinished, unfinished_folder

if TYPE_CHECKING:
    from ..run_context import RunContext


def writer_of(run: "RunContext") -> dict[str, Any]:
    """The framework that shards the model, and the number of processes; both are written into each checkpoint."""
    if run.is_deepspeed_enabled:
        framework = f"{FRAMEWORKS['zero']} {run.accelerator.state.deepspeed_plugin.zero_stage}"
    else:
        framework = FRAMEWORKS["fsdp" if run.is_fsdp_enabled else "plain"]
    return {"framework": framework, "processes": run.args.world_size}


class Checkpoints:
    """Writes the checkpoints of a run, and deletes old ones.

    The newest `save_total_limit` checkpoints are kept, as are those whose step is a multiple of `keep_every` or due by
    `saves_per_doubling`, and the best one if `metric_for_best_model` is set.

    Args:
        run ([`~hmm_datasets.training.run_context.RunContext`]): the run.
        identity (callable): gives what determines the loss curve; None before it is known.
        write_model (callable): writes the model into a folder, on all ranks.
        tensors (callable): gives the weights and the optimizer state on this rank.
        push (callable): pushes a checkpoint, on rank 0, if the settings ask for it.
    """

    def __init__(
        self,
        run: "RunContext",
        *,
        identity: Callable[[], dict[str, Any] | None],
        write_model: Callable[[Path], None],
        tensors: Callable[[], Iterable[torch.Tensor]],
        push: Callable[[Path], None],
    ):
        self._run, self._identity, self._write_model, self._tensors = run, identity, write_model, tensors
        self._push = push

    def save(self, write: Callable[[Path], None]) -> None:
        """Save the step just done, on all ranks; then delete old checkpoints.

        Args:
            write (callable): makes the Trainer write its files into `checkpoint-N` in the folder it is given.
        """
        context = self._run
        run, name = Path(context.args.output_dir), f"checkpoint-{context.state.global_step}"
        with self._writing(run / name):
            write(unfinished_folder(run))
            context.accelerator.wait_for_everyone()
            if context.args.should_save:
                self._complete(run, name)
        if context.args.should_save:
            if context.args.push_to_hub:
                self._push(run / name)
            self._delete_old(run)
        context.accelerator.wait_for_everyone()

    def save_model(self) -> None:
        """Save the model in the run's folder; each file is replaced only once all new ones are complete."""
        context = self._run
        run = Path(context.args.output_dir)
        folder = unfinished_folder(run) / "model"
        with self._writing(run):
            self._write_model(folder)
            context.accelerator.wait_for_everyone()
            if context.args.should_save:
                write_digests(folder)
                move_into(folder, run)
        context.accelerator.wait_for_everyone()

    @contextlib.contextmanager
    def _writing(self, target: Path) -> Iterator[None]:
        """A context in which all ranks write to `.unfinished`, which is removed at its end.

        Raises:
            `InputError`: the disk is full.
        """
        context = self._run
        run = Path(context.args.output_dir)
        check_may_write()
        if context.args.should_save:
            remove_unfinished(run)
        context.accelerator.wait_for_everyone()
        try:
            with unfinished(unfinished_folder(run)) if context.args.should_save else contextlib.nullcontext():
                yield
        except Exception as error:
            if not is_disk_full(error):
                raise
            newest = next(good_checkpoints(run), None)
            going_on = "start" if newest is None else f"continue from {newest.name} with"
            # Before there is one, that of the weights and the optimizer state on this rank.
            size = sum(tensor.nbytes for tensor in self._tensors()) if newest is None else size_of(newest)
            raise disk_full(target, f"about {format_bytes(size)}", f"{going_on} the same command") from error

    def _complete(self, run: Path, name: str) -> None:
        """Add what the Trainer does not write, check the checkpoint, and move it to its final path."""
        folder, target = unfinished_folder(run) / name, run / name
        self._name_best(run, name)
        context = self._run
        context.state.save_to_json(str(folder / "trainer_state.json"))
        identity = self._identity()
        if identity is not None:
            writer = {} if context.args.save_only_model else {"written_by": writer_of(context)}
            write_identity(folder, identity | writer)
        report = verify_checkpoint(folder)
        if not report.ok:
            raise InputError(
                f"{folder}: incomplete after writing: {'; '.join(report.problems)}; output_dir must be on a disk that "
                "all machines share and that has enough space"
            )
        write_digests(folder)
        sync_tree(folder)
        put_folder(folder, target)

    def _name_best(self, run: Path, newest: str) -> None:
        state = self._run.state
        best = f"checkpoint-{state.best_global_step}" if state.best_global_step else None
        if best is not None and (best == newest or inside(run, best, as_link=True).is_dir()):
            state.best_model_checkpoint = str(run / best)

    def _delete_old(self, run: Path) -> None:
        context = self._run
        limit, every = context.args.save_total_limit, context.args.keep_every
        # A later step is not of this run: it was saved before the run went back to an earlier checkpoint.
        steps = [step for step in list_steps(run) if step <= context.state.global_step]
        best = context.state.best_global_step
        for step in outdated_steps(steps, limit, every, context.args.saves_per_doubling, best):
            # Renamed first, so that a run killed meanwhile does not leave half a checkpoint.
            check_may_write()
            os.renames(run / f"checkpoint-{step}", unfinished_folder(run) / "deleted")
            remove_unfinished(run)
            kept = f"the newest {limit}" + (f" and those of steps divisible by {every}" if every else "")
            context.say(f"deleted checkpoint-{step}: {kept} are kept")
