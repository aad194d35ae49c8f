"""Spikes of the loss, found before the optimizer steps: logged with what explains them, skipped, or rolled back.

The loss of the global batch and the logarithm of the norm of its gradient are each compared with those of the steps
before (see `hmm_datasets.training.step.spike_detector`). Both are the same on all ranks, so all decide alike, and what
was seen is saved with each checkpoint, so a resumed run decides as an undisturbed one. A spike is written to
`events.jsonl` with the rows and the host of every rank, the micro-batch with the highest loss, and the largest norms
of the gradient by layer.

Then `on_spike` says what is done. `warn` trains on. `skip` drops the gradient of the step, as for a gradient that is
not finite. `rollback` goes back to a checkpoint before the spike and skips the rows around it, if the loss
itself spiked. A high gradient without a spike of the loss only causes a warning, since clipping bounds its effect.
"""

import math
from collections.abc import Callable
from itertools import islice
from typing import Any

import torch

from ...errors import InputError
from ...runtime import environment
from ...runtime.events import append_event
from ..run_context import RunContext
from .component import Component
from .gradients import gradient_norms, norms_by_layer
from .loss import StepLoss, highest, place_of
from .recent_losses import RecentLosses
from .spike_detector import Deviation, SpikeDetector

POLICIES = ("warn", "skip", "rollback", "ignore")
_LAYERS = 8  # layers whose norms are logged
_LEAST_NORM_CHANGE = 0.1  # of the logarithm of the gradient's norm


class LossSpikes(Component):
    """Finds spikes of the loss and of the gradient, and does what `on_spike` in the settings says.

    Args:
        run ([`~hmm_datasets.training.run_context.RunContext`]): the run.
        step_loss ([`~hmm_datasets.training.step.loss.StepLoss`]): the loss of the step under way.
        go_back (callable): goes back because of a step, see [`~hmm_datasets.training.checkpoints.rollback.go_back`].

    Attributes:
        recent ([`~hmm_datasets.training.step.recent_losses.RecentLosses`]): a callback that saves the detectors.
    """

    needs = ("FiniteLoss", "StepLoss")

    def __init__(self, run: RunContext, step_loss: StepLoss, go_back: Callable[[int], str]):
        super().__init__(run)
        self._step_loss, self._go_back = step_loss, go_back
        self._is_skipped = False
        self._detectors = {
            "loss": SpikeDetector(),
            "gradient norm": SpikeDetector(least_share=0.0, least=_LEAST_NORM_CHANGE),
        }
        self.recent = RecentLosses(self._detectors)

    def after_gradient(self, model: torch.nn.Module, norm: float) -> None:
        """Compare the step with those before it, and act on a spike."""
        self._is_skipped = False
        policy, step = self.run.args.on_spike, self.run.state.global_step + 1
        if policy == "ignore":
            return
        loss, norm = self._step_loss.loss, self._step_loss.norm  # the same on all ranks
        deviations = {
            "loss": self._detectors["loss"].add(loss),
            "gradient norm": self._detectors["gradient norm"].add(math.log(norm) if 0 < norm < math.inf else math.nan),
        }
        deviations = {name: deviation for name, deviation in deviations.items() if deviation is not None}
        if not deviations:
            return
        self._log(step, deviations, model, norm)
        if policy == "skip":
            self._is_skipped = True
            model.zero_grad(set_to_none=True)
        elif policy == "rollback" and "loss" in deviations:
            refusal = self._go_back(step)
            self.run.say(f"step {step:,}: not rolled back: {refusal}")

    def after_optimizer(self) -> None:
        """Count a step that was skipped."""
        if self._is_skipped:
            run = self.run
            run.totals.skipped_steps += 1
            line = f"step {run.state.global_step + 1:,}: skipped ({run.totals.skipped_steps:,} so far)"
            if run.is_world_process_zero():
                append_event(run.args.output_dir, "skipped", line, step=run.state.global_step + 1)
            run.say(line)

    def _log(self, step: int, deviations: dict[str, Deviation], model: torch.nn.Module, norm: float) -> None:
        """Write what is known of a spike to the events of the run, on rank 0."""
        run, loss = self.run, self._step_loss.loss
        ranks = self._step_loss.of_all_ranks()
        norms, not_finite = gradient_norms(run, model, norm)
        worst = highest(ranks)
        measured = {name: _in_units(name, deviation) for name, deviation in deviations.items()}
        line = f"step {step:,}: " + " and ".join(
            f"the {name} is {seen['value']:.4g}, {seen['deviations']:.0f} deviations above {seen['level']:.4g}"
            for name, seen in measured.items()
        )
        line += f"; the highest loss is {worst['loss']:.4g} on {place_of(worst)}"
        if run.is_world_process_zero():
            append_event(
                run.args.output_dir,
                "spike",
                line,
                step=step,
                loss=loss,
                measures=measured,
                highest=worst,
                ranks=ranks,
                gradients={
                    "norm": norm,
                    "not_finite": not_finite,
                    "layers": dict(islice(norms_by_layer(norms).items(), _LAYERS)),
                },
                host=worst["host"],
                rank=worst["rank"],
            )
            run.say(line)


def _in_units(name: str, deviation: Deviation) -> dict[str, float]:
    """A deviation with the norm of the gradient instead of its logarithm."""
    unit = math.exp if name == "gradient norm" else float
    return {"value": unit(deviation.value), "level": unit(deviation.level), "deviations": deviation.deviations}


def check_spikes(args: Any) -> None:
    """Raise [`InputError`] for a policy that does not exist or is not possible."""
    if args.on_spike not in POLICIES:
        raise InputError(f"on_spike is {args.on_spike!r}; expected one of {', '.join(POLICIES)}")
    is_deepspeed = args.deepspeed or environment.uses_deepspeed()
    if args.on_spike == "skip" and is_deepspeed:
        raise InputError(
            "on_spike is skip, but DeepSpeed steps within the backward pass, before a spike is known; set rollback or "
            "warn, or launch with ddp or fsdp2"
        )
    if args.on_spike == "rollback" and args.train_sampling_strategy != "sequential":
        raise InputError(
            f"on_spike is rollback, but train_sampling_strategy is {args.train_sampling_strategy}; rows can be "
            "skipped only in their order: set sequential, or another on_spike"
        )
    if args.on_spike == "rollback" and not args.resume:
        raise InputError(
            "on_spike is rollback, but resume is false, so a run that goes back would begin anew; leave resume out, "
            "and choose another output_dir for a new run"
        )
    if args.on_spike == "rollback" and args.save_only_model:
        raise InputError("on_spike is rollback, but save_only_model leaves nothing to go back to; set one of the two")
