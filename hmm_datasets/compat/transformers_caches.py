"""transformers: the name under which a cache reaches a model, and leaves it, and what cropping it means.

Up to 5.23 generation passes `past_key_values`, from 5.24 on `cache`. A model that has only the other name among its
arguments, and `**kwargs` beside it, generates without its past: each token then follows the last one alone, and no
error is raised. So models of this package take both names, and refuse any other cache. The module can be removed once
transformers 5.24 is the oldest that is supported, but for [`positions_kept`], which says how long it is needed.
"""

import copy
import inspect
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import transformers
from packaging.version import Version
from transformers import Cache
from transformers.modeling_outputs import CausalLMOutputWithPast

from ..errors import InputError
from .versions import warn_of_untried_versions

warn_of_untried_versions()

if TYPE_CHECKING:
    from torch import Tensor

CACHE_NAMES = ("cache", "past_key_values")
"""The argument of a model, from 5.24 on and before."""

CACHE_NAME = next(name for name in CACHE_NAMES if name in inspect.signature(CausalLMOutputWithPast).parameters)
"""The installed version's, which is also the field of a model's output."""

_ZERO_KEEPS_NONE = Version(transformers.__version__) < Version("5.14")


def cache_among(cache: Cache | None, past_key_values: Cache | None, others: Mapping[str, Any]) -> Cache | None:
    """The cache that a model was given under either name.

    Raises:
        `InputError`: there are two, or one of `others` is a cache, whose name the model does not know.
    """
    named = {"cache": cache, "past_key_values": past_key_values, **others}
    caches = {name: value for name, value in named.items() if name in CACHE_NAMES or isinstance(value, Cache)}
    caches = {name: value for name, value in caches.items() if value is not None}
    if len(caches) > 1 or not caches.keys() <= set(CACHE_NAMES):
        raise InputError(f"the model was given a cache as {', '.join(caches)}; expected one, as {CACHE_NAME}")
    return next(iter(caches.values()), None)


def positions_kept(crop: int, length: int) -> int:
    """How many of its first positions a cache of `length` keeps that is asked to `crop`.

    A negative number is how many of the last ones go, in all versions. A positive one is how many stay; from 5.20 on
    transformers asks for none (huggingface/transformers#47720). 0 is a positive one up to 5.13, so that nothing stays,
    and a negative one from 5.14 on. This can be removed once transformers 5.20 is the oldest that is supported.
    """
    if crop > 0 or (crop == 0 and _ZERO_KEEPS_NONE):
        return min(crop, length)
    return max(0, length + crop)


def output_cache(output: Any) -> Any:
    """The cache in a model's output, None where it has none."""
    return getattr(output, CACHE_NAME, None)


def generate(model: Any, **settings: Any) -> "Tensor":
    """`model.generate(**settings)`, without a cache where the model's class cannot take it and would ignore it."""
    config = settings.get("generation_config")
    if config is None:
        settings["use_cache"] = takes_cache(model)
    else:  # beside which no setting is taken
        settings["generation_config"] = copy.deepcopy(config)
        settings["generation_config"].use_cache = takes_cache(model)
    return model.generate(**settings)


def takes_cache(model: Any) -> bool:
    """Whether a model takes the cache of the installed version; a class written for another has the other name."""
    base = model.get_base_model() if hasattr(model, "get_base_model") else model  # of an adapter's model
    forward = getattr(base, "forward", base)
    names = inspect.signature(forward).parameters.keys() & set(CACHE_NAMES)
    return not names or CACHE_NAME in names
