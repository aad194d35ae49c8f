"""Whether what a model gives a probability of one in five happens one time in five.

Every pair of a place and a symbol is put into a bin by the probability `q` that the model gave the symbol there; of
each bin are kept the mean of `q`, the frequency with which the symbol came, and the mean of its probability under the
true distribution. The expected calibration error (Naeini, Cooper and Hauskrecht, AAAI 2015, eq. 3) is the mean over
bins, weighted by their pairs, of the distance between the first and what should equal it: here the third, which is the
second without the noise of the draw. Over all symbols, not only the likeliest (Nixon et al., CVPR workshops 2019).

A calibrated model need not be good, the process's unigram is calibrated too: it is no substitute for the gap.

Bins are of equal width in log-odds, half a nat, so that one in a thousand is told from one in a hundred where there
are many symbols. Time is `O(B T E)` a batch, memory that of a few tables `(B, T, E)`.
"""

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

_INNER_EDGES = torch.linspace(-8, 8, 33, dtype=torch.float64).sigmoid()


class Calibration:
    """Sums over the pairs of each bin, fed a batch at a time."""

    def __init__(self):
        self._sums = torch.zeros(len(_INNER_EDGES) + 1, 4, dtype=torch.float64)

    @staticmethod
    def sums(
        log_model: Float[Tensor, "B T V"], distribution: Float[Tensor, "B T E"], symbols: Int[Tensor, "B T"]
    ) -> Float[Tensor, "B K 4"]:
        """Of each sequence and bin: pairs, and their sums of model's probability, arrivals and the distribution's
        probability.

        Tokens that the distribution does not know (`V > E`) are left out.
        """
        probability = log_model[..., : distribution.shape[-1]].double().exp()
        bins = torch.bucketize(probability, _INNER_EDGES.to(probability.device), right=True)
        arrived = bins.gather(-1, symbols.unsqueeze(-1)).squeeze(-1)
        every, one = bins.flatten(1), probability.new_ones(1, 1)
        columns = (
            (every, one.expand_as(every)),
            (every, probability.flatten(1)),
            (arrived, one.expand_as(arrived)),
            (every, distribution.double().flatten(1)),
        )
        empty = probability.new_zeros(len(probability), len(_INNER_EDGES) + 1)
        return torch.stack([empty.scatter_add(1, places, values) for places, values in columns], dim=-1)

    def add(self, sums: Float[Tensor, "B K 4"]) -> None:
        """Take in the sums of some sequences."""
        self._sums += sums.sum(0).cpu()

    def result(self) -> dict[str, Any]:
        """`edges` (K + 1) of the bins; `count` of pairs, `predicted`, `observed` and `distribution`, means (K), None
        where a bin is empty; `error`, the mean of `|predicted - distribution|`.
        """
        count, predicted, observed, distribution = self._sums.unbind(1)
        return {
            "edges": [0.0, *_INNER_EDGES.tolist(), 1.0],
            "count": count.long().tolist(),
            "predicted": _means(predicted, count),
            "observed": _means(observed, count),
            "optimum": _means(distribution, count),
            "error": float((predicted - distribution).abs().sum() / count.sum()),
        }


def _means(sums: Float[Tensor, "K"], count: Float[Tensor, "K"]) -> list[float | None]:
    return [None if n == 0 else total / n for total, n in zip(sums.tolist(), count.tolist(), strict=True)]
