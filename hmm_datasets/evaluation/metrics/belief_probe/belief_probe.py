"""How well the beliefs of an HMM are predicted linearly from a model's hidden states."""

import numpy as np

from hmm_datasets.errors import InputError
from hmm_datasets.evaluation import metrics
from hmm_datasets.evaluation.linear_probes import probe_arrays
from hmm_datasets.statistics import as_table


class BeliefProbe(metrics.CheckedMetric):
    """Linear regression with an intercept from hidden states to beliefs, the distributions of the HMM's state given
    the symbols so far. It is fitted on half of the sequences and tested on the other half. As a control, the same
    regression is done to the beliefs at other positions. After Shai et al., "Transformers represent belief state
    geometry in their residual stream", 2024.

    Args:
        predictions: list of N arrays (T, D), hidden states at every position.
        references: list of N arrays (T, H), the exact beliefs at the same positions (`hmm.beliefs`, probabilities).
        seed: seed of the split and the shuffle; 0 by default.

    Returns:
        r2: share of the variance of the beliefs, all states together, that is explained on the held-out sequences;
            None if they do not vary.
        rmse: root of the mean squared error of a state's probability.
        shuffled_r2, shuffled_rmse: the same for the beliefs at other positions.
        fitted_on, tested_on: numbers of sequences.

    Example:
        >>> import evaluate
        >>> import numpy as np
        >>> from hmm_datasets.evaluation.metrics import metric_path
        >>> metric = evaluate.load(metric_path("belief_probe"))
        >>> belief = np.random.default_rng(0).dirichlet([1, 1, 1], (8, 20))
        >>> round(metric.compute(predictions=2 * belief - 1, references=belief)["r2"], 6)
        1.0
    """

    predictions = metrics.TABLE
    references = metrics.TABLE

    def _compute(self, predictions, references, seed: int = 0) -> dict:
        hidden, beliefs = as_table("predictions", predictions, 3), as_table("references", references, 3)
        if hidden.shape[:2] != beliefs.shape[:2]:
            raise InputError(
                f"predictions have shape {hidden.shape}, references {beliefs.shape}; expected (N, T, D) and (N, T, H)"
            )
        for name, table in (("predictions", hidden), ("references", beliefs)):
            if not np.isfinite(table).all():
                raise InputError(f"{name}{np.argwhere(~np.isfinite(table))[0].tolist()} is not finite")
        figures, (fitted_on, tested_on) = probe_arrays(hidden, beliefs, seed)
        return {**figures, "fitted_on": fitted_on, "tested_on": tested_on}
