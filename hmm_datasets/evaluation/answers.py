"""Questions whose one right answer is known: how many a chat model answers in just those words.

A conversation's first question, with whatever stands before it, is put to the model by its chat template, and its
greedy answer is compared with the assistant's, white space around both aside. Questions of like length run together,
padded on the left; cost is that of generating `max_new_tokens` tokens for each.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from tqdm.auto import tqdm

from ..files import write_json, write_jsonl
from ..report.answers import FIGURES_NAME, ROWS_NAME
from .ranks import check_vocabulary
from .scoring import context_limit, padded

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


@dataclass(frozen=True)
class Question:
    """What the assistant is asked, and what it has to say.

    Attributes:
        messages (`list` of `dict`): the conversation up to the question.
        expected (`str`): the right answer.
        kind (`str`): what the question is about; questions of a kind are counted together.
        chance (`float`, *optional*): how often a guess is right, where the corpus says so.
    """

    messages: list[dict[str, str]]
    expected: str
    kind: str = "all"
    chance: float | None = None


def questions_of(rows: Iterable[Mapping[str, Any]], count: int | None = None) -> list[Question]:
    """The first question of each conversation that answers one.

    Args:
        rows (iterable of mappings): `messages`, and where the corpus has them `kind` and `chance`.
        count (`int`, *optional*): how many at most.

    ```python
    >>> chat = [{"role": "user", "content": "Who?"}, {"role": "assistant", "content": "Tom."}]
    >>> questions_of([{"messages": chat}, {"messages": chat[:1]}])
    [Question(messages=[{'role': 'user', 'content': 'Who?'}], expected='Tom.', kind='all', chance=None)]

    ```
    """
    questions = []
    for row in rows:
        if len(questions) == count:
            break
        roles = [message["role"] for message in row["messages"]]
        place = roles.index("assistant") if "assistant" in roles else 0
        if "user" in roles[:place]:
            messages = list(row["messages"])
            told = {name: row[name] for name in ("kind", "chance") if name in row}
            questions.append(Question(messages[:place], messages[place]["content"], **told))
    return questions


def answer(
    model: "PreTrainedModel",
    tokenizer: "PreTrainedTokenizerBase",
    questions: Sequence[Question],
    *,
    stop: int | list[int] | None = None,
    max_new_tokens: int = 64,
    batch_size: int = 32,
) -> list[str]:
    """What a model answers, by greedy decoding.

    Args:
        model ([`~transformers.PreTrainedModel`]): a causal language model.
        tokenizer ([`~transformers.PreTrainedTokenizerBase`]): its tokenizer, with a chat template.
        questions (sequence of [`Question`]): what it is asked.
        stop (`int` or `list` of `int`, *optional*): tokens that end an answer; by default those of the model's
            generation configuration.
        max_new_tokens (`int`, *optional*, defaults to 64): longest answer, in tokens.
        batch_size (`int`, *optional*, defaults to 32): questions that run at once.

    Returns:
        `list` of `str`: the answers, without special tokens; of a question that leaves the model no room for one, the
        empty string.

    Raises:
        `InputError`: a token that the model does not know.
    """
    rows = [
        tokenizer.apply_chat_template(question.messages, add_generation_prompt=True, return_dict=False)
        for question in questions
    ]
    check_vocabulary(model, 1 + max((max(row) for row in rows), default=0), "tokens")
    longest = (context_limit(model) or float("inf")) - max_new_tokens
    order = sorted(
        (place for place, row in enumerate(rows) if len(row) <= longest), key=lambda place: -len(rows[place])
    )
    padding = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else tokenizer.eos_token_id
    how = {"max_new_tokens": max_new_tokens, "do_sample": False, "pad_token_id": padding, "use_cache": True}
    if stop is not None:
        how["eos_token_id"] = stop
    answers, training = [""] * len(rows), model.training
    model.eval()
    with tqdm(total=len(order), desc="answer", unit=" questions") as bar, torch.inference_mode():
        for first in range(0, len(order), batch_size):
            places = order[first : first + batch_size]
            tokens, mask = padded([rows[place] for place in places], model.device, left=True)
            output = model.generate(input_ids=tokens, attention_mask=mask, **how)
            for place, said in zip(places, output[:, tokens.shape[1] :], strict=True):
                answers[place] = tokenizer.decode(said, skip_special_tokens=True)
            bar.update(len(places))
    model.train(training)
    return answers


def exact_match(questions: Sequence[Question], answers: Sequence[str]) -> dict[str, Any]:
    """How many answers are right, of each kind of question and in all.

    Args:
        questions (sequence of [`Question`]), answers (sequence of `str`): one for the other.

    Returns:
        `dict`: by kind, and in `all` for all of them, `questions`, `right`, `accuracy`, its `standard_error`,
        `most_common` (the share of the most common right answer, which who always says it gets right) and, where the
        corpus says so, `chance`.

    ```python
    >>> asked = [Question([], "Tom.", "who"), Question([], "Mia.", "who"), Question([], "two", "how many")]
    >>> found = exact_match(asked, ["Tom.", "Tom.", " two"])
    >>> found["who"]["accuracy"], found["all"]["right"], found["who"]["most_common"]
    (0.5, 2, 0.5)

    ```
    """
    pairs = list(zip(questions, answers, strict=True))
    found = {}
    for kind in dict.fromkeys([*(question.kind for question in questions), "all"]):
        asked = [(question, said) for question, said in pairs if kind in (question.kind, "all")]
        if not asked:
            continue
        right = sum(is_right(question, said) for question, said in asked)
        accuracy = right / len(asked)
        common = Counter(question.expected.strip() for question, _ in asked).most_common(1)[0][1]
        found[kind] = {
            "questions": len(asked),
            "right": right,
            "accuracy": accuracy,
            "standard_error": (accuracy * (1 - accuracy) / len(asked)) ** 0.5,
            "most_common": common / len(asked),
        }
        if all(question.chance is not None for question, _ in asked):
            found[kind]["chance"] = sum(question.chance for question, _ in asked) / len(asked)
    return found


def compare_answers(
    folder: str | Path, questions: Sequence[Question], before: Sequence[str], after: Sequence[str]
) -> dict[str, Any]:
    """Count the right answers of two models to the same questions, and write them beside the second one.

    Writes `answers.jsonl`, a row per question: `kind`, `messages`, `expected`, the answers `before` and `after`; and
    `answers.json`, which is returned: [`exact_match`] of both under `before` and `after`.
    """
    rows = [
        {
            "kind": question.kind,
            "messages": question.messages,
            "expected": question.expected,
            "before": old,
            "after": new,
        }
        for question, old, new in zip(questions, before, after, strict=True)
    ]
    found = {"before": exact_match(questions, before), "after": exact_match(questions, after)}
    write_jsonl(Path(folder) / ROWS_NAME, rows)
    write_json(Path(folder) / FIGURES_NAME, found)
    return found


def is_right(question: Question, said: str) -> bool:
    """Whether an answer is the expected one, white space around both aside."""
    return said.strip() == question.expected.strip()
