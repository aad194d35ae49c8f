"""Loading pretrained models, their configurations and tokenizers, from a folder, a GGUF file or the Hub."""

import contextlib
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..compat.rust import panics_as_errors
from ..compat.transformers_models import admit_released_peft
from ..errors import InputError, first_line, path_errors
from ..files import read_json
from ..hmm.tokenizer import reads_symbols
from ..hub.download import ModelName, check_downloaded, model_file, reading_hub, reason_of_hub, without_network
from ..hub.gguf import load_gguf
from ..hub.weights import (
    base_of_adapter,
    check_adapter,
    check_counts,
    check_listed,
    load_whole,
    refuse_stopped,
    resized_vocabulary,
)
from ..runtime import environment
from ..runtime.once import one_command

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_RESIZED = re.compile(
    r"size mismatch for (?P<name>\S*(?:embed|lm_head|wte)\S*): .*?Size\(\[(?P<file>\d+).*?Size\(\[(?P<model>\d+)",
    re.DOTALL,
)


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
    from ..hmm import process_causal_lm, tilted_causal_lm  # noqa: F401, so that processes are loaded too

    with one_command(), path_errors(name_or_path):
        return _load(auto_class, name_or_path)


def _load(auto_class: Any, name_or_path: str) -> Any:
    from safetensors import SafetensorError

    model_name = ModelName.parse(name_or_path)
    if model_name.gguf_file is not None:
        with _without_bar():
            return with_causal_loss(load_gguf(auto_class, model_name))
    name, is_local = model_name.place, Path(model_name.place).is_dir()
    if os.path.exists(name):
        refuse_stopped(Path(name))
    revision = model_name.pinned().revision
    how: dict[str, Any] = {"trust_remote_code": False}
    if not is_local:
        how |= {"revision": revision, "local_files_only": without_network()}
    if not is_local and auto_class.__name__.startswith("AutoModel"):
        how |= {"use_safetensors": True, "adapter_kwargs": {"local_files_only": how["local_files_only"]}}
    admit_released_peft()
    try:
        with _without_bar() if is_local else reading_hub(), panics_as_errors(name_or_path, "copy it again"):
            loaded = _with_adapter(auto_class, name_or_path, name, how)
        loaded = _with_own_generation(with_causal_loss(loaded), name, revision)
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
            f"({reason}); expected a folder with config.json and safetensors files, a GGUF file, or USER/NAME"
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


def with_causal_loss(model: Any) -> Any:
    """Set the loss type of a model, which transformers otherwise guesses from the class name, with a warning."""
    if getattr(model, "loss_type", "") is None:
        model.loss_type = "ForCausalLM"
    return model


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
    content = {} if config is None else read_json(config)
    settings = content.get("quantization_config") if isinstance(content, dict) else None
    if isinstance(settings, dict):
        raise InputError(
            f"{name}: its weights are quantized ({str(settings.get('quant_method', 'bitsandbytes'))[:40]}); install "
            "the package that reads them, take the model as it was before, or dequantize it where it can be read "
            f"(model.dequantize(), then save_pretrained) ({first_line(error)})"
        ) from None


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
        check_downloaded(config.parent, [file.name for file in files if with_weights or file.suffix != ".safetensors"])


def tokenizer_of(name_or_path: str, *, symbols: bool = False) -> "PreTrainedTokenizerBase | None":
    """The tokenizer of a model that reads text, or None for one that was trained on symbols.

    Args:
        name_or_path (`str`): folder or Hub name of the model.
        symbols (`bool`, *optional*, defaults to `False`): also return one that reads only the names of symbols.

    Raises:
        `InputError`: the one in a folder has changed since it was written, or cannot be loaded.
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
        if folder.is_dir():
            raise
        return None  # of a repository without a tokenizer
    return tokenizer if symbols or not reads_symbols(tokenizer) else None
