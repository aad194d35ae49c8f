"""How many dimensions a model's hidden states take, and in which of them it represents each factor of a process.

(Shai et al., "Transformers learn factored representations", arXiv:2602.02385, 2026.) The beliefs of independent
factors of `d_k` dimensions lie in `sum (d_k - 1)` dimensions side by side, and their joint belief in `prod d_k - 1`.
So the number of principal components of the hidden states says which of the two a model represents. The subspace of a
factor is that of the coefficients of its belief in a linear regression of hidden states on the beliefs of all factors:
the directions in which hidden states move with this belief while the others stay.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from hmm_datasets.evaluation.linear_probes import Moments, split_sequences

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_RANK = 1e-6  # of the largest singular value


@torch.inference_mode()
def residual_stream(
    model: "PreTrainedModel", tokens: Int[Tensor, "B T"], batch_size: int = 512
) -> tuple[Float[Tensor, "layers B T D"], Float[Tensor, "B"]]:
    """The residual stream of a Llama after the embedding and after each block, and the loss of each row.

    In transformers the last of the `hidden_states` is that after the final norm, which bends them; here it is the one
    before. The loss of a row is the sum over its tokens in nats.
    """
    kept: list[Tensor] = []
    hook = model.base_model.norm.register_forward_pre_hook(lambda module, inputs: kept.append(inputs[0]))
    states, losses = [], []
    try:
        for rows in tokens.to(model.device).split(batch_size):
            output = model(input_ids=rows, use_cache=False, output_hidden_states=True)
            states.append(torch.stack([*output.hidden_states[:-1], kept.pop()]).float().cpu())
            log_probs = output.logits[:, :-1].double().log_softmax(-1)
            losses.append(-log_probs.gather(-1, rows[:, 1:, None]).sum((1, 2)).cpu())
    finally:
        hook.remove()
    return torch.cat(states, dim=1), torch.cat(losses)


def explained_variance(rows: Float[np.ndarray, "N D"]) -> Float[np.ndarray, "D"]:
    """The share of the variance of the rows in their first `1 .. D` principal components.

    ```python
    >>> explained_variance(np.array([[3.0, 0], [-3, 0], [0, 1], [0, -1]])).round(3).tolist()
    [0.9, 1.0]

    ```
    """
    values = np.linalg.eigvalsh(np.cov(np.asarray(rows, float), rowvar=False, bias=True))[::-1].clip(min=0)
    total = values.sum()
    return np.cumsum(values) / total if total > 0 else np.ones(len(values))


def effective_dimension(explained: Float[np.ndarray, "D"], share: float) -> int:
    """The number of principal components that hold `share` of the variance.

    ```python
    >>> effective_dimension(np.array([0.9, 0.96, 1.0]), 0.95)
    2

    ```
    """
    return int(np.searchsorted(explained, share - 1e-12)) + 1


def regression_r2(
    features: Float[Tensor, "B T D"],
    targets: Mapping[str, Float[Tensor, "B T K"]],
    seed: int = 0,
) -> dict[str, float]:
    """R2 of linear regressions on the features, fitted on half of the sequences, tested on the others.

    All columns of a target count together: one minus the squared error over the variance.
    """
    halves = [torch.from_numpy(half) for half in split_sequences(len(features), seed)]
    table = torch.cat([features.double(), *(target.double() for target in targets.values())], dim=-1)
    moments, width = Moments(), features.shape[-1]
    moments.add(table[halves[0]].flatten(0, 1))
    weights, intercept = moments.regress(slice(0, width), slice(width, table.shape[-1]))
    held_out = table[halves[1]].flatten(0, 1)
    wanted = held_out[:, width:]
    errors = (wanted - held_out[:, :width] @ weights - intercept).square().sum(0)
    spreads = (wanted - wanted.mean(0)).square().sum(0)
    sizes = [target.shape[-1] for target in targets.values()]
    parts = zip(targets, errors.split(sizes), spreads.split(sizes), strict=True)
    return {name: float(1 - error.sum() / spread.sum()) for name, error, spread in parts}


def factor_subspaces(
    hidden: Float[np.ndarray, "N D"], beliefs: Sequence[Float[np.ndarray, "N W"]]
) -> list[Float[np.ndarray, "D R"]]:
    """An orthonormal basis of the subspace of each factor, with as many vectors as its belief has dimensions."""
    centered = np.asarray(hidden, float) - np.mean(hidden, axis=0)
    parts = [np.asarray(part, float) - np.mean(part, axis=0) for part in beliefs]
    coefficients = np.linalg.lstsq(np.concatenate(parts, axis=1), centered, rcond=_RANK)[0]
    subspaces, begin = [], 0
    for part in parts:
        rank = int(np.linalg.matrix_rank(part, tol=_RANK * np.linalg.norm(part, 2)))
        covered = np.linalg.qr(part)[1] @ coefficients[begin : begin + part.shape[1]]
        subspaces.append(np.linalg.svd(covered, full_matrices=False)[2][:rank].T)
        begin += part.shape[1]
    return subspaces


def principal_angles(first: Float[np.ndarray, "D R"], second: Float[np.ndarray, "D S"]) -> Float[np.ndarray, "K"]:
    """The principal angles between two subspaces in degrees, the smallest first; 90 where they are orthogonal.

    ```python
    >>> principal_angles(np.eye(3)[:, :2], np.eye(3)[:, 1:]).round().tolist()
    [0.0, 90.0]

    ```
    """
    return np.degrees(np.arccos(np.linalg.svd(first.T @ second, compute_uv=False).clip(0, 1)))


def subspace_overlap(first: Float[np.ndarray, "D R"], second: Float[np.ndarray, "D S"]) -> float:
    """The mean squared cosine of the principal angles; random subspaces have `max(R, S) / D` on average."""
    return float(np.square(first.T @ second).sum() / min(first.shape[1], second.shape[1]))
