"""How answers of a model are drawn."""

from dataclasses import dataclass

from ...runtime.setting_rules import Void, check_object
from ...runtime.settings import option


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """How answers are drawn; None leaves a setting to the model's generation config, if that samples."""

    temperature: float | None = option(None, "T", "0 is greedy; default the model's own if it samples, else 0.7")
    seed: int | None = option(None, "N", "same seed, same answers; default one at random")
    max_new_tokens: int = option(512, "N", "maximum number of tokens per answer, default 512", least=1)

    voids = (Void("seed", "if temperature is 0"),)
    __post_init__ = check_object
