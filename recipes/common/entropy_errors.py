"""How far the entropy of a model's predictions is from that of the exact ones, by position.

The error of one prediction is the absolute difference of the two entropies in bits, as in Agarwal, Dalal and Misra,
"The Bayesian geometry of transformer attention", arXiv 2512.22471. It can be averaged over sequences in two ways. The
mean of absolute errors counts each prediction's. The absolute error of mean entropies is never larger, because errors
of opposite sign in different sequences cancel.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from hmm_datasets.data.sequences import TEST_FIRST
from hmm_datasets.hmm.analysis.divergence import kl_divergence, log_probabilities

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from hmm_datasets.hmm.families.episodic_tasks import EpisodicTask


@dataclass(frozen=True)
class EntropyErrors:
    """Errors at each of `T` positions, in bits.

    Attributes:
        of_each (`np.ndarray` of shape `(T,)`): the mean over sequences of the absolute error.
        of_means (`np.ndarray` of shape `(T,)`): the absolute difference of the mean entropies.
        divergence (`np.ndarray` of shape `(T,)`): the mean divergence of the model from the exact distribution.
    """

    of_each: Float[np.ndarray, "T"]
    of_means: Float[np.ndarray, "T"]
    divergence: Float[np.ndarray, "T"]


def entropy_errors(log_probs: Float[Tensor, "N T K"], exact: Float[Tensor, "N T K"]) -> EntropyErrors:
    """The errors of predictions for `N` sequences.

    Args:
        log_probs (`torch.Tensor` of shape `(N, T, K)`): logarithms of the model's distributions, in nats.
        exact (`torch.Tensor` of shape `(N, T, K)`): the exact distributions.

    ```python
    >>> errors = entropy_errors(torch.tensor([[[0.5, 0.5]]]).log(), torch.tensor([[[1.0, 0.0]]]))
    >>> errors.of_each.round(6).tolist(), errors.divergence.round(6).tolist()
    ([1.0], [1.0])

    ```
    """
    predicted, exact = log_probs.double(), exact.double()
    difference = -torch.xlogy(predicted.exp(), predicted.exp()).sum(-1) + torch.xlogy(exact, exact).sum(-1)
    figures = (difference.abs().mean(0), difference.mean(0).abs(), kl_divergence(exact, predicted).mean(0))
    return EntropyErrors(*((nats / np.log(2)).cpu().numpy() for nats in figures))


def task_log_probs(
    model: "PreTrainedModel", task: "EpisodicTask", num_sequences: int, *, seed: int = 0, batch_size: int = 256
) -> tuple[Float[Tensor, "N S V"], np.ndarray]:
    """A model's predictions of the scored tokens of held-out episodes, one episode a row, and the episodes.

    Args:
        model ([`~transformers.PreTrainedModel`]): reads a beginning token `E` and then symbols.
        task ([`~hmm_datasets.hmm.families.episodic_tasks.EpisodicTask`]): the task.
        num_sequences (`int`): `N`.
        seed (`int`, *optional*, defaults to 0): the stream.
        batch_size (`int`, *optional*, defaults to 256): episodes in one forward pass.

    Returns:
        The logarithms of the distributions (N, S, V) before the `S` scored tokens, float64; and the episodes (N, P).
    """
    length = task.episode_length
    episodes = task.sample(num_sequences, length, seed=seed, first=TEST_FIRST).astype(np.int64)
    rows = torch.nn.functional.pad(torch.from_numpy(episodes), (1, 0), value=task.num_symbols).to(model.device)
    places = torch.from_numpy(np.flatnonzero(task.scored(length))).to(model.device)
    with torch.no_grad():
        logits = [model(input_ids=part, use_cache=False).logits[:, places] for part in rows.split(batch_size)]
    return log_probabilities(torch.cat(logits)).cpu(), episodes
