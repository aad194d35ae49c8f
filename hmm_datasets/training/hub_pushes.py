"""`push_to_hub` of the Trainer's settings, made safe against files that change and secrets that leak.

What is pushed and when follows the Trainer's settings (`hub_strategy`, `hub_always_push`, `hub_revision`). Three
things differ from the Trainer. A checkpoint is pushed only once it has its final name. An upload works from a snapshot
made of hard links and of copies of records, so a checkpoint may be deleted and a history may grow during the upload;
the snapshot takes no space except for the records. The upload goes through [`~hmm_datasets.hub.push.Push`],
which retries, makes one commit, and keeps tokens, host names and absolute paths out of it. A failed push, of files or
of a tracker's logs, is reported in one line and training continues; the next push sends what is missing.
"""

import os
import shutil
import tempfile
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING

from huggingface_hub import HfApi
from transformers.trainer import TRAINER_STATE_NAME
from transformers.trainer_utils import HubStrategy, SaveStrategy

from ..compat.huggingface_hub import patience
from ..compat.transformers import PushInProgress
from ..errors import InputError
from ..files import check_may_write
from ..hub.contents import DEFAULT_IGNORE, files_in, files_to_push, model_files
from ..hub.hub_errors import reason_of
from ..hub.push import PATIENCE, Push
from ..runtime.credentials import reveal

if TYPE_CHECKING:
    from ..hub.push import PushResult
    from .run_context import RunContext

_SNAPSHOT_PREFIX = ".push."
_APPENDED = (".jsonl", ".log", ".out", ".err", ".txt")


class HubPushes:
    """Uploads of a run.

    Args:
        run ([`~hmm_datasets.training.run_context.RunContext`]): the run.
        repository (callable): gives the name of the repository, once it exists.
        push_trackers (callable): lets trackers push what they have logged.
    """

    def __init__(
        self,
        run: "RunContext",
        *,
        repository: Callable[[], str],
        push_trackers: Callable[[], None],
    ):
        self._run, self._repository, self._push_trackers = run, repository, push_trackers
        self._api = HfApi()
        self._under_way: PushInProgress | None = None

    def create_repository(self, create: Callable[[], None]) -> None:
        """Create the repository before training.

        Args:
            create (callable): the Trainer's method.

        Raises:
            `InputError`: the Hub refuses.
        """
        args = self._run.args
        try:
            with patience(PATIENCE):
                create()
        except Exception as error:  # the client and the libraries below it raise many kinds of errors
            raise InputError(
                f"push_to_hub is set, but the repository {args.hub_model_id or args.output_dir} cannot be "
                f"created ({reason_of(error)}); set HF_TOKEN to a token with write access, or leave push_to_hub out "
                "and push afterwards with hmm-datasets push"
            ) from None

    def push_checkpoint(self, checkpoint: Path) -> None:
        """Push the run so far in the background, and its newest checkpoint if `hub_strategy` asks; on rank 0."""
        run = self._run
        args, strategy = run.args, run.args.hub_strategy
        if not run.is_world_process_zero() or strategy == HubStrategy.END:
            return
        if self._is_under_way() and not args.hub_always_push:
            return
        self.push_trackers()
        self._forget_snapshots()
        by_step = args.save_strategy == SaveStrategy.STEPS
        moment = f"step {run.state.global_step}" if by_step else f"epoch {int(run.state.epoch)}"
        jobs = []
        try:
            jobs.append(self._start_push(self._model_so_far(checkpoint), f"Training in progress, {moment}"))
            if strategy in (HubStrategy.CHECKPOINT, HubStrategy.ALL_CHECKPOINTS):
                name = "last-checkpoint" if strategy == HubStrategy.CHECKPOINT else checkpoint.name
                files = {f"{name}/{path}": file for path, file in files_in(checkpoint).items()}
                jobs.append(self._start_push(files, f"Training in progress, {moment}, checkpoint"))
        except OSError as error:  # training continues even if the disk has no space for a snapshot
            run.say(f"{moment}: not pushed: {error}; training continues")
        if self._is_under_way():
            self._under_way.jobs.extend(jobs)
        else:
            self._under_way = PushInProgress(jobs)

    def push_trackers(self) -> None:
        """Let trackers push what they have logged; training continues if they cannot."""
        run = self._run
        try:
            self._push_trackers()
        except Exception as error:  # trackers raise errors of many kinds when the Hub refuses or cannot be reached
            run.say(f"step {run.state.global_step:,}: logs of a tracker were not pushed ({reason_of(error)})")

    def push_run(
        self, message: str | None, blocking: bool, token: str | None, revision: str | None
    ) -> "PushResult | Future":
        """Push the run's folder after running uploads have ended; on rank 0.

        Raises:
            `InputError`: the Hub refuses, or a file contains a token.
        """
        self.finish()
        self._forget_snapshots()
        files = files_to_push(self._run.args.output_dir, DEFAULT_IGNORE)
        push = self._snapshot(files, message, token, revision)
        return push() if blocking else self._api.run_as_future(push)

    def finish(self) -> None:
        """Wait for running uploads."""
        if self._is_under_way():
            self._under_way.wait_until_done()

    def _is_under_way(self) -> bool:
        return self._under_way is not None and not self._under_way.is_done()

    def _model_so_far(self, checkpoint: Path) -> dict[str, Path]:
        """The run's records, and the model and tokenizer of its newest checkpoint."""
        newest = {name: file for name, file in model_files(checkpoint).items() if name != TRAINER_STATE_NAME}
        return files_in(Path(self._run.args.output_dir), DEFAULT_IGNORE) | newest

    def _forget_snapshots(self) -> None:
        """Remove snapshots that a killed run left behind, unless a push of this run is under way."""
        if not self._is_under_way():
            for left in Path(self._run.args.output_dir).glob(f"{_SNAPSHOT_PREFIX}*"):
                shutil.rmtree(left, ignore_errors=True)

    def _start_push(self, files: Mapping[str, Path], message: str) -> Future:
        push = self._snapshot(files, message, None, self._run.args.hub_revision)
        step = self._run.state.global_step

        def push_or_say() -> None:
            try:
                push()
            except Exception as error:  # training continues whatever happens to the Hub or the network
                self._run.say(f"step {step:,}: not pushed: {error}; training continues")

        return self._api.run_as_future(push_or_say)

    def _snapshot(
        self, files: Mapping[str, Path], message: str | None, token: str | None, revision: str | None
    ) -> Callable[[], object]:
        """Take a snapshot of the files; returns a function that pushes it and then removes it."""
        check_may_write()
        run = Path(self._run.args.output_dir)
        scratch = Path(tempfile.mkdtemp(prefix=_SNAPSHOT_PREFIX, dir=run))
        try:
            kept = {name: _linked(file, scratch / name) for name, file in files.items()}
        except OSError:
            shutil.rmtree(scratch, ignore_errors=True)
            raise

        def push() -> object:
            try:
                return Push(
                    kept,
                    self._repository(),
                    run,
                    message=message,
                    token=token or reveal(self._run.args.hub_token),
                    revision=revision or self._run.args.hub_revision,
                ).run()
            finally:
                shutil.rmtree(scratch, ignore_errors=True)

        return push


def _linked(file: Path, target: Path) -> Path:
    """Link a file to `target` on the same disk; copy it if it may grow or if the disk does not support links."""
    target.parent.mkdir(parents=True, exist_ok=True)
    if file.suffix not in _APPENDED:
        try:
            os.link(file.resolve(), target)
            return target
        except OSError:
            pass
    return Path(shutil.copyfile(file, target))
