"""How a chat model behaves on held-out conversations: loss, right answers, and what small models get wrong.

The loss is that of the assistant's words, given all that precedes them. The first question of each conversation is
answered greedily ([`~hmm_datasets.evaluation.chat.answers`]), and of the answers it is counted how many

- are right, in exactly the words of the conversation;
- end their turn, with a token that ends a turn or EOS, before the maximum number of tokens;
- speak for someone else: they continue with another turn (a special token within the answer, or a line that begins
  with `User:` and the like);
- repeat themselves: some four tokens in a row occur three times or more;
- are empty.

Intervals of shares are Wilson's score intervals (Wilson, "Probable inference, the law of succession, and statistical
inference", 1927), that of the loss is over conversations ([`~hmm_datasets.intervals`]). The cost is a forward pass per
conversation and `max_new_tokens` passes of one token per question.
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ...data.windows import IGNORED
from ...errors import InputError
from ...intervals import wilson
from ...paired_differences import ratio_interval
from ...report.tables import SHARES
from ...text.corpora.conversations import conversation_text
from ...text.corpora.document_digest import document_digest
from ...text.tokenizers.chat_encoding import encode_marked
from ...text.tokenizers.chat_templates import marked_template, stop_tokens
from ...training.fused_loss import next_labels
from ...training.step.held_out_loss import row_losses
from ..continuations import padded_rows
from ..label_scores import score_labels
from ..model_limits import context_limit

if TYPE_CHECKING:
    from accelerate import Accelerator
    from transformers import PreTrainedModel, PreTrainedTokenizerBase
from .answers import Question, generate_answers, is_right, questions_of

_OTHER_TURN = re.compile(r"^\s*(user|human|question|system)\s*:", re.IGNORECASE | re.MULTILINE)
_NOT_ASKED = dict.fromkeys(("messages", "expected", "answer", *SHARES))  # of a conversation without a question
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
        and `high`; and `items`: for each conversation a digest of its words, the assistant's `tokens`, their loss
        `nats`, and what was answered if it has a question. Empty on other processes.

    Raises:
        `InputError`: the chat template does not mark what the assistant says, or there is nothing to measure.
    """
    if not accelerator.is_main_process:
        return {}
    sums, counts = conversation_losses(model, tokenizer, conversations, batch_size)
    if counts.sum() == 0:
        raise InputError("chat: no conversation has words of the assistant within the context of the model")
    low, high = ratio_interval(sums, counts, seed=seed)
    asked = [questions_of([row]) for row in conversations]
    questions = [question for first in asked for question in first]
    stop = stop_tokens(tokenizer, model.generation_config)
    generated = generate_answers(
        model, tokenizer, questions, stop=stop, max_new_tokens=max_new_tokens, batch_size=batch_size
    )
    answers, items = iter(generated), []
    for index, row in enumerate(conversations):
        digest = f"{document_digest(conversation_text(row)):016x}"
        loss = {"tokens": int(counts[index]), "nats": float(sums[index])}
        items.append({"document": index, "conversation": digest, **loss, **_NOT_ASKED})
        for question in asked[index]:
            items[-1] |= _judged(question, next(answers), tokenizer, stop)
    judged = [item for item in items if item["answer"] is not None]
    return {
        "loss": float(sums.sum() / counts.sum()),
        "loss_low": low,
        "loss_high": high,
        "conversations": len(conversations),
        "tokens": int(counts.sum()),
        "questions": len(questions),
        "shares": {name: share(sum(item[name] for item in judged), len(judged)) for name in SHARES},
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
    sums = np.zeros((len(rows), 2))
    for first in range(0, len(rows), batch_size):
        batch = order[first : first + batch_size]
        tokens, mask = padded_rows([rows[index][0] for index in batch], model.device)
        said, _ = padded_rows([rows[index][1] for index in batch], model.device)
        labels = tokens.masked_fill((said == 0) | (mask == 0), IGNORED)
        losses = score_labels(model, next_labels(labels), input_ids=tokens, attention_mask=mask).nats
        sums[batch] = row_losses(losses, labels).cpu().numpy()
    return sums[:, 0], sums[:, 1]


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
