"""Questions with one right answer: how many of them a chat model answers in exactly those words.

The first question of a conversation, with the messages before it, is put to the model in its chat template. The greedy
answer is compared with the assistant's, ignoring white space around both. Questions of similar length run in one
batch, padded on the left. The cost is that of generating `max_new_tokens` tokens per question.

Answers to held-out questions: how many are right before and after fine-tuning, and some examples in full.

How a chat model behaves on held-out conversations: loss, right answers, and what small models get wrong.

The loss is that of the assistant's words, given all that precedes them. The first question of each conversation is
answered greedily (see `answers`), and of the answers it is counted how many

- are right, in exactly the words of the conversation;
- end their turn, with a token that ends a turn or EOS, before the maximum number of tokens;
- speak for someone else: they continue with another turn (a special token within the answer, or a line that begins
  with `User:` and the like);
- repeat themselves: some four tokens in a row occur three times or more;
- are empty.

Intervals of shares are Wilson's score intervals (Wilson, "Probable inference, the law of succession, and statistical
inference", 1927), that of the loss is over conversations (`intervals`). The cost is a forward pass per
conversation and `max_new_tokens` passes of one token per question.
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from ...compat.transformers_caches import generate
from ...data.windows import IGNORED
from ...errors import InputError
from ...files import write_json, write_jsonl
from ...intervals import wilson
from ...paired_differences import ratio_interval
from ...report.tables import SHARES, Table
from ...runtime.progress import progress_bar
from ...text.corpora.conversations import learnt_turns
from ...text.tokenizers.chat_encoding import encode_conversation, encode_marked
from ...text.tokenizers.chat_templates import marked_template, stop_tokens
from ...training.fused_loss import next_labels
from ...training.step.held_out_loss import row_losses
from ..scoring import check_vocabulary, context_limit, padded_rows, score_labels

if TYPE_CHECKING:
    from accelerate import Accelerator
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


def answers_table(found: Mapping[str, Any]) -> Table:
    """The result of [`~hmm_datasets.evaluation.chat.measures.compare_answers`] as a table.

    The column `guessed` is the accuracy of a random guess if the corpus gives it, else that of always giving the most
    common answer.
    """
    rows = []
    for kind, after in found["after"].items():
        guessed = after.get("chance", after["most_common"])
        before = found["before"][kind]["accuracy"]
        bounds = wilson(after["right"], after["questions"])
        accuracy = f"{after['accuracy']:.1%}" + ("" if bounds is None else f" ({bounds[0]:.1%} .. {bounds[1]:.1%})")
        rows.append([kind, f"{after['questions']:,}", f"{before:.1%}", accuracy, f"{guessed:.1%}"])
    header = ("kind of question", "questions", "before fine-tuning", "after", "guessed")
    return Table("Held-out questions, answered in exactly the right words", header, rows)


def transcripts(rows: Sequence[Mapping[str, Any]]) -> str:
    """Questions with the answer after fine-tuning, word for word, and whether it is right."""
    parts = []
    for row in rows:
        said = [f"{message['role']}: {message['content']}" for message in row["messages"]]
        verdict = "right" if row["after"].strip() == row["expected"].strip() else f"expected: {row['expected']}"
        parts.append("\n".join([*said, f"assistant: {row['after']}", f"({verdict})"]))
    return "\n\n".join(parts)


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
        **generation: how answers are generated; see [`continue_rows`].

    Returns:
        `list` of `str`: the answers, without special tokens; an empty string for a question so long that the model's
        context has no room for an answer.

    Raises:
        `InputError`: a token that the model does not know.
    """
    generated = generate_answers(model, tokenizer, questions, **generation)
    return [tokenizer.decode(tokens, skip_special_tokens=True) for tokens in generated]


def generate_answers(
    model: "PreTrainedModel", tokenizer: "PreTrainedTokenizerBase", questions: Sequence[Question], **generation: Any
) -> list[list[int]]:
    """The tokens of the answers; see [`answer`]. They include the token that ends an answer, and padding after it."""
    rows = [encode_conversation(tokenizer, question.messages, add_generation_prompt=True) for question in questions]
    return continue_rows(model, tokenizer, rows, **generation)


def continue_rows(
    model: "PreTrainedModel",
    tokenizer: "PreTrainedTokenizerBase",
    rows: Sequence[list[int]],
    *,
    stop: int | list[int] | None = None,
    max_new_tokens: int = 64,
    batch_size: int = 32,
    temperature: float = 0.0,
) -> list[list[int]]:
    """The tokens that a model writes after each row of tokens; none after a row that leaves no room for them.

    Args:
        model ([`~transformers.PreTrainedModel`]), tokenizer ([`~transformers.PreTrainedTokenizerBase`]): the model.
        rows (sequence of `list` of `int`): the rows.
        stop (`int` or `list` of `int`, *optional*): tokens that end an answer; by default those of the model's
            generation configuration.
        max_new_tokens (`int`, *optional*, defaults to 64): maximum number of tokens per answer.
        batch_size (`int`, *optional*, defaults to 32): rows per batch.
        temperature (`float`, *optional*, defaults to 0.0): temperature of sampling; 0 for greedy decoding.

    Raises:
        `InputError`: a token that the model does not know.
    """
    check_vocabulary(model, 1 + max((max(row) for row in rows), default=0), "tokens")
    longest = (context_limit(model) or float("inf")) - max_new_tokens
    order = sorted(
        (index for index, row in enumerate(rows) if len(row) <= longest), key=lambda index: -len(rows[index])
    )
    padding = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else tokenizer.eos_token_id
    generation = {"max_new_tokens": max_new_tokens, "do_sample": False, "pad_token_id": padding}
    if temperature > 0:
        generation |= {"do_sample": True, "temperature": temperature, "top_k": 0, "top_p": 1.0}
    if stop is not None:
        generation["eos_token_id"] = stop
    answers: list[list[int]] = [[] for _ in rows]
    training = model.training
    model.eval()
    with progress_bar(len(order), " questions", desc="answer") as bar, torch.inference_mode():
        for first in range(0, len(order), batch_size):
            batch = order[first : first + batch_size]
            tokens, mask = padded_rows([rows[index] for index in batch], model.device, left=True)
            output = generate(model, input_ids=tokens, attention_mask=mask, **generation)
            for index, generated in zip(batch, output[:, tokens.shape[1] :], strict=True):
                answers[index] = generated.tolist()
            bar.update(len(batch))
    model.train(training)
    return answers


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
    found = {}
    for kind in dict.fromkeys([*(question.kind for question in questions), "all"]):
        asked = [(question, given) for question, given in pairs if kind in (question.kind, "all")]
        if not asked:
            continue
        right = sum(is_right(question, given) for question, given in asked)
        accuracy = right / len(asked)
        low, high = wilson(right, len(asked)) or (0.0, 1.0)
        common = Counter(question.expected.strip() for question, _ in asked).most_common(1)[0][1]
        found[kind] = {
            "questions": len(asked),
            "right": right,
            "accuracy": accuracy,
            "low": low,
            "high": high,
            "most_common": common / len(asked),
        }
        if all(question.chance is not None for question, _ in asked):
            found[kind]["chance"] = sum(question.chance for question, _ in asked) / len(asked)
    return found


def compare_answers(
    folder: str | Path, questions: Sequence[Question], before: Sequence[str], after: Sequence[str]
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Count the right answers of two models to the same questions, and write them into a folder.

    It writes `answers.jsonl`, with a row per question (`kind`, `messages`, `expected`, and the answers `before` and
    `after`), and `answers.json`, with [`exact_match`] of both models under `before` and `after`. It returns the
    content of the second and the rows of the first.
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
    figures = {"before": exact_match(questions, before), "after": exact_match(questions, after)}
    write_jsonl(Path(folder) / "answers.jsonl", rows)
    write_json(Path(folder) / "answers.json", figures)
    return figures, rows


def is_right(question: Question, given: str) -> bool:
    """Whether an answer is the expected one, ignoring white space around both."""
    return given.strip() == question.expected.strip()


_OTHER_TURN = re.compile(r"^\s*(user|human|question|system)\s*:", re.IGNORECASE | re.MULTILINE)
_LENGTH, _TIMES = 4, 3  # of what counts as a repetition


def measure_chat(
    model: "PreTrainedModel",
    tokenizer: "PreTrainedTokenizerBase",
    conversations: Sequence[Mapping[str, Any]],
    accelerator: "Accelerator",
    *,
    max_new_tokens: int = 64,
    batch_size: int = 32,
    seed: int = 0,
) -> dict[str, Any]:
    """Measure a model on conversations, on the main process.

    Args:
        model ([`~transformers.PreTrainedModel`]): a causal language model.
        tokenizer ([`~transformers.PreTrainedTokenizerBase`]): its tokenizer, with a chat template.
        conversations (sequence of mappings): rows with `messages`.
        accelerator ([`~accelerate.Accelerator`]): the accelerator.
        max_new_tokens (`int`, *optional*, defaults to 64): maximum number of tokens per answer.
        batch_size (`int`, *optional*, defaults to 32): rows per forward pass.
        seed (`int`, *optional*, defaults to 0): seed of the bootstrap.

    Returns:
        `dict`: `loss` in nats per token of the assistant, with `loss_low` and `loss_high`; the numbers of
        `conversations`, of the assistant's `tokens`, and of `questions`; `shares`, each with `count`, `share`, `low`
        and `high`; and `items`. Empty on other processes.

    Raises:
        `InputError`: the chat template does not mark what the assistant says, or there is nothing to measure.
    """
    if not accelerator.is_main_process:
        return {}
    sums, counts = conversation_losses(model, tokenizer, conversations, batch_size)
    if counts.sum() == 0:
        raise InputError("chat: no conversation has words of the assistant within the context of the model")
    low, high = ratio_interval(sums, counts, seed=seed)
    questions = questions_of(conversations)
    stop = stop_tokens(tokenizer, model.generation_config)
    generated = generate_answers(
        model, tokenizer, questions, stop=stop, max_new_tokens=max_new_tokens, batch_size=batch_size
    )
    items = [
        {"document": index, **_judged(question, tokens, tokenizer, stop)}
        for index, (question, tokens) in enumerate(zip(questions, generated, strict=True))
    ]
    return {
        "loss": float(sums.sum() / counts.sum()),
        "loss_low": low,
        "loss_high": high,
        "conversations": len(conversations),
        "tokens": int(counts.sum()),
        "questions": len(questions),
        "shares": {name: share(sum(item[name] for item in items), len(items)) for name in SHARES},
        "items": items,
    }


def conversation_losses(
    model: "PreTrainedModel",
    tokenizer: "PreTrainedTokenizerBase",
    conversations: Iterable[Mapping[str, Any]],
    batch_size: int,
) -> tuple[np.ndarray, np.ndarray]:
    """The sum of the losses in nats of the assistant's tokens, and their number, for each conversation.

    Conversations are cut at the context of the model.
    """
    template, limit, rows = marked_template(tokenizer), context_limit(model), []
    if template is None:
        raise InputError(
            "chat: the chat template has no {% generation %} marks around what the assistant says; add them"
        )
    for row in conversations:
        encoded = encode_marked(tokenizer, row["messages"], template, weights=row.get("weights"))
        rows.append((encoded.tokens[:limit], encoded.said[:limit]))
    order = sorted(range(len(rows)), key=lambda index: -len(rows[index][0]))
    found = np.zeros((len(rows), 2))
    for first in range(0, len(rows), batch_size):
        batch = order[first : first + batch_size]
        tokens, mask = padded_rows([rows[index][0] for index in batch], model.device)
        said, _ = padded_rows([rows[index][1] for index in batch], model.device)
        labels = tokens.masked_fill((said == 0) | (mask == 0), IGNORED)
        losses = score_labels(model, next_labels(labels), input_ids=tokens, attention_mask=mask).nats
        found[batch] = row_losses(losses, labels).cpu().numpy()
    return found[:, 0], found[:, 1]


def share(count: int, total: int) -> dict[str, float | None]:
    """A share with Wilson's 95% interval; None for those of nothing.

    ```python
    >>> {name: round(value, 3) for name, value in share(8, 10).items()}
    {'count': 8, 'share': 0.8, 'low': 0.49, 'high': 0.943}

    ```
    """
    bounds = wilson(count, total)
    if bounds is None:
        return {"count": 0, "share": None, "low": None, "high": None}
    return {"count": count, "share": count / total, "low": bounds.low, "high": bounds.high}


def _judged(
    question: Question, tokens: list[int], tokenizer: "PreTrainedTokenizerBase", stop: Sequence[int]
) -> dict[str, Any]:
    end = next((index for index, token in enumerate(tokens) if token in stop), None)
    said = tokens if end is None else tokens[:end]
    special = {*tokenizer.all_special_ids, *tokenizer.added_tokens_decoder}
    text = tokenizer.decode(said, skip_special_tokens=True)
    return {
        "messages": question.messages,
        "expected": question.expected,
        "answer": text,
        "right": is_right(question, text),
        "ended": end is not None,
        "spoke_for_others": not special.isdisjoint(said) or bool(_OTHER_TURN.search(text)),
        "repeated": repeats(said),
        "empty": not text.strip(),
    }


def repeats(tokens: Sequence[int]) -> bool:
    """Whether some four tokens in a row occur three times or more.

    ```python
    >>> repeats([1, 2, 3, 4] * 3), repeats([1, 2, 3, 4] * 2), repeats([7] * 6)
    (True, False, True)

    ```
    """
    runs = Counter(tuple(tokens[first : first + _LENGTH]) for first in range(len(tokens) - _LENGTH + 1))
    return any(count >= _TIMES for count in runs.values())
