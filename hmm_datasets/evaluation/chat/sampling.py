"""How answers of a model are drawn."""

import math
from dataclasses import dataclass

from ...errors import InputError
from ...runtime.settings import option


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """How answers are drawn; None leaves a setting to the model's generation config, if that samples."""

    temperature: float | None = option(None, "T", "0 is greedy; default the model's own if it samples, else 0.7")
    top_p: float | None = option(None, "P", "draw from the most likely tokens with this total probability")
    top_k: int | None = option(None, "K", "draw from the K most likely tokens; 0 for all")
    seed: int | None = option(None, "N", "same seed, same answers; default one at random")
    max_new_tokens: int = option(512, "N", "maximum number of tokens per answer, default 512")

    def __post_init__(self):
        for name, low, high, expected in (
            ("temperature", 0, math.inf, "0 (greedy) or more"),
            ("top_p", math.ulp(0.0), 1, "more than 0, and at most 1"),
            ("top_k", 0, math.inf, "0 (all tokens) or more"),
            ("seed", 0, math.inf, "0 or more"),
            ("max_new_tokens", 1, math.inf, "1 or more"),
        ):
            value = getattr(self, name)
            if value is not None and not (low <= value <= high and value < math.inf):
                raise InputError(f"--{name} {value}; expected {expected}")
