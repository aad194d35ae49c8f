"""z-loss: a small pull of the softmax's normalizer towards 1, so that logits do not drift.

`z_loss` times the mean over predicted tokens of `(log Z)^2`, `Z` the sum of the exponentials of the logits (Chowdhery
et al., "PaLM", 2022, section 5, with 1e-4). The mean is over the tokens of the whole global batch, as the
cross-entropy's is: on any world size, micro-batch and accumulation each token weighs the same. It costs one more pass
over the logits and their float32 copy. What is logged and returned as the loss stays the cross-entropy.
"""

import torch
from jaxtyping import Float, Int
from transformers.trainer_pt_utils import nested_gather

from ..data.windows import IGNORED
from ..errors import InputError


def squared_log_normalizers(
    logits: Float[torch.Tensor, "B T V"], labels: Int[torch.Tensor, "B T"]
) -> Float[torch.Tensor, "N"]:
    """`(log Z)^2` at the places that predict a label that counts.

    Args:
        logits (`torch.Tensor` of shape `(B, T, V)`): of a causal model; those at `t` predict label `t + 1`.
        labels (`torch.Tensor` of shape `(B, T)`): not shifted; -100 counts not.

    ```python
    >>> logits = torch.zeros(1, 3, 4)
    >>> squared_log_normalizers(logits, torch.tensor([[1, 2, -100]])).sqrt().exp()
    tensor([4.])

    ```
    """
    counted = labels[:, 1:] != IGNORED
    return torch.logsumexp(logits[:, :-1][counted].float(), dim=-1).square()


class ZLoss:
    """Mixed into a Trainer: adds z-loss to what is minimized, where `z_loss` of its settings is above 0.

    Rows of the history get a column `z_loss`: what was added, a mean over tokens. Evaluations are without.
    """

    _last_z: torch.Tensor | None = None
    _sum_of_z: torch.Tensor | None = None
    _step_of_z = 0

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        """The cross-entropy and, in training, the z-loss."""
        self._last_z = None
        if self.args.z_loss == 0 or not model.training:
            return super().compute_loss(model, inputs, return_outputs, num_items_in_batch)
        labels = inputs["labels"]
        loss, outputs = super().compute_loss(model, inputs, True, num_items_in_batch)
        squares = squared_log_normalizers(outputs.logits, labels)
        added = self.args.z_loss * (
            squares.mean() if num_items_in_batch is None else squares.sum() / num_items_in_batch
        )
        if num_items_in_batch is not None and self.args.average_tokens_across_devices:
            added = added * self.accelerator.num_processes  # the mean over ranks that follows takes it back
        self._last_z = added.detach()
        return (loss + added, outputs) if return_outputs else loss + added

    def training_step(self, model, inputs, num_items_in_batch=None):
        """Forward and backward; what it returns is the cross-entropy."""
        loss = super().training_step(model, inputs, num_items_in_batch)
        if self._last_z is None:
            return loss
        added = self._last_z
        if num_items_in_batch is None:
            added = added / self.current_gradient_accumulation_steps
        if self._sum_of_z is None:
            self._sum_of_z, self._step_of_z = torch.zeros_like(added), self.state.global_step
        self._sum_of_z += added
        return loss - added

    def log(self, logs: dict[str, float], *args, **kwargs) -> None:
        """Add the mean of what was added since the last row with a loss."""
        if "loss" in logs and self._sum_of_z is not None:
            total = nested_gather(self._sum_of_z, self.args.parallel_mode).mean().item()
            logs["z_loss"] = total / (self.state.global_step - self._step_of_z)
            self._sum_of_z = None
        super().log(logs, *args, **kwargs)


def check_z_loss(coefficient: float) -> None:
    """Raise [`InputError`] for a coefficient below 0."""
    if not coefficient >= 0:
        raise InputError(f"z_loss is {coefficient}; expected 0 (none) or more, such as 1e-4")
