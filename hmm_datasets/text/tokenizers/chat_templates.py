"""Chat templates of tokenizers: the tokens of a conversation, and the token that ends a turn."""

import contextlib
import functools
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from ...errors import InputError, first_line
from ...hub.download import ModelName, reading_hub, reason_of_hub, without_network
from ...hub.gguf import load_gguf
from ..corpora.conversations import Messages
from .chatml_marks import with_marks
from .encoding import check_ids
from .named_templates import template_of
from .unwritten_turns import count_unwritten

if TYPE_CHECKING:
    from transformers import GenerationConfig, PreTrainedTokenizerBase, PreTrainedTokenizerFast

_ASKED, _ANSWERED = "Question", "Answer"


def load_tokenizer(name: str | os.PathLike) -> "PreTrainedTokenizerFast":
    """Load a tokenizer that can write token streams: a fast one with an EOS token.

    Args:
        name (`str` or `os.PathLike`): a folder, a GGUF file, or a name on the Hub.

    Raises:
        `InputError`: it cannot be loaded, is not of the `tokenizers` library, or has no EOS token.
    """
    from transformers import AutoTokenizer

    name, model_name = os.fspath(name), ModelName.parse(name).pinned()
    alone = model_name.on_hub and without_network()
    try:
        if model_name.gguf_file is not None:
            tokenizer = load_gguf(AutoTokenizer, model_name)
        else:
            check_ids(Path(model_name.place, "tokenizer.json"))
            with reading_hub(model_name.on_hub):
                tokenizer = AutoTokenizer.from_pretrained(
                    model_name.place, revision=model_name.revision, local_files_only=alone, trust_remote_code=False
                )
    except InputError:
        raise
    except Exception as error:  # transformers and the client of the Hub raise many types
        reason = reason_of_hub(error) if model_name.on_hub else first_line(error)
        raise InputError(
            f"{name}: no tokenizer can be loaded from it ({reason}); name a folder that save_pretrained wrote"
        ) from error
    if not tokenizer.is_fast:
        raise InputError(f"{name}: {type(tokenizer).__name__} is not a fast tokenizer; save it with a tokenizer.json")
    if tokenizer.eos_token_id is None:
        raise InputError(f"{name}: has no EOS token, which ends each document; set tokenizer.eos_token and save it")
    return tokenizer


def check_messages(tokenizer: "PreTrainedTokenizerBase", messages: Messages) -> None:
    """Raise [`InputError`] if the template refuses a conversation or leaves out all turns of a kind; without encoding,
    which is most of the cost.
    """
    with quoting_the_template():
        written = tokenizer.apply_chat_template(messages, tokenize=False)
    count_unwritten(written, messages)


@contextlib.contextmanager
def quoting_the_template() -> Iterator[None]:
    """A context in which errors of the template are of one line.

    A template is the model's own program: transformers renders it in jinja's sandbox, as long as it takes.
    """
    from jinja2 import TemplateError

    try:
        yield
    except (
        TemplateError,
        TypeError,
        ValueError,
        LookupError,
        AttributeError,
        ArithmeticError,
        RecursionError,
    ) as error:
        raise InputError(
            f"the chat template refuses the conversation ({' '.join(str(error).split())[:500]}); change the "
            "conversation or the template"
        ) from None


def marked_template(tokenizer: "PreTrainedTokenizerBase") -> str | None:
    """The chat template with `generation` marks around what the assistant says.

    It is the tokenizer's own, or else the marked version of it that TRL knows, or that follows from it if it is in
    ChatML.

    Args:
        tokenizer ([`~transformers.PreTrainedTokenizerBase`]): any tokenizer.

    Returns:
        `str`, *optional*: None if neither exists.
    """
    from trl.chat_template_utils import get_training_chat_template, has_generation_markers

    template = template_of(tokenizer)
    if template is None or has_generation_markers(template):
        return template
    try:
        return get_training_chat_template(tokenizer)
    except ValueError:
        return with_marks(template, functools.partial(_written, tokenizer))


def _written(
    tokenizer: "PreTrainedTokenizerBase", template: str, messages: Messages, add_generation_prompt: bool = False
) -> str | None:
    """What a template writes; None if it refuses the conversation."""
    with contextlib.suppress(InputError), quoting_the_template():
        return tokenizer.apply_chat_template(
            messages, chat_template=template, add_generation_prompt=add_generation_prompt, tokenize=False
        )


def end_of_turn(tokenizer: "PreTrainedTokenizerBase") -> int | None:
    """The token that ends a turn of the assistant: the first special token that the chat template writes after it.

    It is found by applying the template to a conversation. It is `<|end|>` in the template of this package,
    `<|im_end|>` in ChatML and `<|eot_id|>` in Llama 3; it may also be EOS.

    Args:
        tokenizer ([`~transformers.PreTrainedTokenizerBase`]): any tokenizer.

    Returns:
        `int`, *optional*: the id of the token; None without a template, or if no special token ends a turn.

    ```python
    >>> from hmm_datasets.text.tokenizers.bpe import train_bpe
    >>> tokenizer = train_bpe(["low lower lowest"] * 9, 266, show_progress=False)
    >>> tokenizer.convert_ids_to_tokens(end_of_turn(tokenizer))
    '<|end|>'

    ```
    """
    template = template_of(tokenizer)
    if template is None:
        return None
    messages = [{"role": "user", "content": _ASKED}, {"role": "assistant", "content": _ANSWERED}]
    _, separator, rest = (_written(tokenizer, template, messages) or "").rpartition(_ANSWERED)
    if not separator:
        return None
    special = {*tokenizer.all_special_ids, *getattr(tokenizer, "added_tokens_decoder", {})}
    return next((token for token in tokenizer.encode(rest, add_special_tokens=False) if token in special), None)


def stop_tokens(tokenizer: "PreTrainedTokenizerBase", generation_config: "GenerationConfig") -> list[int]:
    """Tokens at which generation stops: those of the generation config, EOS, and the end of the assistant's turn.

    Args:
        tokenizer ([`~transformers.PreTrainedTokenizerBase`]): tokenizer of the model.
        generation_config ([`~transformers.GenerationConfig`]): generation config of the model.
    """
    named = generation_config.eos_token_id
    named = list(named) if isinstance(named, list | tuple) else [named]
    tokens = [*named, tokenizer.eos_token_id, end_of_turn(tokenizer)]
    return list(dict.fromkeys(token for token in tokens if token is not None))
