"""The subcommand that talks to a model."""

import sys
from dataclasses import dataclass
from typing import Literal

from ..errors import InputError
from ..evaluation.chat.sampling import Sampling
from ..runtime.progress import announce_imports
from ..runtime.settings import argument, option


@dataclass(frozen=True, kw_only=True)
class ChatCommand(Sampling):
    """Talk to a model in the terminal.

    In the chat, /clear forgets the conversation, Ctrl-C stops an answer, Ctrl-D ends the chat.
    """

    model: str = argument("MODEL", "folder, GGUF file, or Hub name with an optional @REVISION")
    prompt: str | None = option(
        None,
        "TEXT",
        "answer this on stdout and end; so does a pipe, whose whole text is the prompt",
    )
    system: str | None = option(None, "TEXT", "system prompt")
    mode: Literal["auto", "chat", "continue"] = option(
        "auto", None, "answer messages or continue texts; default by the model: a base model continues"
    )


def chat_command(arguments: ChatCommand) -> int:
    """Talk in the terminal, or answer one prompt."""
    prompt = arguments.prompt
    if prompt is None and not sys.stdin.isatty():
        prompt = sys.stdin.read().strip()
    if prompt is not None and not prompt.strip():
        raise InputError("the prompt is empty; write some words in --prompt, or into the pipe")

    announce_imports()
    from transformers.utils import logging

    from ..evaluation.chat.chat_model import ChatModel
    from ..evaluation.chat.session import Session, answer_once

    if not sys.stderr.isatty():
        logging.disable_progress_bar()
    chat_model = ChatModel(arguments.model, arguments, arguments.mode)
    if prompt is not None:
        answer_once(chat_model, prompt, arguments.system)
    else:
        Session(chat_model, arguments.system).run()
    return 0
