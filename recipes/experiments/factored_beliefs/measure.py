"""What a model represents of a factored process, against the exact beliefs of its factors and of all together."""

from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from jaxtyping import Float
from representation import (
    effective_dimension,
    explained_variance,
    factor_subspaces,
    principal_angles,
    regression_r2,
    residual_stream,
    subspace_overlap,
)
from torch import Tensor

from hmm_datasets.data.sequences import TEST_FIRST, HMMSequences
from hmm_datasets.hmm.structured.factored import FactoredProcess

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_CONSTANT = 1e-9
"""Range of a probability below which it does not change."""
SHARES = (0.95, 0.99)
"""Shares of the variance for which the number of principal components is given."""


class FactoredMeasure:
    """Measures models on held-out sequences of a factored process.

    Positions are those after each symbol of a sequence. That of the beginning token is left out: it has one and the
    same hidden state, which is often far from all others.

    Args:
        process ([`~hmm_datasets.FactoredProcess`]): factors with product symbols, and few joint states.
        length (`int`): symbols per sequence.
        num_sequences (`int`): held-out sequences.
    """

    def __init__(self, process: FactoredProcess, length: int, num_sequences: int):
        self.process = process
        self.rows = HMMSequences(process, length, first=TEST_FIRST, num_sequences=num_sequences)

    @cached_property
    def tokens(self) -> Tensor:
        """The sequences after a beginning token, (N, L + 1)."""
        return torch.stack([row["input_ids"] for row in self.rows.__getitems__(range(len(self.rows)))])

    @cached_property
    def beliefs(self) -> dict[str, Float[Tensor, "N L W"]]:
        """The belief of each factor after each symbol, and the `joint` one."""
        symbols = self.tokens[:, 1:].numpy()
        beliefs, parts = self.process.beliefs(symbols)[:, 1:], self.process.belief_parts()
        joint = self.process.joint_beliefs(symbols)[:, 1:]
        return {
            **{name: torch.tensor(beliefs[..., part]) for name, part in parts.items()},
            "joint": torch.tensor(joint),
        }

    @property
    def _factors(self) -> list[np.ndarray]:
        return [part.flatten(0, 1).numpy() for name, part in self.beliefs.items() if name != "joint"]

    def constant_factor(self) -> int | None:
        """The first factor whose belief is the same after every symbol of all sequences; None if there is none."""
        constant = (number for number, part in enumerate(self._factors) if np.ptp(part, axis=0).max() < _CONSTANT)
        return next(constant, None)

    @cached_property
    def floor(self) -> float:
        """The loss of the Bayes-optimal predictor on these sequences, in nats per token."""
        return -float(np.mean(self.process.log_likelihood(self.tokens[:, 1:].numpy()))) / self.rows.length

    def exact(self) -> dict[str, Any]:
        """What is predicted: dimensions, and how far the exact beliefs themselves fill them.

        `sum` and `product` are `sum (d_k - 1)` and `prod d_k - 1`; `factors` and `joint` the principal components of
        the exact beliefs; `joint_r2_of_factors` the R2 of a linear regression of the joint belief on the factors'.
        """
        curves = {
            "factors": explained_variance(np.concatenate(self._factors, axis=1)),
            "joint": explained_variance(self.beliefs["joint"].flatten(0, 1).numpy()),
        }
        together = torch.cat([part for name, part in self.beliefs.items() if name != "joint"], dim=-1)
        widths = self.process.widths
        return {
            "sum": sum(widths) - len(widths),
            "product": int(np.prod(widths)) - 1,
            "floor": self.floor,
            "joint_r2_of_factors": regression_r2(together, {"joint": self.beliefs["joint"]})["joint"],
            **{name: _dimensions(curve) for name, curve in curves.items()},
        }

    def __call__(self, model: "PreTrainedModel") -> dict[str, Any]:
        """The measurements of a model.

        Returns:
            `dict`: `excess` over the optimal loss in nats per token; `dimensions` of the residual stream after the
            last block, and `layers`, those after the embedding and every block; `r2` of each factor and of the joint;
            `overlap`, `smallest_angle` and `chance_overlap` of the factors' subspaces; `hidden_r2`, the share of the
            variance of hidden states that the beliefs of the factors, and the joint one, explain.
        """
        states, losses = residual_stream(model, self.tokens)
        last = states[-1, :, 1:]
        hidden = last.flatten(0, 1).numpy()
        bases = factor_subspaces(hidden, self._factors)
        pairs = [(bases[i], bases[j]) for j in range(len(bases)) for i in range(j)]
        together = torch.cat([part for name, part in self.beliefs.items() if name != "joint"], dim=-1)
        explained = {"factors": together, "joint": self.beliefs["joint"]}
        curves = [explained_variance(layer[:, 1:].flatten(0, 1).numpy()) for layer in states]
        return {
            "excess": float(losses.mean()) / self.rows.length - self.floor,
            "dimensions": _dimensions(curves[-1]),
            "layers": [[effective_dimension(curve, share) for share in SHARES] for curve in curves],
            "r2": regression_r2(last, self.beliefs),
            "hidden_r2": {name: regression_r2(table, {"h": last})["h"] for name, table in explained.items()},
            "overlap": float(np.mean([subspace_overlap(*pair) for pair in pairs])) if pairs else 0.0,
            "chance_overlap": max(basis.shape[1] for basis in bases) / hidden.shape[1],
            "smallest_angle": float(min((principal_angles(*pair)[0] for pair in pairs), default=90.0)),
        }


def _dimensions(curve: np.ndarray) -> dict[str, Any]:
    dimensions = {f"{share:g}": effective_dimension(curve, share) for share in SHARES}
    return {**dimensions, "explained": [round(float(value), 6) for value in curve[:256]]}
