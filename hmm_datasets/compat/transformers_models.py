"""Models of transformers: the capabilities of a model class, and the attention implementation of a configuration.

Checked against 5.23. The attributes are documented for authors of models, who set them. There is no public way to read
them.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel


def attention_kinds(kind: type["PreTrainedModel"]) -> dict[str, bool]:
    """Whether a model class supports each attention implementation.

    `model.set_attn_implementation` refuses an unsupported one, but tests only one at a time and needs a model. This
    can be removed once classes list the implementations that they support.
    """
    return {
        "eager": True,
        "sdpa": kind._supports_sdpa,
        "flex_attention": kind._supports_flex_attn,
        "flash_attention_2": kind._supports_flash_attn,
        "flash_attention_3": kind._supports_flash_attn,
    }


def attention_of(config: "PreTrainedConfig") -> str | None:
    """The attention implementation of a configuration."""
    return config._attn_implementation


def set_config_attention(config: "PreTrainedConfig", attention: str) -> None:
    """Set the attention implementation of a configuration, and of the configurations in it.

    `attn_implementation=` can be given only when a configuration is made, and later only for a model. Upstream:
    huggingface/transformers#38974 added a public setter for models only. This can be removed once configurations have
    one.
    """
    config._attn_implementation = attention


def is_stateful(kind: type["PreTrainedModel"]) -> bool:
    """Whether models of a class have a state that cannot be rolled back to an earlier position, as Mamba does.

    This can be removed once transformers has a public attribute for it.
    """
    return kind._is_stateful
