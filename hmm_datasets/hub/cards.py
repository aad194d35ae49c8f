"""Cards: the README of a model, an HMM or a data set on the Hub, filled from facts.

The text comes from a template, `model_cards/{kind}.md`. This module checks the facts, makes the front matter, by which
the Hub indexes the card, and writes the file. A fact that is missing, unknown to the template or not finite is an
error, because readers would not notice a gap in a card.
"""

import hashlib
import math
import os
import re
from numbers import Integral, Real
from pathlib import Path
from types import NoneType
from typing import TYPE_CHECKING, Any, Literal, get_args

from ..errors import InputError
from ..files import atomic_file
from ..shipped_files import shipped

if TYPE_CHECKING:
    from huggingface_hub import DatasetCardData, ModelCardData

__all__ = ["CardKind", "is_own_card", "template_path", "write_card"]

CardKind = Literal["model", "hmm", "dataset"]

CARD_NAME = "README.md"
_MARK = "# Written by hmm-datasets, and anew by every run until you edit this file: "

# Every fact of a template, with its allowed types. Facts that may be left out are in _OPTIONAL too.
_TYPES: dict[str, dict[str, tuple[type, ...]]] = {
    "model": {
        "name": (str,),
        "summary": (str,),
        "license": (str, NoneType),
        "data": (str,),
        "parameters": (int,),
        "tokens": (int,),
        "global_batch": (int,),
        "length": (int, NoneType),
        "learning_rate": (float,),
        "precision": (str,),
        "command": (str,),
        "versions": (dict,),
        "metrics": (list,),
        "floor": (dict, NoneType),
        "stages": (list,),
        "base_model": (str, NoneType),
        "datasets": (list,),
        "repo_id": (str, NoneType),
        "limits": (list,),
    },
    "hmm": {
        "name": (str,),
        "num_states": (int,),
        "num_symbols": (int,),
        "corpus": (str, NoneType),
        "license": (str, NoneType),
        "log_likelihood_train": (float, NoneType),
        "log_likelihood_test": (float, NoneType),
        "entropy_rate": (float,),
        "entropy_rate_standard_error": (float,),
        "command": (str,),
        "summary": (str, NoneType),
        "versions": (dict,),
        "datasets": (list,),
        "repo_id": (str, NoneType),
        "limits": (list,),
    },
    "dataset": {
        "name": (str,),
        "hmm": (str,),
        "seed": (int,),
        "num_sequences": (int, NoneType),
        "length": (int,),
        "format": (int, str),
        "hash": (str,),
        "license": (str,),
        "summary": (str, NoneType),
        "entropy_rate": (float, NoneType),
        "entropy_rate_standard_error": (float, NoneType),
        "sample": (dict, NoneType),
        "repo_id": (str, NoneType),
        "limits": (list,),
    },
}
_OPTIONAL: dict[str, dict[str, Any]] = {
    "model": {"stages": [], "base_model": None, "datasets": [], "repo_id": None, "limits": []},
    "hmm": {"summary": None, "versions": {}, "datasets": [], "repo_id": None, "limits": []},
    "dataset": {
        "summary": None,
        "entropy_rate": None,
        "entropy_rate_standard_error": None,
        "sample": None,
        "repo_id": None,
        "limits": [],
    },
}
_METRIC = {"name": (str,), "value": (float,), "standard_error": (float, NoneType), "unit": (str,)}
_STAGE = {"stage": (str,), "data": (str, NoneType), "tokens": (int, NoneType)}
_SAMPLE = {"path": (str,), "sequences": (int,)}
_TAGS = {
    "model": ["hmm-datasets"],
    "hmm": ["hmm-datasets", "hidden-markov-model"],
    "dataset": ["hmm-datasets", "hidden-markov-model", "synthetic"],
}


def write_card(kind: CardKind, folder: str | os.PathLike, facts: dict[str, Any]) -> Path:
    """Fill the card of a kind and write it as `README.md`. It may replace a card that this function wrote before.

    A card that somebody has written or edited is not changed.

    Facts of a `"model"`:
        - `name`, `summary`, `precision` (`str`); `license` (`str`): an identifier of the Hub such as `"apache-2.0"`,
        or
          None if none is stated;
        - `data` (`str`): description of the corpus or HMM that it was trained on; `command` (`str`): the command that
          trained it;
        - `parameters`, `tokens` (total number trained on), `length` (in tokens, or None if unknown), `global_batch`
          (in sequences) (`int`);
        - `learning_rate` (`float`): the maximum; `versions` (`dict`): packages and their versions;
        - `metrics` (`list[dict]`): each with `name`, `value`, `unit` and `standard_error`, which is None if it was not
          estimated and 0 if the value is exact; `floor` (`dict` like a metric, or None): the best possible value;
        - optional: `stages` (`list[dict]`): each with `stage`, `data` and `tokens`, which are None if unknown;
          `base_model` (`str`), `datasets` (`list[str]`, names on the Hub), `repo_id` (`str`), `limits` (`list[str]`,
          added to the section of that name).

    Facts of an `"hmm"`:
        - `name`, `license`, `command` (`str`); `num_states`, `num_symbols` (`int`);
        - `corpus` (`str`): the corpus that it was fitted on, or None for a process that was not fitted;
        - `log_likelihood_train`, `log_likelihood_test` (`float`, nats per token, 0 or less; None if not measured);
        - `entropy_rate`, `entropy_rate_standard_error` (`float`, nats per token; an error of 0 means exact);
        - optional: `summary`, `versions`, `datasets`, `repo_id`, `limits`.

    Facts of a `"dataset"`, a repository with the two files of an HMM from which the sequences are computed:
        - `name`, `license` (`str`); `hmm` (`str`): name of the HMM; `seed`, `length` (`int`);
        - `num_sequences` (`int`, or None for endless); `format` (`int` or `str`): version of the stream;
        - `hash` (`str`): `HMM.fingerprint()`;
        - optional: `summary`, `entropy_rate`, `entropy_rate_standard_error`, `sample` (`dict` of `path` and
          `sequences`: a Parquet file with the first sequences), `repo_id`, `limits`.

    Args:
        kind (`str`): `"model"`, `"hmm"` or `"dataset"`.
        folder (`str` or `os.PathLike`): An existing folder.
        facts (`dict`): The facts above.

    Returns:
        `Path`: The file.

    Raises:
        [`InputError`]: The folder or a fact is missing, or a fact is unknown, of another type, empty or not finite.

    Example:

    ```python
    >>> write_card("dataset", ".", {"name": "Mess3", "seed": 0})
    Traceback (most recent call last):
    ...
    hmm_datasets.errors.InputError: facts of a dataset card: missing: hmm, num_sequences, length, format, hash, license

    ```
    """
    from huggingface_hub import DatasetCard, ModelCard
    from jinja2 import Environment, StrictUndefined

    if kind not in get_args(CardKind):
        raise InputError(f"kind is {kind!r}, expected one of {', '.join(get_args(CardKind))}")
    folder = Path(folder)
    if not folder.is_dir():
        raise InputError(f"{folder}: no such folder to write a card into")
    facts = _checked(kind, facts)
    data = _dataset_data(facts) if kind == "dataset" else _model_data(kind, facts)
    template = Environment(undefined=StrictUndefined).from_string(template_path(kind).read_text(encoding="utf-8"))
    card_class = DatasetCard if kind == "dataset" else ModelCard
    card = card_class(template.render(card_data=data.to_yaml(), **facts))
    path = folder / CARD_NAME
    if is_own_card(folder):
        with atomic_file(path) as temporary:
            temporary.write_text(_marked(str(card).rstrip("\n") + "\n"), encoding="utf-8")
    return path


def is_own_card(folder: str | os.PathLike) -> bool:
    """Whether [`write_card`] may write `README.md` in a folder: there is none, or one that it wrote and nobody edited.

    The front matter of such a card begins with a comment that has a hash of the rest.
    """
    path = Path(folder) / CARD_NAME
    if not path.exists():
        return True
    text = path.read_text(encoding="utf-8", errors="replace")
    rest = "".join(line for line in text.splitlines(keepends=True) if not line.startswith(_MARK))
    return text.startswith(f"---\n{_MARK}") and _marked(rest) == text


def _marked(text: str) -> str:
    digest = hashlib.sha256(text.encode()).hexdigest()[:16]
    return text.replace("---\n", f"---\n{_MARK}{digest}\n", 1)


def template_path(kind: CardKind) -> Path:
    """The path of the template of a kind."""
    return shipped(f"model_cards/{kind}.md")


def _checked(kind: CardKind, facts: dict[str, Any]) -> dict[str, Any]:
    types, optional, where = _TYPES[kind], _OPTIONAL[kind], f"facts of a {kind} card"
    if unknown := sorted(facts.keys() - types.keys()):
        raise InputError(f"{where}: unknown: {', '.join(unknown)}; expected: {', '.join(types)}")
    if missing := [name for name in types if name not in facts and name not in optional]:
        raise InputError(f"{where}: missing: {', '.join(missing)}")
    facts = {**optional, **facts}
    for name, value in facts.items():
        _check(f"{where}: {name}", value, types[name])
    if re.search(r"\s", facts["license"] or ""):
        raise InputError(f"{where}: license is {facts['license']!r}, expected an identifier such as apache-2.0")
    for name in ("datasets", "limits"):
        for index, value in enumerate(facts.get(name, [])):
            _check(f"{where}: {name}[{index}]", value, (str,))
    for index, metric in enumerate(facts.get("metrics", [])):
        _check_entry(f"{where}: metrics[{index}]", metric, _METRIC)
    for index, stage in enumerate(facts.get("stages", [])):
        _check_entry(f"{where}: stages[{index}]", stage, _STAGE)
    if facts.get("floor") is not None:
        _check_entry(f"{where}: floor", facts["floor"], _METRIC)
    if facts.get("sample") is not None:
        _check_entry(f"{where}: sample", facts["sample"], _SAMPLE)
    for name in ("log_likelihood_train", "log_likelihood_test"):
        if (facts.get(name) or 0) > 0:
            raise InputError(f"{where}: {name} is {facts[name]}, expected 0 or less; change the sign of a loss")
    return facts


def _check_entry(where: str, entry: Any, types: dict[str, tuple[type, ...]]) -> None:
    _check(where, entry, (dict,))
    for name, allowed in types.items():
        if name not in entry:
            raise InputError(f"{where}: missing: {name}")
        _check(f"{where}.{name}", entry[name], allowed)


def _check(where: str, value: Any, types: tuple[type, ...]) -> None:
    # Numbers of NumPy are accepted, and integers for floats, but not booleans.
    allowed = tuple({int: Integral, float: Real}.get(kind, kind) for kind in types)
    if not isinstance(value, allowed) or isinstance(value, bool):
        expected = " or ".join("None" if kind is NoneType else kind.__name__ for kind in types)
        raise InputError(f"{where} is {value!r}, expected {expected}")
    if isinstance(value, str) and not value.strip():
        raise InputError(f"{where} is empty")
    if isinstance(value, Real) and not math.isfinite(value):
        raise InputError(f"{where} is {value}, expected a finite number")
    if isinstance(value, Integral) and value < 0 and int in types:
        raise InputError(f"{where} is {value}, expected 0 or more")


def _model_data(kind: CardKind, facts: dict[str, Any]) -> "ModelCardData":
    from huggingface_hub import EvalResult, ModelCardData

    hub_name = next(iter(facts["datasets"]), None)
    results = [
        EvalResult(
            task_type="text-generation",
            dataset_type=hub_name or "custom",
            dataset_name=hub_name or facts["data"].strip().splitlines()[0][:80],
            metric_type=re.sub(r"[^a-z0-9]+", "_", metric["name"].lower()).strip("_"),
            metric_name=f"{metric['name']} ({metric['unit']})",
            metric_value=float(metric["value"]),
            metric_args=_error_of(metric),
        )
        for metric in facts.get("metrics", [])
    ]
    return ModelCardData(
        license=facts["license"] and facts["license"].lower(),
        library_name="transformers" if kind == "model" else "hmm-datasets",
        pipeline_tag="text-generation" if kind == "model" else None,
        tags=_TAGS[kind],
        base_model=facts.get("base_model"),
        datasets=facts["datasets"] or None,
        model_name=facts["name"] if results else None,
        eval_results=results or None,
    )


def _error_of(metric: dict[str, Any]) -> dict[str, float] | None:
    error = metric["standard_error"]
    return None if error is None else {"standard_error": float(error)}


def _dataset_data(facts: dict[str, Any]) -> "DatasetCardData":
    from huggingface_hub import DatasetCardData

    more = {}
    if facts["sample"] is not None:
        more["configs"] = [{"config_name": "sample", "data_files": facts["sample"]["path"]}]
    return DatasetCardData(
        license=facts["license"].lower(),
        pretty_name=facts["name"],
        tags=_TAGS["dataset"],
        task_categories=["text-generation"],
        size_categories=[_size_category(facts["num_sequences"])],
        **more,
    )


def _size_category(num_sequences: int | None) -> str:
    """The Hub's size category of a number of sequences."""
    names = ["1K", "10K", "100K", "1M", "10M", "100M", "1B", "10B", "100B", "1T"]
    if num_sequences is None or num_sequences >= 10**12:
        return "n>1T"
    power = len(str(num_sequences)) - 4  # 0 from 1,000 on
    return "n<1K" if power < 0 else f"{names[power]}<n<{names[power + 1]}"
