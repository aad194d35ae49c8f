from hmm_datasets.evaluation import metrics


class WorstToken(metrics.CheckedMetric):
    """The largest loss of a token.

    Args:
        predictions: list of N lists of T floats, log-probabilities of the tokens.
    """

    predictions = metrics.ROW

    def _compute(self, predictions):
        return {"worst": -min(map(min, predictions))}
