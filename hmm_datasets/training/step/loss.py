"""The loss of the global batch, known on every rank before the optimizer steps.

The Trainer averages losses over ranks only when it logs. Here each rank sends the sum of its micro-batches' losses
once per step, before the optimizer, so all ranks take the same decision about a step. Losses are already divided by
the number of tokens of the global batch, so their mean over ranks is the mean over tokens that is logged. A request to
save or to stop, which reaches ranks at different times, is sent along, and the norm of the gradient, which may differ
between ranks by rounding: together one collective of 12 bytes per rank.

The state of the gradients of a step: norms by parameter and by layer, and the share that is not finite.

z-loss: a penalty that pulls the softmax's normalizer towards 1, so that logits do not drift.

The penalty is `z_loss` times the mean over predicted tokens of `(log Z)^2`, where `Z` is the sum of the exponentials
of the logits (Chowdhery et al., "PaLM", 2022, section 5, with 1e-4). Like the cross-entropy, it is a mean over the
tokens of the whole global batch, so each token has the same weight for any world size, micro-batch and accumulation.
A loss that is computed in chunks has it at no cost (see [`~hmm_datasets.training.output_layer`]). Otherwise
it costs one more pass over the logits and a float32 copy of them. The logged loss remains the cross-entropy.
"""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from transformers.trainer_pt_utils import LabelSmoother

from ...errors import InputError
from ...runtime import environment
from ...runtime.stop_requests import NOTHING
from .component import Component


def gradient_norms(trainer: Any, model: torch.nn.Module, norm: float) -> tuple[dict[str, float], float]:
    """Norms of the gradient of each parameter before clipping, and the share of its entries that is not finite.

    Under FSDP2, where each rank holds a part of every gradient, this is a collective of two numbers per parameter.

    Args:
        trainer ([`~hmm_datasets.training.trainer.StepTrainer`]): the trainer.
        model (`nn.Module`): the model as it is trained.
        norm (`float`): norm of the whole gradient before clipping.

    Returns:
        `dict[str, float]` and `float`; the dictionary is empty where gradients are gone by then, as under DeepSpeed.
    """
    names, figures, size, is_sharded = [], [], 0, False
    trained = trainer.accelerator.unwrap_model(model, keep_torch_compile=False)
    for name, weight in trained.named_parameters():
        if weight.grad is None:
            continue
        grad = weight.grad
        size += grad.numel()
        if hasattr(grad, "to_local"):
            grad, is_sharded = grad.to_local(), True
        names.append(name)
        figures.append(torch.stack([grad.float().square().sum(), (~torch.isfinite(grad)).sum().float()]))
    if not figures:
        return {}, 0.0
    totals = torch.stack(figures)
    if is_sharded and trainer.args.world_size > 1:
        torch.distributed.all_reduce(totals)
    limit = trainer.args.max_grad_norm
    scale = (norm + 1e-6) / limit if limit and norm > limit else 1.0  # the gradient is clipped already
    squares, bad = totals.double().T.tolist()
    return {name: math.sqrt(square) * scale for name, square in zip(names, squares, strict=True)}, sum(bad) / size


def norms_by_layer(norms: dict[str, float]) -> dict[str, float]:
    """The norms of layers from those of their parameters, largest first; one that is not finite comes first.

    ```python
    >>> norms_by_layer({"model.layers.0.mlp.weight": 3.0, "model.layers.0.norm.weight": 4.0, "lm_head.weight": 9.0})
    {'lm_head': 9.0, 'model.layers.0': 5.0}

    ```
    """
    squares: dict[str, float] = {}
    for name, norm in norms.items():
        layer = re.match(r".*?\.\d+(?=\.)", name)
        layer = layer[0] if layer else name.rpartition(".")[0]
        squares[layer] = squares.get(layer, 0.0) + norm**2
    found = {layer: math.sqrt(square) for layer, square in squares.items()}
    return dict(sorted(found.items(), key=lambda entry: -entry[1] if math.isfinite(entry[1]) else -math.inf))


class StepLoss(Component):
    """Collects the losses of the micro-batches of a step, and gathers their sums from all ranks.

    Attributes:
        loss (`float`): loss of the global batch, in nats per token; known from `after_gradient` on.
        norm (`float`): norm of its gradient before clipping, that of rank 0 on all ranks.
        requested (`int`): the largest request of all ranks, see [`~hmm_datasets.runtime.stop_requests`].
        request (callable): gives the request of this rank.
        losses (`list` of scalar `torch.Tensor`): losses of this rank's micro-batches.
        batches (`list[dict]`): inputs of this rank's micro-batches, until the optimizer has stepped.
    """

    needs = ("ZLoss",)

    def __init__(self, trainer):
        super().__init__(trainer)
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
        mine = torch.tensor([[0.0, norm, self.request()]], device=self.trainer.args.device)
        for loss in self.losses:
            mine[0, 0] += loss.float().mean()
        gathered = self.trainer.accelerator.gather(mine)
        found = torch.stack([gathered[:, 0].mean(), gathered[0, 1], gathered[:, 2].max()])
        self.loss, self.norm, requested = found.tolist()
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
        trainer = self.trainer
        rows = trainer.rows_of_micro_batches(len(self.losses))
        mine = {"rank": trainer.args.process_index, "host": environment.host(), "micro_batches": []}
        for number, loss in enumerate(self._own_means()):
            mine["micro_batches"].append({"loss": loss} | ({} if rows is None else {"rows": rows[number]}))
        if trainer.args.world_size == 1:
            return [mine]
        found: list[Any] = [None] * trainer.args.world_size
        torch.distributed.all_gather_object(found, mine)
        return found

    def _own_means(self) -> list[float]:
        """The loss of each micro-batch as the mean over its own tokens.

        Where losses are divided by the tokens of the global batch, each is its share of it; with equal numbers of
        tokens every share is one of the micro-batches of a rank.
        """
        counts = [_labels_of(batch) for batch in self.batches]
        losses = [float(loss.float().mean()) for loss in self.losses]
        if any(count is None for count in counts) or not self.trainer.model_accepts_loss_kwargs:
            return [loss * len(losses) for loss in losses]
        average = float(sum(counts))
        if self.trainer.args.average_tokens_across_devices:
            own = torch.tensor([average], device=self.trainer.args.device)
            average = float(self.trainer.accelerator.gather(own).mean())
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


class SmoothedLoss(LabelSmoother):
    """Label smoothing for any causal model: the Trainer shifts labels for those of transformers alone.

    The loss of a token is `1 - e` times its cross-entropy and `e` times the mean of the cross-entropies of all tokens
    (Szegedy et al., "Rethinking the Inception architecture for computer vision", 2016, section 7).
    """

    def __call__(self, model_output, labels, shift_labels=True, num_items_in_batch=None):
        return super().__call__(model_output, labels, shift_labels=True, num_items_in_batch=num_items_in_batch)


class ZLoss(Component):
    """Adds the z-loss to the training loss if `z_loss` in the settings is above 0.

    Rows of the history get a column `z_loss`: the mean over tokens of what was added. Evaluations do not include it.
    """

    def __init__(self, trainer):
        super().__init__(trainer)
        self._coefficient = trainer.args.z_loss
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
        if num_items is not None and self.trainer.args.average_tokens_across_devices:
            added = added * self.trainer.args.world_size  # the gradient is then averaged over ranks
        self._added, self._is_shared = added.detach(), num_items is None
        return loss if scores.has_z_loss else loss + added

    def after_micro_batch(self, loss: torch.Tensor) -> torch.Tensor:
        """Return the cross-entropy alone, for the log."""
        if self._added is None:
            return loss
        added, self._added = self._added, None
        if self._is_shared:  # each micro-batch's mean is then averaged over the micro-batches of the step
            added = added / self.trainer.current_gradient_accumulation_steps
        if self._sum is None:
            self._sum, self._since_step = torch.zeros_like(added), self.trainer.state.global_step
        self._sum += added
        return loss - added

    def so_far(self) -> tuple[float, int] | None:
        """What was added since the last row, as a mean over ranks, and the step of that row; a collective."""
        if self._sum is None:
            return None
        return self.trainer.accelerator.gather(self._sum).mean().item(), self._since_step

    def continue_from(self, so_far: tuple[float, int]) -> None:
        """Continue a run that had added this since the last row."""
        self._sum = torch.tensor(so_far[0], device=self.trainer.args.device)
        self._since_step = so_far[1]

    def before_log(self, row: dict[str, float]) -> None:
        """Add the mean of what was added since the last row."""
        if self._sum is None:
            return
        total, _ = self.so_far()
        row["z_loss"] = total / (self.trainer.state.global_step - self._since_step)
        self._sum = None


def check_z_loss(coefficient: float) -> None:
    """Raise [`InputError`] for a coefficient below 0."""
    if not coefficient >= 0:
        raise InputError(f"z_loss is {coefficient}; expected 0 (none) or more, such as 1e-4")
