"""The held-out loss and other measures as means over tokens or rows, whatever the batch size and the number of ranks.

The Trainer averages the means of batches, so if rows differ in their number of predicted tokens, or the last batch is
smaller, its result depends on the batch size. Here each row gives its sum and its count, and the rows that ranks
repeat to fill their last batch count once. For rows in named parts ([`HeldOutParts`]) the loss of each part is
reported too.

TRL's trainers compute measures of a batch, and average them over batches too. [`HeldOutMeasures`] weighs each by the
rows of its batch on all ranks, or by the tokens that it is a mean of, without those that are repeated.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any
from unittest import mock

import torch
from jaxtyping import Float, Int
from torch.utils.data import ConcatDataset, Dataset

from ...data.windows import IGNORED
from ...errors import InputError
from ..run_context import RunContext
from .component import Component

_MEANS_OVER_TOKENS = {"entropy": "tokens", "mean_token_accuracy": "tokens", "logits/chosen": "chosen"}
_MEANS_OVER_TOKENS |= {"logits/rejected": "rejected"}  # other measures are means over rows


class HeldOutParts(ConcatDataset):
    """Held-out rows of several sources, concatenated, with a name for the loss of each source.

    Args:
        parts (mapping of `str` to `Dataset`): map-style data sets by name.
    """

    def __init__(self, parts: Mapping[str, Dataset]):
        super().__init__(list(parts.values()))
        self.names = list(parts)


def row_losses(losses: Float[torch.Tensor, "B T"], labels: Int[torch.Tensor, "B T"]) -> Float[torch.Tensor, "B 2"]:
    """The sum of cross-entropies in nats and the number of predicted tokens, for every row.

    Args:
        losses (`torch.Tensor` of shape `(B, T)`): cross-entropy at each position, 0 where none is predicted.
        labels (`torch.Tensor` of shape `(B, T)`): labels, not shifted; -100 is ignored.

    Returns:
        `torch.Tensor` of shape `(B, 2)`: sum and count.

    ```python
    >>> row_losses(torch.tensor([[1.4, 0.0, 0.0]]), torch.tensor([[1, 2, -100]]))
    tensor([[1.4000, 1.0000]], dtype=torch.float64)

    ```
    """
    return torch.stack([losses[:, :-1].double().sum(-1), (labels[:, 1:] != IGNORED).double().sum(-1)], dim=-1)


class HeldOutLoss(Component):
    """The loss of an evaluation as a mean over tokens, also beside the measures of `compute_metrics`."""

    def __init__(self, run: RunContext):
        super().__init__(run)
        self._rows: list[torch.Tensor] | None = None

    def needs_scores(self, model: torch.nn.Module) -> bool:
        """Whether an evaluation is running that needs them."""
        return self._rows is not None

    def before_evaluation(self) -> None:
        """Start to collect the losses of rows."""
        self._rows = []

    def after_forward(self, model, labels, scores, loss, num_items) -> torch.Tensor:
        """Return the loss unchanged, and keep each row's sum and count."""
        if self._rows is not None and labels is not None:
            rows = row_losses(scores.losses, labels)
            self._rows.append(self.run.accelerator.gather_for_metrics(rows).cpu())
        return loss

    def after_evaluation(self, dataset: Dataset, metrics: dict[str, float], prefix: str) -> None:
        """Replace the Trainer's loss by the means over tokens."""
        rows, self._rows = self._rows, None
        if rows:
            means = _mean_losses(torch.cat(rows), dataset)
            metrics.update({f"{prefix}_{name}": loss for name, loss in means.items()})


class HeldOutMeasures(Component):
    """Weighs the measures that a trainer of TRL computes of the batches of an evaluation.

    Args:
        run ([`~hmm_datasets.training.run_context.RunContext`]): the run.
        measures (callable): gives the measures of the evaluation under way, one number per batch; None if there are
            none.
    """

    def __init__(self, run: RunContext, measures: Callable[[], dict[str, list[float]] | None]):
        super().__init__(run)
        self._measures = measures
        self._counts: dict[str, float] = {}
        self._sums: dict[str, list[tuple[float, float]]] | None = None

    def before_evaluation(self) -> None:
        """Start to collect."""
        self._sums = defaultdict(list)

    def before_forward(self, inputs: dict[str, Any]) -> None:
        """Take repeated rows out of a batch of an evaluation, and count the others on all ranks."""
        if self._sums is None or self._measures() is None:
            return
        is_pair = "labels" not in inputs and "input_ids" in inputs
        args, size = self.run.args, len(inputs["input_ids" if "input_ids" in inputs else "prompt_ids"])
        if is_pair and args.padding_free:
            return  # pairs are joined to one row, and all batches have the same number of them
        size = size // 2 if is_pair else size
        kept = (torch.arange(size) + args.process_index * size < self._rows(size)).to(args.device)
        counts = {"rows": kept.sum()}
        if is_pair:
            inputs["completion_mask"] = inputs["completion_mask"] * kept.repeat(2)[:, None]
            chosen, rejected = inputs["completion_mask"][:, 1:].sum(1).split(size)
            counts |= {"chosen": chosen.sum(), "rejected": rejected.sum(), "tokens": chosen.sum() + rejected.sum()}
        elif "labels" in inputs:
            inputs["labels"] = inputs["labels"].masked_fill(~kept[:, None], IGNORED)
            counts["tokens"] = (inputs["labels"][:, 1:] != IGNORED).sum()
        totals = self.run.accelerator.reduce(torch.stack(list(counts.values())).double())
        self._counts = dict(zip(counts, totals.tolist(), strict=True))

    def after_forward(self, model, labels, scores, loss, num_items) -> torch.Tensor:
        """Take the measures of a batch, with the number of rows or tokens that they are means of."""
        measures = self._measures()
        if self._sums is not None and measures is not None and self._counts:
            for name in measures.keys() - {"num_tokens"}:
                count = self._counts.get(_MEANS_OVER_TOKENS.get(name, "rows"), self._counts["rows"])
                self._sums[name] += [(value, count) for value in measures[name]]
                measures[name].clear()
        return loss

    def after_evaluation(self, dataset: Dataset, metrics: dict[str, float], prefix: str) -> None:
        """Give the means to TRL, which logs them."""
        sums, self._sums = self._sums, None
        measures = self._measures()
        for name, values in (sums or {}).items():
            total = sum(count for _, count in values)
            if total:
                measures[name] = [sum(value * count for value, count in values if count) / total]

    def _rows(self, size: int) -> int:
        """Number of rows of a batch on all ranks, without those that are repeated."""
        state = self.run.accelerator.gradient_state
        is_last = state.end_of_dataloader and state.remainder > 0
        return state.remainder if is_last and self.run.args.world_size > 1 else size * self.run.args.world_size


def gathering_rows_once(accelerator: Any) -> AbstractContextManager[Any]:
    """A context in which `accelerator.gather` leaves out the rows that ranks repeat to fill their last batch.

    Args:
        accelerator ([`~accelerate.Accelerator`]): the accelerator of an evaluation.
    """
    gather = accelerator.gather

    def once(tensors: Any) -> Any:
        gathered, state = gather(tensors), accelerator.gradient_state
        is_last = state.end_of_dataloader and state.remainder > 0 and accelerator.num_processes > 1
        return gathered[: state.remainder] if is_last and torch.is_tensor(gathered) else gathered

    return mock.patch.object(accelerator, "gather", once)


def _mean_losses(rows: Float[torch.Tensor, "N 2"], dataset: Dataset) -> dict[str, float]:
    """The mean loss over all tokens and over those of each named part; a part without predicted tokens is left out."""
    total, count = rows.sum(0).tolist()
    if count == 0:
        raise InputError(
            "no token of the held-out rows is predicted, since their answers begin after max_length; raise it, or "
            "leave evaluation out"
        )
    losses = {"loss": total / count}
    if isinstance(dataset, HeldOutParts):
        # Ranks take batches in turn, so gathered rows are in the order of the data set.
        for name, part in zip(dataset.names, rows.split([len(part) for part in dataset.datasets]), strict=True):
            total, count = part.sum(0).tolist()
            if count:
                losses[f"{name}_loss"] = total / count
    return losses
