"""Configurations of new models, by size or by name, and models made of them.

A size is that of a Llama with heads of 64 features and a feed-forward width of 8/3 of the model's width:

| preset | layers | width | parameters without embeddings |
|---|---|---|---|
| 1m | 4 | 128 | 0.8 million |
| 3m | 4 | 256 | 3.1 million |
| 5m | 4 | 320 | 5.0 million |
| 10m | 6 | 384 | 10.6 million |
| 30m | 10 | 512 | 31.6 million |
| 32m | 8 | 576 | 31.9 million |
| 38m | 8 | 640 | 39.2 million |
| 60m | 10 | 704 | 59.7 million |
| 125m | 18 | 768 | 127 million |
| 126m | 13 | 896 | 126 million |
| 135m | 12 | 960 | 133 million |
| 250m | 16 | 1152 | 255 million |
| 500m | 24 | 1280 | 473 million |
| 760m | 24 | 1536 | 680 million |
| 1.3b | 24 | 2048 | 1210 million |
| 2.7b | 32 | 2560 | 2514 million |
| 6.7b | 32 | 4096 | 6439 million |
| 13b | 40 | 5120 | 12590 million |

`32m`, `60m`, `126m` and `250m` differ in size alone: each has 69 to 72 features of width for a layer, while `30m` and
`125m` are deeper (51 and 43). Models compared over sizes should have one shape, as `dN` has too (64).

The last five have the names, depths and widths of Brown et al., "Language models are few-shot learners", 2020, table
2.1, whose numbers of parameters include embeddings.

`dN` instead of a preset sets only the depth: `N` layers, width `64 N`, `N` heads. Any other name is that of a
transformers configuration: a folder with `config.json`, a JSON file, a GGUF file, or a repository on the Hub
(`owner/name`).
"""

import contextlib
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..compat.transformers_models import (
    attention_kinds,
    attention_of,
    finds_documents,
    is_stateful,
    set_config_attention,
)
from ..errors import InputError, first_line
from ..hub.download import ModelName, reading_hub, reason_of_hub, without_network
from ..runtime.settings import setting
from ..runtime.shipped import local_or_shipped
from .pretrained import load_pretrained, with_causal_loss

if TYPE_CHECKING:
    import torch
    from transformers import LlamaConfig, PreTrainedConfig, PreTrainedModel

    from .sources import TrainingData

PRESETS = {
    "1m": (4, 128),
    "3m": (4, 256),
    "5m": (4, 320),
    "10m": (6, 384),
    "30m": (10, 512),
    "32m": (8, 576),
    "38m": (8, 640),
    "60m": (10, 704),
    "125m": (18, 768),
    "126m": (13, 896),
    "135m": (12, 960),
    "250m": (16, 1152),
    "500m": (24, 1280),
    "760m": (24, 1536),
    "1.3b": (24, 2048),
    "2.7b": (32, 2560),
    "6.7b": (32, 4096),
    "13b": (40, 5120),
}
"""Layers and width of each size."""
ATTENTION = ("sdpa", "eager", "flex_attention", "flash_attention_2", "flash_attention_3")
"""Implementations of attention in transformers; all keep packed documents apart.

Flash attention needs a GPU and the package `kernels` or `flash-attn`; transformers takes the one that is installed.
"""

_DEPTH = re.compile(r"d([1-9]\d?\d?)")


@dataclass
class ModelSettings:
    """The model to train."""

    model: str = setting("10m", "A size (1m to 13b), a depth (d12), or a configuration of transformers.")
    tie_embeddings: bool = setting(False, "Share input and output embeddings.")
    attention: str = setting("sdpa", f"Implementation of attention: {', '.join(ATTENTION)}.")

    def __post_init__(self):
        if self.attention not in ATTENTION:
            raise InputError(f"attention is {self.attention!r}; expected one of {', '.join(ATTENTION)}")

    def config(self, data: "TrainingData") -> "PreTrainedConfig":
        """The configuration of a new model for these data."""
        config = model_config(
            self.model,
            vocab_size=data.vocab_size,
            max_length=data.row_length,
            tie_embeddings=self.tie_embeddings,
            **data.special_tokens,
        )
        if data.packed:
            check_packed(config)
        set_attention(config, self.attention)
        return config


def check_packed(config: "PreTrainedConfig", setting: str = "packed") -> None:
    """Refuse a model that cannot keep packed documents apart.

    Args:
        config ([`~transformers.PreTrainedConfig`]): configuration of a causal language model.
        setting (`str`, *optional*, defaults to `"packed"`): name of the setting that packs them, for the error.

    Raises:
        `InputError`: it is recurrent, or its attention does not heed positions.
    """
    kind, reason = _model_class(config), None
    if is_recurrent(config):
        reason = "carries its state from one document of a row to the next"
    elif not finds_documents(kind, config):
        reason = "does not find the documents of a row by their positions, so they would attend to one another"
    if reason is not None:
        raise InputError(f"{setting} is set, but {kind.__name__} {reason}; leave {setting} out")


def model_config(
    name: str,
    *,
    vocab_size: int,
    max_length: int,
    bos_token_id: int | None = None,
    eos_token_id: int | None = None,
    pad_token_id: int | None = None,
    tie_embeddings: bool = False,
) -> "PreTrainedConfig":
    """The configuration of a new model: a preset, or any transformers configuration with this vocabulary and length.

    Args:
        name (`str`): a preset or a depth (see the table above), or a folder, a JSON file, or a repository on the Hub.
        vocab_size (`int`): `V`.
        max_length (`int`): maximum number of tokens per row; a configuration that allows more keeps its own maximum.
        bos_token_id, eos_token_id, pad_token_id (`int`, *optional*): special tokens.
        tie_embeddings (`bool`, *optional*, defaults to `False`): share input and output embeddings; a configuration
            that shares them already keeps doing so.

    Raises:
        `InputError`: `name` is neither a preset nor the configuration of a causal language model.

    ```python
    >>> model_config("d2", vocab_size=101, max_length=65).hidden_size
    128

    ```
    """
    is_preset = name in PRESETS or not (os.sep in name or os.path.exists(name))
    config = _preset_config(name, max_length) if is_preset else _found_config(name)
    text = config.get_text_config()
    text.vocab_size = vocab_size
    if getattr(text, "max_position_embeddings", None) is not None:
        text.max_position_embeddings = max(text.max_position_embeddings, max_length)
    for part in (config, text):
        part.bos_token_id, part.eos_token_id, part.pad_token_id = bos_token_id, eos_token_id, pad_token_id
        part.tie_word_embeddings = part.tie_word_embeddings or tie_embeddings
        part.use_cache = False
        part.dtype = None  # weights are trained in float32, whatever the dtype of the configuration
    return config


def set_attention(config: "PreTrainedConfig", attention: str) -> None:
    """Choose a model's implementation of attention; a model without `sdpa` keeps the default of transformers.

    Args:
        config ([`~transformers.PreTrainedConfig`]): configuration of a causal language model; changed in place.
        attention (`str`): one of `ATTENTION`.

    Raises:
        `InputError`: the model has no attention, or none of this kind.
    """
    kind = _model_class(config)
    has = attention_kinds(kind)
    if has[attention]:
        set_config_attention(config, attention)
    elif attention != "sdpa":
        supported = [name for name in ATTENTION if has[name]]
        raise InputError(
            f"attention is {attention!r}, but {kind.__name__} has only {', '.join(supported)}; leave it out"
        )


def is_recurrent(config: "PreTrainedConfig") -> bool:
    """Whether a model carries a state from position to position, as Mamba and hybrids do."""
    return is_stateful(_model_class(config))


def new_model(config: "PreTrainedConfig") -> "PreTrainedModel":
    """A model with initial weights from torch's random numbers, the same under any way of sharding.

    Under ZeRO 3 `AutoModelForCausalLM.from_config` divides the weights while it makes them and draws different ones.
    """
    try:
        return with_causal_loss(_model_class(config)(config))
    except ImportError as error:  # of a package for flash attention
        raise InputError(
            f"attention is {attention_of(config)!r}, which cannot be used here ({first_line(error)}); on a "
            "GPU pip install kernels or flash-attn, elsewhere leave attention out"
        ) from None


@contextlib.contextmanager
def default_dtype(dtype: "torch.dtype") -> Iterator[None]:
    """A context in which new models have weights of this type."""
    import torch

    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def _model_class(config: "PreTrainedConfig") -> type["PreTrainedModel"]:
    from transformers import MODEL_FOR_CAUSAL_LM_MAPPING

    return MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]


def _found_config(name: str) -> "PreTrainedConfig":
    from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, AutoConfig

    path = local_or_shipped(name)
    try:
        if ModelName.parse(name).gguf_file is not None:
            config = load_pretrained(AutoConfig, name)
        else:
            revision = None if path.exists() else ModelName.parse(name).pinned().revision
            where = {"revision": revision, "local_files_only": not path.exists() and without_network()}
            with reading_hub(not path.exists()):
                config = AutoConfig.from_pretrained(str(path), trust_remote_code=False, **where)
    except InputError:
        raise
    except (OSError, ValueError, KeyError) as error:
        reason = first_line(error) if path.exists() else reason_of_hub(error)
        raise InputError(
            f"model {name!r}: no configuration found, neither in a folder or JSON file nor on the Hub ({reason})"
        ) from None
    if type(config) not in MODEL_FOR_CAUSAL_LM_MAPPING:
        raise InputError(f"model {name!r}: {type(config).__name__} does not configure a causal language model")
    return config


def _preset_config(preset: str, max_length: int) -> "LlamaConfig":
    from transformers import LlamaConfig

    layers, width = _layers_and_width(preset)
    return LlamaConfig(
        hidden_size=width,
        intermediate_size=32 * round(8 * width / 3 / 32),
        num_hidden_layers=layers,
        num_attention_heads=width // 64,
        num_key_value_heads=width // 64,
        max_position_embeddings=max_length,
    )


def _layers_and_width(preset: str) -> tuple[int, int]:
    depth = _DEPTH.fullmatch(preset)
    if depth is not None:
        return int(depth[1]), 64 * int(depth[1])
    if preset not in PRESETS:
        raise InputError(
            f"model preset {preset!r} is unknown; expected one of {', '.join(PRESETS)}, a depth such as d12, or a "
            "transformers configuration: a folder, a JSON file with model_type, or owner/name on the Hub"
        )
    return PRESETS[preset]


def limit_length(config: "PreTrainedConfig", length: int | None) -> int | None:
    """The given length of rows in tokens, or the number of positions of the model if that is smaller.

    Args:
        config ([`~transformers.PreTrainedConfig`]): that of the model; without a maximum it limits nothing.
        length (`int`, *optional*): tokens per row; None for no limit.
    """
    positions = getattr(config.get_text_config(), "max_position_embeddings", None)
    return min((limit for limit in (length, positions) if limit is not None), default=None)
