"""ChatCORE: the mean over tasks of a chat model's accuracy above chance, asked in its chat template.

For a task with accuracy `a`, whose questions a guess answers with probability `b`, the centered accuracy is
`(a - b) / (1 - b)`: 0 for guessing, 1 if all is right. The figure is their mean, as nanochat's `scripts/chat_eval.py`
(Karpathy, 2025, https://github.com/karpathy/nanochat) defines it for ARC-Easy, ARC-Challenge, MMLU, GSM8K and
HumanEval. It depends on the tasks that went in, so its name lists them.

In ARC and MMLU the answer is the likeliest of the letters of the choices, so that small models give a signal too. From
the same pass it is seen whether the most likely token of all is the right letter (right by generation), and whether it
is a letter at all (in the asked format). `b` is the mean of 1 / number of choices: 0.25, but for a few questions of
ARC that have three or five. In GSM8K, IFEval and HumanEval the model generates, and `b` is 0.

Intervals of shares are Wilson's, that of the figure too, of as many questions as have the same variance. The
cost is a forward pass per question with letters, and up to `max_gen_toks` passes of one token (see `harness_tasks/`)
per generated answer.

The tasks of ChatCORE: their names, what they need, and their questions, which come from the Hub.

They are defined in `harness_tasks/` in the form of lm-evaluation-harness, which reads the folder by itself too
(`lm_eval run --include_path`), under the names `chat_core_TASK`.
"""

import hashlib
import importlib.util
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ...errors import InputError, first_line
from ..chat.measures import share
from ..core import centered_mean
from .sandbox import check_sandbox

if TYPE_CHECKING:
    from lm_eval.api.task import Task
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


def measure_chat_core(
    model: "PreTrainedModel",
    tokenizer: "PreTrainedTokenizerBase",
    tasks: "Mapping[str, Task]",
    *,
    max_per_task: int | None = None,
    batch_size: int = 32,
    seed: int = 0,
) -> dict[str, Any]:
    """Put the questions of tasks to a chat model, in this process alone.

    Args:
        model ([`~transformers.PreTrainedModel`]): a causal language model in eval mode.
        tokenizer ([`~transformers.PreTrainedTokenizerBase`]): its tokenizer, with a chat template.
        tasks (mapping): what [`~.tasks.load_tasks`] returns.
        max_per_task (`int`, *optional*): maximum number of questions per task, of all kinds and always the same.
        batch_size (`int`, *optional*, defaults to 32): rows per forward pass.

    Returns:
        `dict`: the `name` of the figure, which lists its tasks; the `score` with its interval, `low` to `high`;
        `max_per_task`; in `tasks` for each task `items`, `shots`, `accuracy` with `accuracy_low` and `accuracy_high`,
        `baseline`, `centered` with `low` and `high`, the shares `exact` and `in_format` (None if the task asks for no
        format), the number of questions that are `too_long` for the model and count as wrong, the `data` set and the
        `sha256` of the questions; and `items`, a row for each question.
    """
    from lm_eval import evaluate

    from .language_model import ChatLanguageModel

    asked = ChatLanguageModel(model, tokenizer, batch_size)
    # `simple_evaluate` would also seed all generators, and list the machine's packages and devices for seconds.
    found = evaluate(
        asked,
        {"tasks": {task.config.task: task for task in tasks.values()}, "groups": {}, "group_map": {}},
        limit=max_per_task,
        apply_chat_template=True,
        bootstrap_iters=0,
        confirm_run_unsafe_code=True,  # `check_tasks` has asked for permission
    )
    samples = {
        name: sorted(found["samples"][task.config.task], key=lambda sample: sample["doc_id"])
        for name, task in tasks.items()
    }
    measured = chat_core_summary(samples, asked.too_long, max_per_task)
    for name, task in tasks.items():
        measured["tasks"][name]["data"] = _data(task)
    items = [_item(name, sample, asked.too_long) for name, rows in samples.items() for sample in rows]
    return measured | {"items": items}


def _data(task: "Task") -> str:
    """The data set of a task, by its name on the Hub and the name of its configuration."""
    return " ".join(filter(None, [task.config.dataset_path, task.config.dataset_name]))


def chat_core_summary(
    samples: Mapping[str, Sequence[Mapping[str, Any]]],
    too_long: set[str] = frozenset(),
    max_per_task: int | None = None,
) -> dict[str, Any]:
    """The figure and the tasks' results, from the samples that the harness returns for each task."""
    correct = {name: np.array([sample["correct"] for sample in rows]) for name, rows in samples.items()}
    chances = {name: float(np.mean([sample["chance"] for sample in rows])) for name, rows in samples.items()}
    found = centered_mean({name: (correct[name], chances[name]) for name in samples})
    for name, rows in samples.items():
        accuracy = _share(rows, "correct")
        hashes = "".join(sample["doc_hash"] for sample in rows)
        found["tasks"][name] |= {
            "shots": 0,
            "accuracy_low": accuracy["low"],
            "accuracy_high": accuracy["high"],
            "exact": _share(rows, "exact"),
            "in_format": _share(rows, "in_format") if "in_format" in rows[0] else None,
            "too_long": sum(_prompt(sample) in too_long for sample in rows),
            "sha256": hashlib.sha256(hashes.encode()).hexdigest(),
        }
    at_most = "" if max_per_task is None else f", at most {max_per_task} questions per task"
    return {"name": f"ChatCORE of {', '.join(samples)}{at_most}", "max_per_task": max_per_task} | found


def _share(rows: Sequence[Mapping[str, Any]], name: str) -> dict[str, float]:
    return share(int(sum(sample[name] for sample in rows)), len(rows))


def _prompt(sample: Mapping[str, Any]) -> str:
    return sample["arguments"][0][0]


def _item(name: str, sample: Mapping[str, Any], too_long: set[str]) -> dict[str, Any]:
    """A question as a row: the prompt, what was said or how likely each letter is, and how that was judged."""
    is_choice = len(sample["arguments"]) > 1
    if is_choice:
        letters = [continuation for _, continuation in sample["arguments"]]
        nats = [likelihood for likelihood, _ in sample["filtered_resps"]]
        said = {"log_likelihoods": dict(zip(letters, nats, strict=True)), "expected": letters[sample["target"]]}
    else:
        said = {"answer": sample["filtered_resps"][0], "expected": sample["target"]}
    judged = {key: bool(sample[key]) for key in ("correct", "exact", "in_format") if key in sample}
    prompt = _prompt(sample)
    return {"task": name, "item": sample["doc_id"], "prompt": prompt, **said, **judged, "too_long": prompt in too_long}


CHAT_CORE_TASKS = ("gsm8k", "arc_easy", "arc_challenge", "mmlu", "ifeval", "humaneval")
"""All tasks, in the order of the table."""

DEFAULT_TASKS = CHAT_CORE_TASKS[:-1]
"""Those that run no code of the model."""

_FOLDER = Path(__file__).with_name("harness_tasks")
_SENTENCES = "tokenizers/punkt_tab"
_FOR_IFEVAL = ("langdetect", "immutabledict", "nltk")


def check_tasks(tasks: Sequence[str], run_code: bool) -> None:
    """Raise [`InputError`] if tasks are unknown, or would run code of the model without permission."""
    for name in tasks:
        if name not in CHAT_CORE_TASKS:
            raise InputError(f"chat_core_tasks has {name!r}; expected some of {', '.join(CHAT_CORE_TASKS)}")
    if not tasks or len(set(tasks)) < len(tasks):
        raise InputError(f"chat_core_tasks is {list(tasks)}; expected one or more tasks, each once")
    if "humaneval" in tasks and not run_code:
        raise InputError(
            "chat_core_tasks has humaneval, which runs Python that the model writes; allow it with "
            "--chat_core_run_code true, or leave it out"
        )


def check_requirements(tasks: Sequence[str]) -> None:
    """Raise [`InputError`] if a package or file that the tasks need is missing and cannot be downloaded."""
    needed = ("lm_eval", *(_FOR_IFEVAL if "ifeval" in tasks else ()))
    missing = [name for name in needed if importlib.util.find_spec(name) is None]
    if missing:
        instead = "" if "lm_eval" in missing else ", or leave ifeval out of --chat_core_tasks"
        raise InputError(
            f"task chat_core: {' and '.join(missing)} cannot be imported; install them with "
            f'pip install "hmm-datasets[lm-eval]"{instead}'
        )
    if "ifeval" in tasks:
        _check_sentences()
    if "humaneval" in tasks:
        check_sandbox()


def _check_sentences() -> None:
    """The harness downloads these rules when ifeval is loaded, but continues without them until one needs them."""
    import nltk

    for attempt in ("find", "download"):
        try:
            nltk.data.find(_SENTENCES)
            return
        except LookupError:
            if attempt == "find":
                nltk.download("punkt_tab", quiet=True)
    raise InputError(
        "task chat_core: ifeval needs nltk's punkt_tab, which is not here and cannot be downloaded; run "
        "python -m nltk.downloader punkt_tab where there is a network and copy ~/nltk_data, or leave ifeval out of "
        "--chat_core_tasks"
    )


def load_tasks(tasks: Sequence[str]) -> "dict[str, Task]":
    """The tasks with their questions, downloaded where they are not in the cache yet.

    Raises:
        `InputError`: questions cannot be loaded.
    """
    check_requirements(tasks)
    from lm_eval.tasks import TaskManager

    manager, found = TaskManager(include_path=str(_FOLDER), include_defaults=False), {}
    for name in (task for task in CHAT_CORE_TASKS if task in tasks):
        try:
            (found[name],) = manager.load([f"chat_core_{name}"])["tasks"].values()
        except Exception as error:  # datasets and the client of the Hub raise many types
            reason = first_line(error)
            raise InputError(
                f"task chat_core: the questions of {name} cannot be loaded ({reason}); connect to the Hub, or leave "
                f"{name} out of --chat_core_tasks"
            ) from error
    return found
