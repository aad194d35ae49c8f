"""Norms of the gradient of a step by parameter and by layer, and the share that is not finite."""

import math
import re

import torch

from ..run_context import RunContext


def gradient_norms(run: RunContext, model: torch.nn.Module, norm: float) -> tuple[dict[str, float], float]:
    """Norms of the gradient of each parameter before clipping, and the share of its entries that is not finite.

    Under FSDP2, where each rank holds a part of every gradient, this is a collective of two numbers per parameter.

    Args:
        run ([`~hmm_datasets.training.run_context.RunContext`]): the run.
        model (`nn.Module`): the model as it is trained.
        norm (`float`): norm of the whole gradient before clipping.

    Returns:
        `dict[str, float]` and `float`; the dictionary is empty where gradients are gone by then, as under DeepSpeed.
    """
    names, figures, size, is_sharded = [], [], 0, False
    trained = run.accelerator.unwrap_model(model, keep_torch_compile=False)
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
    if is_sharded and run.args.world_size > 1:
        torch.distributed.all_reduce(totals)
    limit = run.args.max_grad_norm
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
    by_layer = {layer: math.sqrt(square) for layer, square in squares.items()}
    return dict(sorted(by_layer.items(), key=lambda entry: -entry[1] if math.isfinite(entry[1]) else -math.inf))
