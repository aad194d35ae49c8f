"""Folders of HMMs, which transformers loads too.

`model.safetensors` has the tables, `config.json` describes them, and `transformers.AutoModelForCausalLM` loads the
folder with `trust_remote_code=True`, or once `hmm_datasets.hmm.causal_lm` is imported; `AutoTokenizer` loads the
tokenizer in it (see [`.tokenizer`]).
"""

import contextlib
import json
import os
import typing
from collections.abc import Collection, Generator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from ..errors import InputError
from ..files import atomic_file, check_digests, read_json, restored, write_digests, write_json
from ..hub.download import download
from ..records import is_record
from .tokenizer import TOKENIZER_NAME, TOKENIZER_SETTINGS_NAME, write_tokenizer

if TYPE_CHECKING:
    from .model import HMM

FORMAT_VERSION = 1
"""Version of the format. It must change whenever `(hmm, seed, index)` would give other tokens."""

ModelType = Literal["hmm", "tilted_hmm", "process"]
"""The `model_type` in `config.json`."""

_CLASSES: dict[ModelType, tuple[str, str, str]] = {
    "hmm": ("hmm_datasets.hmm.causal_lm", "HMMConfig", "HMMForCausalLM"),
    "tilted_hmm": ("hmm_datasets.hmm.tilted_causal_lm", "TiltedHMMConfig", "TiltedHMMForCausalLM"),
    "process": ("hmm_datasets.hmm.process_causal_lm", "ProcessConfig", "ProcessForCausalLM"),
}
CONFIG_NAME = "config.json"
WEIGHTS_NAME = "model.safetensors"
TABLES = frozenset({"start", "transition", "emission", "edges"})


def loader_name(model_type: ModelType) -> str:
    """The file that the `auto_map` of a folder names."""
    return f"modeling_{model_type}.py"


def auto_map(model_type: ModelType) -> dict[str, str]:
    """Entry of `config.json` with which programs that never import this package load the folder by name."""
    _, config, model = _CLASSES[model_type]
    module = loader_name(model_type).removesuffix(".py")
    return {"AutoConfig": f"{module}.{config}", "AutoModelForCausalLM": f"{module}.{model}"}


def architecture(model_type: ModelType) -> str:
    """Name of the class of the causal language model."""
    return _CLASSES[model_type][2]


def write_loader(folder: Path, model_type: ModelType) -> None:
    """Write the file that `auto_map` names. With `trust_remote_code=True` it imports the classes of this package."""
    module, config, model = _CLASSES[model_type]
    with atomic_file(folder / loader_name(model_type)) as temporary:
        temporary.write_text(f"from {module} import {config}, {model}  # noqa: F401\n")


def files(model_type: ModelType) -> tuple[str, ...]:
    """The files in a folder, whose digests are written beside them."""
    return WEIGHTS_NAME, loader_name(model_type), TOKENIZER_NAME, TOKENIZER_SETTINGS_NAME, CONFIG_NAME


def save(hmm: "HMM", folder: str | os.PathLike) -> None:
    """Write the folder, each file atomically."""
    settings = {"edge_emitting": hmm.edges is not None, "fingerprint": hmm.fingerprint()}
    write_folder(folder, "hmm", hmm, hmm.tables(), settings)


def write_folder(
    folder: str | os.PathLike,
    model_type: ModelType,
    hmm: "HMM",
    tables: dict[str, np.ndarray],
    settings: dict[str, Any],
) -> None:
    """Write tables, loader, tokenizer, `config.json` with `settings`, and digests."""
    from safetensors.numpy import save_file

    folder = Path(folder)
    with atomic_file(folder / WEIGHTS_NAME) as temporary:
        save_file({k: np.ascontiguousarray(v) for k, v in tables.items()}, temporary, {"format": "pt"})
    write_loader(folder, model_type)
    write_tokenizer(folder, hmm.vocabulary, hmm.num_symbols, bos=False)
    write_json(
        folder / CONFIG_NAME,
        {
            "model_type": model_type,
            "architectures": [architecture(model_type)],
            "auto_map": auto_map(model_type),
            "format_version": FORMAT_VERSION,
            "num_states": hmm.num_states,
            "num_symbols": hmm.num_symbols,
            **settings,
            "vocabulary": None if hmm.vocabulary is None else list(hmm.vocabulary),
        },
    )
    write_digests(folder, files(model_type))


def load(kind: "type[HMM]", name_or_path: str | os.PathLike, revision: str | None = None) -> "HMM":
    """Read a local folder or one on the Hub; see [`~hmm_datasets.hmm.model.HMM.from_pretrained`]."""
    folder, config, tables = read_folder(name_or_path, "hmm", revision, "an HMM", {})
    path = folder / WEIGHTS_NAME
    unknown = sorted(tables.keys() - TABLES)
    if unknown:
        raise InputError(f"{path}: contains {unknown[0]!r}; expected only the tables of an HMM")
    hmm = made_of_tables(kind, path, tables, config.get("vocabulary"))
    check_fingerprint(folder, hmm.fingerprint(), config)
    return hmm


def read_folder(
    name_or_path: str | os.PathLike, model_type: ModelType, revision: str | None, expected: str, fields: dict[str, Any]
) -> tuple[Path, dict[str, Any], dict[str, np.ndarray]]:
    """The folder, downloaded if need be, its `config.json`, whose type, version and `fields` are checked, and tables.

    `fields` are those that not all models have, with their types.
    """
    folder = restored(name_or_path)
    if not folder.is_dir():
        folder = download(str(name_or_path), [CONFIG_NAME, WEIGHTS_NAME], revision=revision, expected=expected)
    path = folder / CONFIG_NAME
    config = read_json(path)
    if not isinstance(config, dict):
        raise InputError(f"{path}: contains a {type(config).__name__}; expected the settings of {expected}")
    if config.get("model_type") != model_type or config.get("format_version") != FORMAT_VERSION:
        raise InputError(
            f"{path}: model_type {config.get('model_type')!r}, format_version "
            f"{config.get('format_version')!r}; expected {model_type!r} and {FORMAT_VERSION}"
        )
    checked_fields(path, config, fields | {"vocabulary": list[str] | None, "fingerprint": str})
    return folder, config, read_tables(folder / WEIGHTS_NAME)


def check_fingerprint(folder: Path, fingerprint: str, config: dict[str, Any]) -> None:
    """Raise `InputError` if the tables are not those that `config.json` describes, or one of the files has changed."""
    if fingerprint != config.get("fingerprint"):
        raise InputError(
            f"{folder / WEIGHTS_NAME}: tables have fingerprint {fingerprint}, {CONFIG_NAME} expects "
            f"{config.get('fingerprint')}; the two files belong to different HMMs, copy both again"
        )
    check_digests(folder, names=(CONFIG_NAME, WEIGHTS_NAME))  # the names of the symbols have no fingerprint


def read_tables(path: str | os.PathLike) -> dict[str, np.ndarray]:
    """The arrays of a file, by name."""
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    try:
        return load_file(path)
    except FileNotFoundError:
        raise InputError(f"{path}: no such file") from None
    except (SafetensorError, OSError, KeyError, TypeError, ValueError, AttributeError) as error:
        raise InputError(f"{path}: not a complete safetensors file ({error})") from None


def made_of_tables(
    kind: "type[HMM]", path: str | os.PathLike, tables: dict[str, np.ndarray], vocabulary: Any
) -> "HMM":
    """The HMM of these tables; errors name the file."""
    with errors_naming(path):
        return kind(**tables, vocabulary=vocabulary, normalize=None)


@contextlib.contextmanager
def errors_naming(path: str | os.PathLike, settings: Collection[str] = ()) -> Generator[None]:
    """A context in which a process is made of what a file says, whose errors name the file, and the settings in it.

    A file may come from anyone, so it may have what no check of a constructor expects: any error is one of the file.
    """
    try:
        yield
    except InputError as error:
        raise InputError(f"{path}: {error}") from None
    except Exception as error:
        what = f"settings {', '.join(settings)}" if settings else "what is in it"
        raise InputError(
            f"{path}: {what}: no process ({type(error).__name__}: {str(error)[:300]}); copy the whole folder "
            "again from where it was made"
        ) from None


def checked_fields(path: Path, content: Any, kinds: dict[str, Any], of: str = "") -> dict[str, Any]:
    """The object in a JSON file, if it has these fields of these types; it may have others.

    Args:
        path (`Path`): the file.
        content: what was read from it.
        kinds (`dict`): a type, such as `list[str] | None`, by name.
        of (`str`, *optional*): what has the fields, for the error.

    Raises:
        `InputError`: it is no object, or a field is missing or of another type.
    """
    if not isinstance(content, dict):
        raise InputError(
            f"{path}: {of}contains a {type(content).__name__}; expected an object with {', '.join(kinds)}"
        )
    for name, kind in kinds.items():
        if name not in content and not is_record(None, kind):
            raise InputError(f"{path}: {of}has no {name}; copy the whole folder again from where it was made")
        if not is_record(content.get(name), kind) or not _is_finite(content.get(name)):
            expected = kind.__name__ if isinstance(kind, type) and not typing.get_args(kind) else str(kind)
            raise InputError(f"{path}: {of}{name} is {ascii(content[name])[:100]}; expected {expected}")
    return content


def _is_finite(value: Any) -> bool:
    """Whether no number in a value from a JSON file is NaN or infinite."""
    try:
        json.dumps(value, allow_nan=False)
    except ValueError:
        return False
    return True
