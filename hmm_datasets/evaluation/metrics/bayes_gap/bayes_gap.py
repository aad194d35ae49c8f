"""Nats per token above the exact optimum."""

from hmm_datasets.errors import InputError
from hmm_datasets.evaluation import metrics
from hmm_datasets.statistics import as_table, gap_figures


class BayesGap(metrics.CheckedMetric):
    """How far a model is from the optimum: the mean of log P(token | past) under the true distribution minus that
    under the model, in nats per token. Its expectation is the mean KL divergence of the model's next-token
    distribution from the true one, so it is never negative. Evaluating both on the same tokens removes most of the
    sampling noise. Tokens so rare that they are not in the sample affect neither the gap nor its error; predictor_kl,
    which compares whole distributions, includes them.

    Args:
        predictions: list of N lists of T floats, natural logarithms of the probabilities that the model gave to the
            observed tokens.
        references: the same under the true distribution (for an HMM, from its filter).

    Returns:
        bayes_gap: nats per token, model minus optimum.
        standard_error: standard error of bayes_gap, clustered by sequence; None for a single sequence.
        model, optimum: cross-entropies on these tokens, nats per token.
        by_position: list of T floats, the gap at every position.
        by_position_error: standard errors of by_position.

    Example:
        >>> import evaluate
        >>> from hmm_datasets.evaluation.metrics import metric_path
        >>> metric = evaluate.load(metric_path("bayes_gap"))
        >>> model, optimum = [[-1.0, -2.0], [-1.0, -3.0]], [[-1.0, -1.5], [-0.5, -3.0]]
        >>> metric.compute(predictions=model, references=optimum)["bayes_gap"]
        0.25
    """

    predictions = metrics.ROW
    references = metrics.ROW

    def _compute(self, predictions, references) -> dict:
        model, optimum = as_table("predictions", predictions), as_table("references", references)
        if model.shape != optimum.shape:
            raise InputError(f"predictions have shape {model.shape}, references {optimum.shape}; expected the same")
        return gap_figures(-model, -optimum)
