"""Cross-entropy of the last token of each sequence, in nats."""

from hmm_datasets.evaluation import metrics
from hmm_datasets.statistics import as_table, final_token_figures


class FinalTokenCrossEntropy(metrics.CheckedMetric):
    """Mean over sequences of -log P(last token | all tokens before it), in nats. It shows what a model has learnt
    about the process when it has the whole context, without the first tokens, which are hard to predict for any model.
    Sequences are independent, so the standard error is that of a plain mean. Compare it with the same metric of the
    true distribution.

    Args:
        predictions: list of N lists of T floats, the natural logarithms of the probabilities that the model gave to
            the observed tokens, or only to the last one of each sequence (T = 1). All sequences have the same length.

    Returns:
        cross_entropy: mean loss of the last token, in nats.
        standard_error: standard error of cross_entropy, over sequences; None for a single sequence.

    Example:
        >>> import evaluate
        >>> from hmm_datasets.evaluation.metrics import metric_path
        >>> metric = evaluate.load(metric_path("final_token_cross_entropy"))
        >>> found = metric.compute(predictions=[[-1.0, -2.0], [-1.0, -3.0]])
        >>> {name: round(value, 6) for name, value in found.items()}
        {'cross_entropy': 2.5, 'standard_error': 0.5}
    """

    predictions = metrics.ROW

    def _compute(self, predictions) -> dict:
        return final_token_figures(-as_table("predictions", predictions))
