"""The Kullback-Leibler divergence between distributions of the next token."""

import torch
from jaxtyping import Float
from torch import Tensor


def kl_divergence(distribution: Float[Tensor, "... E"], log_model: Float[Tensor, "... V"]) -> Float[Tensor, "..."]:
    """`KL(distribution || model)` in nats; the model may have more tokens (`V > E`).

    A token of probability 0 adds nothing, whatever the model's logarithm is; one that the model takes to be impossible
    makes the divergence infinite.

    ```python
    >>> kl_divergence(torch.tensor([[1.0, 0.0], [0.5, 0.5]]), torch.tensor([1.0, 0.0]).log())
    tensor([0., inf])

    ```
    """
    ratios = distribution.log() - log_model[..., : distribution.shape[-1]]
    # Not a product alone: zero times infinity is NaN.
    return torch.where(distribution > 0, distribution * ratios, 0.0).sum(-1)
