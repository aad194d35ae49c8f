"""The held-out loss as a mean over tokens, whatever the batches and ranks.

The Trainer takes the mean over rows of the means of batches: where rows hold unequally many predicted tokens, its
figure moves with the batch size. Here each row gives its sum and its count, and repeated rows, with which ranks fill
their last batch, count once. It costs one more pass over the logits in float32.
"""

import torch
from jaxtyping import Float, Int

from ..text.windows import IGNORED


def row_losses(logits: Float[torch.Tensor, "B T V"], labels: Int[torch.Tensor, "B T"]) -> Float[torch.Tensor, "B 2"]:
    """Of every row the sum of the cross-entropies in nats, and how many tokens are predicted.

    Args:
        logits (`torch.Tensor` of shape `(B, T, V)`): of a causal model; those at `t` predict label `t + 1`.
        labels (`torch.Tensor` of shape `(B, T)`): not shifted; -100 counts not.

    ```python
    >>> row_losses(torch.zeros(1, 3, 4), torch.tensor([[1, 2, -100]]))
    tensor([[1.3863, 1.0000]], dtype=torch.float64)

    ```
    """
    shifted = labels[:, 1:]
    losses = torch.nn.functional.cross_entropy(
        logits[:, :-1].float().transpose(1, 2), shifted, ignore_index=IGNORED, reduction="none"
    )
    return torch.stack([losses.double().sum(-1), (shifted != IGNORED).double().sum(-1)], dim=-1)


class HeldOutLoss:
    """Mixed into a Trainer; where `compute_metrics` is set, rows are taken to be alike, and nothing changes."""

    loss_has_logits = True
    """Whether the Trainer's loss comes with its logits; else they take one more forward pass."""

    _held_out: list[torch.Tensor] | None = None

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        """The loss; in an evaluation each row's share of it is kept."""
        if self._held_out is None or "labels" not in inputs:
            return super().compute_loss(model, inputs, return_outputs, num_items_in_batch)
        labels = inputs["labels"]
        if self.loss_has_logits:
            loss, outputs = super().compute_loss(model, inputs, True, num_items_in_batch)
        else:
            loss = super().compute_loss(model, inputs, False, num_items_in_batch)
            outputs = model(**{name: value for name, value in inputs.items() if name != "labels"})
        rows = row_losses(outputs.logits, labels)
        self._held_out.append(self.accelerator.gather_for_metrics(rows).cpu())
        return (loss, outputs) if return_outputs else loss

    def evaluation_loop(self, *args, metric_key_prefix: str = "eval", **kwargs):
        """Evaluate; the loss is the mean over tokens."""
        self._held_out = [] if self.compute_metrics is None else None
        try:
            output = super().evaluation_loop(*args, metric_key_prefix=metric_key_prefix, **kwargs)
            if self._held_out:
                total, count = torch.cat(self._held_out).sum(0).tolist()
                output.metrics[f"{metric_key_prefix}_loss"] = total / count
        finally:
            self._held_out = None
        return output
