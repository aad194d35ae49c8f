"""Continuations of simple facts, whose answer is known, and of open prompts.

Each prompt is continued greedily and by sampling. All prompts run as one batch, padded on the left. The cost is
`max_new_tokens` forward passes of that batch, and as many again for each sample.
"""

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from ..text.tokenizers.chat_templates import stop_tokens
from ..text.tokenizers.encoding import encode_texts
from .generation import generate_rows
from .model_limits import beginning_token, check_vocabulary

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

FACTS = (
    ("The capital of France is", "Paris"),
    ("The capital of Japan is", "Tokyo"),
    ("The capital of Italy is", "Rome"),
    ("The opposite of hot is", "cold"),
    ("The opposite of big is", "small"),
    ("The opposite of left is", "right"),
    ("If yesterday was Friday, then today is", "Saturday"),
    ("The day after Monday is", "Tuesday"),
    ("The month after March is", "April"),
    ("The letter after A in the alphabet is", "B"),
    ("The planets of the solar system are Mercury, Venus, Earth,", "Mars"),
    ("The chemical symbol of gold is", "Au"),
    ("Water is made of hydrogen and", "oxygen"),
    ("The color of the sky on a clear day is", "blue"),
    ("One, two, three, four,", "five"),
    ("2 + 2 =", "4"),
    ("10 - 3 =", "7"),
    ("5 * 3 =", "15"),
    ("A young dog is called a", "puppy"),
    ("Romeo and Juliet was written by William", "Shakespeare"),
)
"""Prompts, each with the word that its continuation should begin with."""

_TEMPERATURE = 0.8  # of samples
OPEN_PROMPTS = (
    "Once upon a time",
    "My favorite color is",
    "The most important thing about learning is",
    "In the year 2050,",
)


def complete(
    model: "PreTrainedModel",
    tokenizer: "PreTrainedTokenizerBase",
    *,
    facts: Sequence[tuple[str, str]] = FACTS,
    open_prompts: Sequence[str] = OPEN_PROMPTS,
    samples: int = 2,
    max_new_tokens: int = 24,
    seed: int = 0,
) -> dict[str, Any]:
    """Continue prompts greedily and by sampling; the same seed gives the same samples on the same device.

    Each prompt is preceded by a BOS, or by an EOS if the tokenizer has no BOS. A continuation ends at EOS, or where
    the tokenizer's chat template ends a turn. A fact counts as correct if the greedy continuation begins with the
    expected word, ignoring white space and case. The state of the random numbers is restored.

    Args:
        model ([`~transformers.PreTrainedModel`]): a causal language model in eval mode.
        tokenizer ([`~transformers.PreTrainedTokenizerBase`]): its tokenizer.
        facts (sequence of pairs of `str`, *optional*, defaults to `FACTS`): prompts and their expected words.
        open_prompts (sequence of `str`, *optional*, defaults to `OPEN_PROMPTS`): prompts without an expected word.
        samples (`int`, *optional*, defaults to 2): sampled continuations per prompt.
        max_new_tokens (`int`, *optional*, defaults to 24): maximum number of tokens per continuation.
        seed (`int`, *optional*, defaults to 0): seed of the samples; sample `k` is drawn with `seed + k`.

    Returns:
        `dict`: `prompts`, a list with `prompt`, `kind` (`fact` or `open`), `expected`, `greedy`, `correct` and
        `sampled` for each; `facts_correct`, out of `facts`; `temperature`, `seed`, `max_new_tokens`.

    Raises:
        `InputError`: a token that the model does not have.
    """
    prompts = [*(prompt for prompt, _ in facts), *open_prompts]
    tokens = _prompts(model, tokenizer, prompts)
    how = {"stop": stop_tokens(tokenizer, model.generation_config), "max_new_tokens": max_new_tokens}
    greedy = generate_rows(model, tokenizer, tokens, **how)
    sampled = []
    with torch.random.fork_rng(devices=[model.device] if model.device.type == "cuda" else []):
        for number in range(samples):
            torch.manual_seed(seed + number)
            sampled.append(generate_rows(model, tokenizer, tokens, temperature=_TEMPERATURE, **how))
    expected = [*(word for _, word in facts), *[None] * len(open_prompts)]
    rows = []
    for prompt, word, *written in zip(prompts, expected, greedy, *sampled, strict=True):
        continuation, *others = tokenizer.batch_decode(written, skip_special_tokens=True)
        rows.append(
            {
                "prompt": prompt,
                "kind": "open" if word is None else "fact",
                "expected": word,
                "greedy": continuation,
                "correct": None if word is None else begins_with(continuation, word),
                "sampled": others,
            }
        )
    return {
        "prompts": rows,
        "facts_correct": sum(bool(row["correct"]) for row in rows),
        "facts": len(facts),
        "temperature": _TEMPERATURE,
        "seed": seed,
        "max_new_tokens": max_new_tokens,
    }


def begins_with(text: str, word: str) -> bool:
    """Whether a text begins with a word, ignoring white space, quotes and case.

    ```python
    >>> begins_with(" Paris, of course", "paris"), begins_with(" Parisian", "Paris")
    (True, False)

    ```
    """
    return re.match(rf"[\s\"'“]*{re.escape(word)}(?!\w)", text, flags=re.IGNORECASE) is not None


def _prompts(model: "PreTrainedModel", tokenizer: "PreTrainedTokenizerBase", texts: list[str]) -> list[list[int]]:
    """The tokens of the prompts after a beginning token."""
    beginning, _ = beginning_token(tokenizer)
    rows = [([] if beginning is None else [beginning]) + ids for ids in encode_texts(tokenizer, texts)]
    check_vocabulary(model, 1 + max(map(max, rows)), "tokens")
    return rows
