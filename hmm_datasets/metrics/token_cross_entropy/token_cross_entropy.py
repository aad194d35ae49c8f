"""Cross-entropy of a model at every position, in true nats."""

import datasets
import evaluate
import numpy as np

from hmm_datasets.metrics.clustered import as_table, clustered_mean

_DESCRIPTION = """\
Mean of -log P(token | tokens before it), in nats, over all tokens and at every position, with standard errors
clustered by sequence.
"""

_INPUTS = """\
Args:
    predictions: list of N lists of T floats, the natural logarithms of the probabilities that the model gave to the
        tokens that came. All sequences have the same length.

Returns:
    cross_entropy: nats a token.
    standard_error: of cross_entropy, clustered by sequence.
    perplexity: exp(cross_entropy).
    by_position: list of T floats, nats.
    by_position_error: their standard errors.

Example:
    >>> metric = evaluate.load(metric_path("token_cross_entropy"))
    >>> metric.compute(predictions=[[-1.0, -2.0], [-1.0, -3.0]])["cross_entropy"]
    1.75
"""


class TokenCrossEntropy(evaluate.Metric):
    """The metric module; see its description and inputs."""

    def _info(self) -> evaluate.MetricInfo:
        return evaluate.MetricInfo(
            description=_DESCRIPTION,
            citation="",
            inputs_description=_INPUTS,
            features=datasets.Features({"predictions": datasets.Sequence(datasets.Value("float64"))}),
        )

    def _compute(self, predictions) -> dict:
        result = clustered_mean(-as_table("predictions", predictions))
        return {
            "cross_entropy": result.mean,
            "standard_error": result.standard_error,
            "perplexity": float(np.exp(result.mean)),
            "by_position": result.by_position.tolist(),
            "by_position_error": result.by_position_error.tolist(),
        }
