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

The common beginning of an item's prompts (solved examples and question) is run once (see
[`~hmm_datasets.evaluation.continuations`]). The cost is that of the tokens of the prompts; memory is that of a batch
and of the prompts of some hundred items.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...errors import InputError
from ...runtime.progress import progress_bar
from ...text.tokenizers.encoding import encode_texts
from ..continuations import ContinuationScores, Row, common_prefix, score_rows
from ..model_limits import beginning_token, context_limit

if TYPE_CHECKING:
    from accelerate import Accelerator
    from transformers import PreTrainedModel, PreTrainedTokenizerBase
from .centered_accuracy import core_score
from .questions import Questions, find_questions
from .task import LANGUAGE_MODELING, SCHEMA, CoreTask
from .tasks import core_tasks

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

    Returns:
        `dict`: the result of the metric `core`, with `max_per_task`, `max_length` and `beginning` (`BOS`, `EOS` or
        None); `prompts`, how many were read, `prompts_cut`, how many of these were cut to `max_length`, so that solved
        examples or a part of the question are missing, and `longest_prompt`, in tokens before it was cut. In `tasks`
        each task also has `type`, `shots` and `sha256` of its file. `items` has for each item its task, its number
        after the shuffle, `gold` and `predicted` or `target`, the `losses` of its options in nats per token, and
        whether it is `correct`. The result is empty on ranks other than the main one.

    Raises:
        `InputError`: see [`find_questions`]; also an unknown task, or a token that the model does not know.
    """
    questions = find_questions(folder, core_tasks(tasks), only_found=tasks is None, max_per_task=max_per_task)
    encoder = _Encoder(tokenizer, context_limit(model))
    items = []
    with progress_bar(sum(len(of.rows) for of in questions), " questions", desc="core") as bar:
        for of in questions:
            bar.set_postfix_str(of.task.label)
            for first in range(0, len(of.rows), _BLOCK):
                numbers = range(first, min(first + _BLOCK, len(of.rows)))
                options = encoder.options(of, numbers)
                scores = score_rows(model, options, accelerator, batch_size=batch_size, progress=bar.update)
                items += _items(of, numbers, options, scores)
    if not accelerator.is_main_process:
        return {}
    made = {"max_per_task": max_per_task, "max_length": encoder.limit, "beginning": encoder.kind}
    made |= {"prompts": encoder.prompts, "prompts_cut": encoder.cut, "longest_prompt": encoder.longest}
    return _summary(questions, items, max_per_task) | made | {"items": items}


class _Encoder:
    """Encodes prompts as tokens after a beginning token, cut to a maximum length, and counts those that are cut."""

    def __init__(self, tokenizer: "PreTrainedTokenizerBase", limit: int | None):
        self.tokenizer, self.limit = tokenizer, limit
        self.prompts = self.cut = self.longest = 0
        self.beginning, self.kind = beginning_token(tokenizer)

    def options(self, of: Questions, numbers: Iterable[int]) -> list[list[Row]]:
        """The rows of the options of each item."""
        texts = [of.prompts(number) for number in numbers]
        tokens = iter(encode_texts(self.tokenizer, [text for item in texts for text in item]))
        begun = [] if self.beginning is None else [self.beginning]
        return [self._rows(of.task, [begun + next(tokens) for _ in item]) for item in texts]

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


def _items(
    of: Questions, numbers: Iterable[int], options: list[list[Row]], scores: ContinuationScores
) -> list[dict[str, Any]]:
    """The result of each item; the scores are in the order of the options."""
    nats, greedy = iter(scores.nats.tolist()), iter(scores.greedy.tolist())
    items = []
    for number, rows in zip(numbers, options, strict=True):
        row = of.rows[number]
        item = {"task": of.task.label, "item": number}
        item |= {"target": row["continuation"]} if of.task.type == LANGUAGE_MODELING else {"gold": row["gold"]}
        losses = [next(nats) / (len(tokens) - first) for tokens, first in rows]
        # Equal prompts get equal losses, so that rounding does not decide between them.
        losses = [losses[rows.index(option)] for option in rows]
        likeliest = [next(greedy) for _ in rows]
        if of.task.type == LANGUAGE_MODELING:
            item |= {"losses": losses, "correct": all(likeliest)}
        else:
            predicted = losses.index(min(losses))
            item |= {"losses": losses, "predicted": predicted, "correct": predicted == row["gold"]}
        items.append(item)
    return items


def _summary(questions: list[Questions], items: list[dict[str, Any]], max_per_task: int | None) -> dict[str, Any]:
    """The scores of the items."""
    labels = [item["task"] for item in items]
    scores = core_score(predictions=[int(item["correct"]) for item in items], references=labels)
    if max_per_task is not None:
        scores["name"] += f", at most {max_per_task} items per task"
        scores["complete"] = False
    for of in questions:
        scores["tasks"][of.task.label] |= {"type": of.task.type, "shots": of.task.shots, "sha256": of.sha256}
    return scores
