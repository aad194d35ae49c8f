"""A conversation in a terminal: what is typed, the answers as they are generated, and the commands.

Answers go to stdout, remarks in parentheses and errors to stderr. Nothing but text is written, so no escape codes get
into files and pipes; line editing is that of readline, which is off unless both ends are a terminal.
"""

import os
import sys
from collections.abc import Callable
from pathlib import Path

from ...errors import InputError, printable
from ...files import read_json, write_jsonl
from ...text.corpora.conversations import Messages, column_format, normalize_messages
from ...text.corpora.keys import CONTEXT, UnusedKeys, is_empty
from ...text.tokenizers.chat_templates import check_messages
from .chat_model import Answer, ChatModel

try:
    import readline  # which `input` uses where it is imported
except ImportError:  # Windows has a line editor of its own
    readline = None

QUOTES = '"""'

HELP = f"""\
/clear      forget the conversation
/retry      answer the last message again, with other draws
/save FILE  write the conversation to FILE, a line of JSON that `sft --conversations FILE.jsonl` reads too
/load FILE  continue the conversation in FILE
/quit       end the chat, as Ctrl-D does
/help       show this list
{QUOTES} begins and ends a message of several lines, or one that begins with a slash. Ctrl-C stops an answer."""

_ENDS = {
    "interrupt": "stopped",
    "window": "the context window of {window:,} tokens is full",
    "max_new_tokens": "stopped after {max_new_tokens:,} tokens; --max_new_tokens allows more",
}


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
        self.attempt = 0
        self.dropped = 0
        self.files: set[Path] = set()
        self.commands: dict[str, Callable[[str], bool | None]] = {
            "/clear": self._clear,
            "/retry": self._retry,
            "/save": self._save,
            "/load": self._load,
            "/quit": lambda _: True,
            "/help": lambda _: _remark(HELP),
        }

    def run(self) -> None:
        """Read messages and commands and answer them, until Ctrl-D or `/quit`."""
        chat_model = self.chat_model
        _edit_lines()
        drawn = "greedy"
        if chat_model.generation.do_sample:
            drawn = f"temperature {chat_model.generation.temperature:g}, seed {chat_model.sampling.seed}"
        _remark(
            f"{chat_model.name}: {chat_model.model.num_parameters():,} parameters, "
            + ("" if chat_model.window is None else f"context window {chat_model.window:,} tokens, ")
            + drawn
        )
        remark_on_base(chat_model)
        _remark(f"(/help lists the commands; {QUOTES} begins and ends a message of several lines)")
        finished = False
        while not finished:
            try:
                text, is_command = _read()
                finished = bool(self._command(text) if is_command else text and self.say(text))
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
        self._answer([*self.messages, {"role": "user", "content": text}], attempt=0)

    def _answer(self, messages: Messages, attempt: int) -> None:
        answer = self.chat_model.answer(messages, _show, attempt)
        print(flush=True)
        self.messages = [*messages, {"role": "assistant", "content": answer.text}]
        self.attempt = attempt
        self._remark_on(answer)

    def _remark_on(self, answer: Answer) -> None:
        if answer.dropped != self.dropped:
            self.dropped = answer.dropped
            if answer.dropped:
                _remark(
                    f"(the context window of {self.chat_model.window:,} tokens is full: the oldest {answer.dropped} "
                    "messages were left out)"
                )
        if answer.end in _ENDS:
            limits = {"window": self.chat_model.window, "max_new_tokens": self.chat_model.sampling.max_new_tokens}
            _remark(f"({_ENDS[answer.end].format(**limits)})")

    def _command(self, text: str) -> bool | None:
        """Run a command; True if it ends the session."""
        name, _, rest = text.partition(" ")
        if name not in self.commands:
            raise InputError(f"{name}: no such command; /help lists them, and {QUOTES} begins any text")
        return self.commands[name](rest.strip())

    def _clear(self, _: str) -> None:
        self.messages = list(self.beginning)
        self.dropped = 0
        _remark("(cleared)")

    def _retry(self, _: str) -> None:
        asked = [index for index, message in enumerate(self.messages) if message["role"] == "user"]
        if not asked:
            raise InputError("/retry: there is no message to answer yet")
        again = asked[-1] + 1 < len(self.messages)
        self._answer(self.messages[: asked[-1] + 1], self.attempt + 1 if again else 0)

    def _save(self, name: str) -> None:
        path = _path("/save", name)
        if not self.messages:
            raise InputError("/save: the conversation is empty")
        if path.exists() and path not in self.files:
            raise InputError(f"/save: {path} exists; save under another name")
        try:
            write_jsonl(path, [{"messages": self.messages}])
        except (OSError, ValueError) as error:
            raise InputError(f"/save: {path}: {_reason(error)}; save under another name") from None
        self.files.add(path)
        _remark(f"({path}: {len(self.messages)} messages)")

    def _load(self, name: str) -> None:
        path = _path("/load", name)
        try:
            found = read_json(path)
        except OSError as error:
            raise InputError(f"/load: {path}: {_reason(error)}") from None
        row = found if isinstance(found, dict) else {"messages": found}
        messages = normalize_messages(row.get("messages"), str(path))
        unused = UnusedKeys(column_format("messages", "conversations").unused(row))
        unused.update(name for name in CONTEXT if not is_empty(row.get(name)))
        unused.rows = 1
        for line in unused.lines(str(path)):
            _remark(f"({line})")
        if self.chat_model.chats:
            check_messages(self.chat_model.tokenizer, messages)
        self.messages, self.attempt, self.dropped = messages, 0, 0
        self.files.add(path)
        _remark(f"({path}: {len(messages)} messages)")


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


def _read() -> tuple[str, bool]:
    """What was typed, and whether it is a command."""
    line = input(">>> ").strip()
    if not line.startswith(QUOTES):
        return line, line.startswith("/")
    lines = [line.removeprefix(QUOTES)]
    while not lines[-1].endswith(QUOTES):
        lines.append(input("... ").rstrip())
    lines[-1] = lines[-1].removesuffix(QUOTES)
    return "\n".join(lines).strip("\n"), False


def _show(text: str) -> None:
    print(printable(text), end="", flush=True)


def _remark(text: str) -> None:
    sys.stdout.flush()
    print(printable(text), file=sys.stderr, flush=True)


def _reason(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error)


def _path(command: str, name: str) -> Path:
    if not name:
        raise InputError(f"{command}: name a file, as in {command} talk.jsonl")
    try:
        path = Path(name).expanduser()
        is_there = path.exists()
    except (OSError, ValueError, RuntimeError) as error:
        raise InputError(f"{command}: {ascii(name)[:200]} is no name of a file ({error}); name another") from None
    if is_there and not path.is_file():
        raise InputError(f"{command}: {path} is no file; name one, as in {command} talk.jsonl")
    return path


def _edit_lines() -> None:
    """Let `input` edit lines with a history, and take a pasted text of several lines as one message."""
    if sys.stdin.isatty() and sys.stdout.isatty() and os.environ.get("TERM") != "dumb" and readline is not None:
        readline.parse_and_bind("set enable-bracketed-paste on")
