"""Models of transformers: the capabilities of a model class, and the attention implementation of a configuration.

Checked against 5.23. The attributes are documented for authors of models, who set them. There is no public way to read
them.
"""

import contextlib
import copy
from typing import TYPE_CHECKING
from unittest import mock

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


class _Found(Exception):
    pass


def finds_documents(kind: type["PreTrainedModel"], config: "PreTrainedConfig") -> bool:
    """Whether models of a class make their mask of attention from `position_ids`, so that packed documents are apart.

    Some do not pass them on (OPT, Bloom, Falcon, GPT-OSS), and then attend to the documents before without a word. A
    model on the meta device is called, up to the place where transformers finds the documents in the positions. This
    can be removed once transformers says which models can be trained on packed rows.
    """
    import torch
    from transformers import masking_utils

    config = copy.deepcopy(config)
    set_config_attention(config, "sdpa" if attention_kinds(kind)["sdpa"] else "eager")
    with torch.device("meta"):
        model = kind(config)
        positions = torch.tensor([[0, 1, 0, 1]])
    with mock.patch.object(masking_utils, "find_packed_sequence_indices", side_effect=_Found):
        try:
            with torch.no_grad(), contextlib.suppress(NotImplementedError, RuntimeError):  # of the meta device
                model(input_ids=torch.zeros_like(positions), position_ids=positions, use_cache=False)
        except (TypeError, ValueError):  # it has no such argument
            return False
        except _Found:
            return True
    return False
