"""A model's distributions of the next token, and the Kullback-Leibler divergence from them."""

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


def log_probabilities(logits: Float[Tensor, "... V"]) -> Float[Tensor, "... V"]:
    """The logarithms of a model's distributions in float64, -inf where a logit is the lowest number of its type.

    Models without infinite logits, as an HMM among the models of transformers, write so that a token is impossible. A
    softmax alone would give it a finite logarithm near -1e38. Where all tokens are impossible, the distribution is
    uniform.

    ```python
    >>> log_probabilities(torch.tensor([0.0, torch.finfo(torch.float32).min])).tolist()
    [0.0, -inf]

    ```
    """
    lowest = max(torch.finfo(logits.dtype).min, torch.finfo(torch.float32).min)
    impossible = logits <= lowest
    impossible &= ~impossible.all(-1, keepdim=True)
    return logits.double().masked_fill(impossible, -torch.inf).log_softmax(-1)
