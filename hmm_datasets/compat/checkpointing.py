"""transformers: activation checkpointing by the names that it has from 5.23 on, in all versions.

Before, the settings and the method of models are called `gradient_checkpointing`. The module can be removed once
transformers 5.23 is the oldest that is supported.
"""

from dataclasses import dataclass, field
from typing import Any

from transformers import PreTrainedModel, TrainingArguments

HAS_NAMES = "activation_checkpointing" in TrainingArguments.__dataclass_fields__
"""Whether the installed version has the names itself."""

_HELP = {"help": "See `gradient_checkpointing`, its name before transformers 5.23."}


@dataclass
class _CheckpointingSettings:
    activation_checkpointing: bool | None = field(default=None, metadata=_HELP | {"nargs": "?", "const": True})
    activation_checkpointing_kwargs: dict[str, Any] | str | None = field(default=None, metadata=_HELP)

    def __post_init__(self):
        names = ("activation_checkpointing", "activation_checkpointing_kwargs")
        for name in names:
            if getattr(self, name) is not None:
                setattr(self, name.replace("activation", "gradient"), getattr(self, name))
        super().__post_init__()  # ty: ignore[missing-attribute]  # of the settings that this is mixed into
        for name in names:
            setattr(self, name, getattr(self, name.replace("activation", "gradient")))


def checkpointing_settings() -> type:
    """A mixin, to be listed before settings of transformers, with the settings that their version does not have."""
    return object if HAS_NAMES else _CheckpointingSettings


def enable_checkpointing(model: PreTrainedModel) -> None:
    """Let a model compute its activations again in the backward pass."""
    name = "activation" if HAS_NAMES else "gradient"
    getattr(model, f"{name}_checkpointing_enable")()
