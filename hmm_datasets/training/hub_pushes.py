"""`push_to_hub` of the Trainer's settings: the same files at the same moments, without places and without a race.

What goes up, and when, is the Trainer's to say (`hub_strategy`, `hub_always_push`, `hub_revision`). Three things are
done in another way. A checkpoint is pushed once it has its final name. An upload works from a snapshot of hard links
and copies of records, so that a checkpoint may be deleted and a history may grow while it is under way; it costs no
space but that of the records. And it goes through [`~hmm_datasets.hub.push.push_files`], which tries again, makes one
commit, and lets no token, host name or absolute path through. A push that fails is told in one line, and the run goes
on; the next one sends what is missing.
"""

import os
import shutil
import tempfile
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from pathlib import Path

from huggingface_hub import HfApi
from transformers.trainer_utils import HubStrategy, SaveStrategy
from transformers.utils.hub import PushInProgress

from ..errors import InputError
from ..hub.contents import DEFAULT_IGNORE, files_in, files_to_push
from ..hub.faults import reason_of
from ..hub.push import push_files
from ..hub.run_cards import write_run_card

UNFINISHED_NAME = ".unfinished"
_SNAPSHOT_PREFIX = ".push."
_APPENDED = (".jsonl", ".log", ".out", ".err", ".txt")
_MODEL_FILES = (
    *("config.json", "generation_config.json", "*.safetensors", "*.safetensors.index.json"),
    *("pytorch_model*.bin", "pytorch_model.bin.index.json", "adapter_config.json", "adapter_model.bin"),
)


class HubPushes:
    """Mixed into a Trainer that has `say`."""

    def init_hf_repo(self, token: str | None = None, private: bool | None = None) -> None:
        """Create the repository before anything is trained; a Hub that refuses is told in one line."""
        if not self.is_world_process_zero():
            return
        try:
            super().init_hf_repo(token, private)
        except Exception as error:  # the client's errors are of many kinds, and a library's below it
            raise InputError(
                f"push_to_hub is set, and the repository {self.args.hub_model_id or self.args.output_dir} cannot be "
                f"created ({reason_of(error)}); set HF_TOKEN to a token with write access, or leave push_to_hub out "
                "and push afterwards with hmm-datasets push"
            ) from None
        self._api = HfApi()

    def _push_from_checkpoint(self, checkpoint_folder: str) -> None:
        strategy = self.args.hub_strategy
        if not self.is_world_process_zero() or strategy == HubStrategy.END:
            return
        checkpoint = Path(checkpoint_folder)
        if checkpoint.parent.name == UNFINISHED_NAME:
            return  # asked for again once it has its place
        under_way = self.push_in_progress is not None and not self.push_in_progress.is_done()
        if under_way and not self.args.hub_always_push:
            return
        self.callback_handler.on_push_begin(self.args, self.state, self.control)
        self._forget_snapshots()
        by_step = self.args.save_strategy == SaveStrategy.STEPS
        moment = f"step {self.state.global_step}" if by_step else f"epoch {int(self.state.epoch)}"
        jobs = []
        try:
            jobs.append(self._start_push(self._model_so_far(checkpoint), f"Training in progress, {moment}"))
            if strategy in (HubStrategy.CHECKPOINT, HubStrategy.ALL_CHECKPOINTS):
                name = "last-checkpoint" if strategy == HubStrategy.CHECKPOINT else checkpoint.name
                files = {f"{name}/{path}": file for path, file in files_in(checkpoint).items()}
                jobs.append(self._start_push(files, f"Training in progress, {moment}, checkpoint"))
        except OSError as error:  # a disk with no room for a snapshot is no reason to stop training
            self.say(f"{moment}: not pushed: {error}; training goes on")
        if under_way:
            self.push_in_progress.jobs.extend(jobs)
        else:
            self.push_in_progress = PushInProgress(jobs)

    def push_to_hub(
        self,
        commit_message: str | None = "End of training",
        blocking: bool = True,
        token: str | None = None,
        revision: str | None = None,
        private: bool | None = None,
        **kwargs,
    ):
        """Save the model and push the run's folder; see the Trainer's own for the arguments.

        Returns:
            [`~hmm_datasets.hub.push.PushResult`], or a `Future` of one if not `blocking`, on rank 0.

        Raises:
            `InputError`: the Hub refuses, or a file holds a token.
        """
        self.callback_handler.on_push_begin(self.args, self.state, self.control)
        if self.hub_model_id is None:
            self.init_hf_repo(token=token, private=private)
        self.save_finished()
        if not self.is_world_process_zero():
            return None
        self.create_model_card(**kwargs)
        self._finish_current_push()
        self._forget_snapshots()
        files = files_to_push(self.args.output_dir, DEFAULT_IGNORE)
        push = self._snapshot(files, commit_message, token, revision)
        return push() if blocking else self._api.run_as_future(push)

    def create_model_card(self, *args, **kwargs) -> None:
        """Write the card of a finished run in place of the Trainer's draft; before the end there is none."""
        if self.is_world_process_zero() and (Path(self.args.output_dir) / "summary.json").exists():
            write_run_card(self.args.output_dir)

    def _model_so_far(self, checkpoint: Path) -> dict[str, Path]:
        """The run's records, and the model and tokenizer of its newest checkpoint."""
        run = Path(self.args.output_dir)
        names = {path.name for pattern in _MODEL_FILES for path in checkpoint.glob(pattern)}
        if self.processing_class is not None:
            with tempfile.TemporaryDirectory() as folder:
                self.processing_class.save_pretrained(folder)
                names.update(os.listdir(folder))
        return files_in(run, DEFAULT_IGNORE) | {
            name: checkpoint / name for name in sorted(names) if (checkpoint / name).is_file()
        }

    def _forget_snapshots(self) -> None:
        """Remove what a run that was killed left of its pushes; none of this one is under way."""
        if self.push_in_progress is None or self.push_in_progress.is_done():
            for left in Path(self.args.output_dir).glob(f"{_SNAPSHOT_PREFIX}*"):
                shutil.rmtree(left, ignore_errors=True)

    def _start_push(self, files: Mapping[str, Path], message: str) -> Future:
        push = self._snapshot(files, message, self.args.hub_token, self.args.hub_revision)
        step = self.state.global_step

        def push_or_say() -> None:
            try:
                push()
            except Exception as error:  # whatever befalls the Hub or the network, training goes on
                self.say(f"step {step:,}: not pushed: {error}; training goes on")

        return self._api.run_as_future(push_or_say)

    def _snapshot(
        self, files: Mapping[str, Path], message: str | None, token: str | None, revision: str | None
    ) -> Callable[[], object]:
        """Hold on to the files as they are now; what pushes them and then lets go."""
        run = Path(self.args.output_dir)
        scratch = Path(tempfile.mkdtemp(prefix=_SNAPSHOT_PREFIX, dir=run))
        try:
            kept = {name: _linked(file, scratch / name) for name, file in files.items()}
        except OSError:
            shutil.rmtree(scratch, ignore_errors=True)
            raise

        def push() -> object:
            try:
                return push_files(
                    kept,
                    self.hub_model_id,
                    folder=run,
                    message=message,
                    token=token or self.args.hub_token,
                    revision=revision or self.args.hub_revision,
                )
            finally:
                shutil.rmtree(scratch, ignore_errors=True)

        return push


def _linked(file: Path, place: Path) -> Path:
    """The file at another place of the same disk: by a link, unless rows may be added to it, or links are unknown."""
    place.parent.mkdir(parents=True, exist_ok=True)
    if file.suffix not in _APPENDED:
        try:
            os.link(file.resolve(), place)
            return place
        except OSError:
            pass
    return Path(shutil.copyfile(file, place))
