"""What a model says: simple facts, whose answer is known, and open prompts.

Greedy continuations tell what it holds likeliest, sampled ones what else it says. All prompts run as one batch, padded
on the left; cost is `max_new_tokens` passes of that batch, and as many again for each sample.
"""

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from ..errors import InputError
from ..text.tokenizers.chat_template import stop_tokens
from .ranks import check_vocabulary
from .scoring import beginning_token, encode, padded

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
"""Prompts, and the word that a continuation has to begin with."""

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
    temperature: float = 0.8,
    max_new_tokens: int = 24,
    seed: int = 0,
) -> dict[str, Any]:
    """Continue prompts, greedily and sampled; the same for the same seed, on the same device.

    Before each prompt goes a BOS, or an EOS where the tokenizer has none; a continuation ends at EOS, or where the
    chat template of the tokenizer ends a turn. A fact is known where the greedy
    continuation begins with the expected word, white space and case aside. The state of the random numbers stays.

    Args:
        model ([`~transformers.PreTrainedModel`]): a causal language model in eval mode.
        tokenizer ([`~transformers.PreTrainedTokenizerBase`]): its tokenizer.
        facts (sequence of pairs of `str`, *optional*, defaults to `FACTS`): prompts and their expected words.
        open_prompts (sequence of `str`, *optional*, defaults to `OPEN_PROMPTS`): prompts without one.
        samples (`int`, *optional*, defaults to 2): sampled continuations of each.
        temperature (`float`, *optional*, defaults to 0.8): of the samples.
        max_new_tokens (`int`, *optional*, defaults to 24): tokens of a continuation, at most.
        seed (`int`, *optional*, defaults to 0): of the samples; sample `k` is drawn with `seed + k`.

    Returns:
        `dict`: `prompts`, of each the `prompt`, its `kind` (`fact` or `open`), `expected`, `greedy`, `correct` and
        `sampled`; `facts_correct` of `facts`; `temperature`, `seed`, `max_new_tokens`.

    Raises:
        `InputError`: no prompt, an empty one, or settings that cannot be.
    """
    prompts = [*(prompt for prompt, _ in facts), *open_prompts]
    if not prompts or not all(prompt.strip() for prompt in prompts):
        raise InputError("no prompts, or an empty one; write some words in each")
    if samples < 0 or max_new_tokens < 1 or not temperature > 0:
        raise InputError(
            f"samples={samples}, max_new_tokens={max_new_tokens}, temperature={temperature}: expected 0 or more, 1 or "
            "more, and above 0"
        )
    tokens, mask = _prompts(model, tokenizer, list(prompts))
    limits = {"max_new_tokens": max_new_tokens}
    greedy = _continued(model, tokenizer, tokens, mask, do_sample=False, **limits)
    sampled = []
    with torch.random.fork_rng(devices=[model.device] if model.device.type == "cuda" else []):
        for number in range(samples):
            torch.manual_seed(seed + number)
            how = {"do_sample": True, "temperature": temperature, "top_k": 0, "top_p": 1.0}
            sampled.append(_continued(model, tokenizer, tokens, mask, **how, **limits))
    expected = [*(word for _, word in facts), *[None] * len(open_prompts)]
    rows = []
    for prompt, word, said, *others in zip(prompts, expected, greedy, *sampled, strict=True):
        rows.append(
            {
                "prompt": prompt,
                "kind": "open" if word is None else "fact",
                "expected": word,
                "greedy": said,
                "correct": None if word is None else begins_with(said, word),
                "sampled": others,
            }
        )
    return {
        "prompts": rows,
        "facts_correct": sum(bool(row["correct"]) for row in rows),
        "facts": len(facts),
        "temperature": temperature,
        "seed": seed,
        "max_new_tokens": max_new_tokens,
    }


def begins_with(text: str, word: str) -> bool:
    """Whether a text begins with a word, white space, quotes and case aside.

    ```python
    >>> begins_with(" Paris, of course", "paris"), begins_with(" Parisian", "Paris")
    (True, False)

    ```
    """
    return re.match(rf"[\s\"'“]*{re.escape(word)}(?!\w)", text, flags=re.IGNORECASE) is not None


def _prompts(model: "PreTrainedModel", tokenizer: "PreTrainedTokenizerBase", texts: list[str]) -> tuple:
    """Tokens behind a beginning, padded on the left, and a mask of what is not padding."""
    beginning, _ = beginning_token(tokenizer)
    rows = [([] if beginning is None else [beginning]) + ids for ids in encode(tokenizer, texts)]
    check_vocabulary(model, 1 + max(map(max, rows)), "tokens")
    return padded(rows, model.device, left=True)


def _continued(
    model: "PreTrainedModel",
    tokenizer: "PreTrainedTokenizerBase",
    tokens: torch.Tensor,
    mask: torch.Tensor,
    **how: Any,
) -> list[str]:
    padding = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else tokenizer.eos_token_id
    stops = stop_tokens(tokenizer, model.generation_config)
    how |= {"pad_token_id": padding, "use_cache": True} | ({"eos_token_id": stops} if stops else {})
    output = model.generate(input_ids=tokens, attention_mask=mask, **how)
    return [tokenizer.decode(row, skip_special_tokens=True) for row in output[:, tokens.shape[1] :]]
