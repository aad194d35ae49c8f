"""transformers: the Trainer's private methods under public names, and a few of its private constants.

The Trainer documents its callbacks and some methods to override. Exact order, atomic checkpoints, gradients checked
before the optimizer, and uploads of files under their final names need more. Only [`TrainerHooks`] overrides private
methods: each private method calls a public one of the same meaning, which in turn calls that of the Trainer. The rest
of this package overrides and calls the public ones.

All of it can be removed once the Trainer has hooks for these purposes; no upstream issue asks for all of them.
"""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

from transformers.trainer import SCHEDULER_NAME as SCHEDULER_NAME
from transformers.trainer import TRAINING_ARGS_NAME as TRAINING_ARGS_NAME
from transformers.trainer_callback import ExportableState as ExportableState
from transformers.utils.hub import PushInProgress as PushInProgress

from .versions import warn_of_untried_versions

warn_of_untried_versions()


class TrainingLength(NamedTuple):
    """The length of the Trainer's loop: the tuple returned by `set_initial_training_values`, with names."""

    epochs: int
    steps_per_epoch: int
    examples: int
    train_samples: int
    total_batch_size: int
    micro_batches_per_epoch: int | None
    steps: int


class TrainerHooks:
    """Mixin, to be listed before a Trainer class, that gives its private methods public names.

    Override the public methods and call `super()` of the same name. Their purposes:

    | public | private | needed for |
    |---|---|---|
    | `training_length` | the result of `set_initial_training_values` | growing global batches; resuming at the end |
    | `skip_micro_batch` | `current_gradient_accumulation_steps` | the empty micro-batches of a smaller global batch |
    | `gradient_norm` | `_get_grad_norm` | checking that gradients are finite before the optimizer uses them |
    | `logged_losses`, `continue_losses` | `_tr_loss`, `_total_loss_scalar` | means over steps before a resume |
    | `count_labels` | `_get_num_items_in_batch` | a number that FSDP2 does not round to bfloat16 |
    | `count_tokens` | `_track_num_input_tokens` | counting packed rows, which have no attention mask |
    | `extra_columns` | `_signature_columns` | the index of a row, which is not an argument of the model |
    | `save_checkpoint` | `_save_checkpoint`, `_get_output_dir` | checkpoints that are renamed when complete |
    | `save_model_files` | `_save` | a configuration that generates with a cache; no pickled settings |
    | `save_optimizer` | `_save_optimizer_and_scheduler` | storing weights only once in a checkpoint |
    | `prepare_training` | `_prepare_for_training` | DeepSpeed checkpoints of another number of processes |
    | `load_weights`, `load_best` | `_load_from_checkpoint`, `_load_best_model` | weights under ZeRO and FSDP2 |
    | `load_optimizer` | `_load_optimizer_and_scheduler`, `_load_scaler` | the same |
    | `load_random_state` | `_load_rng_state` | restoring random numbers after the first batch was drawn |
    | `finish_pushes` | `_finish_current_push` | pushing the last upload after those before it |

    Two private methods are overridden without a public name. `_push_from_checkpoint` does nothing, because the Trainer
    calls it while the checkpoint still has a temporary name. `_finalize_training` runs without `save_total_limit`,
    because with a limit of one it would silently delete the newest checkpoint.
    """

    extra_columns: tuple[str, ...] = ()
    """Columns that are kept in addition to the arguments of the model."""

    _checkpoint_parent: Path | None = None

    def set_initial_training_values(self, args, dataloader) -> TrainingLength:
        """The Trainer's name for [`TrainerHooks.training_length`]."""
        return self.training_length(args, dataloader)

    def training_length(self, args, dataloader) -> TrainingLength:
        """The numbers of epochs, steps and micro-batches of the loop."""
        return TrainingLength(*super().set_initial_training_values(args, dataloader))

    @property
    def logged_losses(self) -> tuple[int, float, float]:
        """The step of the latest log, the sum of the losses of the steps until then, and that of those since."""
        return self._globalstep_last_logged, self._total_loss_scalar, self._tr_loss.item()

    def continue_losses(self, step: int, total: float, since: float) -> None:
        """Continue a run with its `logged_losses`, at the beginning of training."""
        self._globalstep_last_logged, self._total_loss_scalar = step, total
        self._tr_loss += since

    def skip_micro_batch(self) -> None:
        """Count one micro-batch less in the current step."""
        self.current_gradient_accumulation_steps -= 1

    def _get_grad_norm(self, model, grad_norm=None):
        return self.gradient_norm(model, grad_norm)

    def gradient_norm(self, model, norm=None) -> Any:
        """The norm of the gradient, once per step, after clipping and before the optimizer's step."""
        return super()._get_grad_norm(model, norm)

    def _get_num_items_in_batch(self, batch_samples: list, device):
        return self.count_labels(batch_samples, device)

    def count_labels(self, batches: list[dict[str, Any]], device) -> Any:
        """The number of labels of a step on all ranks, by which its losses are divided; None if it is not needed."""
        return super()._get_num_items_in_batch(batches, device)

    def _track_num_input_tokens(self, inputs) -> None:
        self.count_tokens(inputs)

    def count_tokens(self, inputs) -> None:
        """Add the tokens of a micro-batch, on all ranks, to `state.num_input_tokens_seen`."""
        super()._track_num_input_tokens(inputs)

    def _set_signature_columns_if_needed(self) -> None:
        super()._set_signature_columns_if_needed()
        self._signature_columns.extend(name for name in self.extra_columns if name not in self._signature_columns)

    def _save_checkpoint(self, model, trial) -> None:
        def write(parent: Path) -> None:
            with mock.patch.object(self, "_checkpoint_parent", parent):
                super(TrainerHooks, self)._save_checkpoint(model, trial)

        self.save_checkpoint(write)

    def save_checkpoint(self, write: Callable[[Path], None]) -> None:
        """Save a checkpoint of the step just finished, on all ranks.

        Args:
            write (callable): takes a folder and writes the Trainer's files into its subfolder `checkpoint-N`.
        """
        write(Path(self.args.output_dir))

    def _get_output_dir(self, trial) -> str:
        return super()._get_output_dir(trial) if self._checkpoint_parent is None else str(self._checkpoint_parent)

    def _finalize_training(self, *args, **kwargs):
        with mock.patch.object(self.args, "save_total_limit", None):
            return super()._finalize_training(*args, **kwargs)

    def _save(self, output_dir: str | None = None, state_dict: dict | None = None) -> None:
        self.save_model_files(Path(self.args.output_dir if output_dir is None else output_dir), state_dict)

    def save_model_files(self, folder: Path, state_dict: dict | None = None) -> None:
        """Write configuration, weights and tokenizer, on the ranks that write files."""
        super()._save(str(folder), state_dict)

    def write_model(self, folder: Path) -> None:
        """Write the model into a folder, on all ranks, without pushing it."""
        self.save_model(str(folder), _internal_call=True)

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        self.save_optimizer(output_dir)

    def save_optimizer(self, folder: str) -> None:
        """Write the state of optimizer and schedule into a checkpoint."""
        super()._save_optimizer_and_scheduler(folder)

    def _prepare_for_training(self, max_steps, train_dataloader, resume_from_checkpoint):
        return self.prepare_training(max_steps, train_dataloader, resume_from_checkpoint)

    def prepare_training(self, steps: int, dataloader, checkpoint: str | None):
        """Make the optimizer and the schedule, wrap the model, and load a checkpoint if one is given."""
        return super()._prepare_for_training(steps, dataloader, checkpoint)

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model=None) -> None:
        self.load_weights(resume_from_checkpoint, model)

    def load_weights(self, checkpoint: str, model=None) -> None:
        """Read the weights of a checkpoint into the model."""
        super()._load_from_checkpoint(checkpoint, model)

    def _load_best_model(self) -> None:
        self.load_best()

    def load_best(self) -> None:
        """Read the weights of `state.best_model_checkpoint` into the model."""
        super()._load_best_model()

    def load_optimizer(self, checkpoint: str) -> None:
        """Read the state of optimizer, schedule and gradient scaler."""
        self._load_optimizer_and_scheduler(checkpoint)
        self._load_scaler(checkpoint)

    def load_random_state(self, checkpoint: str | os.PathLike) -> None:
        """Restore the state of the random number generators from a checkpoint."""
        self._load_rng_state(str(checkpoint))

    def _push_from_checkpoint(self, checkpoint_folder: str) -> None:
        pass  # called while the checkpoint is being written; see `save_checkpoint`

    def _finish_current_push(self) -> None:
        self.finish_pushes()

    def finish_pushes(self) -> None:
        """Wait for running uploads; the Trainer calls it at its end."""
        super()._finish_current_push()
