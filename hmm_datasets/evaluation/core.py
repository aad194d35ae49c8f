"""The CORE score of a causal language model, and the result of every item.

The loss of an option is the mean of -log P over its scored tokens. Which tokens are scored depends on the type of
task:

- `multiple_choice`: from the first token in which the prompts of an item differ (or one before, if a prompt ends
  there) to the end of each prompt;
- `schema`: the longest suffix that the prompts have in common;
- `language_modeling`: the tokens that the continuation adds.

An item of the first two types is correct if the option of minimum loss, the first one on ties, is the gold one. An
item of the third type is correct if each scored token is the most likely one after those before it. The definition is
DCLM's (arXiv:2406.11794), as nanochat computes it.

The common beginning of an item's prompts (solved examples and question) is run once (see `scoring`). The cost is that
of the tokens of the prompts, twice with the control; memory is that of a batch and of the prompts of some hundred
items.

The 22 tasks of CORE, the benchmark score of DCLM (Li et al., 2024, arXiv:2406.11794).

Types, shots, delimiters and files are taken from `eval/mmlu_and_lowvar.yaml` of mlfoundations/dclm (revision
361714bd). Random baselines, in percent, are taken from its `eval/eval_meta_data.csv` (v2) and `eval_meta_data_v1.csv`
(v1). The two tables differ for three of these tasks. Published scores, such as 0.2565 for GPT-2 with 1.6 billion
parameters, use v1.

The questions of CORE: reading, checking and ordering them, and writing them as prompts.

Rows of a file are JSON objects. Those of `multiple_choice` have `query`, `choices` and `gold`, the index of the right
choice; those of `schema` have `context_options`, `continuation` and `gold`; those of `language_modeling` have
`context` and `continuation`. The rows are shuffled by `random.Random(1337)`, then cut. The solved examples of item `i`
are drawn from the other items by `random.Random(1234 + i)`.

A prompt is the solved examples followed by the question, separated by blank lines. A solved example consists of:

- `multiple_choice`: query, delimiter, right choice;
- `schema`: right context, delimiter, continuation;
- `language_modeling`: context stripped of white space, delimiter, continuation.

A multiple-choice question has a prompt for each choice, and a schema question has one for each context. A question of
language modeling has one prompt without and one with the continuation.

The CORE score: the mean over tasks of accuracy above chance, with intervals.

For a task with accuracy `a` and accuracy `b` of guessing, the centered accuracy is `(a - b) / (1 - b)`. The score is
the mean of these (Li et al., 2024, arXiv:2406.11794, section 3.5). Intervals are over the items of
each task: Wilson's, and Wilson's of as many items as have the same variance ([`~hmm_datasets.intervals`]).
"""

import hashlib
import random
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..array_input import numbers
from ..errors import InputError
from ..foreign.json import parse_json
from ..intervals import mean_of_shares, wilson
from ..paired_differences import check_bootstrap
from ..runtime import environment
from ..runtime.progress import progress_bar
from ..text.corpora.keys import UnusedKeys, unused_keys
from ..text.corpora.local_files import check_text, shorten
from ..text.tokenizers.encoding import encode_texts
from .scoring import (
    ContinuationScores,
    Row,
    beginning_token,
    common_prefix,
    context_limit,
    score_rows,
    shared_length,
)

if TYPE_CHECKING:
    from accelerate import Accelerator
    from tqdm import tqdm
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

MULTIPLE_CHOICE, SCHEMA, LANGUAGE_MODELING = "multiple_choice", "schema", "language_modeling"
BASELINES = ("v1", "v2")

_SPACE, _ANSWER = " ", "\nAnswer: "


@dataclass(frozen=True)
class CoreTask:
    """A task of CORE.

    Attributes:
        label (`str`): name of the task.
        type (`str`): `multiple_choice`, `schema` or `language_modeling`.
        shots (`int`): number of solved examples before each question.
        delimiter (`str`): text between a question and its answer.
        file (`str`): name of its file of questions.
        v1 (`float`), v2 (`float`): accuracy of guessing in percent, in each table of baselines.
    """

    label: str
    type: str
    shots: int
    delimiter: str
    file: str
    v1: float
    v2: float

    def baseline(self, version: str) -> float:
        """Accuracy of guessing, as a share."""
        return getattr(self, version) / 100


CORE_TASKS = {
    task.label: task
    for task in (
        CoreTask("hellaswag_zeroshot", MULTIPLE_CHOICE, 0, _SPACE, "hellaswag.jsonl", 25, 25),
        CoreTask("jeopardy", LANGUAGE_MODELING, 10, _ANSWER, "jeopardy_all.jsonl", 0, 0),
        CoreTask("bigbench_qa_wikidata", LANGUAGE_MODELING, 10, _SPACE, "bigbench_qa_wikidata.jsonl", 0, 0),
        CoreTask("arc_easy", MULTIPLE_CHOICE, 10, _ANSWER, "arc_easy.jsonl", 25, 25),
        CoreTask("arc_challenge", MULTIPLE_CHOICE, 10, _ANSWER, "arc_challenge.jsonl", 25, 25),
        CoreTask("copa", MULTIPLE_CHOICE, 0, _SPACE, "copa.jsonl", 50, 50),
        CoreTask("commonsense_qa", MULTIPLE_CHOICE, 10, _SPACE, "commonsense_qa.jsonl", 20, 40.3),
        CoreTask("piqa", MULTIPLE_CHOICE, 10, _ANSWER, "piqa.jsonl", 50, 50),
        CoreTask("openbook_qa", MULTIPLE_CHOICE, 0, _SPACE, "openbook_qa.jsonl", 25, 25),
        CoreTask("lambada_openai", LANGUAGE_MODELING, 0, _SPACE, "lambada_openai.jsonl", 0, 0),
        CoreTask("hellaswag", MULTIPLE_CHOICE, 10, _SPACE, "hellaswag.jsonl", 25, 25),
        CoreTask("winograd", SCHEMA, 0, _SPACE, "winograd_wsc.jsonl", 50, 50),
        CoreTask("winogrande", SCHEMA, 0, _SPACE, "winogrande.jsonl", 50, 50),
        CoreTask("bigbench_dyck_languages", LANGUAGE_MODELING, 10, _SPACE, "bigbench_dyck_languages.jsonl", 0, 0),
        CoreTask("agi_eval_lsat_ar", MULTIPLE_CHOICE, 3, _SPACE, "agi_eval_lsat_ar.jsonl", 20, 25),
        CoreTask("bigbench_cs_algorithms", LANGUAGE_MODELING, 10, _SPACE, "bigbench_cs_algorithms.jsonl", 0, 0),
        CoreTask("bigbench_operators", LANGUAGE_MODELING, 10, _SPACE, "bigbench_operators.jsonl", 0, 0),
        CoreTask(
            "bigbench_repeat_copy_logic", LANGUAGE_MODELING, 10, _SPACE, "bigbench_repeat_copy_logic.jsonl", 0, 0
        ),
        CoreTask("squad", LANGUAGE_MODELING, 10, _SPACE, "squad.jsonl", 0, 0),
        CoreTask("coqa", LANGUAGE_MODELING, 0, _SPACE, "coqa.jsonl", 0, 0),
        CoreTask("boolq", MULTIPLE_CHOICE, 10, _ANSWER, "boolq.jsonl", 62, 62),
        CoreTask(
            "bigbench_language_identification",
            *(MULTIPLE_CHOICE, 10, _SPACE, "bigbench_language_identification.jsonl", 9.1, 25),
        ),
    )
}
"""The tasks by label, in DCLM's order. Hellaswag counts twice, without and with examples."""


def core_tasks(labels: Sequence[str] | None = None) -> list[CoreTask]:
    """The tasks with the given labels; all tasks for None.

    Raises:
        `InputError`: a label that CORE does not have.

    ```python
    >>> [(task.file, task.shots) for task in core_tasks(["copa"])]
    [('copa.jsonl', 0)]

    ```
    """
    for label in labels or ():
        if label not in CORE_TASKS:
            raise InputError(f"task {label!r} is not in CORE; expected some of {', '.join(CORE_TASKS)}")
    return [CORE_TASKS[label] for label in dict.fromkeys(CORE_TASKS if labels is None else labels)]


def check_baselines(version: str) -> None:
    """Raise [`InputError`] for an unknown table of baselines."""
    if version not in BASELINES:
        raise InputError(f"baselines={version!r}: expected one of {', '.join(BASELINES)}")


def core_name(labels: Iterable[str]) -> str:
    """The name of a score over these tasks, which is CORE only if no task is missing.

    ```python
    >>> core_name(["copa", "squad"])
    'CORE subset (2 of 22 tasks)'

    ```
    """
    known = len(set(labels))
    return "CORE" if known == len(CORE_TASKS) else f"CORE subset ({known} of {len(CORE_TASKS)} tasks)"


_ORDER_SEED, _EXAMPLES_SEED, _SWAP_SEED = 1337, 1234, 4321

_OPTIONS = {MULTIPLE_CHOICE: "choices", SCHEMA: "context_options"}
_TEXTS = {
    MULTIPLE_CHOICE: ("query",),
    SCHEMA: ("continuation",),
    LANGUAGE_MODELING: ("context", "continuation"),
}
_ASKED = {MULTIPLE_CHOICE: "query", SCHEMA: "continuation", LANGUAGE_MODELING: "context"}
"""The field that determines the right answer; a corrupted item takes it from another item."""


@dataclass(frozen=True)
class Questions:
    """The questions of a task.

    Attributes:
        task ([`CoreTask`]): the task.
        rows (`list` of `dict`): the questions, shuffled and cut.
        sha256 (`str`): hash of the whole file.
    """

    task: CoreTask
    rows: list[dict[str, Any]]
    sha256: str

    def examples(self, item: int) -> list[dict[str, Any]]:
        """The rows that precede an item as solved examples."""
        generator = random.Random(_EXAMPLES_SEED + item)
        # Drawn as from a list of the other rows; that list is not needed, since drawing depends only on its length.
        drawn = generator.sample(range(len(self.rows) - 1), self.task.shots)
        return [self.rows[index + (index >= item)] for index in drawn]

    def corrupted(self) -> list[dict[str, Any]]:
        """The rows, each with the question of another row.

        Each item gets the query (`multiple_choice`), continuation (`schema`) or context (`language_modeling`) of
        another item. Its choices, contexts or continuation stay, and so does which of them counts as right. A seeded
        cycle through all items (Sattolo's algorithm) ensures that no item keeps its own question. The question then
        has no information about the right answer, so accuracy falls to what the options alone give away, which is
        about chance.
        """
        order = list(range(len(self.rows)))
        generator = random.Random(_SWAP_SEED)
        for last in range(len(order) - 1, 0, -1):
            other = generator.randrange(last)
            order[last], order[other] = order[other], order[last]
        field = _ASKED[self.task.type]
        return [row | {field: self.rows[other][field]} for row, other in zip(self.rows, order, strict=True)]

    def prompts(self, row: dict[str, Any], item: int) -> list[str]:
        """The prompts of a row that is used as item number `item`."""
        task, gap = self.task, "\n\n"
        shown = "".join(solved(task, example) + gap for example in self.examples(item))
        if task.type == MULTIPLE_CHOICE:
            return [shown + row["query"] + task.delimiter + choice for choice in row["choices"]]
        if task.type == SCHEMA:
            return [shown + context + task.delimiter + row["continuation"] for context in row["context_options"]]
        asked = shown + row["context"].strip() + task.delimiter
        return [asked.rstrip(), asked + row["continuation"]]


def solved(task: CoreTask, row: dict[str, Any]) -> str:
    """A question with its answer."""
    if task.type == MULTIPLE_CHOICE:
        return row["query"] + task.delimiter + row["choices"][row["gold"]]
    if task.type == SCHEMA:
        return row["context_options"][row["gold"]] + task.delimiter + row["continuation"]
    return row["context"].strip() + task.delimiter + row["continuation"]


def find_questions(
    folder: str | Path, tasks: list[CoreTask], *, only_found: bool, max_per_task: int | None = None
) -> list[Questions]:
    """Read the question files of tasks, wherever they are under a folder.

    Args:
        folder (`str` or `Path`): folder to search for files by their names.
        tasks (`list` of [`CoreTask`]): the tasks.
        only_found (`bool`): leave out tasks that have no file; otherwise a missing file is an error.
        max_per_task (`int`, *optional*): maximum number of rows per task, after the shuffle.

    Returns:
        `list` of [`Questions`], in the order of the tasks.

    Raises:
        `InputError`: no folder; no file for a task, or two; a row without the fields of its type, given by file and
            line; or fewer rows than the solved examples need.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise InputError(f"{folder}: no such folder; expected one with the .jsonl files of CORE's tasks")
    if max_per_task is not None and max_per_task < 1:
        raise InputError(f"max_per_task={max_per_task}: expected 1 or more")
    paths_by_name: dict[str, list[Path]] = {}
    for path in sorted(folder.rglob("*.jsonl")):
        paths_by_name.setdefault(path.name, []).append(path)
    found = []
    for task in tasks:
        paths = paths_by_name.get(task.file, [])
        if not paths and only_found:
            continue
        if len(paths) != 1:
            problem = f"{paths[0]} and {paths[1]}; keep one" if paths else f"no {task.file} under {folder}"
            raise InputError(f"{task.label}: {problem}")
        found.append(_read(task, paths[0], max_per_task))
    if not found:
        raise InputError(f"{folder}: has none of CORE's files, such as {tasks[0].file}")
    return found


def _read(task: CoreTask, path: Path, max_per_task: int | None) -> Questions:
    content = path.read_bytes()
    rows, unused = [], UnusedKeys()
    for number, line in enumerate(content.split(b"\n"), start=1):
        if line.strip():
            row = _checked(task, line, f"{path}:{number}")
            used = (*_TEXTS[task.type], *({_OPTIONS[task.type], "gold"} if task.type in _OPTIONS else ()))
            rows.append({name: row[name] for name in used})
            unused.rows += 1
            unused.update(unused_keys(row, used, ()))
    if environment.rank() == 0:
        print("".join(f"{line}\n" for line in unused.lines(str(path))), end="", file=sys.stderr, flush=True)
    random.Random(_ORDER_SEED).shuffle(rows)
    rows = rows[:max_per_task]
    if len(rows) <= task.shots:
        cut = "" if max_per_task is None else f" after the cut to max_per_task={max_per_task}"
        raise InputError(
            f"{task.label}: {len(rows)} items{cut}, but {task.shots} others precede each as solved examples; expected "
            f"at least {task.shots + 1}, or leave the task out"
        )
    return Questions(task, rows, hashlib.sha256(content).hexdigest())


def _checked(task: CoreTask, line: bytes, where: str) -> dict[str, Any]:
    """Parse a line, and check the fields that its task type needs."""
    row = parse_json(line, where)
    if not isinstance(row, dict):
        raise InputError(f"{where}: expected an object, found a {type(row).__name__}")
    texts = _TEXTS[task.type]
    for name in texts:
        check_text(row.get(name), f"{where}: {name}")
        if name == "continuation" and not row[name].strip():
            raise InputError(f"{where}: {name} is empty; {task.label} needs some text there")
    if task.type == LANGUAGE_MODELING:
        return row
    name = _OPTIONS[task.type]
    options, gold = row.get(name), row.get("gold")
    if not isinstance(options, list) or len(options) < 2:
        raise InputError(f"{where}: {name} is {shorten(options)}; {task.label} needs a list of two texts or more")
    for option in options:
        check_text(option, f"{where}: {name}")
    if type(gold) is not int or not 0 <= gold < len(options):
        raise InputError(f"{where}: gold is {gold!r}; expected the index of one of {len(options)} {name}")
    return row


def core_score(
    predictions: Sequence[int],
    references: Sequence[str],
    baselines: str = "v1",
    level: float = 0.95,
) -> dict[str, Any]:
    """Score items of CORE.

    Args:
        predictions (sequence of `int`): for each item 1 if it was answered correctly, else 0.
        references (sequence of `str`): for each item the label of its task.
        baselines (`str`, *optional*, defaults to `"v1"`): table of random baselines, `v1` or `v2`.
        level (`float`, *optional*, defaults to 0.95): of the intervals, Wilson's for each task, and for their mean
            that of [`~hmm_datasets.intervals.mean_of_shares`].

    Returns:
        `dict`: the result of the metric `core`.

    Raises:
        `InputError`: a label that is not in CORE, or predictions that are not 0 or 1.
    """
    check_baselines(baselines)
    check_bootstrap(1, level)
    correct, labels = numbers("predictions", predictions), np.asarray(references)
    for label in np.unique(labels).tolist():
        if label not in CORE_TASKS:
            raise InputError(f"references have {label!r}, which is not in CORE; see CORE_TASKS")
    if not len(correct) or not np.isin(correct, (0, 1)).all():
        raise InputError(f"predictions are {predictions[:8]}; expected 0 or 1 for each item, and at least one item")
    found = centered_mean(
        {
            label: (correct[labels == label], task.baseline(baselines))
            for label, task in CORE_TASKS.items()
            if (labels == label).any()
        },
        level,
    )
    tasks = found["tasks"]
    return {
        "name": core_name(tasks),
        **found,
        "complete": len(tasks) == len(CORE_TASKS),
        "baselines": baselines,
        "missing": [label for label in CORE_TASKS if label not in tasks],
    }


def centered_mean(tasks: Mapping[str, tuple[np.ndarray, float]], level: float = 0.95) -> dict[str, Any]:
    """The mean over tasks of the centered accuracy.

    Args:
        tasks (mapping): for each task, for each of its items whether it was answered correctly, and the accuracy of
            guessing.
        level (`float`, *optional*, defaults to 0.95): of the intervals, Wilson's for each task, and for their mean
            that of [`~hmm_datasets.intervals.mean_of_shares`].

    Returns:
        `dict`: the `score` with its interval, `low` to `high`; and in `tasks` for each task the number of `items`,
        `accuracy`, `baseline`, and `centered` with its interval.

    ```python
    >>> round(centered_mean({"a": (np.array([1, 1, 1, 0]), 0.5), "b": (np.array([1, 0]), 0.0)})["score"], 3)
    0.5

    ```
    """
    found = {}
    for label, (correct, chance) in tasks.items():
        accuracy = float(correct.mean())
        bounds = wilson(int(correct.sum()), len(correct), level)
        low, high = (_centered(bound, chance) for bound in bounds or (0.0, 1.0))
        found[label] = {
            "items": len(correct),
            "accuracy": accuracy,
            "baseline": chance,
            "centered": _centered(accuracy, chance),
            "low": low,
            "high": high,
        }
    right = [int(correct.sum()) for correct, _ in tasks.values()]
    weights = np.array([1 / (1 - chance) for _, chance in tasks.values()])
    bounds = mean_of_shares(right, [task["items"] for task in found.values()], weights, level)
    score = float(np.mean([task["centered"] for task in found.values()]))
    # The score is the weighted mean of the accuracies, times the mean weight, less the score of guessing.
    guessed = float(np.mean([chance * weight for (_, chance), weight in zip(tasks.values(), weights, strict=True)]))
    low, high = (float(weights.mean()) * bound - guessed for bound in bounds)
    return {"score": score, "low": low, "high": high, "tasks": found}


def _centered(accuracy: float, chance: float) -> float:
    return (accuracy - chance) / (1 - chance)


_BLOCK = 512  # items whose prompts are in memory at once


def score_core(
    model: "PreTrainedModel",
    tokenizer: "PreTrainedTokenizerBase",
    folder: str | Path,
    accelerator: "Accelerator",
    *,
    tasks: Sequence[str] | None = None,
    max_per_task: int | None = None,
    batch_size: int = 32,
    baselines: str = "v1",
    corrupted: bool = True,
    max_length: int | None = None,
) -> dict[str, Any]:
    """The CORE score of a model, or the score of a subset if files of some tasks are missing.

    Each prompt is preceded by a BOS, or by an EOS if the tokenizer has no BOS. A prompt that is too long for the model
    is cut on the left. Scored tokens that are cut off do not count, and neither does one that is left without a token
    before it.

    Args:
        model ([`~transformers.PreTrainedModel`]): a causal language model on the device of the accelerator, in eval
            mode.
        tokenizer ([`~transformers.PreTrainedTokenizerBase`]): its tokenizer, of any kind.
        folder (`str` or `Path`): folder with the `.jsonl` files of the tasks, at any depth.
        accelerator ([`~accelerate.Accelerator`]): divides the prompts among ranks.
        tasks (sequence of `str`, *optional*): labels; by default all tasks whose files are found.
        max_per_task (`int`, *optional*): maximum number of items per task, taken after the shuffle; solved examples
            are drawn from these items.
        batch_size (`int`, *optional*, defaults to 32): prompts per rank in one forward pass.
        baselines (`str`, *optional*, defaults to `"v1"`): the table of random baselines, `v1` or `v2`.
        corrupted (`bool`, *optional*, defaults to `True`): also score every item with the question of another item,
            see [`~hmm_datasets.evaluation.core.Questions.corrupted`]; this at most doubles the work.
        max_length (`int`, *optional*): maximum number of tokens per prompt; by default the model's limit.

    Returns:
        `dict`: the result of the metric `core`, with `corrupted_score`, `max_per_task`, `max_length` and `beginning`
        (`BOS`, `EOS` or None); `prompts`, how many were read, `prompts_cut`, how many of these were cut to
        `max_length`, so that solved examples or a part of the question are missing, and `longest_prompt`, in tokens
        before it was cut. In `tasks` each task also has `type`, `shots`, `sha256` of its file,
        `corrupted_accuracy` and `corrupted_centered`. `items` has for each item its task, its number after the
        shuffle, `gold` and `predicted` or `target`, the `losses` of its options in nats per token, whether it is
        `correct`, and the same for the control under `corrupted`. A task of one item has no control. The result is
        empty on ranks other than the main one.

    Raises:
        `InputError`: see [`find_questions`]; also an unknown task or table, or a token that the model does not know.
    """
    check_baselines(baselines)
    questions = find_questions(folder, core_tasks(tasks), only_found=tasks is None, max_per_task=max_per_task)
    limit = context_limit(model) if max_length is None else max_length
    if limit is not None and limit < 2:
        raise InputError(f"max_length={limit}: expected 2 or more, one token as context and one to score")
    encoder = _Encoder(tokenizer, limit)
    items = []
    total = sum(len(of.rows) * _parts(of, corrupted) for of in questions)
    with progress_bar(total, " questions", desc="core") as bar:
        for of in questions:
            bar.set_postfix_str(of.task.label)
            items += _task_items(model, of, encoder, accelerator, batch_size, corrupted, bar)
    if not accelerator.is_main_process:
        return {}
    made = {"max_per_task": max_per_task, "max_length": limit, "beginning": encoder.kind}
    made |= {"prompts": encoder.prompts, "prompts_cut": encoder.cut, "longest_prompt": encoder.longest}
    return _summary(questions, items, baselines, max_per_task) | made | {"items": items}


def _task_items(
    model: "PreTrainedModel",
    of: Questions,
    encoder: "_Encoder",
    accelerator: "Accelerator",
    batch_size: int,
    corrupted: bool,
    bar: "tqdm",
) -> list[dict[str, Any]]:
    """Every item of a task, scored."""
    versions = _versions(of, corrupted)
    items = []
    for first in range(0, len(of.rows), _BLOCK):
        numbers = range(first, min(first + _BLOCK, len(of.rows)))
        options = encoder.options(of, versions, numbers)
        groups = _groups(of, options, corrupted)
        scores = score_rows(model, groups, accelerator, batch_size=batch_size, progress=bar.update)
        items += _items(of, numbers, options, scores)
    return items


def _versions(of: Questions, corrupted: bool) -> list[list[dict[str, Any]]]:
    return [of.rows, of.corrupted()] if corrupted and len(of.rows) > 1 else [of.rows]


def _groups(of: Questions, options: list[list[list[Row]]], corrupted: bool) -> list[list[Row]]:
    """The rows that may have a common beginning."""
    if _parts(of, corrupted) > 1:
        return [version for item in options for version in item]
    return [[row for version in item for row in version] for item in options]


def tokens_to_read(
    tokenizer: "PreTrainedTokenizerBase",
    folder: str | Path,
    *,
    tasks: Sequence[str] | None = None,
    max_per_task: int | None = None,
    corrupted: bool = True,
    sample: int = 8,
) -> int:
    """About how many tokens a model reads for [`score_core`]: those of `sample` items of each task, extrapolated."""
    encoder, total = _Encoder(tokenizer, None), 0.0
    for of in find_questions(folder, core_tasks(tasks), only_found=tasks is None, max_per_task=max_per_task):
        numbers = range(min(sample, len(of.rows)))
        groups = _groups(of, encoder.options(of, _versions(of, corrupted), numbers), corrupted)
        # A common beginning is read once for all rows of a group.
        read = sum(sum(len(row.tokens) for row in group) - (len(group) - 1) * shared_length(group) for group in groups)
        total += read * len(of.rows) / len(numbers)
    return round(total)


def _parts(of: Questions, corrupted: bool) -> int:
    """Number of groups per item: without solved examples its two versions have no common beginning."""
    return 2 if corrupted and of.task.shots == 0 and len(of.rows) > 1 else 1


class _Encoder:
    """Encodes prompts as tokens after a beginning token, cut to a maximum length, and counts those that are cut."""

    def __init__(self, tokenizer: "PreTrainedTokenizerBase", limit: int | None):
        self.tokenizer, self.limit = tokenizer, limit
        self.prompts = self.cut = self.longest = 0
        self.beginning, self.kind = beginning_token(tokenizer)

    def options(self, of: Questions, asked: list[list[dict]], numbers: Iterable[int]) -> list[list[list[Row]]]:
        """The rows of the options of each item, for each version of the question."""
        texts = [[of.prompts(rows[number], number) for rows in asked] for number in numbers]
        tokens = iter(encode_texts(self.tokenizer, [text for item in texts for version in item for text in version]))
        begun = [] if self.beginning is None else [self.beginning]
        return [[self._rows(of.task, [begun + next(tokens) for _ in version]) for version in item] for item in texts]

    def _rows(self, task: CoreTask, prompts: list[list[int]]) -> list[Row]:
        """The prompts and the first scored token of each; the last token is always scored, the very first never."""
        if task.type == SCHEMA:
            common = common_prefix([prompt[::-1] for prompt in prompts])
            firsts = [len(prompt) - max(1, common) for prompt in prompts]
        else:
            common = common_prefix(prompts)
            prompts = prompts[1:] if task.type == LANGUAGE_MODELING else prompts
            firsts = [min(common, *(len(prompt) - 1 for prompt in prompts))] * len(prompts)
        return [self._cut(task, prompt, first) for prompt, first in zip(prompts, firsts, strict=True)]

    def _cut(self, task: CoreTask, prompt: list[int], first: int) -> Row:
        if len(prompt) < 2:
            raise InputError(
                f"{task.label}: a prompt has only one token; the tokenizer needs a BOS or an EOS to precede it"
            )
        lost = 0 if self.limit is None else max(0, len(prompt) - self.limit)
        self.prompts, self.cut = self.prompts + 1, self.cut + (lost > 0)
        self.longest = max(self.longest, len(prompt))
        return Row(prompt[lost:], max(1, first - lost))


def _items(of: Questions, numbers: Iterable[int], options: list, scores: ContinuationScores) -> list[dict[str, Any]]:
    """The result of each item; the scores are in the order of the options."""
    nats, greedy = iter(scores.nats.tolist()), iter(scores.greedy.tolist())
    found = []
    for number, versions in zip(numbers, options, strict=True):
        row = of.rows[number]
        item = {"task": of.task.label, "item": number}
        item |= {"target": row["continuation"]} if of.task.type == LANGUAGE_MODELING else {"gold": row["gold"]}
        answers = []
        for rows in versions:
            losses = [next(nats) / (len(tokens) - first) for tokens, first in rows]
            # Equal prompts get equal losses, so that rounding does not decide between them.
            losses = [losses[rows.index(one)] for one in rows]
            likeliest = [next(greedy) for _ in rows]
            if of.task.type == LANGUAGE_MODELING:
                answers.append({"losses": losses, "correct": all(likeliest)})
            else:
                predicted = losses.index(min(losses))
                answers.append({"losses": losses, "predicted": predicted, "correct": predicted == row["gold"]})
        item |= answers[0]
        if len(answers) > 1:
            item["corrupted"] = answers[1]
        found.append(item)
    return found


def _summary(
    questions: list[Questions], items: list[dict[str, Any]], baselines: str, max_per_task: int | None
) -> dict[str, Any]:
    """The scores of the items, and of their control."""
    labels = [item["task"] for item in items]
    found = core_score(predictions=[int(item["correct"]) for item in items], references=labels, baselines=baselines)
    if max_per_task is not None:
        found["name"] += f", at most {max_per_task} items per task"
        found["complete"] = False
    controls = [item for item in items if "corrupted" in item]
    control = {"score": None, "tasks": {}}
    if controls:
        control = core_score(
            predictions=[int(item["corrupted"]["correct"]) for item in controls],
            references=[item["task"] for item in controls],
            baselines=baselines,
        )
    for of in questions:
        task = found["tasks"][of.task.label]
        other = control["tasks"].get(of.task.label, {})
        task |= {"type": of.task.type, "shots": of.task.shots, "sha256": of.sha256}
        task |= {f"corrupted_{name}": other.get(name) for name in ("accuracy", "centered")}
    return found | {"corrupted_score": control["score"]}
