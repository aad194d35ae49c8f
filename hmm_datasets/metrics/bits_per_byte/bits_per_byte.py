"""Bits per byte: a loss that compares models with different tokenizers."""

import math

import datasets
import evaluate
import numpy as np

from hmm_datasets.errors import InputError
from hmm_datasets.evaluation.clustered import as_table
from hmm_datasets.statistics import ratio_interval

_DESCRIPTION = """\
Bits a model needs for a byte of UTF-8 text: the sum of -log2 P(token | past) over the tokens of the texts, by their
bytes. Unlike perplexity it does not depend on how the text was cut into tokens.
"""

_INPUTS = """\
Args:
    predictions: list of N floats, for each text (or window) the sum of the natural logarithms of its tokens'
        probabilities.
    references: list of N integers, for each the bytes of UTF-8 that those tokens stand for.
    resamples (2000), level (0.95), seed (0): of the bootstrap.

Returns:
    bits_per_byte: total bits over total bytes.
    standard_error: of that ratio, over texts (delta method); NaN for one text, as the bounds are.
    bits_per_byte_low, bits_per_byte_high: its interval, by the percentile bootstrap over texts.
    bytes: total bytes.

Example:
    >>> metric = evaluate.load(metric_path("bits_per_byte"))
    >>> round(metric.compute(predictions=[-2.0794415, -2.0794415], references=[3, 3])["bits_per_byte"], 4)
    1.0
"""


class BitsPerByte(evaluate.Metric):
    """The metric module; see its description and inputs."""

    def _info(self) -> evaluate.MetricInfo:
        return evaluate.MetricInfo(
            description=_DESCRIPTION,
            citation="",
            inputs_description=_INPUTS,
            features=datasets.Features(
                {"predictions": datasets.Value("float64"), "references": datasets.Value("int64")}
            ),
        )

    def _compute(self, predictions, references, resamples=2000, level=0.95, seed=0) -> dict:
        bits = -as_table("predictions", predictions, 1) / math.log(2)
        size = as_table("references", references, 1)
        if np.isnan(bits).any():
            raise InputError(f"predictions[{int(np.isnan(bits).argmax())}] is NaN; expected a number")
        if (size < 0).any() or size.sum() == 0:
            raise InputError(f"references are {references[:8]}; expected counts of bytes, not all zero")
        ratio = bits.sum() / size.sum()
        error = math.nan
        if len(bits) > 1:
            error = (bits - ratio * size).std(ddof=1) * math.sqrt(len(bits)) / size.sum()
        low, high = ratio_interval(bits, size, resamples=resamples, level=level, seed=seed)
        return {
            "bits_per_byte": float(ratio),
            "standard_error": float(error),
            "bits_per_byte_low": low,
            "bits_per_byte_high": high,
            "bytes": int(size.sum()),
        }
