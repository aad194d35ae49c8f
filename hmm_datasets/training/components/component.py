"""The moments of a training step at which a component is called."""

from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from ..trainer import StepTrainer


class Component:
    """Something that a training step does besides the loss. Every method does nothing unless a subclass overrides it.

    Methods named `before_...` are called in the order of the trainer's list, those named `after_...` in the reverse
    order, so that the last component of the list is the closest to the computation itself.

    Args:
        trainer ([`~hmm_datasets.training.trainer.StepTrainer`]): whose steps these are.
    """

    def __init__(self, trainer: "StepTrainer"):
        self.trainer = trainer

    def before_batches(self) -> None:
        """The micro-batches of the next step are about to be read."""

    def after_batches(self) -> None:
        """They were read."""

    def before_micro_batch(self, inputs: dict[str, Any]) -> None:
        """Forward and backward pass of a micro-batch are about to run."""

    def needs_logits(self, model: torch.nn.Module) -> bool:
        """Whether [`Component.after_forward`] uses the logits."""
        return False

    def before_forward(self, inputs: dict[str, Any]) -> None:
        """The forward pass is about to run, in training or evaluation."""

    def after_forward(
        self,
        model: torch.nn.Module,
        labels: torch.Tensor | None,
        logits: torch.Tensor | None,
        loss: torch.Tensor,
        num_items: torch.Tensor | int | None,
    ) -> torch.Tensor:
        """Return the loss of a micro-batch, which may have changed.

        Args:
            model (`nn.Module`): in training or evaluation mode.
            labels (`torch.Tensor` of shape `(B, T)`, *optional*): of the micro-batch.
            logits (`torch.Tensor` of shape `(B, T, V)`, *optional*): if a component needs them.
            loss (scalar `torch.Tensor`): so far.
            num_items (*optional*): labels in the global batch, by which losses are divided.
        """
        return loss

    def after_micro_batch(self, loss: torch.Tensor) -> torch.Tensor:
        """Return the loss of a micro-batch as it is logged; gradients are accumulated."""
        return loss

    def after_gradient(self, model: torch.nn.Module, norm: float) -> None:
        """The gradient of the global batch is known and clipped; `norm` is its norm before that."""

    def before_optimizer(self) -> None:
        """The optimizer is about to step."""

    def after_optimizer(self) -> None:
        """It stepped, unless it was told to leave the step out."""

    def before_log(self, row: dict[str, float]) -> None:
        """A row with a loss is about to be logged; columns may be added."""

    def before_evaluation(self) -> None:
        """An evaluation begins."""

    def after_evaluation(self, dataset: Any, metrics: dict[str, float], prefix: str) -> None:
        """An evaluation of `dataset` ended; `metrics` may be changed."""
