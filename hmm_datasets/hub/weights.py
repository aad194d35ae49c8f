"""Models with all of their weights: what is missing, left over or of another shape ends the command with its names.

transformers draws missing weights at random, leaves out unexpected ones, and reports both in a table of warnings.
"""

import logging
import re
from collections.abc import Collection, Generator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import InputError
from ..files import check_digests, read_json, recorded_digests
from ..records import read_record

_REPORTERS = ("transformers.modeling_utils", "transformers.integrations.peft")  # loggers of the table of warnings
_COUNTS = (
    *("num_hidden_layers", "num_layers", "n_layers", "n_layer", "num_decoder_layers", "depth"),
    *("num_experts", "num_local_experts", "n_routed_experts"),
)
_MOST_PARTS = 10_000
_KINDS, _NAMED = ("missing", "unexpected"), 5
# The weights of an adapter that have a row or a column for each token.
_OF_TOKENS = re.compile(r"(embed|lm_head|wte).*\.(modules_to_save|original_module|base_layer|lora_\w+)\b")
_ADAPTER_PREFIX, _ADAPTER_WEIGHTS = "base_model.model.", "adapter_model.safetensors"
_WEIGHTS = ("model.safetensors", "model.safetensors.index.json", _ADAPTER_WEIGHTS)


def has_weights(folder: Path) -> bool:
    """Whether a folder has the weights of a model, or of an adapter, as safetensors."""
    return any((folder / name).is_file() for name in _WEIGHTS)


def saved_checkpoints(folder: Path) -> list[Path]:
    """The folders `checkpoint-N` of a run, whole or not, the newest last."""
    saved = [path for path in folder.glob("checkpoint-*") if path.name.rpartition("-")[2].isdigit()]
    return sorted(saved, key=lambda path: int(path.name.rpartition("-")[2]))


def refuse_stopped(folder: Path) -> None:
    """Raise [`InputError`] for the folder of a run that was stopped: it has checkpoints, and no model yet."""
    saved = saved_checkpoints(folder)
    if saved and (folder / "run.json").is_file() and not has_weights(folder):
        newest = saved[-1]
        raise InputError(
            f"{folder}: is a run that stopped before its end, with its newest checkpoint at step "
            f"{newest.name.rpartition('-')[2]}, and has no model; start the same command again, or give {newest}"
        )


def load_whole(auto_class: Any, name: str, shown: str | None = None, **how: Any) -> Any:
    """`auto_class.from_pretrained(name, **how)`, of a model with all of its weights.

    Args:
        auto_class: `AutoModelForCausalLM`, or a class of something that has no weights.
        name (`str`): a folder, or a name on the Hub.
        shown (`str`, *optional*): the name for the error.
        **how: further arguments.

    Raises:
        `InputError`: weights are missing, unexpected, or of another shape than the configuration says.
    """
    if not auto_class.__name__.startswith("AutoModel"):
        return auto_class.from_pretrained(name, **how)
    with _without_report():
        try:
            model, info = auto_class.from_pretrained(name, output_loading_info=True, **how)
        except RuntimeError as error:
            if "ignore_mismatched_sizes" not in str(error):
                raise
            # Once more, for the names and shapes.
            how |= {"ignore_mismatched_sizes": True}
            model, info = auto_class.from_pretrained(name, output_loading_info=True, **how)
    check_loaded(shown or name, info)
    check_finite(shown or name, model)
    return model


def check_loaded(name: str, info: Mapping[str, Collection]) -> None:
    """Raise [`InputError`] for weights that transformers did not load.

    Args:
        name (`str`): name of the model.
        found (mapping): what transformers returns for `output_loading_info`.
    """
    reshaped = {key: (tuple(file), tuple(model)) for key, file, model in info["mismatched_keys"]}
    # The weights of an adapter are named after it in the model, but not in the file.
    missing, unexpected = ([key.replace(".default.", ".") for key in sorted(info[f"{kind}_keys"])] for kind in _KINDS)
    refuse_weights(name, missing, unexpected, reshaped)


def check_finite(name: str, model: Any) -> None:
    """Raise [`InputError`] if a weight of a model is NaN or infinite; the message names the first ones.

    Args:
        name (`str`): name of the model.
        model ([`~transformers.PreTrainedModel`]): the model.
    """
    bad = [key for key, value in model.named_parameters() if not _is_finite(value)]
    if bad:
        more = f" and {len(bad) - _NAMED} more" if len(bad) > _NAMED else ""
        raise InputError(
            f"{name}: {len(bad)} weights have values that are NaN or infinite: {', '.join(bad[:_NAMED])}{more}; take "
            "a copy or a checkpoint from before that"
        )


def _is_finite(value: Any) -> bool:
    if not value.is_floating_point() or value.is_meta or value.numel() == 0 or value.element_size() < 2:
        return True
    least, most = value.detach().aminmax()  # in one pass and without a copy; NaN is both
    return bool(least.isfinite() and most.isfinite())


def check_adapter(model: Any, folder: Path, name: str) -> None:
    """Raise [`InputError`] unless the weights of a model's adapter are those of the file in a folder.

    Args:
        model ([`~transformers.PreTrainedModel`]): a model with one adapter.
        folder (`Path`): the folder; one without the file passes.
        name (`str`): name of the adapter, for the error.
    """
    from safetensors import safe_open

    path = folder / _ADAPTER_WEIGHTS
    if not path.is_file():
        return
    expected = {key: tuple(value.shape) for key, value in model.get_adapter_state_dict().items()}
    with safe_open(path, "pt") as file:
        shapes = {key: tuple(file.get_slice(key).get_shape()) for key in list(file.keys())}
    written = {key.removeprefix(_ADAPTER_PREFIX): shape for key, shape in shapes.items()}
    shared = expected.keys() & written.keys()
    reshaped = {key: (written[key], expected[key]) for key in shared if written[key] != expected[key]}
    refuse_weights(name, sorted(expected.keys() - shared), sorted(written.keys() - shared), reshaped)


def resized_vocabulary(name: str, weight: str, rows: int, tokens: int) -> InputError:
    """The error for an adapter with embeddings of another number of tokens than its model."""
    return InputError(
        f"{name}: the adapter has {weight} for {rows:,} tokens, its model has {tokens:,}: tokens were added when it "
        "was trained; merge it there (peft's merge_and_unload), and take the folder of the merged model"
    )


def check_listed(folder: Path, auto_class: Any) -> None:
    """Compare the files that a class reads from a folder with the digests written beside them, if there are some.

    Raises:
        `InputError`: a file has changed.
    """
    patterns = ("config.json", "adapter_config.json")
    if auto_class.__name__.startswith("AutoModel"):
        patterns = (*patterns, "*.safetensors", "*.safetensors.index.json")
    elif auto_class.__name__ == "AutoTokenizer":
        patterns = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja")
    names = [name for name in recorded_digests(folder) if any(Path(name).match(pattern) for pattern in patterns)]
    check_digests(folder, names=[name for name in names if "/" not in name])


def check_counts(path: Path) -> None:
    """Refuse a configuration with so many layers or experts that making the model would not end.

    Raises:
        `InputError`: it has more than 10,000 of either.
    """
    config: Any = read_json(path) if path.is_file() else {}
    parts = (config, config.get("text_config")) if isinstance(config, dict) else ()
    counts = ((name, part[name]) for part in parts if isinstance(part, dict) for name in _COUNTS if name in part)
    for name, count in counts:
        if isinstance(count, int) and count > _MOST_PARTS:
            raise InputError(f"{path}: {name} is {count:,}, expected at most {_MOST_PARTS:,}; copy it again")


def refuse_weights(
    name: str,
    missing: list[str],
    unexpected: list[str],
    reshaped: Mapping[str, tuple[tuple[int, ...], tuple[int, ...]]],
) -> None:
    """Raise [`InputError`] if there are missing, unexpected or reshaped weights, with their names.

    Those of an adapter that are of tokens have an error of their own. Shapes are those in the file and in the model.
    """
    for key, (file, model) in sorted(reshaped.items()):
        if _OF_TOKENS.search(key):
            pair = next(pair for pair in zip(file, model, strict=False) if len({*pair}) > 1)
            raise resized_vocabulary(name, key, *pair)
    shapes = [f"{key} {file}, not {model}" for key, (file, model) in sorted(reshaped.items())]
    problems = [
        f"{what}: {', '.join(keys[:_NAMED])}" + (f" and {len(keys) - _NAMED} more" if len(keys) > _NAMED else "")
        for what, keys in (
            (f"{len(missing)} missing weights", missing),
            (f"{len(unexpected)} unexpected weights", unexpected),
            (f"{len(shapes)} weights of another shape", shapes),
        )
        if keys
    ]
    if problems:
        raise InputError(
            f"{name}: {'; '.join(problems)}; expected the weights that its config.json describes; copy or convert the "
            "model again, or take it as it was before it was quantized"
        )


@contextmanager
def _without_report() -> Generator[None]:
    """A context in which transformers logs no table of the weights that it did not load; the error names them."""

    def is_other(record: logging.LogRecord) -> bool:
        return "LOAD REPORT" not in str(record.msg)

    with ExitStack() as filtered:
        for logger in map(logging.getLogger, _REPORTERS):
            logger.addFilter(is_other)
            filtered.callback(logger.removeFilter, is_other)
        yield


@dataclass(frozen=True)
class _Adapter:
    """What is read of `adapter_config.json`, which PEFT writes."""

    base_model_name_or_path: str | None = None


def base_of_adapter(config: Path) -> str | None:
    """The model that an adapter was trained on, a folder or a name on the Hub; None if its settings have none.

    A relative path that leads nowhere from the current folder may be one from the folder in which the adapter was
    trained: that of the adapter, or one above it.

    Args:
        config (`Path`): its `adapter_config.json`.

    Raises:
        `InputError`: the file is not the settings of an adapter.
    """
    base = read_record(config, _Adapter).base_model_name_or_path
    if not base or Path(base).exists():
        return base
    folder = config.absolute().parent
    return next((str(place / base) for place in (folder, *folder.parents) if (place / base).exists()), base)
