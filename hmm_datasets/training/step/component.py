"""The moments of a training step at which a component is called.

Other distributions register classes of theirs as entry points in the group `hmm_datasets.components`.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import torch

from ... import plugins
from ...errors import InputError
from .scores import Scores

if TYPE_CHECKING:
    from ..run_context import RunContext


class Component:
    """Something that a training step does in addition to the loss. Methods do nothing unless a subclass overrides
    them.

    Methods named `before_...` are called in the order of the trainer's list, those named `after_...` in the reverse
    order, so the last component of the list is the closest to the computation itself.

    Args:
        run ([`~hmm_datasets.training.run_context.RunContext`]): the run.

    Attributes:
        needs (`tuple` of `str`): names of the components whose `after_...` methods have to be called before its own,
            which thus stand after it in the list.
    """

    needs: ClassVar[tuple[str, ...]] = ()

    def __init__(self, run: "RunContext"):
        self.run = run

    def before_batches(self) -> None:
        """Called before the micro-batches of the next step are read."""

    def after_batches(self) -> None:
        """Called after the micro-batches of the next step were read."""

    def before_micro_batch(self, inputs: dict[str, Any]) -> None:
        """Called before the forward and backward pass of a micro-batch."""

    def needs_scores(self, model: torch.nn.Module) -> bool:
        """Whether [`Component.after_forward`] uses the scores of the labels."""
        return False

    def before_forward(self, inputs: dict[str, Any]) -> None:
        """Called before the forward pass, in training or evaluation."""

    def after_forward(
        self,
        model: torch.nn.Module,
        labels: torch.Tensor | None,
        scores: "Scores | None",
        loss: torch.Tensor,
        num_items: torch.Tensor | int | None,
    ) -> torch.Tensor:
        """Called after the forward pass; returns the loss of the micro-batch, changed or not.

        Args:
            model (`nn.Module`): the model, in training or evaluation mode.
            labels (`torch.Tensor` of shape `(B, T)`, *optional*): labels of the micro-batch.
            scores ([`Scores`], *optional*): scores of the labels, if a component needs them.
            loss (scalar `torch.Tensor`): the loss so far.
            num_items (*optional*): number of labels in the global batch, by which losses are divided.
        """
        return loss

    def after_micro_batch(self, loss: torch.Tensor) -> torch.Tensor:
        """Called after the backward pass of a micro-batch; returns its loss for the log."""
        return loss

    def after_gradient(self, model: torch.nn.Module, norm: float) -> None:
        """Called once the gradient of the global batch is clipped; `norm` is its norm before clipping."""

    def before_optimizer(self) -> None:
        """Called before the optimizer steps."""

    def after_optimizer(self) -> None:
        """Called after the optimizer stepped or skipped the step."""

    def before_log(self, row: dict[str, float]) -> None:
        """Called before a row with a loss is logged; may add columns."""

    def before_evaluation(self) -> None:
        """Called before an evaluation."""

    def after_evaluation(self, dataset: Any, metrics: dict[str, float], prefix: str) -> None:
        """Called after an evaluation of `dataset`; may change `metrics`."""


def in_order(components: Sequence[Component]) -> list[Component]:
    """Components in the order given, but each after those that need it, whose `after_...` methods follow its own."""
    ordered, left = [], list(components)
    while left:
        needed = {name for component in left for name in component.needs}
        ordered.append(next(component for component in left if type(component).__name__ not in needed))
        left.remove(ordered[-1])
    return ordered


def named_components(names: Sequence[str]) -> list[type[Component]]:
    """The classes of components that installed distributions register.

    Raises:
        `InputError`: a name is unknown or given twice, or its class cannot be imported.
    """
    known = plugins.parts("hmm_datasets.components")
    for index, name in enumerate(names):
        if name not in known:
            installed = ", ".join(known) or "none, since no installed distribution registers any"
            raise InputError(f"components has {name!r}; expected some of: {installed}")
        if name in names[:index]:
            raise InputError(f"components has {name!r} twice; leave one of them out")
    return [plugins.load_as(known[name], Component) for name in names]
