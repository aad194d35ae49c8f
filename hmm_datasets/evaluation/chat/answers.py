"""Questions with one right answer, and a chat model's answers to them.

The first question of a conversation, with the messages before it, is put to the model in its chat template. The greedy
answer is compared with the assistant's, ignoring white space around both. Questions of similar length run in one
batch, padded on the left. The cost is that of generating `max_new_tokens` tokens per question.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from ...intervals import wilson
from ...runtime.progress import progress_bar
from ...text.corpora.conversations import learnt_turns
from ...text.tokenizers.chat_encoding import encode_conversation
from ..generation import generate_rows
from ..model_limits import check_vocabulary, context_limit

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


@dataclass(frozen=True)
class Question:
    """A question to the assistant, and its right answer.

    Attributes:
        messages (`list` of `dict`): the conversation up to and including the question.
        expected (`str`): the right answer.
        kind (`str`): the kind of question; questions of one kind are counted together.
        chance (`float`, *optional*): probability that a guess is right, if the corpus gives it.
    """

    messages: list[dict[str, str]]
    expected: str
    kind: str = "all"
    chance: float | None = None


def questions_of(rows: Iterable[Mapping[str, Any]], count: int | None = None) -> list[Question]:
    """The first question of each conversation that contains a question and an answer.

    Args:
        rows (iterable of mappings): `messages`, and optionally `kind` and `chance`.
        count (`int`, *optional*): maximum number of questions.

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
        index = next(iter(learnt_turns(row)), 0)
        if "user" in roles[:index]:
            messages = list(row["messages"])
            details = {name: row[name] for name in ("kind", "chance") if name in row}
            questions.append(Question(messages[:index], messages[index]["content"], **details))
    return questions


def answer(
    model: "PreTrainedModel", tokenizer: "PreTrainedTokenizerBase", questions: Sequence[Question], **generation: Any
) -> list[str]:
    """The answers of a model to questions.

    Args:
        model ([`~transformers.PreTrainedModel`]): a causal language model.
        tokenizer ([`~transformers.PreTrainedTokenizerBase`]): its tokenizer, with a chat template.
        questions (sequence of [`Question`]): the questions.
        **generation: how answers are generated; see [`generate_answers`].

    Returns:
        `list` of `str`: the answers, without special tokens; an empty string for a question so long that the model's
        context has no room for an answer.

    Raises:
        `InputError`: a token that the model does not know.
    """
    generated = generate_answers(model, tokenizer, questions, **generation)
    return [tokenizer.decode(tokens, skip_special_tokens=True) for tokens in generated]


def generate_answers(
    model: "PreTrainedModel",
    tokenizer: "PreTrainedTokenizerBase",
    questions: Sequence[Question],
    *,
    stop: int | list[int] | None = None,
    max_new_tokens: int = 64,
    batch_size: int = 32,
    temperature: float = 0.0,
) -> list[list[int]]:
    """The tokens of the answers, with the token that ends an answer, and padding after it.

    Args:
        model ([`~transformers.PreTrainedModel`]), tokenizer ([`~transformers.PreTrainedTokenizerBase`]): the model.
        questions (sequence of [`Question`]): the questions; one that leaves no room for an answer gets none.
        stop (`int` or `list` of `int`, *optional*): tokens that end an answer; by default those of the model's
            generation configuration.
        max_new_tokens (`int`, *optional*, defaults to 64): maximum number of tokens per answer.
        batch_size (`int`, *optional*, defaults to 32): questions per batch.
        temperature (`float`, *optional*, defaults to 0.0): temperature of sampling; 0 for greedy decoding.

    Raises:
        `InputError`: a token that the model does not know.
    """
    rows = [encode_conversation(tokenizer, question.messages, add_generation_prompt=True) for question in questions]
    check_vocabulary(model, 1 + max((max(row) for row in rows), default=0), "tokens")
    longest = (context_limit(model) or float("inf")) - max_new_tokens
    order = sorted(
        (index for index, row in enumerate(rows) if len(row) <= longest), key=lambda index: -len(rows[index])
    )
    how = {"stop": stop, "max_new_tokens": max_new_tokens, "temperature": temperature}
    answers: list[list[int]] = [[] for _ in rows]
    training = model.training
    model.eval()
    with progress_bar(len(order), " questions", desc="answer") as bar, torch.inference_mode():
        for first in range(0, len(order), batch_size):
            batch = order[first : first + batch_size]
            generated = generate_rows(model, tokenizer, [rows[index] for index in batch], **how)
            for index, tokens in zip(batch, generated, strict=True):
                answers[index] = tokens
            bar.update(len(batch))
    model.train(training)
    return answers


def is_right(question: Question, reply: str) -> bool:
    """Whether an answer is the expected one, ignoring white space around both."""
    return reply.strip() == question.expected.strip()


def exact_match(questions: Sequence[Question], answers: Sequence[str]) -> dict[str, Any]:
    """How many answers are right, for each kind of question and for all.

    Args:
        questions (sequence of [`Question`]), answers (sequence of `str`): questions, and an answer to each.

    Returns:
        `dict`: for each kind, and under `all` for all questions: the number of `questions`, how many are `right`, the
        `accuracy` with its interval, `low` to `high` (Wilson's, 95%), `most_common` (the share of the most common
        right answer, which is the accuracy of always giving that answer) and, if the corpus gives it, `chance`.

    ```python
    >>> asked = [Question([], "Tom.", "who"), Question([], "Mia.", "who"), Question([], "two", "how many")]
    >>> found = exact_match(asked, ["Tom.", "Tom.", " two"])
    >>> found["who"]["accuracy"], found["all"]["right"], found["who"]["most_common"]
    (0.5, 2, 0.5)

    ```
    """
    pairs = list(zip(questions, answers, strict=True))
    figures = {}
    for kind in dict.fromkeys([*(question.kind for question in questions), "all"]):
        asked = [(question, reply) for question, reply in pairs if kind in (question.kind, "all")]
        if not asked:
            continue
        right = sum(is_right(question, reply) for question, reply in asked)
        accuracy = right / len(asked)
        low, high = wilson(right, len(asked)) or (0.0, 1.0)
        common = Counter(question.expected.strip() for question, _ in asked).most_common(1)[0][1]
        figures[kind] = {
            "questions": len(asked),
            "right": right,
            "accuracy": accuracy,
            "low": low,
            "high": high,
            "most_common": common / len(asked),
        }
        if all(question.chance is not None for question, _ in asked):
            figures[kind]["chance"] = sum(question.chance for question, _ in asked) / len(asked)
    return figures
