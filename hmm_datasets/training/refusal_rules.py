"""A setting of which some values are refused, and the conditions that are used for several."""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

from ..runtime import environment

TRAINERS = ("pretrain", "sft", "dpo", "grpo")
"""The settings of trainers by the names of their recipes; `midtrain` has those of `pretrain`."""


@dataclass(frozen=True)
class Refusal:
    """A setting of which some values are refused.

    Attributes:
        name (`str`): the setting; what follows a dot is a key of it.
        example (`Any`): a value that is refused.
        reason (`str`): why; it follows "but" in the error.
        applies (callable): whether a value is refused.
        trainers (collection of `str`, *optional*): those of `TRAINERS` that refuse it; by default all.
    """

    name: str
    example: Any
    reason: str
    applies: Callable[[Any], bool]
    trainers: Collection[str] = TRAINERS


def is_set(value: Any) -> bool:
    """Whether it is anything but empty, zero or false."""
    return bool(value)


def is_false(value: Any) -> bool:
    """Whether it is switched off."""
    return value is False


def is_given(value: Any) -> bool:
    """Whether it has any value."""
    return value is not None


def differs_by_rank(value: Any) -> bool:
    """Whether it is switched off on several processes."""
    return value is False and environment.world_size() > 1


def counts_padding(value: Any) -> bool:
    """Whether padding is counted as tokens, or none are."""
    return value != "non_padding"


def sets_accumulation(value: Any) -> bool:
    """Whether it sets how many micro-batches a step has."""
    kwargs = value or {}
    return bool(kwargs.keys() - {"sync_each_batch", "num_steps"}) or kwargs.get("num_steps", 1) != 1


def is_shuffled(value: Any) -> bool:
    """Whether rows are read in another order than theirs."""
    return value != "sequential"
