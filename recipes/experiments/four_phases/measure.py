"""Which of the four algorithms for mixtures of Markov chains a model is nearest to.

(Park et al., "Competition dynamics shape algorithmic phases of in-context learning", arXiv:2412.01003, 2025.) The
distance is the divergence of the model from the algorithm, KL(algorithm || model), in nats per token. On sequences of
the chains of the mixture retrieval and inference predict much the same once the context is long. On sequences of new
chains they differ, so both are measured, and the nearest algorithm is that of the smallest mean of both. The first
symbol is left out, since nothing is known before it.
"""

from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float
from mixture_predictors import mixture_predictors
from symbol_predictions import symbol_log_probs
from torch import Tensor

from hmm_datasets.data.sequences import TEST_FIRST
from hmm_datasets.hmm.analysis.divergence import kl_divergence
from hmm_datasets.hmm.families.chains import RandomChains
from hmm_datasets.hmm.families.mixture import ChainMixture

if TYPE_CHECKING:
    from transformers import PreTrainedModel

ALGORITHMS = ("unigram_retrieval", "unigram_inference", "bigram_inference", "bigram_retrieval")
"""The algorithms, as [`mixture_predictors`] names them."""
CHANCE = "uniform"
"""The predictor that has learned nothing, which a new model is nearest to."""


class NearestAlgorithm:
    """Measures models on held-out sequences of a mixture, and on as many of new chains from the same prior.

    Args:
        mixture ([`~hmm_datasets.hmm.families.mixture.ChainMixture`]): the chains that the model is trained on.
        length (`int`): symbols per sequence.
        num_sequences (`int`): sequences of each kind.
        alpha (`float`): concentration per symbol of the prior of the chains.
        batch_size (`int`, *optional*, defaults to 64): sequences in one forward pass.
    """

    def __init__(self, mixture: ChainMixture, length: int, num_sequences: int, alpha: float, batch_size: int = 64):
        self.mixture, self.alpha, self.batch_size = mixture, alpha, batch_size
        new = RandomChains(mixture.num_symbols, alpha=alpha, start="stationary")
        # Another stream than that of the chains themselves.
        self.tokens = {
            "mixture": _tensor(mixture.sample(num_sequences, length, first=TEST_FIRST)),
            "new": _tensor(new.sample(num_sequences, length, seed=1, first=TEST_FIRST)),
        }

    @cached_property
    def laws(self) -> dict[str, dict[str, Float[Tensor, "N L-1 E"]]]:
        """The distributions of each algorithm, for both kinds of sequences."""
        predictors = mixture_predictors(self.mixture, self.alpha)
        return {
            kind: {name: predictors[name](tokens)[:, 1:-1].float() for name in ALGORITHMS}
            | {CHANCE: self._uniform(tokens)}
            for kind, tokens in self.tokens.items()
        }

    def _uniform(self, tokens: Tensor) -> Float[Tensor, "N L-1 E"]:
        symbols = self.mixture.num_symbols
        return torch.full((len(tokens), tokens.shape[1] - 1, symbols), 1 / symbols)

    def __call__(self, model: "PreTrainedModel") -> dict[str, Any]:
        """The divergences of a model.

        Returns:
            `dict`: `mixture` and `new` with the divergence from each algorithm and from the uniform distribution, and
            `nearest`, the name of one of these.
        """
        divergences = {kind: self._divergences(model, kind) for kind in self.tokens}
        return {**divergences, "nearest": nearest(divergences)}

    @torch.inference_mode()
    def _divergences(self, model: "PreTrainedModel", kind: str) -> dict[str, float]:
        tokens, bos = self.tokens[kind], self.mixture.num_symbols
        batches = [symbol_log_probs(model, rows.to(model.device), bos) for rows in tokens.split(self.batch_size)]
        model_log_probs = torch.cat(batches)[:, 1:].float().cpu()
        return {name: divergence(law, model_log_probs) for name, law in self.laws[kind].items()}


def divergence(law: Float[Tensor, "N T E"], log_probs: Float[Tensor, "N T E"]) -> float:
    """The mean of KL(distribution || model) over rows and positions.

    ```python
    >>> round(divergence(torch.tensor([[[0.5, 0.5]]]), torch.tensor([[[0.5, 0.5]]]).log()), 6)
    0.0

    ```
    """
    return float(kl_divergence(law, log_probs).mean())


def nearest(divergences: dict[str, dict[str, float]]) -> str:
    """The algorithm with the smallest mean divergence over the kinds of sequences.

    ```python
    >>> nearest({"mixture": {"a": 1.0, "b": 2.0}, "new": {"a": 4.0, "b": 1.0}})
    'b'

    ```
    """
    names = next(iter(divergences.values()))
    return min(names, key=lambda name: sum(kind[name] for kind in divergences.values()))


def _tensor(tokens: Any) -> Tensor:
    return torch.from_numpy(tokens.astype("int64"))
