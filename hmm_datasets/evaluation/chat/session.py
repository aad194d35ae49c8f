"""A conversation in a terminal: what is typed, the answers as they are generated, and the commands.

Answers go to stdout, remarks in parentheses and errors to stderr. Nothing but text is written, so no escape codes get
into files and pipes; line editing is that of readline, which is off unless both ends are a terminal.
"""

import os
import sys
from pathlib import Path

from ...errors import InputError, printable
from ...files import write_jsonl
from ...text.corpora.conversations import Messages
from ...text.tokenizers.chat_templates import check_messages
from .chat_model import ChatModel

try:
    import readline  # which `input` uses where it is imported
except ImportError:  # Windows has a line editor of its own
    readline = None

HELP = """\
/clear      forget the conversation
/save FILE  write the conversation to FILE, a line of JSON that `sft --conversations FILE.jsonl` reads too
/quit       end the chat, as Ctrl-D does
/help       show this list
A text of several lines is pasted. A space before a slash makes it a message. Ctrl-C stops an answer."""


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
        self.dropped = 0
        self.saved: set[Path] = set()

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
        _remark("(/help lists the commands)")
        finished = False
        while not finished:
            try:
                line = input(">>> ").rstrip()
                if line.startswith("/"):
                    finished = self._command(line)
                elif line:
                    self.say(line.lstrip())
            except EOFError:
                print()
                finished = True
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
        if answer.dropped > self.dropped:
            _remark(
                f"(the context window of {self.chat_model.window:,} tokens is full: the oldest {answer.dropped} "
                "messages were left out)"
            )
        self.dropped = answer.dropped
        if answer.cut is not None:
            _remark(f"({answer.cut})")

    def _command(self, line: str) -> bool:
        """Run a command; True if it ends the session."""
        name, _, rest = line.partition(" ")
        if name == "/clear":
            self.messages, self.dropped = list(self.beginning), 0
            _remark("(cleared)")
        elif name == "/save":
            self._save(rest.strip())
        elif name == "/help":
            _remark(HELP)
        elif name != "/quit":
            raise InputError(f"{name}: no such command; /help lists them, and a space before it makes it a message")
        return name == "/quit"

    def _save(self, name: str) -> None:
        if not name:
            raise InputError("/save: name a file, as in /save talk.jsonl")
        if not self.messages:
            raise InputError("/save: the conversation is empty")
        try:
            path = Path(name).expanduser()
            if path.exists() and path not in self.saved:
                raise InputError(f"/save: {path} exists; save under another name")
            write_jsonl(path, [{"messages": self.messages}])
        except (OSError, ValueError, RuntimeError) as error:
            if isinstance(error, InputError):
                raise
            raise InputError(f"/save: {ascii(name)[:200]}: {error}; save under another name") from None
        self.saved.add(path)
        _remark(f"({path}: {len(self.messages)} messages)")


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
