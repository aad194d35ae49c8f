"""What explains a loss that is not finite, kept in `nan-step-N/` of the run.

- `evidence.json`: step, rank, host; rows and losses of all micro-batches; norms of the gradient by parameter; the
  parameters and the module with the first value that is not finite; the settings;
- `micro_batch.safetensors`: inputs and labels of the micro-batch, and the loss at each of its positions.

The module is found by one more forward pass of the same micro-batch, with a hook on every module. Modules end in the
order of the computation, so the first whose output is not finite while its inputs are is where it began. All ranks
take part, since under FSDP2 and ZeRO-3 they gather weights together.

Skips steps whose gradient is not finite, and counts them.

Clipping multiplies an infinite gradient by zero, so one such step would turn weights into NaN. If the loss of the step
is finite, the usual cause is an overflow of a low precision on one batch, and the weights are sound. Skipping costs
one batch, while stopping could cost a cluster a night (Chowdhery et al., "PaLM", 2022, section 5.1, skipped hundreds
of batches at a time to get past loss spikes). So the step is skipped, logged and counted, and the order of rows does
not change. Twenty skipped steps in a row end the run. A loss that is not finite ends it at once (see `finite_loss`).

Under float16 the loss is scaled, and the scaler skips steps until it has found its scale. These are counted too, but
not logged one by one. The scale starts at 2^16 and is halved, so twenty steps are enough to find it. DeepSpeed checks
the gradient and steps within the backward pass: a step that it skipped is counted, and a step that it took on a
gradient that is not finite ends the run.

Ends the run at a loss that is not finite, before the optimizer uses its gradient, and keeps what explains it.
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors.torch import save_file

from ...errors import InputError, RankError
from ...files import atomic_folder, write_json
from ...runtime.credentials import masked
from ...runtime.events import append_event
from ..checkpoints.resuming import go_back
from ..output_layer import next_labels
from .component import Component
from .loss import gradient_norms, highest, place_of

if TYPE_CHECKING:
    from ..trainer import StepTrainer

_MAX_IN_A_ROW = 20


class SkippedSteps(Component):
    """Skips steps whose gradient is not finite."""

    needs = ("LossSpikes",)

    def __init__(self, trainer):
        super().__init__(trainer)
        if trainer.args.fp16 and trainer.args.device.type == "cpu":
            raise InputError(
                "fp16 is set, but there is no GPU, and accelerate would train in float32; use bf16, or neither"
            )
        self._in_a_row = 0
        self._norm = 0.0

    def after_gradient(self, model: torch.nn.Module, norm: float) -> None:
        """Remove the gradient if it is not finite."""
        self._norm = norm
        trainer = self.trainer
        if not math.isfinite(norm) and trainer.accelerator.scaler is None and not trainer.is_deepspeed_enabled:
            model.zero_grad(set_to_none=True)  # without a gradient, optimizers skip a weight and its weight decay too

    def after_optimizer(self) -> None:
        """Count the step just done if it changed no weight.

        Raises:
            `InputError`: too many steps in a row were skipped.
            `RankError`: DeepSpeed trained on a gradient that is not finite.
        """
        trainer = self.trainer
        by_library, finite = trainer.accelerator.optimizer_step_was_skipped, math.isfinite(self._norm)
        step = trainer.state.global_step + 1
        if finite and not by_library:
            self._in_a_row = 0
            return
        if trainer.is_deepspeed_enabled and not by_library:
            raise RankError(
                f"step {step}: the norm of the gradient is {self._norm}, and DeepSpeed trained on it; the newest "
                "checkpoint is from before it: set check_grad_overflow in the DeepSpeed JSON"
            )
        trainer.totals.skipped_steps += 1
        self._in_a_row += 1
        if self._in_a_row == _MAX_IN_A_ROW:
            raise InputError(
                f"step {step}: the gradient was not finite for {_MAX_IN_A_ROW} steps in a row; the newest checkpoint "
                "may be from before them: lower the learning rate, or train in another precision"
            )
        if trainer.accelerator.scaler is None:
            count = f"{trainer.totals.skipped_steps:,} so far"
            trainer.say(f"step {step:,}: the norm of the gradient is {self._norm}; skipped ({count})")


def keep_evidence(
    trainer: "StepTrainer",
    model: torch.nn.Module,
    step: int,
    norm: float,
    ranks: list[dict[str, Any]],
    worst: dict[str, Any],
) -> Path:
    """Write the folder of a step whose loss is not finite; a collective, to be called by all ranks.

    Args:
        trainer ([`~hmm_datasets.training.trainer.StepTrainer`]): the trainer.
        model (`nn.Module`): the model as it is trained.
        step (`int`): the step, counted from 1.
        norm (`float`): norm of the gradient before clipping.
        ranks (`list[dict]`): what all ranks trained on.
        worst (`dict`): the micro-batch whose loss is not finite.

    Returns:
        `Path`: the folder.
    """
    folder = Path(trainer.args.output_dir) / f"nan-step-{step}"
    norms, not_finite = gradient_norms(trainer, model, norm)
    finite = [bool(torch.isfinite(loss).all()) for loss in trainer.step_loss.losses]
    inputs = trainer.step_loss.batches[finite.index(False) if False in finite else 0]
    trained = trainer.accelerator.unwrap_model(model, keep_torch_compile=False)
    with _first_not_finite(trained) as module:
        logits, problem = _logits(trainer, model, inputs)
    if trainer.args.process_index == worst["rank"]:
        evidence = {
            "step": step,
            "highest": worst,
            "first_not_finite": module or None,
            "problem_of_the_forward_pass": problem,
            "parameters_not_finite": [name for name, weight in trained.named_parameters() if not _is_finite(weight)],
            "gradient": {"norm": norm, "share_not_finite": not_finite, "norms": norms},
            "optimizer_has_stepped": trainer.is_deepspeed_enabled,
            "ranks": ranks,
            "settings": masked(trainer.args.to_dict()),
        }
        with atomic_folder(folder) as unfinished:
            write_json(unfinished / "evidence.json", evidence)
            save_file(_tensors(inputs, logits), unfinished / "micro_batch.safetensors")
    trainer.accelerator.wait_for_everyone()
    return folder


def _logits(
    trainer: "StepTrainer", model: torch.nn.Module, inputs: dict[str, Any]
) -> tuple[torch.Tensor | None, str | None]:
    """The logits of a micro-batch of tokens and labels, computed anew, and why there are none."""
    if not {"input_ids", "labels"} <= inputs.keys():
        return None, "the inputs are not tokens and labels"
    tensors = {name: value.to(trainer.args.device) for name, value in inputs.items() if torch.is_tensor(value)}
    try:
        with torch.no_grad(), trainer.compute_loss_context_manager():
            return getattr(model(**tensors), "logits", None), None
    except Exception as error:  # such as too little memory, which must not hide the loss that is not finite
        return None, f"{type(error).__name__}: {error}"


def _tensors(inputs: dict[str, Any], logits: torch.Tensor | None) -> dict[str, torch.Tensor]:
    """The tensors of a micro-batch, and the cross-entropy of the label after each position, 0 where there is none."""
    tensors = {name: value.detach().cpu().contiguous() for name, value in inputs.items() if torch.is_tensor(value)}
    if logits is not None:
        labels = next_labels(inputs["labels"]).to(logits.device)
        rows = [
            torch.nn.functional.cross_entropy(row.float(), label, reduction="none")
            for row, label in zip(logits, labels, strict=True)
        ]
        tensors["losses"] = torch.stack(rows).cpu()
    return tensors


@contextmanager
def _first_not_finite(model: torch.nn.Module) -> Iterator[dict[str, Any]]:
    """A context in which the first module whose output is not finite, though its inputs are, is noted."""
    found: dict[str, Any] = {}

    def note(name: str):
        def hook(module: torch.nn.Module, inputs: Any, kwargs: dict[str, Any], output: Any) -> None:
            if not found and not _is_finite(output) and _is_finite([inputs, list(kwargs.values())]):
                found.update(module=name, type=type(module).__name__, share=_share_not_finite(output))

        return hook

    hooks = [
        module.register_forward_hook(note(name), with_kwargs=True) for name, module in model.named_modules() if name
    ]
    try:
        yield found
    finally:
        for hook in hooks:
            hook.remove()


def _values(nested: Any) -> Iterator[torch.Tensor]:
    """The tensors of floating-point numbers in nested tuples, lists and dictionaries, each rank's own part."""
    if torch.is_tensor(nested):
        if nested.is_floating_point():
            yield nested.to_local() if hasattr(nested, "to_local") else nested
    elif isinstance(nested, dict):
        yield from _values(list(nested.values()))
    elif isinstance(nested, list | tuple):
        for one in nested:
            yield from _values(one)


def _is_finite(nested: Any) -> bool:
    # Attention masks have entries of minus infinity, which are not values.
    return all(bool((~(values.isnan() | (values == float("inf")))).all()) for values in _values(nested))


def _share_not_finite(nested: Any) -> float:
    values = list(_values(nested))
    return sum(float((~torch.isfinite(one)).sum()) for one in values) / max(1, sum(one.numel() for one in values))


class FiniteLoss(Component):
    """Ends training, or with `on_spike: rollback` goes back, at the first loss that is NaN or infinite on any rank."""

    needs = ("StepLoss",)

    def after_gradient(self, model: torch.nn.Module, norm: float) -> None:
        """Check the loss of the step.

        Raises:
            `InputError`: it is not finite; the message names step, rank, host, rows, and the folder with the evidence.
        """
        if math.isfinite(self.trainer.step_loss.loss):
            return
        trainer, step = self.trainer, self.trainer.state.global_step + 1
        ranks = self.trainer.step_loss.of_all_ranks()
        worst = highest(ranks)
        folder = keep_evidence(trainer, model, step, norm, ranks, worst)
        line = f"step {step}: the loss is {worst['loss']} on {place_of(worst)}; see {folder}"
        if trainer.is_world_process_zero():
            event = {"step": step, "highest": worst, "ranks": ranks, "evidence": str(folder)}
            append_event(trainer.args.output_dir, "nan", line, **event, host=worst["host"], rank=worst["rank"])
        refusal = ""
        if trainer.args.on_spike == "rollback":
            trainer.say(line)
            refusal = f"not rolled back: {go_back(trainer, step)}; "
        raise InputError(
            f"{line}; {refusal}the newest checkpoint is from before it: lower the learning rate, look at these rows, "
            "or set on_spike rollback to skip them"
        )
