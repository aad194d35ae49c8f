"""TRL's trainers for conversations, preferences and rewards, with the order, counts and checkpoints of pretraining."""

import copy
import os
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import cached_property
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from datasets import Dataset
from transformers import PreTrainedModel

from ...compat.trl import (
    GIVES_LOG_PROBS,
    PAIR_COLUMNS,
    OpenDPOTrainer,
    OpenGRPOTrainer,
    OpenMeasures,
    OpenSFTTrainer,
    fit_buffers,
)
from ...data.epochs import ShuffledEpochs
from ...errors import InputError
from ...text.tokenizers.chat_encoding import encode_conversation
from ...text.tokenizers.chat_templates import marked_template
from ..content import rows_digest
from ..model_configs import check_packed
from ..plan.plan import Plan
from ..settings import SFTSettings
from ..sources import ConversationData, PreferenceData
from ..step.held_out_loss import gathering_rows_once
from ..step.scores import LogitScores
from ..template_time import fix_template_time
from ..trainer import StepTrainer
from .conversations import check_marks
from .lora import lora_config, name_by_whole_path, save_merged
from .tokenized import is_tokenized_here, limit_rows, tokenized_conversations, tokenized_pairs

_MANY_CUT = 0.05  # share of conversations
_TOKENS = ("input_ids", "labels", "assistant_masks", "completion_mask", "seq_lengths", *PAIR_COLUMNS)


class AdapterTrainer(OpenMeasures, StepTrainer):
    """A mixin for a trainer of TRL whose settings include
    [`~hmm_datasets.training.post_training.lora.LoRASettings`].

    Raises:
        `InputError`: an adapter under FSDP2.
    """

    def __init__(self, *args, peft_config=None, **kwargs):
        if peft_config is None:
            peft_config = lora_config(kwargs["args"])
        if peft_config is not None:
            name_by_whole_path(kwargs["model"] if "model" in kwargs else args[0])
        self.template_time = fix_template_time(kwargs["args"].output_dir)
        rows = kwargs.get("train_dataset")
        of_rows = {"rows": rows_digest(rows)} if isinstance(rows, Dataset) else {}
        super().__init__(*args, peft_config=peft_config, **kwargs)
        fit_buffers(self.model.config.get_text_config().vocab_size)
        self.content = of_rows | self.content
        if peft_config is not None and self.is_fsdp_enabled:
            raise InputError("use_peft: adapters are not resumed under FSDP2; launch with ddp, zero1 or zero2")

    def continue_logs(self, logs) -> None:
        """Continue with what a checkpoint noted, and with the count of tokens."""
        super().continue_logs(logs)
        self.set_token_count(self.state.num_input_tokens_seen)

    def save_finished(self) -> None:
        """Save the adapter or the model in the run's folder, and the merged model if the settings ask for it."""
        super().save_finished()
        if self.args.merge_adapter and self.is_world_process_zero():
            self.say(f"{save_merged(self.args.output_dir)}: the model with the adapter merged")


class _FusedScores(LogitScores):
    """Scores of a model with TRL's output layer, of which the losses need no logits.

    Args:
        logits (callable), labels (`torch.Tensor` of shape `(B, T)`): see [`LogitScores`].
        log_probs (callable): gives the log-probability of the label that each of the first `T - 1` positions predicts.
    """

    def __init__(self, logits, labels, log_probs: Callable[[], torch.Tensor]):
        super().__init__(logits, labels)
        self._log_probs = log_probs

    @cached_property
    def losses(self) -> torch.Tensor:
        """Cross-entropies in float32."""
        return torch.nn.functional.pad(-self._log_probs(), (0, 1))


def _marking(tokenizer, args: SFTSettings) -> AbstractContextManager[Any]:
    """A context in which TRL's trainer, which prepares its rows when it is made, finds the chat template marked."""
    if tokenizer is None or not args.assistant_only_loss:
        return nullcontext()
    return mock.patch.object(tokenizer, "chat_template", marked_template(tokenizer))


class FineTuner(AdapterTrainer, OpenSFTTrainer):
    """TRL's trainer for conversations; its settings are [`~hmm_datasets.training.settings.SFTSettings`].

    Rows have at most as many tokens as the model has positions.
    """

    loss_has_logits = False  # TRL computes output layer and loss in one fused operation
    stage = "fine-tuning"

    def __init__(self, model, args: SFTSettings, *, processing_class=None, **kwargs):
        if args.assistant_only_loss and processing_class is not None:
            check_marks(processing_class, processing_class.name_or_path or "the tokenizer")
        self._row_args = copy.copy(args)
        if isinstance(model, PreTrainedModel):
            limit_rows(self._row_args, model.config)
            if args.packing:
                args.max_length = self._row_args.max_length  # TRL packs; other rows keep the identity of their run
                check_packed(model.config, "packing")
        with _marking(processing_class, args):
            super().__init__(model=model, args=args, processing_class=processing_class, **kwargs)

    def tokenized_rows(self, rows, tokenizer, args, packing, name):
        """Conversations as tokens; other rows are left to TRL."""
        if not is_tokenized_here(rows, ("messages",)):
            return rows
        return tokenized_conversations(rows, tokenizer, self._row_args, packing=packing, name=name)

    def label_scores(self, model, inputs, outputs) -> LogitScores:
        """The scores of the labels, for which the model runs once more: TRL does not give them to components."""
        alone = {name: value for name, value in inputs.items() if name != "labels"}
        if not GIVES_LOG_PROBS:
            return LogitScores(lambda: model(**alone).logits, inputs["labels"])
        return _FusedScores(
            lambda: model(**alone).logits,
            inputs["labels"],
            lambda: model(**inputs, fused_lm_head=True).log_probs,
        )

    def _plan(self) -> Plan | None:
        longest = self._row_args.max_length
        plan = plan_prepared(self, ConversationData, longest)
        if plan is not None and longest is not None and not self.args.packing:
            share = plan.data.share_of_full_rows()
            if share > _MANY_CUT:
                self.say(
                    f"max_length {longest}: {share:.0%} of the conversations are cut, or end just there; "
                    + (
                        "raise it to train on all of their words"
                        if longest == self.args.max_length
                        else "it is all that the model has positions for"
                    )
                )
        return plan


class PreferenceTuner(AdapterTrainer, OpenDPOTrainer):
    """TRL's trainer for preference pairs; its settings are [`~hmm_datasets.training.settings.DPOSettings`].

    In addition to the forms of TRL, rows may have the columns `prompt_ids`, `chosen_ids` and `rejected_ids` (token
    ids), and `ref_chosen_logps` and `ref_rejected_logps` (log-probabilities of both completions under the reference,
    in nats), which are then used as they are.
    """

    stage = "preference optimization"

    def tokenized_rows(self, rows, tokenizer, args, name):
        """Preferences between messages as tokens; other rows are left to TRL."""
        if not is_tokenized_here(rows, ("prompt", "chosen", "rejected")):
            return rows
        return tokenized_pairs(rows, tokenizer, args, name=name)

    def evaluate(self, eval_dataset=None, *args, **kwargs):
        """Evaluate, in batches of the largest size that divides the rows: every loss is a mean over a whole batch."""
        rows, size = self.eval_dataset if eval_dataset is None else eval_dataset, self.args.per_device_eval_batch_size
        if isinstance(rows, Dataset):
            size = _dividing(len(rows), size)
        sized = mock.patch.object(self.args, "per_device_eval_batch_size", size)
        with sized, gathering_rows_once(self.accelerator):
            return super().evaluate(eval_dataset, *args, **kwargs)

    def _plan(self) -> Plan | None:
        return plan_prepared(self, PreferenceData, self.args.max_length)


class PolicyTuner(AdapterTrainer, OpenGRPOTrainer):
    """TRL's trainer for rewards; its settings are [`~hmm_datasets.training.settings.GRPOSettings`].

    Rows are prompts, in another random order in every epoch. Step `t` uses the same prompts on any number of
    processes; rollouts are drawn by torch's generators, whose states are saved, as is a rollout of which updates are
    left, so a run that continues on the same number of processes uses those of an undisturbed one. On another number
    a rollout under way is drawn anew for the updates that are left. Tokens are those of prompts and completions,
    counted when they are generated. FLOPs are those of the updates, without the generation.

    Raises:
        `InputError`: tools that the model may call, which prompts do not declare here.
    """

    stage = "reinforcement learning"

    def __init__(self, *args, tools=None, **kwargs):
        if tools:
            raise InputError("tools are given; expected none here, train with TRL's GRPOTrainer to use them")
        self._flops = 0
        super().__init__(*args, **kwargs)

    def prompt_tokens(self, messages):
        """The tokens of a prompt, in which what spells a control token in a message is text."""
        return encode_conversation(
            self.processing_class,
            messages,
            add_generation_prompt=True,
            template=self.chat_template,
            variables=self.chat_template_kwargs,
        )

    def evaluate(self, eval_dataset=None, *args, **kwargs):
        """Evaluate, in batches of which ranks have equal numbers where they can, so that none is repeated."""
        rows, size = self.eval_dataset if eval_dataset is None else eval_dataset, self.args.per_device_eval_batch_size
        ranks, completions = self.args.world_size, self.num_generations_eval
        if isinstance(rows, Dataset) and len(rows) * completions % ranks == 0:
            even = _dividing(len(rows) * completions // ranks, size)
            size = even if even * ranks % completions == 0 else size
        with mock.patch.object(self.args, "per_device_eval_batch_size", size):
            return super().evaluate(eval_dataset, *args, **kwargs)

    def _plan(self) -> Plan | None:
        """No plan, because the lengths of completions are not known; the prompts are put in order."""
        args = self.args
        args.set_steps(len(self.train_dataset))
        epochs = -(-args.prompts_before(args.max_steps + args.rollout_steps) // len(self.train_dataset))
        self.train_dataset = ShuffledEpochs(self.train_dataset, args.row_seed, epochs=epochs)
        return None

    def rows_before(self, step: int) -> int:
        """Number of prompts before those of an optimizer step, counted from 0."""
        return self.args.prompts_before(step)

    def save_optimizer(self, folder: str) -> None:
        """Write the state of the optimizer, and the rollout under way, if there is one."""
        super().save_optimizer(folder)
        under_way = self.rollout_under_way
        if under_way is not None:
            os.makedirs(folder, exist_ok=True)
            torch.save(under_way, _rollout_path(folder, self.args.process_index))

    def prepare_training(self, steps, dataloader, checkpoint):
        """Make the optimizer and the schedule, and continue with the rollout of a checkpoint."""
        prepared = super().prepare_training(steps, dataloader, checkpoint)
        if checkpoint is not None and self.start is not None:
            args, under_way = self.args, None
            written = [_rollout_path(checkpoint, rank).exists() for rank in range(args.world_size + 1)]
            if written == [True] * args.world_size + [False]:
                path = _rollout_path(checkpoint, args.process_index)
                under_way = torch.load(path, map_location=args.device, weights_only=True)
            self.continue_rollouts(self.start.step * args.gradient_accumulation_steps, under_way)
        return prepared

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        """The loss of a micro-batch of completions."""
        if self.model.training:
            masks = torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], dim=1)
            self._flops = self.throughput.flops_of({"attention_mask": masks})
        return super().compute_loss(model, inputs, return_outputs, num_items_in_batch)

    def floating_point_ops(self, inputs) -> int:
        """FLOPs of the last micro-batch on this rank; `inputs` are its prompts."""
        return self._flops


def _dividing(rows: int, size: int) -> int:
    """The largest number up to `size` that divides a number of rows."""
    return next(count for count in range(size, 0, -1) if rows % count == 0)


def _rollout_path(checkpoint: str, rank: int) -> Path:
    return Path(checkpoint) / f"rollout_{rank}.pt"


def plan_prepared(
    trainer: StepTrainer, data: type[ConversationData | PreferenceData], max_length: int | None
) -> Plan | None:
    """The plan for rows as TRL prepared them, unless they are not read in order; its rows replace the training data.

    Args:
        trainer ([`StepTrainer`]): a trainer with its rows.
        data (`type`): what the rows are.
        max_length (`int`, *optional*): maximum number of tokens per row.
    """
    args = trainer.args
    if not trainer.reads_in_order:
        return None
    rows = data(
        trainer.train_dataset,
        trainer.processing_class,
        max_length=max_length,
        seed=args.row_seed,
        test_rows=trainer.eval_dataset,
    )
    trainer.content["tokens"] = rows_digest(trainer.train_dataset, _TOKENS)
    plan = args.plan(rows, trainer.model)
    trainer.train_dataset = plan.train_rows()
    return plan
