"""Calibration: whether symbols to which a model gives probability 0.2 occur in 20% of the cases.

Every pair of a position and a symbol is put into a bin by the probability `q` that the model gave the symbol there.
For each bin there are three means: of `q`, of whether the symbol occurred (its frequency), and of its probability
under the true distribution. The expected calibration error (Naeini, Cooper and Hauskrecht, AAAI 2015, eq. 3) is the
mean over bins, weighted by their number of pairs, of the distance between the first and the second. Here the third is
used in place of the second, which it equals in expectation and without sampling noise. All symbols count, not only the
most likely one (Nixon et al., CVPR workshops 2019).

A calibrated model need not be good: the unigram of the process is calibrated too. So this does not replace the gap to
the optimum.

Bins have equal width in log-odds, half a nat, so that 0.001 and 0.01 are in different bins; this matters if there are
many symbols. Time is `O(B T E)` per batch, memory that of a few tables `(B, T, E)`.
"""

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

_INNER_EDGES = torch.linspace(-8, 8, 33, dtype=torch.float64).sigmoid()


class Calibration:
    """Sums over the pairs of each bin, collected batch by batch."""

    def __init__(self):
        self._sums = torch.zeros(len(_INNER_EDGES) + 1, 4, dtype=torch.float64)

    @staticmethod
    def sums(
        log_model: Float[Tensor, "B T V"],
        distribution: Float[Tensor, "B T E"],
        symbols: Int[Tensor, "B T"],
        padding: int | None = None,
    ) -> Float[Tensor, "B K 4"]:
        """For each sequence and each of the `K` bins: the number of pairs, and the sums of the model's probability, of
        occurrences, and of the true probability.

        Tokens that the distribution does not have (`V > E`) are left out, and positions of padding.
        """
        probability = log_model[..., : distribution.shape[-1]].double().exp()
        bins = torch.bucketize(probability, _INNER_EDGES.to(probability.device), right=True)
        observed = bins.gather(-1, symbols.unsqueeze(-1)).squeeze(-1)
        every, counted = bins.flatten(1), (symbols != (-1 if padding is None else padding)).to(probability)
        columns = (
            (every, counted.unsqueeze(-1).expand_as(bins).flatten(1)),
            (every, (probability * counted.unsqueeze(-1)).flatten(1)),
            (observed, counted),
            (every, (distribution.double() * counted.unsqueeze(-1)).flatten(1)),
        )
        empty = probability.new_zeros(len(probability), len(_INNER_EDGES) + 1)
        return torch.stack([empty.scatter_add(1, indices, values) for indices, values in columns], dim=-1)

    def add(self, sums: Float[Tensor, "B K 4"]) -> None:
        """Add the sums of a batch of sequences."""
        self._sums += sums.sum(0).cpu()

    def result(self) -> dict[str, Any]:
        """The result over all batches.

        Returns:
            `dict`: `edges` of the `K` bins (`K + 1` numbers); `count`, the pairs in each; `predicted`, `observed` and
            `optimum`, the three means of each bin, None if it is empty; `error`, the expected calibration error.
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
