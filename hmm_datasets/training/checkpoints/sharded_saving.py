"""Checkpoints of ZeRO and FSDP2: the weights once, and a resume on any number of processes.

DeepSpeed (stages 1 and 2) and accelerate (FSDP2 with full state dicts) write the weights beside the Trainer's
`model.safetensors` once more. Here they stand in `model.safetensors` alone, which `from_pretrained` reads, and are
loaded from there; beside them stands the optimizer's state, under ZeRO with the float32 weights it steps.

A ZeRO checkpoint is cut for as many processes as wrote it. For another number rank 0 first turns it into DeepSpeed's
universal form (Lian et al., "Universal Checkpointing", 2024, arXiv 2406.18820), which costs its size in reads and
writes, and goes once it is read. FSDP2's is whole and fits any number.
"""

import argparse
import contextlib
import os
import shutil
from pathlib import Path

import torch
from safetensors.torch import load_file
from transformers.trainer import SCHEDULER_NAME

from ...errors import InputError
from .inspection import zero_shards


class ShardedCheckpoints:
    """Mixed into a Trainer; under plain data parallelism it changes nothing."""

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        if self.is_deepspeed_enabled and not self.model_wrapped.zero_optimization_partition_weights():
            self.model_wrapped.module_state_dict = lambda **_: {}
            try:
                super()._save_optimizer_and_scheduler(output_dir)
            finally:
                del self.model_wrapped.module_state_dict
        elif self._gathers_fsdp:
            from accelerate.utils import save_fsdp_optimizer

            plugin = self.accelerator.state.fsdp_plugin
            save_fsdp_optimizer(plugin, self.accelerator, self.optimizer, self.model, output_dir)
            if self.args.should_save:
                torch.save(self.lr_scheduler.state_dict(), os.path.join(output_dir, SCHEDULER_NAME))
        else:
            super()._save_optimizer_and_scheduler(output_dir)

    def _prepare_for_training(self, max_steps, train_dataloader, resume_from_checkpoint):
        if resume_from_checkpoint is None or not self.is_deepspeed_enabled:
            return super()._prepare_for_training(max_steps, train_dataloader, resume_from_checkpoint)
        prepared = super()._prepare_for_training(max_steps, train_dataloader, None)
        self._load_deepspeed(resume_from_checkpoint)
        self._load_optimizer_and_scheduler(resume_from_checkpoint)
        self._load_scaler(resume_from_checkpoint)
        return prepared

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model=None) -> None:
        if not self._gathers_fsdp:
            super()._load_from_checkpoint(resume_from_checkpoint, model)
            return
        from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict

        weights = {}
        if self.args.process_index == 0:
            for path in sorted(Path(resume_from_checkpoint).glob("model*.safetensors")):
                weights |= load_file(path)
        # Not strict: of tied weights one stands in the file.
        options = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True, strict=False)
        set_model_state_dict(self.model if model is None else model, weights, options=options)

    def _load_best_model(self) -> None:
        if self.is_deepspeed_enabled:
            self._load_deepspeed(self.state.best_model_checkpoint)
        elif self._gathers_fsdp:
            self._load_from_checkpoint(self.state.best_model_checkpoint)
        else:
            super()._load_best_model()

    @property
    def _gathers_fsdp(self) -> bool:
        return self.is_fsdp_enabled and "FULL_STATE_DICT" in str(self.accelerator.state.fsdp_plugin.state_dict_type)

    def _load_deepspeed(self, checkpoint: str) -> None:
        engine = self.model_wrapped
        shards = zero_shards(Path(checkpoint))
        if not engine.zero_optimization_partition_weights():
            super()._load_from_checkpoint(checkpoint, engine.module)
        if shards.ranks == self.args.world_size:
            _load(engine, checkpoint)
            return
        self.say(f"{checkpoint}: of {shards.ranks} processes; cutting it anew for {self.args.world_size}")
        universal = shards.folder.with_name(shards.folder.name + "_universal")
        if self.args.should_save:
            _write_universal(shards.folder, universal)
        self.accelerator.wait_for_everyone()
        engine._config.load_universal_checkpoint = True
        _load(engine, checkpoint)
        engine._config.load_universal_checkpoint = False
        if engine.zero_optimization_partition_weights():
            _mend_stage_3(engine, universal)
        self.accelerator.wait_for_everyone()
        if self.args.should_save:
            _remove_universal(universal)


def _load(engine, checkpoint: str) -> None:
    found, _ = engine.load_checkpoint(checkpoint, load_module_strict=False)
    if found is None:
        raise InputError(f"{checkpoint}: DeepSpeed cannot read it; move it away to go on from the one before")


def _write_universal(folder: Path, universal: Path) -> None:
    from deepspeed.checkpoint import ds_to_universal

    _remove_universal(universal)  # of a start that was killed
    settings = argparse.Namespace(
        input_folder=str(folder),
        output_folder=str(universal),
        num_extract_workers=1,  # more would fork a process that has threads
        num_merge_workers=1,
        keep_temp_folder=False,
        strict=True,
        inject_missing_state=True,
    )
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere), contextlib.redirect_stderr(nowhere):
        ds_to_universal.main(settings)


def _mend_stage_3(engine, universal: Path) -> None:
    """What DeepSpeed 0.19 loads wrong: all groups with the first one's decay, all states with one count of steps."""
    # A pickle with classes of DeepSpeed's, which it has just read itself.
    saved = torch.load(universal / "zero" / "optimizer_state.pt", map_location="cpu", weights_only=False)
    optimizer = engine.optimizer.optimizer
    for group, values in zip(optimizer.param_groups, saved["optimizer_state_dict"]["param_groups"], strict=True):
        group |= {name: value for name, value in values.items() if name != "params"}
    for state in optimizer.state.values():
        if torch.is_tensor(state.get("step")):
            state["step"] = state["step"].clone()  # counted up in place, so once for every state that shares it


def _remove_universal(universal: Path) -> None:
    shutil.rmtree(universal, ignore_errors=True)
    (universal.parent / "latest_universal").unlink(missing_ok=True)
