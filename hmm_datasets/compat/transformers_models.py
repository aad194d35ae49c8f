"""transformers' models: what a class of models can do, and the attention that a configuration names.

Checked against 5.23. The attributes are documented for authors of models, who set them; nothing public reads them.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel


def attention_kinds(kind: type["PreTrainedModel"]) -> dict[str, bool]:
    """Whether a class of models has each kind of attention.

    `model.set_attn_implementation` refuses what is not there, one kind at a time and on a model that has been made.
    It goes once the class lists what it has.
    """
    return {
        "eager": True,
        "sdpa": kind._supports_sdpa,
        "flex_attention": kind._supports_flex_attn,
        "flash_attention_2": kind._supports_flash_attn,
        "flash_attention_3": kind._supports_flash_attn,
    }


def attention_of(config: "PreTrainedConfig") -> str | None:
    """The attention that a configuration names."""
    return config._attn_implementation


def name_attention(config: "PreTrainedConfig", attention: str) -> None:
    """Have a configuration, and those inside it, name an attention.

    A configuration takes `attn_implementation=` only where it is made, and a model only after. Upstream:
    huggingface/transformers#38974 made the name public for models alone. It goes once configurations have it too.
    """
    config._attn_implementation = attention


def is_stateful(kind: type["PreTrainedModel"]) -> bool:
    """Whether models of a class carry a state from place to place that cannot be taken back, as Mamba does.

    It goes once transformers says so in public.
    """
    return kind._is_stateful
