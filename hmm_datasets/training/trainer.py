"""The Trainer with exact order, exact counts, whole checkpoints, and no training on NaN; a mixin for those of TRL too.

One optimizer step, from top to bottom, is [`StepTrainer.get_batch_samples`], then for each micro-batch
[`StepTrainer.training_step`] and in it [`StepTrainer.compute_loss`], then [`StepTrainer.gradient_norm`] and the
optimizer. Everything else that a step does is in the components, in the order of [`StepTrainer.components`].
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from math import isfinite
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from tqdm import tqdm
from transformers import Trainer, TrainerCallback, TrainingArguments
from transformers.utils.generic import is_flash_attention_requested

from ..compat.deepspeed import reduce_whole_gradients
from ..compat.transformers import TrainingLength
from ..compat.transformers_models import unpacked_rows
from ..data.packing import document_bounds
from ..data.sequences import EndlessSequences
from ..data.skipped_rows import RemainingRows, SkippedRows
from ..errors import InputError
from ..files import check_may_write
from ..runtime.credentials import reveal
from ..runtime.heartbeats import during
from .checkpoints.curve import curve_identity
from .checkpoints.model_files import loadable
from .checkpoints.resuming import RestoredRandomState, Start, check_start
from .checkpoints.rollback import go_back
from .checkpoints.saving import Checkpoints, writer_of
from .checkpoints.sharded import ShardedTrainer
from .checkpoints.skipped_rows import Rollback, rollbacks_of, rows_identity, skipped_rows_of
from .content import SECTION
from .fused_loss import LabelScores, LossOutput, next_labels, set_loss_output, unsupported_reason, without_adapter
from .hub_pushes import HubPushes
from .optimizers import (
    apply_changes,
    group_options,
    muon_optimizer,
    schedule_settings,
)
from .parameters import train_every_embedding
from .plan.plan import Plan
from .precision import keep_loss_in_float32, set_type_of_weights
from .run_card import write_run_card
from .step.component import Component, in_order, named_components
from .step.finite_loss import FiniteLoss
from .step.held_out_loss import HeldOutLoss, HeldOutMeasures
from .step.logged_rows import ROW_INDEX, IndexedBatches, IndexedRows, LoggedRows
from .step.loss import StepLoss
from .step.phases import PhaseReporter
from .step.scores import LogitScores, Scores
from .step.skipped_steps import SkippedSteps
from .step.spikes import LossSpikes
from .step.throughput import Throughput
from .step.token_counts import count_on_all_ranks
from .step.totals import RunTotals
from .step.z_loss import ZLoss
from .vocabulary import pad_output, vocabulary_multiple


class StepTrainer(ShardedTrainer):
    """A mixin for a Trainer class whose settings include [`~hmm_datasets.training.settings.RunSettings`].

    Attributes:
        plan ([`~hmm_datasets.training.plan.plan.Plan`], *optional*): the plan of the run.
        skipped_rows ([`~hmm_datasets.data.skipped_rows.SkippedRows`]): rows that it leaves out since it went back.
        step_loss ([`~hmm_datasets.training.step.loss.StepLoss`]): the loss of the step under way.
        components (`list` of [`~hmm_datasets.training.step.component.Component`]): what a step does in addition
            to the loss. `before_...` methods are called in this order, `after_...` methods in the reverse order.
        schedule ([`~hmm_datasets.training.plan.batch_schedule.BatchSchedule`]): number of rows of every step.
        totals ([`~hmm_datasets.training.step.totals.RunTotals`]): totals over all starts of the run.
        start ([`~hmm_datasets.training.checkpoints.resuming.Start`], *optional*): the checkpoint it continues from.
        identity (`dict`, *optional*): what determines the loss curve of the run; written into every checkpoint.
        content (`dict`): digests of what it reads, see [`~hmm_datasets.training.content`].
    """

    extra_columns = (ROW_INDEX,)
    loss_has_logits = True
    """Whether computing the loss also gives the logits; if not, `label_scores` does without."""
    measures: dict[str, list[float]] | None = None
    """What the trainer has measured in the evaluation under way, one number per batch, if it does."""
    measures_since_log: dict[str, list[float]] | None = None
    """What it has measured in training since the latest row of the log, one number per micro-batch."""
    stage: str | None = None
    """Name of the stage in the lineage of a model; None for pretraining, or midtraining of an earlier model."""
    template_time: str | None = None
    """What chat templates write as the time, where the run has conversations."""

    def __init__(self, *args, plan: Plan | None = None, **kwargs):
        self.hub_pushes = HubPushes(
            self,
            repository=lambda: self.hub_model_id,
            push_trackers=lambda: self.callback_handler.on_push_begin(self.args, self.state, self.control),
        )
        self.content: dict[str, str] = {}
        arguments = [*args, *kwargs.values()]
        settings = next(argument for argument in arguments if isinstance(argument, TrainingArguments))
        model = next((argument for argument in arguments if isinstance(argument, torch.nn.Module)), None)
        if model is not None:  # before a reference is made like it, or its log-probabilities are computed
            set_type_of_weights(model, settings, is_base=kwargs.get("peft_config") is not None)
            train_every_embedding(model)
        super().__init__(*args, **kwargs)
        self.plan = self._plan() if plan is None else plan
        self.schedule = self.args.batch_schedule
        self.start: Start | None = None
        self.identity: dict[str, Any] | None = None
        self.checkpoints = Checkpoints(
            self,
            identity=lambda: self.identity,
            write_model=self.write_model,
            tensors=self._tensors,
            push=self.hub_pushes.push_checkpoint,
        )
        self.throughput = Throughput(self)
        self.totals = RunTotals(self, self.logs_so_far, self.continue_logs)
        self.rollbacks: list[Rollback] = []
        self.skipped_rows = SkippedRows()
        self.all_rows: Any = self.train_dataset
        self.step_loss = StepLoss(self, self.rows_of_micro_batches, divides_by_items=self.model_accepts_loss_kwargs)
        self.z_loss, spikes = ZLoss(self), LossSpikes(self, self.step_loss, self._go_back)
        self.is_interrupted = False
        self.components: list[Component] = in_order(
            [
                PhaseReporter(self),
                RestoredRandomState(self, self._restore_random_state),
                SkippedSteps(self),
                spikes,
                FiniteLoss(self, self.step_loss, self._go_back, self.compute_loss_context_manager),
                self.step_loss,
                LoggedRows(self),
                HeldOutLoss(self),
                HeldOutMeasures(self, lambda: self.measures),
                self.z_loss,
                self.throughput,
                *(kind(self) for kind in named_components(self.args.components)),
            ]
        )
        if getattr(self.args, "log_indices", False):
            self.train_dataset = IndexedRows(self.train_dataset)
            self.data_collator = IndexedBatches(self.data_collator)
        self.add_callback(spikes.recent)
        self.add_callback(self.totals)
        self.add_callback(_Steps(self))

    def _tensors(self) -> Iterator[torch.Tensor]:
        """The weights and the optimizer state on this rank."""
        yield from self.model.parameters()
        for state in () if self.optimizer is None else self.optimizer.state.values():
            yield from filter(torch.is_tensor, state.values())

    def _restore_random_state(self) -> None:
        """Restore the state of the random numbers of the checkpoint that the run continues from."""
        if self.start is not None and self.reads_in_order:
            self.load_random_state(self.start.folder)

    def _go_back(self, step: int) -> str:
        """Go back because of a step; see [`~hmm_datasets.training.checkpoints.rollback.go_back`]."""
        num_rows = len(self.all_rows) if self.plan is None else None
        return go_back(self, step, self.rollbacks, self.skipped_rows, num_rows)

    # Before the first step.

    def create_accelerator_and_postprocess(self) -> None:
        """Create the accelerator, before any model is wrapped, a reference too."""
        super().create_accelerator_and_postprocess()
        keep_loss_in_float32(self.accelerator)

    def _plan(self) -> Plan | None:
        """The plan to use if none was given."""
        return None

    @property
    def reads_in_order(self) -> bool:
        """Whether step `t` trains on the rows that follow those of step `t - 1`."""
        return self.args.train_sampling_strategy == "sequential"

    def rows_before(self, step: int) -> int:
        """Number of rows of the data set before those of an optimizer step, counted from 0."""
        return self.schedule.rows_before(step)

    def rows_of_micro_batches(self, count: int) -> list[list[int]] | None:
        """The indices, in the data set, of the rows of this rank's `count` micro-batches of the step under way.

        Ranks take micro-batches in turn. None if the Trainer shuffles the rows, or if they are not read from a table.
        """
        if not self.reads_in_order or self.rows_before(1) != self.schedule.rows_before(1):
            return None
        args, size = self.args, self.args.per_device_train_batch_size
        first = self.rows_before(self.state.global_step) + args.process_index * size
        starts = range(first, first + count * args.world_size * size, args.world_size * size)
        return [[self.skipped_rows.index(start + row) for row in range(size)] for start in starts]

    def begin(
        self, data: dict[str, Any], start: Start | None = None, rollbacks: Sequence[Rollback] | None = None
    ) -> None:
        """Check that the run can continue from `start`, and skip the rows before it. Called once, before `train`.

        Args:
            data (`dict`): what determines the rows and their order.
            start ([`Start`], *optional*): the checkpoint to continue from.
            rollbacks (sequence of `Rollback`, *optional*): those whose rows are skipped; by default those of
                the run in `output_dir`.

        Raises:
            `InputError`: the checkpoint is from another run, or a batch does not divide.
        """
        args = self.args
        if rollbacks is None:
            rollbacks = rollbacks_of(args.output_dir) if args.resume else []
        self.rollbacks = list(rollbacks)
        self.skipped_rows, self.all_rows = skipped_rows_of(self.rollbacks), self.train_dataset
        self.identity, self.start = curve_identity(self, data) | rows_identity(self.rollbacks), start
        if self.content:
            self.identity[SECTION] = self.content
        self.schedule = args.batch_schedule.continued(start, args.world_size * args.per_device_train_batch_size)
        is_read_once = self.reads_in_order and start is not None and self._has_rows_for_all_steps()
        if self.reads_in_order and (start is not None or self.skipped_rows):
            first = self.rows_before(start.step) if is_read_once else 0
            self.train_dataset = RemainingRows(self.train_dataset, self.skipped_rows, first)
        elif self.skipped_rows:
            raise InputError(
                f"{args.output_dir}: skips rows since it went back, but they are not read in their order; set "
                "train_sampling_strategy sequential, as when it was started"
            )
        if start is None:
            return
        # The Trainer skips rows that are shuffled, or read several times, batch by batch, which is right only if the
        # batch size is unchanged.
        fixed = ("settings.optimizer", *(() if is_read_once else ("settings.global_batch_size",)))
        check_start(start.folder, self.identity, writer_of(self), args.allow_changed, fixed, type(args))
        args.ignore_data_skip = is_read_once
        args.eval_on_start = False  # of the run, which has begun

    def _has_rows_for_all_steps(self) -> bool:
        """Whether no row of the data set is read twice; without `max_steps` epochs are counted, which needs all."""
        steps = self.args.max_steps
        return steps > 0 and self.skipped_rows.number(len(self.train_dataset)) >= self.schedule.rows_before(steps)

    def training_length(self, args, dataloader) -> TrainingLength:
        """One epoch of `max_steps` steps if steps differ in their number of micro-batches, or if no step is left."""
        length = super().training_length(args, dataloader)
        is_done = self.start is not None and self.start.step == length.steps
        if not (self.schedule.stages or is_done):
            return length
        return length._replace(
            epochs=1,
            steps_per_epoch=length.steps,
            train_samples=self.schedule.rows_before(length.steps),
            micro_batches_per_epoch=length.steps * args.gradient_accumulation_steps,
        )

    def create_optimizer(self, model=None) -> torch.optim.Optimizer:
        """Create the optimizer that the settings ask for, unless there is one."""
        if self.optimizer is None and self.args.optimizer == "muon":
            trained = self.model if model is None else model
            decayed = set(self.get_decay_parameter_names(trained))
            self.optimizer = muon_optimizer(trained, self.args, decayed, is_deepspeed=self.is_deepspeed_enabled)
            if self.is_deepspeed_enabled:
                reduce_whole_gradients(self.accelerator.state.deepspeed_plugin.deepspeed_config)
        return super().create_optimizer(model)

    def create_scheduler(self, num_training_steps: int, optimizer=None):
        """Create the learning rate schedule, with a decay given as a share of the run converted to steps."""
        with mock.patch.object(self.args, "lr_scheduler_kwargs", schedule_settings(self.args, num_training_steps)):
            schedule = super().create_scheduler(num_training_steps, optimizer)
        self._options = group_options(self.optimizer)
        return schedule

    def prepare_training(self, steps: int, dataloader, checkpoint: str | None):
        """Load the optimizer and its schedule, and then let accepted changes of their settings take effect."""
        prepared = super().prepare_training(steps, dataloader, checkpoint)
        if checkpoint is not None:
            apply_changes(self.args.allow_changed, self._options, self.optimizer, self.lr_scheduler)
        return prepared

    # A step.

    def get_batch_samples(self, epoch_iterator, num_batches, device):
        """The micro-batches of a step, and their number of labels.

        The Trainer's loop expects as many micro-batches as the full global batch has, and synchronizes on the last. A
        smaller global batch is therefore preceded by empty micro-batches (`None`), for which nothing is computed.
        """
        step, rows = self.state.global_step, None
        wanted = num_batches
        if self.schedule.stages:
            rows = self.schedule.size(step)
            wanted = rows // (self.args.world_size * self.args.per_device_train_batch_size)
        for component in self.components:
            component.before_batches()
        batches, num_items = super().get_batch_samples(epoch_iterator, wanted, device)
        for component in reversed(self.components):
            component.after_batches()
        if rows is not None and len(batches) < wanted:
            raise InputError(f"step {step + 1}: the rows end before its global batch of {rows} is full")
        return [None] * (num_batches - wanted) + batches, num_items

    def count_labels(self, batches, device):
        """The number of labels of a step, as an integer.

        The Trainer divides it by the number of ranks that share a row, and so makes it a float, also if that is 1. A
        float is cast with the inputs of a model: under FSDP2 in bfloat16 2,220 would be 2,224, and the loss and its
        gradient too small by 0.2%.
        """
        count = super().count_labels(batches, device)
        shared = self.get_tp_size() * self.get_cp_size() * self.get_sp_size()
        return count.long() if torch.is_tensor(count) and shared == 1 else count

    def training_step(self, model, inputs, num_items_in_batch=None) -> torch.Tensor:
        """Forward and backward pass of a micro-batch; returns its loss."""
        if inputs is None:
            self.skip_micro_batch()
            return torch.zeros((), device=self.args.device)
        for component in self.components:
            component.before_micro_batch(inputs)
        loss = super().training_step(model, inputs, num_items_in_batch)
        for component in reversed(self.components):
            loss = component.after_micro_batch(loss)
        return loss

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        """The forward pass of a micro-batch, in training or evaluation; returns its loss."""
        labels = inputs.get("labels")
        needs_scores = labels is not None and any(part.needs_scores(model) for part in self.components)
        for component in self.components:
            component.before_forward(inputs)
        inputs = self._with_bounds(inputs)
        are_unpacked = "position_ids" not in inputs and {"input_ids", "labels"} <= inputs.keys()
        rows = unpacked_rows() if are_unpacked else nullcontext()
        with rows, self.loss_in_chunks(model, labels, return_outputs) as scores:
            has_outputs = return_outputs or (needs_scores and scores is None and self.loss_has_logits)
            loss = super().compute_loss(
                model, dict(inputs), has_outputs, num_items_in_batch
            )  # which may remove labels
        loss, outputs = loss if has_outputs else (loss, None)
        if needs_scores and scores is None:
            scores = self.label_scores(model, inputs, outputs)
        for component in reversed(self.components):
            loss = component.after_forward(model, labels, scores, loss, num_items_in_batch)
        return (loss, outputs) if return_outputs else loss

    def _with_bounds(self, inputs: dict[str, Any]) -> dict[str, Any]:
        """The inputs, with the bounds of packed documents if the attention does not find them in `position_ids`."""
        if "position_ids" not in inputs or "attention_mask" in inputs or "cu_seq_lens_q" in inputs:
            return inputs
        if not is_flash_attention_requested(self.model.config.get_text_config()):
            return inputs
        return inputs | document_bounds(inputs["position_ids"])

    def loss_in_chunks(self, model, labels, return_outputs: bool) -> AbstractContextManager[LabelScores | None]:
        """A context in which the model computes the losses of these labels without all logits, if it can."""
        return nullcontext()

    def label_scores(self, model, inputs, outputs) -> Scores:
        """The scores of the labels, from the outputs of the model if the loss was computed from logits."""
        return LogitScores(lambda: outputs.logits, inputs["labels"])

    def count_tokens(self, inputs) -> None:
        """Count the tokens of a micro-batch on all ranks, without padding."""
        if inputs is None:
            return
        if self.args.include_num_input_tokens_seen != "non_padding" or "attention_mask" in inputs:
            super().count_tokens(inputs)
        else:
            self.state.num_input_tokens_seen += count_on_all_ranks(inputs, self.accelerator)

    def floating_point_ops(self, inputs) -> int:
        """FLOPs of a micro-batch on this rank; the Trainer adds them up and saves the sum with its checkpoints."""
        return 0 if inputs is None else self.throughput.flops_of(inputs)

    def store_flos(self) -> None:
        """Add the FLOPs of all ranks to the sum in float64; the Trainer would use float32, with 7 digits."""
        flops = torch.tensor(self.current_flos, dtype=torch.float64, device=self.args.device)
        if self.args.world_size > 1:
            torch.distributed.all_reduce(flops)
        self.state.total_flos += flops.item()
        self.current_flos = 0

    def gradient_norm(self, model, norm=None):
        """The norm of the gradient of the global batch; the optimizer's step follows."""
        norm = super().gradient_norm(model, norm)
        for component in reversed(self.components):
            component.after_gradient(model, float(norm))
        return norm

    def log(self, logs: dict[str, float], *args, **kwargs) -> None:
        """Log a row. The last one is about the whole run, so a start that is interrupted has none."""
        check_may_write()  # for trackers, which do not ask
        if "loss" in logs:
            for component in self.components:
                component.before_log(logs)
        elif "train_runtime" in logs:
            if self.is_interrupted:
                return
            self._account(logs)
        super().log(logs, *args, **kwargs)

    def _account(self, logs: dict[str, float]) -> None:
        """Replace the Trainer's figures, which are those of this start, by those of the run."""
        totals = self.totals
        totals.on_train_end(self.args, self.state, self.control)
        steps, seconds = max(totals.steps, 1), max(totals.seconds, 1e-9)
        rows = self.rows_before(self.state.global_step) - self.rows_before(self.state.global_step - totals.steps)
        logs |= {"train_loss": self.logged_losses[1] / steps, "train_runtime": round(totals.seconds, 4)}
        logs |= {"train_steps_per_second": round(totals.steps / seconds, 3)}
        logs |= {"train_samples_per_second": round(rows / seconds, 3)}

    def logs_so_far(self) -> dict[str, Any]:
        """What was computed since the latest row of the log, as means over ranks; a collective."""
        step, total, since = self.logged_losses
        sums = torch.tensor([total, since], dtype=torch.float64, device=self.args.device)
        total, since = self.accelerator.reduce(sums, "mean").tolist()
        measured = {name: [*filter(isfinite, values)] for name, values in (self.measures_since_log or {}).items()}
        return {"losses": [step, total, since], "z_loss": self.z_loss.so_far(), "measures": measured}

    def continue_logs(self, logs: dict[str, Any]) -> None:
        """Continue with what a checkpoint noted, so that the next row is that of an undisturbed run."""
        if self.start is not None and logs:
            self.continue_losses(*logs["losses"])
            if logs["z_loss"] is not None:
                self.z_loss.continue_from(logs["z_loss"])
            if self.measures_since_log is not None:
                self.measures_since_log.update(logs["measures"])

    def say(self, line: str) -> None:
        """Write a line above the progress bar, on rank 0."""
        if self.is_world_process_zero():
            tqdm.write(line)

    # Evaluations.

    def evaluation_loop(self, dataloader, *args, metric_key_prefix: str = "eval", **kwargs):
        """Evaluate, and let the components add to the metrics."""
        for component in self.components:
            component.before_evaluation()
        with during("evaluating"):
            output = super().evaluation_loop(dataloader, *args, metric_key_prefix=metric_key_prefix, **kwargs)
        for component in reversed(self.components):
            component.after_evaluation(dataloader.dataset, output.metrics, metric_key_prefix)
        return output

    # Checkpoints, models, uploads.

    def save_checkpoint(self, write: Callable[[Path], None]) -> None:
        """Save a checkpoint of the step just done."""
        with during("saving"):
            self.totals.note_logs()
            self.checkpoints.save(write)

    def save_finished(self) -> None:
        """Save the model in the run's folder; each file is replaced only once all new ones are complete."""
        with during("saving"):
            self.checkpoints.save_model()

    def save_model_files(self, folder: Path, state_dict: dict | None = None) -> None:
        """Write the model with a configuration for inference."""
        with loadable(self.accelerator.unwrap_model(self.model, keep_torch_compile=False), folder):
            super().save_model_files(folder, state_dict)

    def init_hf_repo(self, token: str | None = None, private: bool | None = None) -> None:
        """Create the repository of `push_to_hub`."""
        if self.is_world_process_zero():
            create, private = super().init_hf_repo, self.args.hub_private_repo if private is None else private
            with mock.patch.object(self.args, "hub_private_repo", private):  # `create` takes no `private` before 5.23
                self.hub_pushes.create_repository(lambda: create(token or reveal(self.args.hub_token)))

    def push_to_hub(
        self,
        commit_message: str | None = "End of training",
        blocking: bool = True,
        token: str | None = None,
        revision: str | None = None,
        private: bool | None = None,
        **kwargs,
    ):
        """Save the model and push the run's folder; the arguments are those of `Trainer.push_to_hub`.

        Returns:
            [`~hmm_datasets.hub.push.PushResult`], or a `Future` of one if not `blocking`, on rank 0.

        Raises:
            `InputError`: the Hub refuses, or a file contains a token.
        """
        self.hub_pushes.push_trackers()
        if self.hub_model_id is None:
            self.init_hf_repo(token=token, private=private)
        self.save_finished()
        if not self.is_world_process_zero():
            return None
        self.create_model_card(**kwargs)
        return self.hub_pushes.push_run(commit_message, blocking, token, revision)

    def finish_pushes(self) -> None:
        """Wait for running uploads."""
        self.hub_pushes.finish()

    def create_model_card(self, *args, **kwargs) -> None:
        """Write the card of a finished run instead of the Trainer's draft; an unfinished run gets no card."""
        if self.is_world_process_zero() and (Path(self.args.output_dir) / "summary.json").exists():
            write_run_card(self.args.output_dir)


class _Steps(TrainerCallback):
    """Calls the components before and after the optimizer, and counts the rows of a step once it is done."""

    def __init__(self, trainer: StepTrainer):
        self._trainer = trainer

    def on_pre_optimizer_step(self, args, state, control, **kwargs):
        for component in self._trainer.components:
            component.before_optimizer()

    def on_optimizer_step(self, args, state, control, **kwargs):
        for component in reversed(self._trainer.components):
            component.after_optimizer()

    def on_step_end(self, args, state, control, **kwargs):
        self._trainer.totals.rows = self._trainer.schedule.rows_before(state.global_step)


class Pretrainer(StepTrainer, Trainer):
    """The Trainer for rows of tokens; its settings are [`~hmm_datasets.training.settings.PretrainSettings`].

    Args:
        plan ([`~hmm_datasets.training.plan.plan.Plan`], *optional*): the plan of the run; it provides the rows.
        train_dataset (`Dataset`, *optional*): the rows, if there is no plan.
        *args, **kwargs: arguments of `Trainer`.
    """

    def __init__(self, *args, plan: Plan | None = None, train_dataset=None, **kwargs):
        if plan is not None:
            train_dataset = plan.train_rows()
        if isinstance(train_dataset, EndlessSequences):
            train_dataset = train_dataset.by_index()  # so that a run resumes at any step in constant time
        super().__init__(*args, plan=plan, train_dataset=train_dataset, **kwargs)
        pad_output(self.model, vocabulary_multiple(self.args.device))
        self.loss_output = self._loss_output()
        self._discards_outputs = False

    def _loss_output(self) -> LossOutput | None:
        """The output layer that computes the loss in chunks, or None where the loss is computed from all logits."""
        args, model = self.args, without_adapter(self.model)
        if not args.chunks(model.config.get_text_config().vocab_size):
            return None
        if self.compute_loss_func is not None:
            reason = "is given another loss by compute_loss_func"
        else:
            reason = unsupported_reason(model)
        if reason is None:
            return set_loss_output(model)
        self.say(
            f"chunked_loss: {type(model).__name__} {reason}, so its loss is computed from the logits of all tokens"
        )
        return None

    def loss_in_chunks(self, model, labels, return_outputs: bool) -> AbstractContextManager[LabelScores | None]:
        """A context in which the model computes the losses of these labels without all logits, if it can."""
        if self.loss_output is None or labels is None or (return_outputs and not self._discards_outputs):
            return nullcontext()
        z_loss = self.args.z_loss if model.training else 0.0
        return self.loss_output.computing_losses_of(LabelScores(next_labels(labels), z_loss=z_loss))

    def prediction_step(self, model, inputs, prediction_loss_only, ignore_keys=None):
        """The loss of a batch of an evaluation, and its logits and labels if they are wanted."""
        with mock.patch.object(self, "_discards_outputs", prediction_loss_only):
            return super().prediction_step(model, inputs, prediction_loss_only, ignore_keys)
