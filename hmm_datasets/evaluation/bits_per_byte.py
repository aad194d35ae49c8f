"""Bits per byte: a loss that compares models with different tokenizers."""

import math
from typing import Any

import numpy as np

from ..errors import InputError
from ..paired_differences import ratio_interval
from ..statistics import as_table


def bits_per_byte(
    predictions: Any, references: Any, resamples: int = 2000, level: float = 0.95, seed: int = 0
) -> dict[str, Any]:
    """Bits that a model needs per byte of UTF-8 text, over all texts.

    Args:
        predictions (array of shape `(N,)`): for each text (or window) the sum of the natural logarithms of its tokens'
            probabilities.
        references (array of shape `(N,)`): for each text (or window) the number of UTF-8 bytes of those tokens.
        resamples (`int`, *optional*, defaults to 2000), level (`float`, *optional*, defaults to 0.95), seed (`int`,
            *optional*, defaults to 0): settings of the bootstrap.

    Returns:
        `dict`: the result of the metric `bits_per_byte`.

    Raises:
        `InputError`: a prediction is NaN, or the references are not counts of bytes.
    """
    bits = -as_table("predictions", predictions, 1) / math.log(2)
    size = as_table("references", references, 1)
    if np.isnan(bits).any():
        raise InputError(f"predictions[{int(np.isnan(bits).argmax())}] is NaN; expected a number")
    if (size < 0).any() or size.sum() == 0:
        raise InputError(f"references are {references[:8]}; expected counts of bytes, not all zero")
    ratio = bits.sum() / size.sum()
    error = None
    if len(bits) > 1:
        error = float((bits - ratio * size).std(ddof=1) * math.sqrt(len(bits)) / size.sum())
    low, high = ratio_interval(bits, size, resamples=resamples, level=level, seed=seed)
    return {
        "bits_per_byte": float(ratio),
        "standard_error": error,
        "bits_per_byte_low": low,
        "bits_per_byte_high": high,
        "bytes": int(size.sum()),
    }
