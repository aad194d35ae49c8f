"""Checkpoints that are either whole or absent.

The Trainer writes directly into `checkpoint-N`, so a killed run leaves an incomplete one. Here it writes into
`.unfinished/checkpoint-N`; when every rank is done, the files are checked and synced, and the folder is renamed. Each
checkpoint also has an `identity.json`, which says what determines the loss curve. A run is refused if it would
continue from a checkpoint with another identity.

Copies of the checkpoints of a run in another place, made in the background while training continues.

Rank 0 copies each checkpoint in a thread. It works from a snapshot of hard links, so that a checkpoint may be deleted
meanwhile. A copy is written under a hidden name, compared with the digests of the checkpoint, synced, and then
renamed, so it is whole or absent. Copying never ends or delays a run: if it is slower than the run saves, checkpoints
are left out, the older ones first, and what goes wrong is an event of the run.

The files of a saved model, at the end of a run and in every checkpoint.

Training turns the cache of keys and values off. A configuration saved that way would make generation recompute every
prefix, so the saved configuration turns it on. The Trainer also pickles its arguments into `training_args.bin`; this
file is removed, since nothing reads it again, it contains paths of this machine, and `run.json` has the settings.

Beside a LoRA adapter peft writes a draft of a card, which is removed too, and not the generation config, without which
a chat model would not end its turns.
"""

import contextlib
import os
import shutil
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from accelerate.utils import is_peft_model
from transformers import PreTrainedConfig, PreTrainedModel

from ...compat.transformers import TRAINING_ARGS_NAME
from ...display import format_bytes, format_duration
from ...errors import InputError, disk_full, is_disk_full
from ...files import (
    atomic_file,
    check_may_write,
    digest_problems,
    inside,
    move_into,
    put_folder,
    remove,
    size_of,
    sync_tree,
    unfinished,
    write_digests,
)
from ...hub.cards import CARD_NAME
from ...runtime.events import append_event
from ...runtime.lock import writer_id
from ...runtime.run_identity import write_identity
from ..record import HISTORY_NAME
from .verifying import FRAMEWORKS, good_checkpoints, list_steps, verify_checkpoint

if TYPE_CHECKING:
    from ..trainer import StepTrainer

WAITING = 2
"""Maximum number of checkpoints that wait for the one that is being copied."""

Outdated = Callable[[list[int]], list[int]]

_SNAPSHOT_PREFIX = ".copy."
_UNFINISHED = ".unfinished"


def unfinished_folder(folder: Path) -> Path:
    """Where what goes into a folder is written; of no other writer, who may have taken over its lock."""
    return folder / ".".join(filter(None, (_UNFINISHED, writer_id(folder))))


def remove_unfinished(folder: Path) -> None:
    """Delete what this process, or one that was killed, was writing into a folder whose lock this process holds."""
    check_may_write()
    for left in folder.glob(f"{_UNFINISHED}*"):
        remove(left)


class CheckpointCopies:
    """Copies checkpoints of a run; on rank 0.

    Args:
        run (`Path`): folder of the run.
        destination (`Path`): folder of the copies, on any disk.
        say (callable): writes a line.
    """

    def __init__(self, run: Path, destination: Path, say: Callable[[str], None]):
        self._run, self._destination, self._say = run, destination, say
        self._waiting: deque[tuple[str, Path, Outdated]] = deque()
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        for left in run.glob(f"{_SNAPSHOT_PREFIX}*"):  # of a run that was killed
            shutil.rmtree(left, ignore_errors=True)

    def start(self, checkpoint: Path, outdated: Outdated) -> None:
        """Copy a checkpoint in the background, then delete outdated copies.

        Args:
            checkpoint (`Path`): the checkpoint.
            outdated (callable): from the steps of all copies, newest first, to those to delete. It must not read what
                training changes.
        """
        try:
            snapshot = _snapshot(self._run, checkpoint)
        except OSError as error:
            self._failed(checkpoint.name, error)
            return
        with self._changed:
            self._waiting.append((checkpoint.name, snapshot, outdated))
            late = [self._waiting.popleft() for _ in range(len(self._waiting) - WAITING)]
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, daemon=True, name="checkpoint-copies")
                self._thread.start()
        for name, snapshot, _ in late:
            shutil.rmtree(snapshot.parent, ignore_errors=True)
            self._tell(name, f"{name} was not copied: copies are slower than checkpoints are saved; newer ones are")

    def finish(self, timeout: float) -> None:
        """Wait for the copies under way, at most so many seconds."""
        with self._changed:
            thread, count = self._thread, len(self._waiting)
        if thread is None:
            return
        self._say(f"{self._destination}: waiting for the copy of {'a checkpoint' if not count else 'checkpoints'}")
        thread.join(timeout)
        if thread.is_alive():
            self._tell(
                None, f"copies to {self._destination} took longer than {format_duration(timeout)}; not waited for"
            )

    def _work(self) -> None:
        while True:
            with self._changed:
                if not self._waiting:
                    self._thread = None
                    return
                name, snapshot, outdated = self._waiting.popleft()
            began = time.monotonic()
            try:
                size = self._copy(name, snapshot, outdated)
                self._tell(
                    name,
                    f"{name} was copied to {self._destination}: {format_bytes(size)} in "
                    f"{format_duration(time.monotonic() - began)}",
                    failed=False,
                )
            except Exception as error:  # whatever happens to the other disk, the run continues
                self._failed(name, error)
            finally:
                shutil.rmtree(snapshot.parent, ignore_errors=True)

    def _copy(self, name: str, snapshot: Path, outdated: Outdated) -> int:
        """Copy a snapshot, and delete outdated copies; returns the bytes.

        Raises:
            `InputError`: the copy is not what was copied.
        """
        parent = unfinished_folder(self._destination)
        remove_unfinished(self._destination)
        parent.mkdir(parents=True)
        with unfinished(parent):
            copy = Path(shutil.copytree(snapshot, parent / name))
            problems = verify_checkpoint(copy).problems or digest_problems(copy)
            if problems:
                raise InputError(f"{problems[0]}; look at the disk of {self._destination}")
            size = size_of(copy)
            sync_tree(copy)
            put_folder(copy, self._destination / name)
            if (self._run / HISTORY_NAME).is_file():
                shutil.copyfile(self._run / HISTORY_NAME, parent / HISTORY_NAME)
                check_may_write()
                os.replace(parent / HISTORY_NAME, self._destination / HISTORY_NAME)
            for step in outdated(list_steps(self._destination)):
                os.replace(self._destination / f"checkpoint-{step}", parent / f"deleted-{step}")
        return size

    def _failed(self, name: str, error: Exception) -> None:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        if isinstance(error, shutil.Error):  # it lists all files that could not be copied, with their paths
            reason = str(error.args[0][0][-1]).partition(": '")[0]
        self._tell(name, f"{name} was not copied to {self._destination}: {reason}; training continues")

    def _tell(self, name: str | None, message: str, *, failed: bool = True) -> None:
        if failed:
            self._say(message)
        step = {} if name is None else {"step": int(name.removeprefix("checkpoint-"))}
        try:
            append_event(self._run, "copy", message, failed=failed, **step)
        except (OSError, InputError) as error:  # a full disk
            self._say(f"{self._run}: the event could not be written ({error})")


def restore_history(run: Path, copies: Path) -> None:
    """Bring the history of a run back from its copies, if the run has none."""
    if not (run / HISTORY_NAME).exists() and (copies / HISTORY_NAME).is_file():
        with atomic_file(run / HISTORY_NAME) as temporary:
            shutil.copyfile(copies / HISTORY_NAME, temporary)


def _snapshot(run: Path, checkpoint: Path) -> Path:
    """Hard links to the files of a checkpoint, in a hidden folder; copies, if the disk has no links."""
    snapshot = Path(tempfile.mkdtemp(prefix=_SNAPSHOT_PREFIX, dir=run))
    try:
        target = snapshot / checkpoint.name
        try:
            shutil.copytree(checkpoint, target, copy_function=os.link)
        except (OSError, shutil.Error):
            remove(target)
            shutil.copytree(checkpoint, target)
    except (OSError, shutil.Error):
        shutil.rmtree(snapshot, ignore_errors=True)
        raise
    return target


@contextlib.contextmanager
def loadable(model: PreTrainedModel, folder: Path) -> Iterator[None]:
    """Within this context a saved model generates with a cache; at its end, pickled settings are removed.

    Args:
        model ([`~transformers.PreTrainedModel`]): the model that is saved.
        folder (`Path`): where it is saved.
    """
    generation = getattr(model, "generation_config", None)
    if generation is not None:
        generation.use_cache = True
    configs = {id(config): config for config in (model.config, model.config.get_text_config())}.values()
    before = [(config, config.use_cache) for config in configs if hasattr(config, "use_cache")]
    _set_cache([(config, True) for config, _ in before])
    try:
        yield
    finally:
        _set_cache(before)
    (folder / TRAINING_ARGS_NAME).unlink(missing_ok=True)
    if is_peft_model(model):
        (folder / CARD_NAME).unlink(missing_ok=True)
        generation.save_pretrained(folder)


def _set_cache(values: list[tuple[PreTrainedConfig, bool]]) -> None:
    for config, value in values:
        config.use_cache = value


def writer_of(trainer: "StepTrainer") -> dict[str, Any]:
    """The framework that shards the model, and the number of processes; both are written into each checkpoint."""
    if trainer.is_deepspeed_enabled:
        framework = f"{FRAMEWORKS['zero']} {trainer.accelerator.state.deepspeed_plugin.zero_stage}"
    else:
        framework = FRAMEWORKS["fsdp" if trainer.is_fsdp_enabled else "plain"]
    return {"framework": framework, "processes": trainer.args.world_size}


class Checkpoints:
    """Writes the checkpoints of a run, and deletes old ones.

    The newest `save_total_limit` checkpoints are kept, as are those whose step is a multiple of `keep_every`, and the
    best one if `metric_for_best_model` is set.

    Args:
        trainer ([`~hmm_datasets.training.trainer.StepTrainer`]): the trainer of the run.
    """

    def __init__(self, trainer: "StepTrainer"):
        self._trainer = trainer
        self._copies: CheckpointCopies | None = None

    def begin(self) -> None:
        """Prepare the copies, once the run has its start; on rank 0."""
        args = self._trainer.args
        if args.copies is not None and args.should_save:
            restore_history(Path(args.output_dir), args.copies)
            self._copies = CheckpointCopies(Path(args.output_dir), args.copies, self._trainer.say)

    def finish(self) -> None:
        """Wait for the copies under way, for half of the time that other ranks wait for this one."""
        if self._copies is not None:
            self._copies.finish(self._trainer.args.ddp_timeout / 2)

    def save(self, write: Callable[[Path], None]) -> None:
        """Save the step just done, on all ranks; then delete old checkpoints.

        Args:
            write (callable): makes the Trainer write its files into `checkpoint-N` in the folder it is given.
        """
        trainer = self._trainer
        run, name = Path(trainer.args.output_dir), f"checkpoint-{trainer.state.global_step}"
        with self._writing(run / name):
            write(unfinished_folder(run))
            trainer.accelerator.wait_for_everyone()
            if trainer.args.should_save:
                self._complete(run, name)
        if trainer.args.should_save:
            if trainer.args.push_to_hub:
                trainer.hub_pushes.push_checkpoint(run / name)
            if self._copies is not None:
                self._copies.start(run / name, self._outdated())
            self._delete_old(run)
        trainer.accelerator.wait_for_everyone()

    def save_model(self) -> None:
        """Save the model in the run's folder; each file is replaced only once all new ones are complete."""
        trainer = self._trainer
        run = Path(trainer.args.output_dir)
        folder = unfinished_folder(run) / "model"
        with self._writing(run):
            trainer.write_model(folder)
            trainer.accelerator.wait_for_everyone()
            if trainer.args.should_save:
                write_digests(folder)
                move_into(folder, run)
        trainer.accelerator.wait_for_everyone()

    @contextlib.contextmanager
    def _writing(self, target: Path) -> Iterator[None]:
        """A context in which all ranks write to `.unfinished`, which is removed at its end.

        Raises:
            `InputError`: the disk is full.
        """
        trainer = self._trainer
        run = Path(trainer.args.output_dir)
        check_may_write()
        if trainer.args.should_save:
            remove_unfinished(run)
        trainer.accelerator.wait_for_everyone()
        try:
            with unfinished(unfinished_folder(run)) if trainer.args.should_save else contextlib.nullcontext():
                yield
        except Exception as error:
            if not is_disk_full(error):
                raise
            newest = next(good_checkpoints(run), None)
            going_on = "start" if newest is None else f"continue from {newest.name} with"
            size = self._bytes_held() if newest is None else size_of(newest)
            raise disk_full(target, f"about {format_bytes(size)}", f"{going_on} the same command") from error

    def _bytes_held(self) -> int:
        """Bytes of the weights and the optimizer state on this rank."""
        optimizer = self._trainer.optimizer
        states = [] if optimizer is None else optimizer.state.values()
        tensors = [value for state in states for value in state.values() if torch.is_tensor(value)]
        return sum(tensor.nbytes for tensor in [*self._trainer.model.parameters(), *tensors])

    def _complete(self, run: Path, name: str) -> None:
        """Add what the Trainer does not write, check the checkpoint, and move it to its final path."""
        folder, target = unfinished_folder(run) / name, run / name
        self._name_best(run, name)
        trainer = self._trainer
        trainer.state.save_to_json(str(folder / "trainer_state.json"))
        if trainer.identity is not None:
            writer = {} if trainer.args.save_only_model else {"written_by": writer_of(trainer)}
            write_identity(folder, trainer.identity | writer)
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
        state = self._trainer.state
        best = f"checkpoint-{state.best_global_step}" if state.best_global_step else None
        if best is not None and (best == newest or inside(run, best, as_link=True).is_dir()):
            state.best_model_checkpoint = str(run / best)

    def _delete_old(self, run: Path) -> None:
        trainer = self._trainer
        limit, every = trainer.args.save_total_limit, trainer.args.keep_every
        for step in self._outdated()(list_steps(run)):
            # Renamed first, so that a run killed meanwhile does not leave half a checkpoint.
            check_may_write()
            os.renames(run / f"checkpoint-{step}", unfinished_folder(run) / "deleted")
            remove_unfinished(run)
            kept = f"the newest {limit}" + (f" and those of steps divisible by {every}" if every else "")
            trainer.say(f"deleted checkpoint-{step}: {kept} are kept")

    def _outdated(self) -> Outdated:
        """From the steps of all checkpoints, newest first, to those not kept; by the settings and the state of now."""
        args, state = self._trainer.args, self._trainer.state
        limit, every, now, best = args.save_total_limit, args.keep_every, state.global_step, state.best_global_step

        def outdated(steps: list[int]) -> list[int]:
            if not limit or limit < 1:
                return []
            # A later step is not of this run: it was saved before the run went back to an earlier checkpoint.
            reached = [step for step in steps if step <= now]
            return [step for step in reached[limit:] if step != best and not (every and step % every == 0)]

        return outdated
