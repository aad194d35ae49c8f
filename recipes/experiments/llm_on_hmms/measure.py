"""How good predictions of the next symbol are under the exact distributions."""

import numpy as np
import torch
from jaxtyping import Float, Int

from hmm_datasets import HMM
from hmm_datasets.hmm.analysis.divergence import kl_divergence


def agreement(exact: Float[np.ndarray, "N T E"], predicted: Float[np.ndarray, "N T E"]) -> dict[str, np.ndarray]:
    """How good predictions are under the exact distributions, at every position, as means over sequences.

    Returns:
        `dict`: arrays of shape `(T,)`: `accuracy`, the probability that the most probable symbol of `found` is the
        next one (that of the exact distributions is the highest possible); `kl`, the divergence from `exact` in nats;
        and `hellinger`, the Hellinger distance, in `[0, 1]`.

    ```python
    >>> exact = np.array([[[0.9, 0.1]]])
    >>> {name: value.round(3).tolist() for name, value in agreement(exact, exact[..., ::-1]).items()}
    {'accuracy': [0.1], 'kl': [1.758], 'hellinger': [0.632]}

    ```
    """
    chosen = np.take_along_axis(exact, predicted.argmax(-1)[..., None], -1)[..., 0]
    truth, other = (torch.from_numpy(np.ascontiguousarray(table)) for table in (exact, predicted))
    divergence = kl_divergence(truth, other.log()).numpy()
    distance = np.sqrt(((np.sqrt(exact) - np.sqrt(predicted)) ** 2).sum(-1) / 2)
    return {"accuracy": chosen.mean(0), "kl": divergence.mean(0), "hellinger": distance.mean(0)}


def viterbi_predictions(hmm: HMM, tokens: Int[np.ndarray, "N T"]) -> Float[np.ndarray, "N T-1 E"]:
    """The distributions of tokens `1 .. T-1` if the last state of the most probable path before each were certain."""
    last = [hmm.viterbi(tokens[:, :length]).states[:, -1] for length in range(1, tokens.shape[1])]
    return (hmm.transition @ hmm.emission)[np.stack(last, axis=1)]
