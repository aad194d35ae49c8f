"""The subcommand that talks to a model."""

import secrets
import sys
from dataclasses import dataclass
from typing import Literal

from ..errors import InputError
from ..runtime.settings import argument, option


@dataclass(frozen=True, kw_only=True)
class ChatCommand:
    """Talk to a model in the terminal.

    In the chat, /help lists the commands. Ctrl-C stops an answer, Ctrl-D ends the chat.
    """

    model: str = argument("MODEL", "folder, GGUF file, or Hub name with an optional @REVISION")
    prompt: str | None = option(
        None,
        "TEXT",
        "answer this on stdout and end; so does a pipe, whose whole text is the prompt",
    )
    system: str | None = option(None, "TEXT", "system prompt")
    temperature: float | None = option(None, "T", "0 is greedy; default the model's own if it samples, else 0.7")
    top_p: float | None = option(None, "P", "draw from the most likely tokens with this total probability")
    top_k: int | None = option(None, "K", "draw from the K most likely tokens; 0 for all")
    seed: int | None = option(None, "N", "same seed, same answers; default one at random")
    max_new_tokens: int = option(512, "N", "maximum number of tokens per answer, default 512")
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

    from transformers.utils import logging

    from ..evaluation.chat.chat_model import ChatModel, Sampling
    from ..evaluation.chat.session import Session, answer_once

    if not sys.stderr.isatty():
        logging.disable_progress_bar()
    seed = secrets.randbelow(1 << 32) if arguments.seed is None else arguments.seed
    sampling = Sampling(arguments.temperature, arguments.top_p, arguments.top_k, seed, arguments.max_new_tokens)
    chat_model = ChatModel(arguments.model, sampling, arguments.mode)
    if prompt is not None:
        answer_once(chat_model, prompt, arguments.system)
    else:
        Session(chat_model, arguments.system).run()
    return 0
