"""Chat templates of tokenizers: the tokens of a conversation, and the token that ends a turn."""

import contextlib
import functools
import os
import signal
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...errors import InputError, first_line
from ...foreign.sizes import limited_memory
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
_PATIENCE = 20.0  # seconds for the template of one conversation
_ROOM = 1 << 30  # bytes of memory for it
_MOST_CHARACTERS = 1 << 24  # that it may write beside a hundred times the conversation


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
        raise InputError(f"{name}: no tokenizer can be loaded from it ({reason}); name a folder with one") from error
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
        written = check_written(tokenizer.apply_chat_template(messages, tokenize=False), messages)
    count_unwritten(written, messages)


@contextlib.contextmanager
def quoting_the_template() -> Iterator[None]:
    """A context in which errors of the template are of one line, and its time (in the main thread) and memory limited.

    transformers renders templates in jinja's sandbox, which limits what they reach, but not how long they take nor how
    much they write.
    """
    from jinja2 import TemplateError

    def too_long(*_: object) -> None:
        raise _TooLong

    usual, left, every, began = None, 0.0, 0.0, time.monotonic()
    if threading.current_thread() is threading.main_thread() and hasattr(signal, "SIGALRM"):
        usual = signal.getsignal(signal.SIGALRM)
    if usual is not None:
        signal.signal(signal.SIGALRM, too_long)
        left, every = signal.setitimer(signal.ITIMER_REAL, _PATIENCE)  # the timer of the program itself continues
    try:
        with limited_memory(_ROOM):
            yield
    except MemoryError:
        raise InputError(
            f"the chat template needs more than {_ROOM >> 30} GiB of memory for one conversation; take the model from "
            "where it was made, or give its tokenizer another template"
        ) from None
    except _TooLong:
        raise EndlessTemplate(
            f"the chat template does not end within {_PATIENCE:.0f} s; take the model from where it was made, or give "
            "its tokenizer another template"
        ) from None
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
    finally:
        if usual is not None:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, usual)
            if left:
                signal.setitimer(signal.ITIMER_REAL, max(left - (time.monotonic() - began), 1e-3), every)


def check_written(written: str, messages: Sequence[Mapping[str, Any]]) -> str:
    """What a template wrote; raises [`InputError`] if it is out of proportion to the conversation."""
    if len(written) > _MOST_CHARACTERS and len(written) > _MOST_CHARACTERS + 100 * len(str(messages)):
        raise InputError(
            f"the chat template writes {len(written):,} characters for {len(messages)} messages; take the model from "
            "where it was made, or give its tokenizer another template"
        )
    return written


class EndlessTemplate(InputError):
    """A chat template takes too long for one conversation."""


class _TooLong(BaseException):
    """A template takes too long; no `except Exception` within it stops this."""


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
    tokenizer: "PreTrainedTokenizerBase", template: str, messages: Messages, add_generation_prompt: bool
) -> str | None:
    """What a template writes; None if it refuses the conversation."""
    try:
        with quoting_the_template():
            written = tokenizer.apply_chat_template(
                messages, chat_template=template, add_generation_prompt=add_generation_prompt, tokenize=False
            )
        return check_written(written, messages)
    except EndlessTemplate:
        raise
    except InputError:
        return None


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
    text = _written(tokenizer, template, messages, False)
    if text is None:
        return None
    _, separator, rest = text.rpartition(_ANSWERED)
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
