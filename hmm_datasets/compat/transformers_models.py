"""Models of transformers: the capabilities of a model class, and the attention implementation of a configuration.

Checked against 5.12 to 5.24. The attributes are documented for authors of models, who set them. There is no public way
to read them.
"""

import contextlib
import copy
import functools
import tempfile
from collections.abc import Callable, Generator
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

from packaging.version import Version

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


@contextlib.contextmanager
def unpacked_rows() -> Generator[None]:
    """A context in which models take their rows for single sequences, and do not look for packed documents in them.

    Models of transformers look for them in `position_ids`, which they make themselves if they are given none. A
    compiled model cannot look at values, so it gets a mask as if documents were packed, and with a mask sdpa takes
    another kernel: on an H200 attention took 2.5 times as long. Before torch 2.14 it would get one anyway, because a
    compiled `torch.compiler.is_exporting()` is always true (pytorch/pytorch#176499). Up to 5.17 compiled models have a
    mask in any case, by `is_tracing`. This can be removed once models look only at `position_ids` that they are given,
    and transformers 5.18 and torch 2.14 are the oldest that are supported.
    """
    from transformers import masking_utils

    exporting: Any = {"is_torchdynamo_exporting": _is_not_exporting}
    if not hasattr(masking_utils, "is_torchdynamo_exporting"):
        exporting = {"is_tracing": _has_values}
    with mock.patch.multiple(masking_utils, find_packed_sequence_indices=_finds_none, **exporting):  # ty: ignore[no-matching-overload]
        yield


# Functions of their own, since compiled code is compiled anew if it finds others.
def _finds_none(position_ids: Any) -> None:
    return None


def _is_not_exporting() -> bool:
    return False


def _has_values(mask: Any = None) -> bool:
    return mask is not None


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


def admit_released_peft() -> None:
    """Let transformers work with PEFT 0.20 or newer, as 5.23 does.

    5.24 asks for PEFT 0.22 before it loads, saves or switches an adapter. That was not released when 5.24 was, and the
    lines that use it are those of 5.23. This can be removed once PEFT 0.22 is the oldest that is supported.
    """
    from transformers.integrations import peft

    changed: Any = peft
    if Version(changed.MIN_PEFT_VERSION) == Version("0.22.0"):
        changed.MIN_PEFT_VERSION = "0.20.0"


def whole_gguf(auto_class: Any, path: Path, load: Callable[..., Any]) -> Any:
    """`auto_class.from_pretrained` of a GGUF file, with weights in float32, as a model that can be trained and saved.

    A model is loaded by `load`, which calls `auto_class.from_pretrained` with the other arguments.

    transformers leaves the mark of a quantized model on it (`hf_quantizer`, `quantization_config`), though nothing is
    quantized any more: the Trainer then refuses to train it and `save_pretrained` to save it. It reads what else lies
    in the folder, such as a tokenizer of another model. Its reader takes seconds for a configuration, which is kept
    here, and makes the map of names once for each module of the model; it shows a bar where nobody looks at one. This
    can be removed once transformers leaves no mark on a dequantized model, and reads it without the rest in one go.
    """
    import gguf
    import torch
    import transformers
    from tqdm import tqdm
    from transformers import modeling_gguf_pytorch_utils

    if auto_class is transformers.AutoTokenizer:
        with _folder_of(path) as folder:
            return transformers.PreTrainedTokenizerFast.from_pretrained(folder, gguf_file=path.name)
    config = copy.deepcopy(_gguf_config(path, path.stat().st_mtime_ns))
    if auto_class is transformers.AutoConfig:
        return config
    how = {"config": config, "dtype": torch.float32}
    if hasattr(transformers, "GgufConfig"):  # since 5.17; before, nothing stays quantized
        how["quantization_config"] = transformers.GgufConfig(dequantize=True)
    names = mock.patch.object(gguf, "get_tensor_name_map", functools.cache(gguf.get_tensor_name_map))
    bar = mock.patch.object(modeling_gguf_pytorch_utils, "tqdm", functools.partial(tqdm, disable=None))
    with _folder_of(path) as folder, names, bar:
        model = load(auto_class, folder, gguf_file=path.name, trust_remote_code=False, **how)
    for name in ("hf_quantizer", "is_quantized", "quantization_method"):
        vars(model).pop(name, None)
    vars(model.config).pop("quantization_config", None)
    return model


@contextlib.contextmanager
def _folder_of(path: Path) -> Generator[str]:
    """A folder with nothing but a link to a file."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, path.name).symlink_to(path.absolute())
        yield folder


@functools.lru_cache(maxsize=4)
def _gguf_config(path: Path, _time: int) -> "PreTrainedConfig":
    from transformers import AutoConfig

    with _folder_of(path) as folder:
        return AutoConfig.from_pretrained(folder, gguf_file=path.name, trust_remote_code=False)
