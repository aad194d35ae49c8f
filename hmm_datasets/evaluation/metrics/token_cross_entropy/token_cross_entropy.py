"""Cross-entropy of a model at every position, in nats."""

from hmm_datasets.evaluation import metrics
from hmm_datasets.statistics import as_table, cross_entropy_figures


class TokenCrossEntropy(metrics.CheckedMetric):
    """Mean of -log P(token | tokens before it), in nats, over all tokens and at every position, with standard errors
    clustered by sequence.

    Args:
        predictions: list of N lists of T floats, the natural logarithms of the probabilities that the model gave to
            the observed tokens. All sequences have the same length.

    Returns:
        cross_entropy: nats per token.
        standard_error: standard error of cross_entropy, clustered by sequence; None for a single sequence.
        perplexity: exp(cross_entropy).
        by_position: list of T floats, nats.
        by_position_error: standard errors of by_position.

    Example:
        >>> import evaluate
        >>> from hmm_datasets.evaluation.metrics import metric_path
        >>> metric = evaluate.load(metric_path("token_cross_entropy"))
        >>> metric.compute(predictions=[[-1.0, -2.0], [-1.0, -3.0]])["cross_entropy"]
        1.75
    """

    predictions = metrics.ROW

    def _compute(self, predictions) -> dict:
        return cross_entropy_figures(-as_table("predictions", predictions))
