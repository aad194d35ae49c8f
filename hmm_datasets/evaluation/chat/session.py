"""A conversation in a terminal: what is typed, and the answers as they are generated.

Answers go to stdout, remarks in parentheses and errors to stderr. Nothing but text is written, so no escape codes get
into files and pipes; line editing is that of readline, which is off unless both ends are a terminal.
"""

import os
import sys

from ...errors import InputError, printable
from ...text.corpora.conversations import Messages
from ...text.tokenizers.chat_templates import check_messages
from .chat_model import ChatModel

try:
    import readline  # which `input` uses where it is imported
except ImportError:  # Windows has a line editor of its own
    readline = None

_HELP = (
    "(/clear forgets the conversation, /quit or Ctrl-D ends the chat, Ctrl-C stops an answer; a text of several lines "
    "is pasted)"
)


class Session:
    """A conversation with a model.

    Args:
        chat_model ([`~hmm_datasets.evaluation.chat.chat_model.ChatModel`]): the model.
        system (`str`, *optional*): system prompt.

    Raises:
        `InputError`: a system prompt for a model that does not chat, or whose chat template refuses it.
    """

    def __init__(self, chat_model: ChatModel, system: str | None = None):
        if system is not None and not chat_model.chats:
            raise InputError(f"--system: {_base(chat_model)}, and knows no system prompt; leave it out")
        self.chat_model = chat_model
        self.beginning: Messages = [] if system is None else [{"role": "system", "content": system}]
        if system is not None:
            check_messages(chat_model.tokenizer, [*self.beginning, {"role": "user", "content": "Hello"}])
        self.messages: Messages = list(self.beginning)

    def run(self) -> None:
        """Read messages and commands and answer them, until Ctrl-D or `/quit`."""
        chat_model = self.chat_model
        _edit_lines()
        drawn = "greedy"
        if chat_model.generation.do_sample:
            drawn = f"temperature {chat_model.generation.temperature:g}, seed {chat_model.seed}"
        _remark(
            f"{chat_model.name}: {chat_model.model.num_parameters():,} parameters, "
            + ("" if chat_model.window is None else f"context window {chat_model.window:,} tokens, ")
            + drawn
        )
        remark_on_base(chat_model)
        _remark(_HELP)
        while True:
            try:
                line = input(">>> ").strip()
                if line == "/quit":
                    return
                if line == "/clear":
                    self.messages = list(self.beginning)
                    _remark("(cleared)")
                elif line:
                    self.say(line)
            except EOFError:
                print()
                return
            except KeyboardInterrupt:
                _remark("\n(Ctrl-D or /quit ends the chat)")
            except InputError as error:
                _remark(f"error: {error}")

    def say(self, text: str) -> None:
        """Answer a message on stdout, and add both to the conversation.

        Raises:
            `InputError`: it cannot be answered; the conversation stays as it was.
        """
        messages: Messages = [*self.messages, {"role": "user", "content": text}]
        answer = self.chat_model.answer(messages, _show)
        print(flush=True)
        self.messages = [*messages, {"role": "assistant", "content": answer.text}]
        if answer.cut is not None:
            _remark(f"({answer.cut})")


def answer_once(chat_model: ChatModel, text: str, system: str | None = None) -> None:
    """Answer one message on stdout.

    Raises:
        `InputError`: it cannot be answered.
    """
    session = Session(chat_model, system)
    remark_on_base(chat_model)
    session.say(text)


def remark_on_base(chat_model: ChatModel) -> None:
    """Say that a model does not chat, if so."""
    if not chat_model.chats:
        _remark(f"({_base(chat_model)}, so texts are continued)")


def _base(chat_model: ChatModel) -> str:
    return f"{chat_model.name} is a base model ({chat_model.not_chat_reason})"


def _show(text: str) -> None:
    print(printable(text), end="", flush=True)


def _remark(text: str) -> None:
    sys.stdout.flush()
    print(printable(text), file=sys.stderr, flush=True)


def _edit_lines() -> None:
    """Let `input` edit lines with a history, and take a pasted text of several lines as one message."""
    if sys.stdin.isatty() and sys.stdout.isatty() and os.environ.get("TERM") != "dumb" and readline is not None:
        readline.parse_and_bind("set enable-bracketed-paste on")
