"""Llama-style models by size, with heads of 64 features and a feed-forward width of 8/3 of the model's width.

| preset | layers | width | parameters without embeddings |
|---|---|---|---|
| 1m | 4 | 128 | 0.8 million |
| 3m | 4 | 256 | 3.1 million |
| 10m | 6 | 384 | 10.6 million |
| 30m | 10 | 512 | 31.6 million |
| 38m | 8 | 640 | 39.2 million |
| 60m | 10 | 704 | 59.7 million |
| 125m | 18 | 768 | 127 million |
| 135m | 12 | 960 | 133 million |
| 250m | 16 | 1152 | 255 million |
| 500m | 24 | 1280 | 473 million |
| 760m | 24 | 1536 | 680 million |
| 1.3b | 24 | 2048 | 1210 million |
| 2.7b | 32 | 2560 | 2514 million |
| 6.7b | 32 | 4096 | 6439 million |
| 13b | 40 | 5120 | 12590 million |

The last five have the names, depths and widths of Brown et al., "Language models are few-shot learners", 2020, table
2.1, whose numbers of parameters include embeddings.

`dN` instead of a preset sets only the depth: `N` layers, width `64 N`, `N` heads. Any other name is that of a
transformers configuration: a folder with `config.json`, a JSON file, a GGUF file, or a repository on the Hub
(`owner/name`).

Small models of several architectures, for experiments and for comparisons between architectures.
"""

import contextlib
import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..compat.rust import panics_as_errors
from ..compat.transformers_models import (
    admit_released_peft,
    attention_kinds,
    attention_of,
    finds_documents,
    is_stateful,
    set_config_attention,
)
from ..errors import InputError, first_line, path_errors
from ..files import read_json
from ..hmm.tokenizer import reads_symbols
from ..hub.download import (
    ModelName,
    check_downloaded,
    model_file,
    reading_hub,
    reason_of_hub,
    without_network,
)
from ..hub.foreign_formats import foreign_weights, quantized, refuse_foreign
from ..hub.gguf import load_gguf
from ..hub.weights import base_of_adapter, check_adapter, check_counts, check_listed, load_whole, resized_vocabulary
from ..runtime import environment
from ..runtime.once import one_command
from ..runtime.settings import setting
from ..runtime.shipped import local_or_shipped

if TYPE_CHECKING:
    import torch
    from transformers import LlamaConfig, PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

    from .sources import TrainingData

ARCHITECTURES = ("llama", "lstm", "gru", "mamba")
"""A transformer, two recurrent networks, and a state-space model."""

_HEAD_WIDTH = 32
_SIZES: dict[str, dict[str, Any]] = {
    "llama": {"model_type": "llama", "hidden_size": 64, "num_attention_heads": 2, "intermediate_size": 256},
    "lstm": {"model_type": "recurrent", "cell": "lstm", "hidden_size": 64},
    "gru": {"model_type": "recurrent", "cell": "gru", "hidden_size": 64},
    "mamba": {"model_type": "mamba", "hidden_size": 64},
}
"""A small configuration of each of [`ARCHITECTURES`], but for the number of layers."""


ATTENTION = ("sdpa", "eager", "flex_attention", "flash_attention_2", "flash_attention_3")
"""Implementations of attention in transformers; all keep packed documents apart.

Flash attention needs a GPU and the package `kernels` or `flash-attn`; transformers takes the one that is installed.
"""

_DEPTH = re.compile(r"d([1-9]\d?\d?)")
_RESIZED = re.compile(
    r"size mismatch for (?P<name>\S*(?:embed|lm_head|wte)\S*): .*?Size\(\[(?P<file>\d+).*?Size\(\[(?P<model>\d+)",
    re.DOTALL,
)


def architecture_config(
    kind: str,
    *,
    vocab_size: int,
    length: int,
    width: int,
    layers: int,
    heads: int | None = None,
    bos_token_id: int | None = None,
) -> "PreTrainedConfig":
    """The configuration of a small model.

    A Llama has feed-forward layers of 4 times its width in three matrices; a Mamba has states of 16 numbers for each
    of twice its width channels.

    Args:
        kind (`str`): one of `ARCHITECTURES`.
        vocab_size (`int`): `V`.
        length (`int`): maximum number of tokens per row.
        width (`int`): `D`.
        layers (`int`): number of layers.
        heads (`int`, *optional*): attention heads of a Llama; by default as many as have 32 features each.
        bos_token_id (`int`, *optional*): the beginning token.

    Raises:
        `InputError`: there is no such architecture, or no heads of a Llama with this width.

    ```python
    >>> architecture_config("gru", vocab_size=8, length=16, width=64, layers=2).cell
    'gru'

    ```
    """
    from transformers import LlamaConfig, MambaConfig

    from .recurrent import RecurrentConfig

    heads = max(1, width // _HEAD_WIDTH) if heads is None else heads
    if kind not in ARCHITECTURES or heads < 1 or width < 2 or width % (2 * heads):
        raise InputError(
            f"architecture {kind!r} of width {width} with {heads} heads; expected one of {', '.join(ARCHITECTURES)}, "
            "and an even number of features per head"
        )
    shared = {"vocab_size": vocab_size, "hidden_size": width, "num_hidden_layers": layers, "use_cache": False}
    shared |= {"bos_token_id": bos_token_id, "eos_token_id": None, "pad_token_id": None}
    if kind == "llama":
        sizes = {"num_attention_heads": heads, "num_key_value_heads": heads, "intermediate_size": 4 * width}
        return LlamaConfig(**shared, **sizes, max_position_embeddings=length, initializer_range=width**-0.5)
    if kind == "mamba":
        return MambaConfig(**shared, state_size=16, tie_word_embeddings=False)
    return RecurrentConfig(**shared, cell=kind)


@dataclass(frozen=True)
class Shape:
    """Depth and width of a model."""

    layers: int
    width: int


PRESETS = {
    "1m": Shape(4, 128),
    "3m": Shape(4, 256),
    "10m": Shape(6, 384),
    "30m": Shape(10, 512),
    "38m": Shape(8, 640),
    "60m": Shape(10, 704),
    "125m": Shape(18, 768),
    "135m": Shape(12, 960),
    "250m": Shape(16, 1152),
    "500m": Shape(24, 1280),
    "760m": Shape(24, 1536),
    "1.3b": Shape(24, 2048),
    "2.7b": Shape(32, 2560),
    "6.7b": Shape(32, 4096),
    "13b": Shape(40, 5120),
}


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
        found = [name for name in ATTENTION if has[name]]
        raise InputError(f"attention is {attention!r}, but {kind.__name__} has only {', '.join(found)}; leave it out")


def is_recurrent(config: "PreTrainedConfig") -> bool:
    """Whether a model carries a state from position to position, as Mamba and hybrids do."""
    return is_stateful(_model_class(config))


def new_model(config: "PreTrainedConfig") -> "PreTrainedModel":
    """A model with initial weights from torch's random numbers, the same under any way of sharding.

    Under ZeRO 3 `AutoModelForCausalLM.from_config` divides the weights while it makes them and draws different ones.
    """
    try:
        return _with_causal_loss(_model_class(config)(config))
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


def _with_causal_loss(model: Any) -> Any:
    """Set the loss type of a model, which transformers otherwise guesses from the class name, with a warning."""
    if getattr(model, "loss_type", "") is None:
        model.loss_type = "ForCausalLM"
    return model


def _check_causal(auto_class: Any, model: Any, name: str) -> None:
    """Raise `InputError` if a model that is loaded as a causal one sees the tokens that it should predict.

    transformers loads encoders such as BERT as causal models, with a warning, unless their configuration says that
    they are decoders. Models of such a type are called on two rows that differ in the last token.
    """
    import torch
    from transformers import MODEL_FOR_MASKED_LM_MAPPING

    if auto_class.__name__ != "AutoModelForCausalLM" or type(model.config) not in MODEL_FOR_MASKED_LM_MAPPING:
        return
    tokens = torch.tensor([[1, 1, 1, 1], [1, 1, 1, 0]], device=model.device) % model.config.vocab_size
    was_training = model.training
    with torch.no_grad():
        logits = model.eval()(input_ids=tokens).logits[:, :3]
    model.train(was_training)
    if not torch.allclose(logits[0], logits[1], atol=1e-4):
        raise InputError(
            f"{name}: a {type(model).__name__} that sees the tokens after a position too, as a masked language model "
            "does, so that the loss of its next token means nothing; expected a causal language model, whose "
            "config.json has is_decoder true if it is of this type"
        )


def _with_own_generation(model: Any, name: str, revision: str | None) -> Any:
    """Give a model with an adapter the generation config beside the adapter; transformers takes that of the base."""
    if getattr(model, "peft_config", None) and model.can_generate():
        from transformers import GenerationConfig

        with contextlib.suppress(OSError):  # not every adapter has one
            model.generation_config = GenerationConfig.from_pretrained(name, revision=revision or "main")
    return model


def _found_config(name: str) -> "PreTrainedConfig":
    from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, AutoConfig

    from . import recurrent  # noqa: F401, so that `name` can configure an LSTM or a GRU

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

    shape = _shape(preset)
    return LlamaConfig(
        hidden_size=shape.width,
        intermediate_size=32 * round(8 * shape.width / 3 / 32),
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.width // 64,
        num_key_value_heads=shape.width // 64,
        max_position_embeddings=max_length,
    )


def _shape(preset: str) -> Shape:
    depth = _DEPTH.fullmatch(preset)
    if depth is not None:
        return Shape(int(depth[1]), 64 * int(depth[1]))
    if preset in _SIZES:
        raise InputError(
            f"model {preset!r} is an architecture, without sizes; give a JSON file with them, such as "
            f"{json.dumps({**_SIZES[preset], 'num_hidden_layers': 2})}, or a preset such as d2, which is a Llama"
        )
    if preset not in PRESETS:
        raise InputError(
            f"model preset {preset!r} is unknown; expected one of {', '.join(PRESETS)}, a depth such as d12, or a "
            "transformers configuration: a folder, a JSON file, or owner/name on the Hub"
        )
    return PRESETS[preset]


def count_parameters(model: "PreTrainedModel") -> dict[str, int]:
    """Number of parameters: `total`, and `body` without input and output embeddings. Shared ones count once."""
    total = sum(map(parameter_size, model.parameters()))
    embeddings = {
        id(module.weight): parameter_size(module.weight)
        for module in (model.get_input_embeddings(), model.get_output_embeddings())
        if module is not None
    }
    return {"total": total, "body": total - sum(embeddings.values())}


def parameter_size(parameter: "torch.nn.Parameter") -> int:
    """Number of elements of a whole parameter, also if ZeRO 3 has sharded it and its own tensor is empty."""
    return getattr(parameter, "ds_numel", parameter.numel())


def on_device(model: Any) -> Any:
    """Move a model to the GPU of this process, if there is one with room for it and half as much again."""
    import torch

    if torch.cuda.is_available():
        size = sum(tensor.numel() * tensor.element_size() for tensor in model.state_dict().values())
        torch.cuda.empty_cache()
        if torch.cuda.mem_get_info()[0] > 1.5 * size:
            return model.to("cuda")
    return model


def load_pretrained(auto_class: Any, name_or_path: str) -> Any:
    """`auto_class.from_pretrained(name_or_path)`, with an error of one line if there is nothing to load.

    Code in a repository or a folder is never executed. From the Hub weights are read only as safetensors, and files
    are compared with the hashes that the Hub gave for them (on the first rank of a machine).

    Args:
        auto_class: a class such as `AutoModelForCausalLM` or `AutoTokenizer`.
        name_or_path (`str`): a folder, a GGUF file, or a name on the Hub with an optional revision, as
            `"USER/NAME@step-1000"`; see [`~hmm_datasets.hub.download.ModelName.parse`].

    Raises:
        `InputError`: neither a folder with such files nor a repository on the Hub; the weights are truncated; a
            downloaded file, or one whose digest stands in a folder, has changed; or weights are missing, unexpected or
            of another shape.
    """
    from . import recurrent  # noqa: F401, so that LSTMs and GRUs are loaded too

    with one_command(), path_errors(name_or_path):
        return _load(auto_class, name_or_path)


def _load(auto_class: Any, name_or_path: str) -> Any:
    from safetensors import SafetensorError

    found = ModelName.parse(name_or_path)
    if found.gguf_file is not None:
        with _without_bar():
            return _with_causal_loss(load_gguf(auto_class, found))
    name, is_local = found.place, Path(found.place).is_dir()
    if os.path.exists(name):
        refuse_foreign(name, foreign_weights, "a folder with config.json, or a GGUF file")
    revision = found.pinned().revision
    how: dict[str, Any] = {"trust_remote_code": False}
    if not is_local:
        how |= {"revision": revision, "local_files_only": without_network()}
    if not is_local and auto_class.__name__.startswith("AutoModel"):
        how |= {"use_safetensors": True, "adapter_kwargs": {"local_files_only": how["local_files_only"]}}
    admit_released_peft()
    try:
        with _without_bar() if is_local else reading_hub(), panics_as_errors(name_or_path, "copy it again"):
            loaded = _with_adapter(auto_class, name_or_path, name, how)
        loaded = _with_own_generation(_with_causal_loss(loaded), name, revision)
    except InputError:
        raise
    except SafetensorError as error:
        if not is_local:
            _check_downloaded(name_or_path)
        raise InputError(
            f"{name_or_path}: its weights are not a complete safetensors file ({error}); copy them again"
        ) from None
    except (OSError, ValueError, ImportError) as error:
        _refuse_quantized(name_or_path, error)
        reason = first_line(error) if is_local else reason_of_hub(error)
        raise InputError(
            f"{name_or_path}: {auto_class.__name__} finds nothing to load, neither in a folder nor on the Hub "
            f"({reason})"
        ) from None
    except Exception as error:  # of any type, where a file says what transformers and tokenizers do not expect
        reason = f"{type(error).__name__}: {first_line(error)}"
        resized = _RESIZED.search(str(error))
        if resized is not None:
            raise resized_vocabulary(
                name_or_path, resized["name"], int(resized["file"]), int(resized["model"])
            ) from None
        raise InputError(
            f"{name_or_path}: {auto_class.__name__} cannot be made of its files ({reason}); copy them again from "
            "where they were made"
        ) from None
    if not is_local and environment.local_rank() == 0:
        _check_downloaded(name_or_path, with_weights="use_safetensors" in how)
    _check_causal(auto_class, loaded, name_or_path)
    return loaded


def _with_adapter(auto_class: Any, name_or_path: str, name: str, how: dict[str, Any]) -> Any:
    """What `auto_class` makes of a folder or a repository, with the adapter in it, if it has one.

    Args:
        auto_class: a class of transformers that loads by name.
        name_or_path (`str`): the name as given, for errors.
        name (`str`): the folder, or `USER/NAME`.
        how (`dict`): arguments of `from_pretrained`, with a `revision` if it is on the Hub.
    """
    from ..text.tokenizers.encoding import check_ids

    base = _base_of_adapter(auto_class, name_or_path)
    if "revision" not in how:
        check_listed(Path(name), auto_class)
        check_ids(Path(name, "tokenizer.json"))
        check_counts(Path(name, "config.json"))
    if base is None:
        loaded = load_whole(auto_class, name, name_or_path, **how)
    else:
        loaded = load_pretrained(auto_class, base)
        if hasattr(loaded, "load_adapter"):
            loaded.load_adapter(name, adapter_kwargs={key: how[key] for key in ("revision",) if key in how})
    if getattr(loaded, "peft_config", None):
        check_adapter(loaded, _folder_of(name_or_path, "adapter_config.json"), name_or_path)
    return loaded


def _refuse_quantized(name: str, error: Exception) -> None:
    """Raise [`InputError`] if the configuration of a model that cannot be loaded says that it is quantized."""
    config = model_file(name, "config.json")
    reason = None if config is None else quantized(read_json(config))
    if reason is not None:
        raise InputError(f"{name}: {reason} ({first_line(error)})") from None


def _folder_of(name: str, file: str) -> Path:
    """The folder of a model, which has this file."""
    path = model_file(name, file)
    return Path(name) if path is None else path.parent


def _base_of_adapter(auto_class: Any, name: str) -> str | None:
    """The model of an adapter that has to be loaded before it; None if transformers does that, or without an adapter.

    transformers does not look for the configuration of an adapter in that of its model, nor for its model in a GGUF
    file or, if its path is relative, anywhere but below the current folder.
    """
    if auto_class.__name__ == "AutoTokenizer" or (Path(name) / "config.json").exists():
        return None
    path = model_file(name, "adapter_config.json")
    base = None if path is None else base_of_adapter(path)
    if not base:
        return None
    is_elsewhere = Path(base).is_dir() and base != read_json(path)["base_model_name_or_path"]
    is_needed = is_elsewhere or auto_class.__name__ == "AutoConfig" or ModelName.parse(base).gguf_file is not None
    return base if is_needed else None


@contextlib.contextmanager
def _without_bar() -> Iterator[None]:
    """Without the bar of transformers, which is full at once where weights are read from a disk."""
    from transformers.utils import logging

    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()


def _check_downloaded(model: str, *, with_weights: bool = True) -> None:
    """Compare the files of a model in the cache with the Hub's hashes."""
    config = model_file(model, "config.json")
    if config is not None:
        files = [path for path in config.parent.iterdir() if path.is_file()]
        check_downloaded(config.parent, [one.name for one in files if with_weights or one.suffix != ".safetensors"])


def limit_length(config: "PreTrainedConfig", length: int | None) -> int | None:
    """The given length of rows in tokens, or the number of positions of the model if that is smaller.

    Args:
        config ([`~transformers.PreTrainedConfig`]): that of the model; without a maximum it limits nothing.
        length (`int`, *optional*): tokens per row; None for no limit.
    """
    positions = getattr(config.get_text_config(), "max_position_embeddings", None)
    return min((one for one in (length, positions) if one is not None), default=None)


def tokenizer_of(name_or_path: str, *, symbols: bool = False) -> "PreTrainedTokenizerBase | None":
    """The tokenizer of a model that reads text, or None for one that was trained on symbols.

    Args:
        name_or_path (`str`): folder or Hub name of the model.
        symbols (`bool`, *optional*, defaults to `False`): also return one that reads only the names of symbols.
    """
    from transformers import AutoTokenizer

    folder = Path(name_or_path)
    if ModelName.parse(name_or_path).gguf_file is not None:
        return load_pretrained(AutoTokenizer, name_or_path)
    if folder.is_dir() and not (folder / "tokenizer_config.json").exists():
        return None  # transformers would make up a tokenizer or ask the Hub
    try:
        tokenizer = load_pretrained(AutoTokenizer, name_or_path)
    except InputError:
        return None
    return tokenizer if symbols or not reads_symbols(tokenizer) else None


def symbol_model(name_or_path: str) -> "tuple[PreTrainedModel, tuple[str, ...]] | None":
    """A model in a folder that was trained on the symbols of an HMM, and their names; None for anything else."""
    config = Path(name_or_path) / "config.json"
    if not config.exists() or "format_version" in read_json(config):  # the latter is an HMM itself
        return None
    environment.silence_missing_gpu_warnings()
    from transformers import AutoModelForCausalLM

    tokenizer = tokenizer_of(name_or_path, symbols=True)
    if tokenizer is None or not reads_symbols(tokenizer):
        return None
    model = load_pretrained(AutoModelForCausalLM, name_or_path).eval()
    return model, tuple(tokenizer.convert_ids_to_tokens(range(len(tokenizer) - 1)))  # the last is the beginning token
