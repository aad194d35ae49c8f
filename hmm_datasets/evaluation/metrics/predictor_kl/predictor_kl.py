"""Divergence of a model's next-token distribution from a predictor's, at every position."""

import torch

from hmm_datasets.errors import InputError
from hmm_datasets.evaluation import metrics
from hmm_datasets.hmm.analysis.divergence import kl_divergence
from hmm_datasets.statistics import as_table, clustered_mean


class PredictorKL(metrics.CheckedMetric):
    """KL(predictor || model) = sum_x p(x) (log p(x) - log q(x)) in nats: how much a model q differs from a predictor p
    (uniform, unigram, bigram, Bayes-optimal). It is 0 if both predict the same. The predictor with the minimum
    divergence is the one that the model resembles most.

    Args:
        predictions: list of N arrays (T, V), natural logarithms of the model's next-token distributions. V may exceed
            E because of special tokens; probability that the model gives to these increases the divergence.
        references: list of N arrays (T, E), the predictor's probabilities.

    Returns:
        kl: nats per token.
        standard_error: standard error of kl, clustered by sequence; None for a single sequence.
        by_position: list of T floats, nats.
        by_position_error: standard errors of by_position.

    Example:
        >>> import evaluate
        >>> import numpy as np
        >>> from hmm_datasets.evaluation.metrics import metric_path
        >>> metric = evaluate.load(metric_path("predictor_kl"))
        >>> half = np.log([[[0.5, 0.5]]])
        >>> round(metric.compute(predictions=half, references=[[[1.0, 0.0]]])["kl"], 4)
        0.6931
    """

    predictions = metrics.TABLE
    references = metrics.TABLE

    def _compute(self, predictions, references) -> dict:
        log_model, distribution = as_table("predictions", predictions, 3), as_table("references", references, 3)
        if log_model.shape[:2] != distribution.shape[:2] or log_model.shape[2] < distribution.shape[2]:
            raise InputError(
                f"predictions have shape {log_model.shape}, references {distribution.shape}; expected (N, T, V) and "
                "(N, T, E), E at most V"
            )
        return clustered_mean(
            kl_divergence(torch.from_numpy(distribution), torch.from_numpy(log_model)).numpy()
        ).report("kl")
