"""The loss of the global batch, known on every rank before the optimizer steps.

The Trainer averages losses over ranks only when it logs. Here each rank sends the sum of its micro-batches' losses
once per step, before the optimizer, so all ranks take the same decision about a step. Losses are already divided by
the number of tokens of the global batch, so their mean over ranks is the mean over tokens that is logged. A request to
save or to stop, which reaches ranks at different times, is sent along, and the norm of the gradient, which may differ
between ranks by rounding: together one collective of 12 bytes per rank.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from ...runtime import environment
from ...runtime.stop_requests import NOTHING
from ..run_context import RunContext
from .component import Component


class StepLoss(Component):
    """Collects the losses of the micro-batches of a step, and gathers their sums from all ranks.

    Args:
        run ([`~hmm_datasets.training.run_context.RunContext`]): the run.
        rows_of_micro_batches (callable, *optional*): gives the indices of the rows of this rank's micro-batches.
        divides_by_items (`bool`, *optional*, defaults to `True`): whether the model divides losses by the number of
            tokens of the global batch.

    Attributes:
        loss (`float`): loss of the global batch, in nats per token; known from `after_gradient` on.
        norm (`float`): norm of its gradient before clipping, that of rank 0 on all ranks.
        requested (`int`): the largest request of all ranks, see [`~hmm_datasets.runtime.stop_requests`].
        request (callable): gives the request of this rank.
        losses (`list` of scalar `torch.Tensor`): losses of this rank's micro-batches.
        batches (`list[dict]`): inputs of this rank's micro-batches, until the optimizer has stepped.
    """

    needs = ("ZLoss",)

    def __init__(
        self,
        run: RunContext,
        rows_of_micro_batches: Callable[[int], list[list[int]] | None] = lambda count: None,
        *,
        divides_by_items: bool = True,
    ):
        super().__init__(run)
        self._rows, self._divides_by_items = rows_of_micro_batches, divides_by_items
        self.loss = self.norm = 0.0
        self.requested = NOTHING
        self.request: Callable[[], int] = lambda: NOTHING
        self.losses: list[torch.Tensor] = []
        self.batches: list[dict[str, Any]] = []

    def before_batches(self) -> None:
        """Begin a step."""
        self.losses, self.batches = [], []

    def before_micro_batch(self, inputs: dict[str, Any]) -> None:
        """Keep the inputs, which the Trainer holds during the step too."""
        self.batches.append(inputs)

    def after_micro_batch(self, loss: torch.Tensor) -> torch.Tensor:
        """Keep the loss, and return it unchanged."""
        self.losses.append(loss)
        return loss

    def after_gradient(self, model: torch.nn.Module, norm: float) -> None:
        """Gather the losses of all ranks, and what they are asked to do."""
        mine = torch.tensor([[0.0, norm, self.request()]], device=self.run.args.device)
        for loss in self.losses:
            mine[0, 0] += loss.float().mean()
        gathered = self.run.accelerator.gather(mine)
        gathered_loss = torch.stack([gathered[:, 0].mean(), gathered[0, 1], gathered[:, 2].max()])
        self.loss, self.norm, requested = gathered_loss.tolist()
        self.requested = int(requested)

    def after_optimizer(self) -> None:
        """Let go of the inputs."""
        self.batches = []

    def of_all_ranks(self) -> list[dict[str, Any]]:
        """What each rank trained on in this step: a collective, to be called by all ranks.

        Returns:
            `list[dict]`, by rank: `rank`, `host`, and `micro_batches`, each with its `loss`, the mean over its own
            tokens in nats, and its `rows`, their indices in the data set (absent if rows are shuffled by the Trainer).
        """
        run = self.run
        rows = self._rows(len(self.losses))
        mine = {"rank": run.args.process_index, "host": environment.host(), "micro_batches": []}
        for number, loss in enumerate(self._own_means()):
            mine["micro_batches"].append({"loss": loss} | ({} if rows is None else {"rows": rows[number]}))
        if run.args.world_size == 1:
            return [mine]
        gathered: list[Any] = [None] * run.args.world_size
        torch.distributed.all_gather_object(gathered, mine)
        return gathered

    def _own_means(self) -> list[float]:
        """The loss of each micro-batch as the mean over its own tokens.

        Where losses are divided by the tokens of the global batch, each is its share of it; with equal numbers of
        tokens every share is one of the micro-batches of a rank.
        """
        counts = [_labels_of(batch) for batch in self.batches]
        losses = [float(loss.float().mean()) for loss in self.losses]
        if any(count is None for count in counts) or not self._divides_by_items:
            return [loss * len(losses) for loss in losses]
        average = float(sum(counts))
        if self.run.args.average_tokens_across_devices:
            mean = torch.tensor([average], device=self.run.args.device)
            average = float(self.run.accelerator.gather(mean).mean())
        return [loss * average / count if count else loss for loss, count in zip(losses, counts, strict=True)]


def _labels_of(batch: dict[str, Any]) -> int | None:
    """The number of predicted tokens of a micro-batch; None if it has no labels."""
    labels = batch.get("labels")
    if not torch.is_tensor(labels):
        return None
    return int((labels[..., 1:] != -100).sum())


def highest(ranks: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The micro-batch with the highest loss, or the first whose loss is not finite, with its rank and host.

    ```python
    >>> parts = [{"loss": 2.0, "rows": [0]}, {"loss": 7.0, "rows": [1]}]
    >>> highest([{"rank": 0, "host": "node7", "micro_batches": parts}])
    {'rank': 0, 'host': 'node7', 'loss': 7.0, 'rows': [1]}

    ```
    """
    flat = [{"rank": rank["rank"], "host": rank["host"], **part} for rank in ranks for part in rank["micro_batches"]]
    finite = torch.tensor([part["loss"] for part in flat]).isfinite().tolist()
    if not all(finite):
        return flat[finite.index(False)]
    return max(flat, key=lambda part: part["loss"])


def place_of(part: Mapping[str, Any]) -> str:
    """Rank, host and rows of a micro-batch that [`highest`] gave, in words."""
    rows = f" in {rows_in_words(part['rows'])}" if "rows" in part else ""
    return f"rank {part['rank']} ({part['host']}){rows}"


def rows_in_words(rows: list[int]) -> str:
    """Rows by their indices.

    ```python
    >>> rows_in_words([4]), rows_in_words([4, 5, 6]), rows_in_words([4, 9])
    ('row 4', 'rows 4 to 6', 'rows 4, 9')

    ```
    """
    if len(rows) == 1:
        return f"row {rows[0]}"
    if rows == list(range(rows[0], rows[0] + len(rows))):
        return f"rows {rows[0]} to {rows[-1]}"
    return f"rows {', '.join(map(str, rows))}"
