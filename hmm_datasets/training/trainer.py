"""The Trainer and TRL's SFTTrainer with whole checkpoints, exact counts, and a NaN that never trains on."""

import torch
from transformers import Trainer
from trl import SFTTrainer

from ..data.hmm_sequences import EndlessSequences
from ..data.packing import count_tokens
from ..errors import InputError, RankError
from ..text.stream.verification import check_streams
from .accounting import Accounting
from .checkpoints.model_folders import ModelFolders
from .checkpoints.saving import WholeCheckpoints
from .held_out import HeldOutLoss
from .hub_pushes import HubPushes
from .indices import LoggedIndices
from .losses import ZLoss
from .optimizers import Optimizers
from .vocabulary import pad_output, vocabulary_multiple


class FiniteLoss:
    """Stops at the first loss that is not a finite number, before the optimizer has used it."""

    def training_step(self, *args, **kwargs) -> torch.Tensor:
        """One micro-batch forward and backward; returns its loss."""
        loss = super().training_step(*args, **kwargs)
        if not torch.isfinite(loss).all():
            raise RankError(
                f"step {self.state.global_step + 1}: the loss is {loss.item()}; the newest checkpoint is from before "
                "it: lower the learning rate, or look at the rows of this step"
            )
        return loss


class Ramped:
    """Steps of a growing global batch, by the [`BatchRamp`] of the settings.

    The Trainer's loop counts the micro-batches of a step up to those of the full global batch, and synchronizes on the
    last. A smaller global batch therefore begins with empty places (`None`), on which nothing happens.
    """

    def set_initial_training_values(self, args, dataloader):
        """One epoch of `max_steps` steps where micro-batches do not tell steps, or no step is left."""
        values = super().set_initial_training_values(args, dataloader)
        is_done = args.start is not None and args.start.step == values[-1]
        if not (args.ramp.stages or is_done):
            return values
        _, _, num_examples, _, batch_size, _, steps = values
        return (
            1,
            steps,
            num_examples,
            args.ramp.rows_before(steps),
            batch_size,
            steps * args.gradient_accumulation_steps,
            steps,
        )

    def get_batch_samples(self, epoch_iterator, num_batches, device):
        """The micro-batches of a step, behind empty places, and how many labels they hold."""
        if not self.args.ramp.stages:
            return super().get_batch_samples(epoch_iterator, num_batches, device)
        step = self.state.global_step
        rows = self.args.ramp.size(step)
        wanted = rows // (self.args.world_size * self.args.per_device_train_batch_size)
        batches, num_items = super().get_batch_samples(epoch_iterator, wanted, device)
        if len(batches) < wanted:
            raise InputError(f"step {step + 1}: the rows end before its global batch of {rows} is full")
        return [None] * (num_batches - wanted) + batches, num_items

    def training_step(self, model, inputs, num_items_in_batch=None) -> torch.Tensor:
        """One micro-batch; an empty place has no loss."""
        if inputs is None:
            self.current_gradient_accumulation_steps -= 1
            return torch.zeros((), device=self.args.device)
        return super().training_step(model, inputs, num_items_in_batch)

    def floating_point_ops(self, inputs) -> int:
        """FLOPs of a micro-batch; an empty place has none."""
        return 0 if inputs is None else super().floating_point_ops(inputs)


class TokenCounts:
    """Counts `non_padding` tokens of rows without an attention mask, whatever the tokenizer pads with.

    Packed rows tell their padding by labels and positions; other rows have none.
    """

    def _track_num_input_tokens(self, inputs) -> None:
        if inputs is None:
            return
        if self.args.include_num_input_tokens_seen != "non_padding" or "attention_mask" in inputs:
            super()._track_num_input_tokens(inputs)
            return
        count = count_tokens(inputs)
        if isinstance(count, int):  # no padding, and the rows of all ranks are as many: no need to ask them
            self.state.num_input_tokens_seen += count * self.args.world_size
        else:
            self.state.num_input_tokens_seen += self.accelerator.gather(count).sum().item()


class Pretrainer(
    LoggedIndices,
    Ramped,
    TokenCounts,
    FiniteLoss,
    HeldOutLoss,
    ZLoss,
    Optimizers,
    Accounting,
    WholeCheckpoints,
    ModelFolders,
    HubPushes,
    Trainer,
):
    """The Trainer for rows of tokens, read in order; its settings are [`PretrainSettings`]."""

    def __init__(self, *args, train_dataset=None, **kwargs):
        if isinstance(train_dataset, EndlessSequences):
            train_dataset = train_dataset.by_index()  # so that a run goes on at any step in constant time
        super().__init__(*args, train_dataset=train_dataset, **kwargs)
        pad_output(self.model, vocabulary_multiple(self.args.pad_vocabulary_to, self.args.device))

    def training_step(self, *args, **kwargs) -> torch.Tensor:
        """One micro-batch, unless a token stream that is checked in the background was found changed."""
        check_streams()
        return super().training_step(*args, **kwargs)


class FineTuner(
    FiniteLoss, HeldOutLoss, Optimizers, Accounting, WholeCheckpoints, ModelFolders, HubPushes, SFTTrainer
):
    """TRL's trainer for conversations."""

    loss_has_logits = False  # its output layer and loss are one
