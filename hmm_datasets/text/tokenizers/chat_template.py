"""What a tokenizer's chat template says: how a conversation is laid out in tokens, and which token ends a turn."""

import contextlib
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ...errors import InputError
from ..corpora.conversations import Messages

if TYPE_CHECKING:
    from transformers import GenerationConfig, PreTrainedTokenizerBase, PreTrainedTokenizerFast

_ASKED, _ANSWERED = "Question", "Answer"


def load_tokenizer(name: str | os.PathLike) -> "PreTrainedTokenizerFast":
    """Load a tokenizer whose tokens can be streams: a fast one, with an EOS token.

    Args:
        name (`str` or `os.PathLike`): a folder, or a name on the Hub.

    Raises:
        `InputError`: it cannot be loaded, is none of the `tokenizers` library's, or has no EOS token.
    """
    from transformers import AutoTokenizer

    name = os.fspath(name)
    try:
        tokenizer = AutoTokenizer.from_pretrained(name)
    except Exception as error:  # transformers and the Hub's client raise many kinds
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise InputError(f"{name}: no tokenizer can be loaded from it ({reason}); name a folder with one") from error
    if not tokenizer.is_fast:
        raise InputError(f"{name}: {type(tokenizer).__name__} is no fast tokenizer; save it with a tokenizer.json")
    if tokenizer.eos_token_id is None:
        raise InputError(f"{name}: has no EOS token, which ends each document; set tokenizer.eos_token and save it")
    return tokenizer


def lay_out(tokenizer: "PreTrainedTokenizerBase", messages: Messages) -> list[int]:
    """The tokens of a conversation; what a message says in the form of a special token is text.

    Raises:
        `InputError`: for messages that the template refuses, in its words.
    """
    with _in_the_templates_words():
        return tokenizer.apply_chat_template(messages, return_dict=False, sanitize_control_tokens=True)


def check_messages(tokenizer: "PreTrainedTokenizerBase", messages: Messages) -> None:
    """Raise the errors of [`lay_out`] without its cost, which is nearly all in encoding."""
    with _in_the_templates_words():
        tokenizer.apply_chat_template(messages, tokenize=False)


@contextlib.contextmanager
def _in_the_templates_words() -> Iterator[None]:
    from jinja2 import TemplateError

    try:
        yield
    except (TemplateError, TypeError) as error:
        raise InputError(f"the chat template refuses it ({error}); change the conversation or the template") from None


def check_chat_template(tokenizer: "PreTrainedTokenizerBase", name: str) -> None:
    """Raise [`InputError`] unless conversations can be written as documents, which end in EOS and hold no other."""
    if tokenizer.chat_template is None:
        raise InputError(
            f"{name}: has no chat template, which conversations need; set tokenizer.chat_template and save it, or "
            "leave conversations out"
        )
    asked, answered = {"role": "user", "content": _ASKED}, {"role": "assistant", "content": _ANSWERED}
    if tokenizer.eos_token_id in lay_out(tokenizer, [asked, answered] * 2)[:-1]:
        raise InputError(
            f"{name}: its chat template writes EOS ({tokenizer.eos_token}) inside a conversation, which in a token "
            "stream ends a document; fine-tune on these conversations by recipes/sft.py, or give the tokenizer "
            "another eos_token"
        )


def end_of_turn(tokenizer: "PreTrainedTokenizerBase") -> int | None:
    """The token that ends what an assistant says, by the chat template: the first special one after its words.

    A conversation is laid out, and what the template writes after the assistant's words is tokenized: `<|end|>` in the
    templates of this package, `<|im_end|>` in ChatML, `<|eot_id|>` in Llama 3, or EOS.

    Args:
        tokenizer ([`~transformers.PreTrainedTokenizerBase`]): any tokenizer.

    Returns:
        `int`, *optional*: its id; None without a template, and where a turn ends in plain text or in nothing.

    ```python
    >>> from hmm_datasets.text.tokenizers.bpe import train_bpe
    >>> tokenizer = train_bpe(["low lower lowest"] * 9, 266, show_progress=False)
    >>> tokenizer.convert_ids_to_tokens(end_of_turn(tokenizer))
    '<|end|>'

    ```
    """
    from jinja2 import TemplateError

    if tokenizer.chat_template is None:
        return None
    messages = [{"role": "user", "content": _ASKED}, {"role": "assistant", "content": _ANSWERED}]
    try:
        text = tokenizer.apply_chat_template(messages, tokenize=False)
    except (TemplateError, TypeError):
        return None
    _, found, rest = text.rpartition(_ANSWERED)
    if not found:
        return None
    special = {*tokenizer.all_special_ids, *getattr(tokenizer, "added_tokens_decoder", {})}
    return next((token for token in tokenizer.encode(rest, add_special_tokens=False) if token in special), None)


def stop_tokens(tokenizer: "PreTrainedTokenizerBase", generation_config: "GenerationConfig") -> list[int]:
    """Where generation stops: at what the model names itself, at EOS, and at the end of the assistant's turn.

    Args:
        tokenizer ([`~transformers.PreTrainedTokenizerBase`]): of the model.
        generation_config ([`~transformers.GenerationConfig`]): of the model.
    """
    named = generation_config.eos_token_id
    named = list(named) if isinstance(named, list | tuple) else [named]
    tokens = [*named, tokenizer.eos_token_id, end_of_turn(tokenizer)]
    return list(dict.fromkeys(token for token in tokens if token is not None))
