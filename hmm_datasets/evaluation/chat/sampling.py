"""How answers of a model are drawn."""

from dataclasses import dataclass

from ...runtime.setting_rules import Void, check_object
from ...runtime.settings import option


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """How answers are drawn; None leaves a setting to the model's generation config, if that samples."""

    temperature: float | None = option(None, "T", "0 is greedy; default the model's own if it samples, else 0.7")
    top_p: float | None = option(
        None, "P", "draw from the most likely tokens with this total probability", above=0, most=1
    )
    top_k: int | None = option(None, "K", "draw from the K most likely tokens; 0 for all")
    seed: int | None = option(None, "N", "same seed, same answers; default one at random")
    max_new_tokens: int = option(512, "N", "maximum number of tokens per answer, default 512", least=1)

    voids = (Void("top_p top_k seed", "if temperature is 0"),)
    __post_init__ = check_object
