"""Models in GGUF files, the format of llama.cpp (https://github.com/ggml-org/ggml/blob/master/docs/gguf.md).

transformers reads such a file. The weights become float32, so that the model is trained and saved like any other.
Vocabulary, special tokens and chat template are in the file too; how text is cut before the vocabulary is applied is
there only by name.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..compat.transformers_models import whole_gguf
from ..errors import InputError, first_line, needing_extra, path_errors
from ..files import check_digests
from ..runtime import environment
from .download import ModelName, Repository, check_downloaded, download_file
from .licences import LICENCE_KEYS
from .weights import load_whole, refuse_weights

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

_DIGITS_APART = ("smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b")
"""Names of ways to cut text that cut it at every digit, and then as GPT-2 does (llama.cpp's `llama-vocab.cpp`).

transformers cuts it only as GPT-2 does, which gives other tokens where several spaces precede a digit.
"""


@dataclass(frozen=True)
class GGUFHeader:
    """What is read of a GGUF file before its weights.

    Attributes:
        quantization (`str`): name of the type of most weights, such as `"Q4_1"`.
        cut (`str`, *optional*): name of how text is cut before the vocabulary is applied.
        unexpected (`list` of `str`): names of tensors that a model of its architecture and depth does not have.
        licence (`dict`): what it states of its licence, by the names that the card of a model has for it: `license`,
            and perhaps `license_name` and `license_link`.
    """

    quantization: str
    cut: str | None
    unexpected: list[str] = field(default_factory=list)
    licence: dict[str, str] = field(default_factory=dict)


def gguf_path(model: ModelName) -> Path:
    """The GGUF file that a name means, downloaded if it is on the Hub.

    Args:
        model ([`ModelName`]): a name with a `gguf_file`.

    Raises:
        `InputError`: there is no such file, or it has changed since it was downloaded.
    """
    file = model.gguf_file or ""
    if not model.on_hub:
        path = Path(model.place, file)
        if not path.is_file():
            raise InputError(f"{path}: no such file; expected a model in GGUF format, or USER/REPO:FILE.gguf")
        check_digests(path.parent, names=[path.name])
        return path
    path = download_file(Repository.parse(model.place, model.revision) / file)
    if environment.local_rank() == 0:
        check_downloaded(path.parent, [path.name])
    return path


def read_header(path: Path) -> GGUFHeader:
    """What the header of a GGUF file says.

    Raises:
        `InputError`: the package `gguf` is missing; the file is truncated, not in this format, or one part of several.
    """
    with needing_extra("gguf", str(path)):
        from ..compat.gguf import GGUFHeaderReader, LlamaFileType
    try:
        with path_errors(path):
            reader = GGUFHeaderReader(path)
        fields = {name: field.contents() if field.data else [] for name, field in reader.fields.items()}
    except InputError:
        raise
    except Exception as error:  # of any type, as it reads what stands there
        raise InputError(f"{path}: not a whole GGUF file ({first_line(error)}); copy it again") from None
    names = [tensor.name for tensor in reader.tensors]
    field = partial(_field, path, fields)
    parts = field("split.count", int, 1)
    if parts > 1:
        raise InputError(
            f"{path}: expected a whole model, found one of {parts} parts; join them with llama-gguf-split --merge"
        )
    kinds = {kind.value: kind.name.removeprefix("ALL_").removeprefix("MOSTLY_") for kind in LlamaFileType}
    quantization = kinds.get(field("general.file_type", int, -1), "unknown")
    architecture = field("general.architecture", str, "")
    depth = field(f"{architecture}.block_count", int, 0)
    if not 0 <= depth <= len(names):
        raise InputError(
            f"{path}: {architecture}.block_count is {depth:,}, but there are {len(names):,} tensors; copy it again"
        )
    unexpected = _unexpected(architecture, depth, names)
    stated = {name: field(f"general.{name.replace('_', '.')}", str, "") for name in LICENCE_KEYS}
    licence = {name: text for name, text in stated.items() if text}
    return GGUFHeader(quantization, field("tokenizer.ggml.pre", str, None), unexpected, licence)


def _field(path: Path, fields: Mapping[str, Any], name: str, kind: type, default: Any) -> Any:
    """A value of a header, which must be of this type."""
    value = fields.get(name, default)
    if value is not default and type(value) is not kind:
        raise InputError(
            f"{path}: {name} is {repr(value)[:60]}, expected {'a number' if kind is int else 'text'}; copy it again"
        )
    return value


def _unexpected(name: str, depth: int, tensors: Sequence[str]) -> list[str]:
    """The tensors that a model of this architecture and depth does not have; transformers leaves them out."""
    import gguf

    kinds = {known: kind for kind, known in gguf.MODEL_ARCH_NAMES.items()}
    if name not in kinds:
        return []
    known = gguf.get_tensor_name_map(kinds[name], depth).mapping.values()
    names = {tensor for _, tensor in known}
    return [tensor for tensor in tensors if not {tensor, tensor.rpartition(".")[0]} & names]


def load_gguf(auto_class: Any, model: ModelName) -> Any:
    """What `auto_class.from_pretrained` makes of a GGUF file and nothing else: a configuration, tokenizer or model.

    Args:
        auto_class: `AutoConfig`, `AutoTokenizer` or `AutoModelForCausalLM`.
        model ([`ModelName`]): a name with a `gguf_file`.

    Raises:
        `InputError`: see [`gguf_path`] and [`read_header`]; or transformers does not know the architecture.
    """
    path = gguf_path(model)
    header = read_header(path)
    if auto_class.__name__.startswith("AutoModel"):
        refuse_weights(str(model), [], header.unexpected, {})
    try:
        loaded = whole_gguf(auto_class, path, partial(load_whole, shown=str(model)))
    except InputError:
        raise
    except Exception as error:  # of any type, where the header says what nobody expects
        raise InputError(
            f"{path}: transformers makes no {auto_class.__name__.removeprefix('Auto')} of it ({first_line(error)}); "
            "take the model's own folder"
        ) from None
    if hasattr(loaded, "backend_tokenizer"):
        _cut_text(loaded, header)
    loaded.name_or_path = str(model)
    if hasattr(loaded, "config"):
        loaded.config.name_or_path = str(model)
    return loaded


def _cut_text(tokenizer: "PreTrainedTokenizerFast", header: GGUFHeader) -> None:
    """Cut text as the header says, where transformers does not."""
    from tokenizers.pre_tokenizers import ByteLevel, Digits, Sequence

    if header.cut in _DIGITS_APART:
        tokenizer.backend_tokenizer.pre_tokenizer = Sequence(
            [Digits(individual_digits=True), ByteLevel(add_prefix_space=False)]
        )
