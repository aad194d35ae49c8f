"""z-loss: a penalty that pulls the softmax's normalizer towards 1, so that logits do not drift.

The penalty is `z_loss` times the mean over predicted tokens of `(log Z)^2`, where `Z` is the sum of the exponentials
of the logits (Chowdhery et al., "PaLM", 2022, section 5, with 1e-4). Like the cross-entropy, it is a mean over the
tokens of the whole global batch, so each token has the same weight for any world size, micro-batch and accumulation.
A loss that is computed in chunks has it at no cost (see [`~hmm_datasets.training.linear_cross_entropy`]). Otherwise
it costs one more pass over the logits and a float32 copy of them. The logged loss remains the cross-entropy.
"""

import torch

from ..run_context import RunContext
from .component import Component


class ZLoss(Component):
    """Adds the z-loss to the training loss if `z_loss` in the settings is above 0.

    Rows of the history get a column `z_loss`: the mean over tokens of what was added. Evaluations do not include it.
    """

    def __init__(self, run: RunContext):
        super().__init__(run)
        self._coefficient = run.args.z_loss
        self._added: torch.Tensor | None = None
        self._is_shared = False
        self._sum: torch.Tensor | None = None
        self._since_step = 0

    def needs_scores(self, model: torch.nn.Module) -> bool:
        """In training, if the coefficient is above 0."""
        return self._coefficient > 0 and model.training

    def after_forward(self, model, labels, scores, loss, num_items) -> torch.Tensor:
        """Return the sum of the loss and the z-loss."""
        if not self.needs_scores(model):
            return loss
        squares = scores.log_normalizers.square()
        added = self._coefficient * (squares.mean() if num_items is None else squares.sum() / num_items)
        if num_items is not None and self.run.args.average_tokens_across_devices:
            added = added * self.run.args.world_size  # the gradient is then averaged over ranks
        self._added, self._is_shared = added.detach(), num_items is None
        return loss if scores.has_z_loss else loss + added

    def after_micro_batch(self, loss: torch.Tensor) -> torch.Tensor:
        """Return the cross-entropy alone, for the log."""
        if self._added is None:
            return loss
        added, self._added = self._added, None
        if self._is_shared:  # each micro-batch's mean is then averaged over the micro-batches of the step
            added = added / self.run.current_gradient_accumulation_steps
        if self._sum is None:
            self._sum, self._since_step = torch.zeros_like(added), self.run.state.global_step
        self._sum += added
        return loss - added

    def so_far(self) -> tuple[float, int] | None:
        """What was added since the last row, as a mean over ranks, and the step of that row; a collective."""
        if self._sum is None:
            return None
        return self.run.accelerator.gather(self._sum).mean().item(), self._since_step

    def continue_from(self, so_far: tuple[float, int]) -> None:
        """Continue a run that had added this since the last row."""
        self._sum = torch.tensor(so_far[0], device=self.run.args.device)
        self._since_step = so_far[1]

    def before_log(self, row: dict[str, float]) -> None:
        """Add the mean of what was added since the last row."""
        if self._sum is None:
            return
        total, _ = self.so_far()
        row["z_loss"] = total / (self.run.state.global_step - self._since_step)
        self._sum = None
