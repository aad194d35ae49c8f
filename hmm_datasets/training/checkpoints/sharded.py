"""Checkpoints of ZeRO and FSDP2 that store the weights once and can be resumed on any number of processes.

DeepSpeed (stages 1 and 2) and accelerate (FSDP2 with full state dicts) write the weights a second time, in addition to
the Trainer's `model.safetensors`. Here the weights are only in `model.safetensors`, which `from_pretrained` reads, and
are loaded from there. The optimizer state is a separate file; under ZeRO it includes the float32 copy of the weights.

A ZeRO checkpoint is divided for the number of processes that wrote it. To resume on another number, rank 0 first
converts it to DeepSpeed's universal format (Lian et al., "Universal Checkpointing", 2024, arXiv 2406.18820). This
reads and writes as much as the size of the checkpoint, and the converted copy is deleted after loading. An FSDP2
checkpoint is not divided and fits any number of processes.
"""

import contextlib
import os
import shutil
from pathlib import Path

import torch
from accelerate.utils import save_fsdp_optimizer
from safetensors.torch import load_file
from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict
from transformers.integrations import is_deepspeed_zero3_enabled

from ...compat.deepspeed import (
    correct_stage_3,
    only_shards,
    universal_checkpoints,
    weights_stay_until_sharded,
    without_module_weights,
    write_universal,
)
from ...compat.torch import data_only
from ...compat.transformers import SCHEDULER_NAME, TrainerHooks
from ...errors import InputError, first_line
from .inspection import optimizer_checkpoint, universal_folder, zero_shards
from .parts import UNIVERSAL_NAME


class ShardedTrainer(TrainerHooks):
    """A mixin for a Trainer; under plain data parallelism it changes nothing."""

    def create_accelerator_and_postprocess(self) -> None:
        """Make the accelerator, which knows from the start what DeepSpeed's configuration says."""
        super().create_accelerator_and_postprocess()
        if self.is_deepspeed_enabled:  # accelerate does it later, with a warning
            self.accelerator.gradient_accumulation_steps = self.args.gradient_accumulation_steps

    def save_optimizer(self, folder: str) -> None:
        """Write the optimizer state without a second copy of the weights."""
        if self.is_deepspeed_enabled and not self.model_wrapped.zero_optimization_partition_weights():
            with without_module_weights(self.model_wrapped):
                super().save_optimizer(folder)
        elif self._gathers_fsdp:
            save_fsdp_optimizer(
                self.accelerator.state.fsdp_plugin, self.accelerator, self.optimizer, self.model, folder
            )
            if self.args.should_save:
                torch.save(self.lr_scheduler.state_dict(), os.path.join(folder, SCHEDULER_NAME))
        else:
            super().save_optimizer(folder)

    def prepare_training(self, steps, dataloader, checkpoint):
        """Under DeepSpeed, wrap the model first and load the checkpoint into the wrapper."""
        with weights_stay_until_sharded(self.model) if is_deepspeed_zero3_enabled() else contextlib.nullcontext():
            return self._prepare(steps, dataloader, checkpoint)

    def _prepare(self, steps, dataloader, checkpoint):
        if checkpoint is None:
            prepared = super().prepare_training(steps, dataloader, None)
            if self.args.optimizer_from is not None:
                self._load_optimizer_alone(str(optimizer_checkpoint(self.args.optimizer_from)))
            return prepared
        if not self.is_deepspeed_enabled:
            return super().prepare_training(steps, dataloader, checkpoint)
        prepared = super().prepare_training(steps, dataloader, None)
        self._load_deepspeed(checkpoint)
        self.load_optimizer(checkpoint)
        return prepared

    def _load_optimizer_alone(self, checkpoint: str) -> None:
        """Load the state of the optimizer's parameters, but neither its settings nor the schedule.

        Under DeepSpeed the weights are loaded too; they are those of the model already.
        """
        settings = [{name: group[name] for name in group if name != "params"} for group in self.optimizer.param_groups]
        schedule = self.lr_scheduler.state_dict()
        try:
            if self.is_deepspeed_enabled:
                self._load_deepspeed(checkpoint)
            self.load_optimizer(checkpoint)
        except (ValueError, RuntimeError, KeyError) as error:
            raise InputError(
                f"optimizer_from: {checkpoint}: its optimizer has other parameters or another type "
                f"({first_line(error)}); choose the settings of its run, or leave optimizer_from out"
            ) from None
        for group, kept in zip(self.optimizer.param_groups, settings, strict=True):
            group.update(kept)
        self.lr_scheduler.load_state_dict(schedule)

    def load_optimizer(self, checkpoint: str | None) -> None:
        """Load optimizer and schedule, as data alone."""
        with data_only(str(checkpoint)):
            super().load_optimizer(checkpoint)

    def load_weights(self, checkpoint: str, model=None) -> None:
        """Load the weights; under FSDP2 rank 0 reads them and sends each rank its part."""
        if not self._gathers_fsdp:
            with data_only(checkpoint):
                super().load_weights(checkpoint, model)
            return
        weights = {}
        if self.args.process_index == 0:
            for path in sorted(Path(checkpoint).glob("model*.safetensors")):
                weights |= load_file(path)
        # Not strict, since the file has only one of two tied weights.
        options = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True, strict=False)
        set_model_state_dict(self.model if model is None else model, weights, options=options)

    def load_best(self) -> None:
        """Load the best checkpoint in the same way as when resuming."""
        if self.is_deepspeed_enabled:
            self._load_deepspeed(self.state.best_model_checkpoint)
        elif self._gathers_fsdp:
            self.load_weights(self.state.best_model_checkpoint)
        else:
            super().load_best()

    @property
    def _gathers_fsdp(self) -> bool:
        return self.is_fsdp_enabled and "FULL_STATE_DICT" in str(self.accelerator.state.fsdp_plugin.state_dict_type)

    def _load_deepspeed(self, checkpoint: str) -> None:
        engine = self.model_wrapped
        shards, universal = zero_shards(Path(checkpoint)), universal_folder(checkpoint)
        if not engine.zero_optimization_partition_weights():
            super().load_weights(checkpoint, engine.module)
        if universal is not None:
            self._load_universal(checkpoint, universal)
            return
        if shards.ranks == self.args.world_size:
            _load(engine, checkpoint)
            return
        self.say(f"{checkpoint}: written by {shards.ranks} processes; converting it for {self.args.world_size}")
        universal = shards.folder.with_name(shards.folder.name + "_universal")
        if self.args.should_save:
            _remove_universal(universal)  # of a start that was killed
            write_universal(shards.folder, universal)
        self.accelerator.wait_for_everyone()
        self._load_universal(checkpoint, universal)
        self.accelerator.wait_for_everyone()
        if self.args.should_save:
            _remove_universal(universal)

    def _load_universal(self, checkpoint: str, universal: Path) -> None:
        """Load a checkpoint in DeepSpeed's universal format, on any number of processes."""
        engine = self.model_wrapped
        with universal_checkpoints(engine):
            _load(engine, checkpoint)
        if engine.zero_optimization_partition_weights():
            correct_stage_3(engine, universal)


def _load(engine, checkpoint: str) -> None:
    with only_shards(checkpoint):
        path, _ = engine.load_checkpoint(checkpoint, load_module_strict=False)
    if path is None:
        raise InputError(f"{checkpoint}: DeepSpeed cannot read it; move it away to continue from the one before")


def _remove_universal(universal: Path) -> None:
    shutil.rmtree(universal, ignore_errors=True)
    (universal.parent / UNIVERSAL_NAME).unlink(missing_ok=True)
