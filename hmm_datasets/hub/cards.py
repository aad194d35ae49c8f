"""Cards: the README of a model, an HMM or a data set on the Hub, filled from facts.

The text comes from a template, `model_cards/{kind}.md`. This module checks the facts, makes the front matter, by which
the Hub indexes the card, and writes the file. A fact that is missing, unknown to the template or not finite is an
error, because readers would not notice a gap in a card. Facts are text: what would be HTML is escaped.
"""

import hashlib
import math
import os
import re
from numbers import Real
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from ..errors import InputError, printable
from ..files import atomic_file
from ..runtime.shipped import shipped

if TYPE_CHECKING:
    from huggingface_hub import DatasetCardData, EvalResult, ModelCardData

CardKind = Literal["model", "hmm", "dataset", "text"]
_OPTIONAL: dict[str, dict[str, Any]] = {
    "all": {"repo_id": None, "limits": []},
    "model": {"stages": [], "details": [], "base_model": None, "library": "transformers"}
    | {"license_name": None, "license_link": None, "has_tokenizer": False},
    "text": {"tokenizer": None},
    "dataset": {"configs": []},
    "hmm": {"summary": None, "is_hmm": True, "is_exact": True, "optimal_loss": None, "versions": {}}
    | {"has_names": False, **dict.fromkeys(("corpus", "command", "log_likelihood_train", "log_likelihood_test"))},
}
"""Facts that may be left out in the cards of all kinds, and in those of one."""
CARD_NAME = "README.md"
PLACEHOLDER = "USER/NAME"
"""The name of the repository in a card that was written before it was known."""

_MARK = "# Written by hmm-datasets, and anew by every run until you edit this file: "
_TAGS = {
    "model": ["hmm-datasets"],
    "hmm": ["hmm-datasets", "hidden-markov-model"],
    "dataset": ["hmm-datasets", "hidden-markov-model", "synthetic"],
    "text": ["hmm-datasets"],
}
_CODE = re.compile(r"((?<![\\`])`[^`\n]+`(?!`))")
_TAG = re.compile(r"<(?=[A-Za-z/!?])(?!https?://[^\s<>]*>)")
_FENCE = re.compile(r"^[\s>*+-]*(?:\d+[.)]\s+)?(`{3,}|~{3,})", re.MULTILINE)
_PARAGRAPHS = ("data", "summary", "tables", "limits")  # facts that may have several lines
_PROGRAMS = ("command", "tables")  # in blocks of code


def checked_facts(kind: CardKind, template: str, facts: dict[str, Any]) -> dict[str, Any]:
    """The facts that a template asks for, with those that may be left out.

    Raises:
        [`InputError`]: a fact is missing or unknown, or the license is no identifier.
    """
    from jinja2 import Environment, meta

    optional, where = _OPTIONAL["all"] | _OPTIONAL.get(kind, {}), f"facts of a {kind} card"
    asked = {*meta.find_undeclared_variables(Environment().parse(template)), "license", *optional} - {"card_data"}
    if unknown := sorted(facts.keys() - asked):
        raise InputError(f"{where}: unknown: {', '.join(unknown)}; expected: {', '.join(sorted(asked))}")
    if missing := sorted(asked - facts.keys() - optional.keys()):
        raise InputError(f"{where}: missing: {', '.join(missing)}")
    facts = optional | facts
    if re.search(r"\s", facts["license"] or ""):
        raise InputError(f"{where}: license is {facts['license']!r}, expected an identifier such as apache-2.0")
    return facts


def _plain(where: str, name: str, fact: Any) -> Any:
    """A fact without control codes and HTML and, but for those of several paragraphs, in one line, so that it is not
    Markdown of its own; a block of code that does not end is no block."""
    if isinstance(fact, dict):
        return {key: _plain(f"{where}.{key}", name, part) for key, part in fact.items()}
    if isinstance(fact, list):
        return [_plain(f"{where}[{index}]", name, part) for index, part in enumerate(fact)]
    if isinstance(fact, Real) and not math.isfinite(fact):
        raise InputError(f"{where} is {fact}, expected a finite number")
    if not isinstance(fact, str):
        return fact
    text = printable(fact)
    if name in _PARAGRAPHS:
        text = text if len(_FENCE.findall(text)) % 2 == 0 else _FENCE.sub(lambda match: f"&#8203;{match[0]}", text)
    elif _FENCE.search(text) or name != "command":
        text = " ".join(text.split("\n"))
    if name in _PROGRAMS:
        return text
    return "".join(part if _CODE.fullmatch(part) else _TAG.sub("&lt;", part) for part in _CODE.split(text))


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
          estimated and 0 if the value is exact; `optimal_loss` (`dict` like a metric, or None): the loss of the
          optimal predictor, or of one with a lower loss, on the same held-out sequences;
        - optional: `stages` (`list[dict]`): each with `stage`, `data` and `tokens`, which are None if unknown;
          `details` (`list[dict]` of `name` and `value`): more rows of the first table;
          `library` (`str`): what loads it: `"transformers"`, `"peft"` or `"hmm-datasets"`;
          `license_name`, `license_link` (`str`): name and address of the license `other`; `base_model` (`str`),
          `repo_id` (`str`), `limits` (`list[str]`, added to the section of that name), `has_tokenizer` (`bool`).

    Facts of an `"hmm"`:
        - `name`, `license` (`str`); `num_symbols` (`int`), and `num_states`, which is None without states;
        - `entropy_rate`, `entropy_rate_standard_error` (`float`, nats per token; an error of 0 means exact);
        - of one that was fitted: `corpus`, `command` (`str`) and `log_likelihood_train`, `log_likelihood_test`
          (`float`, nats per token, 0 or less; None if not measured);
        - optional: `summary`, `versions`, `repo_id`, `limits`; `is_hmm` (`bool`), False for a process that
          is neither an HMM nor a family of them, `is_exact` (`bool`), whether its optimum is known, and `optimal_loss`
          (`dict` of `value`, `standard_error`, `length`), for a process without an entropy rate; `has_names` (`bool`),
          whether the symbols have names.

    Facts of a `"dataset"`, written by [`~hmm_datasets.hub.kinds.process.write_hmm_dataset`]:
        - `name`, `process`, `fingerprint` (`str`); `num_symbols`, `seed`, `length`, `num_sequences`,
          `num_test_sequences`, `format` (`int`), and `num_states`, which is None without states; `bos` (`bool`);
          `columns` (`list[str]`) of the config `oracle`; `size` (`str`); `license` (`str` or None);
        - `exact` (`bool`): whether `optimal_loss` (`dict` of `mean`, `standard_error`) is no lower bound;
          `entropy_rate` (`dict` of `value`, `standard_error` and, if there are bounds, `lower` and `upper`; or None
          where the process is not stationary);
        - `tables` (`str`): the expected loss of predictors by position, in columns; `configs` as those of a `"text"`;
        - optional: `repo_id`, `limits`.

    Facts of a `"text"`, a data set of token streams, written by [`~hmm_datasets.hub.kinds.text`]:
        - `name` (`str`), `license` (`str` or None); `stream` (`str`): a slash and the path of the first stream in the
          repository, or empty;
        - `configs` (`list[dict]` of `name` and `splits`, a list of `dict` of `split`, `path`, `rows` and `tokens`,
          which is None if unknown), the first of which is the default; `details` (`list[dict]` of `name` and `value`);
        - optional: `repo_id`, `limits`; `tokenizer` (`str`): its folder in the repository.

    Args:
        kind (`str`): `"model"`, `"hmm"`, `"dataset"` or `"text"`.
        folder (`str` or `os.PathLike`): An existing folder.
        facts (`dict`): The facts above.

    Returns:
        `Path`: The file.

    Raises:
        [`InputError`]: The folder or a fact is missing, or a fact is unknown or not finite.

    Example:

    ```python
    >>> write_card("dataset", ".", {"name": "Mess3", "seed": 0})
    Traceback (most recent call last):
    ...
    hmm_datasets.errors.InputError: facts of a dataset card: missing: bos, columns, entropy_rate, exact, fingerprint, \
format, length, license, num_sequences, num_states, num_symbols, num_test_sequences, optimal_loss, process, size, \
tables

    ```
    """
    from huggingface_hub import DatasetCard, ModelCard
    from jinja2 import Environment, StrictUndefined

    if kind not in get_args(CardKind):
        raise InputError(f"kind is {kind!r}, expected one of {', '.join(get_args(CardKind))}")
    folder = Path(folder)
    if not folder.is_dir():
        raise InputError(f"{folder}: no such folder to write a card into")
    template = template_path(kind).read_text(encoding="utf-8")
    facts = checked_facts(kind, template, facts)
    plain = {name: _plain(f"facts of a {kind} card: {name}", name, fact) for name, fact in facts.items()}
    is_data = kind in ("dataset", "text")
    data = _dataset_data(kind, facts) if is_data else _model_data(kind, facts)
    card_class = DatasetCard if is_data else ModelCard
    filled = Environment(undefined=StrictUndefined).from_string(template).render(card_data=data.to_yaml(), **plain)
    card = card_class(filled)
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


def _model_data(kind: CardKind, facts: dict[str, Any]) -> "ModelCardData":
    from huggingface_hub import ModelCardData

    named = facts.get("data", "").strip().partition("\n")[0][:80]
    results = [_eval_result(metric, named) for metric in facts.get("metrics", [])]
    return ModelCardData(
        license=facts["license"] and facts["license"].lower(),
        license_name=facts.get("license_name"),
        license_link=facts.get("license_link"),
        library_name="transformers" if kind == "model" else "hmm-datasets",
        pipeline_tag="text-generation" if kind == "model" else None,
        tags=_TAGS[kind],
        base_model=facts.get("base_model"),
        model_name=facts["name"] if results else None,
        eval_results=results or None,
    )


def _eval_result(metric: dict[str, Any], dataset_name: str) -> "EvalResult":
    """A metric in the form of the card's `model-index`."""
    from huggingface_hub import EvalResult

    error = metric["standard_error"]
    return EvalResult(
        task_type="text-generation",
        dataset_type="custom",
        dataset_name=dataset_name,
        metric_type=re.sub(r"[^a-z0-9]+", "_", metric["name"].lower()).strip("_"),
        metric_name=f"{metric['name']} ({metric['unit']})",
        metric_value=float(metric["value"]),
        metric_args=None if error is None else {"standard_error": float(error)},
    )


def _dataset_data(kind: CardKind, facts: dict[str, Any]) -> "DatasetCardData":
    from huggingface_hub import DatasetCardData

    return DatasetCardData(
        license=facts["license"] and facts["license"].lower(),
        pretty_name=facts["name"],
        tags=_TAGS[kind],
        task_categories=["text-generation"],
        configs=[
            {
                "config_name": config["name"],
                "data_files": [{"split": split["split"], "path": split["path"]} for split in config["splits"]],
                **({"default": True} if index == 0 else {}),
            }
            for index, config in enumerate(facts["configs"])
        ]
        or None,
    )
