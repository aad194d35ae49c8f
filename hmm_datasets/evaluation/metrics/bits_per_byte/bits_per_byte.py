"""Bits per byte: a loss that compares models with different tokenizers."""

import datasets

from hmm_datasets.evaluation import metrics
from hmm_datasets.evaluation.bits_per_byte import bits_per_byte


class BitsPerByte(metrics.CheckedMetric):
    """Bits that a model needs per byte of UTF-8 text: the sum of -log2 P(token | past) over the tokens of the texts,
    divided by their number of bytes. Unlike perplexity, it can be compared between tokenizers.

    Args:
        predictions: list of N floats, for each text (or window) the sum of the natural logarithms of its tokens'
            probabilities.
        references: list of N integers, for each text (or window) the number of UTF-8 bytes of those tokens.
        resamples (2000), level (0.95), seed (0): settings of the bootstrap.

    Returns:
        bits_per_byte: total bits divided by total bytes.
        standard_error: standard error of that ratio over texts (delta method); None for a single text.
        bits_per_byte_low, bits_per_byte_high: its interval, that of a ratio of sums over texts; None for a single
            text.
        bytes: total number of bytes.

    Example:
        >>> import evaluate
        >>> from hmm_datasets.evaluation.metrics import metric_path
        >>> metric = evaluate.load(metric_path("bits_per_byte"))
        >>> round(metric.compute(predictions=[-2.0794415, -2.0794415], references=[3, 3])["bits_per_byte"], 4)
        1.0
    """

    predictions = datasets.Value("float64")
    references = datasets.Value("int64")

    def _compute(self, predictions, references, resamples=2000, level=0.95, seed=0) -> dict:
        return bits_per_byte(predictions, references, resamples, level, seed)
