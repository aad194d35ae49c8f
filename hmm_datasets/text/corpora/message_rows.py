"""Conversations from tables with one message per row, as help desks and chat tools export them.

| column | names, in any case, with spaces or hyphens |
|---|---|
| conversation | `conversation_id`, `ticket_id`, `chat_id`, `thread_id`, `session_id` |
| role | `role`, `author_role`, `author_type`, `sender_type`, `speaker`, `from`, `sender`, `author` |
| text | `content`, `text`, `body`, `message`, `value` |
| time, if there is one | `created_at`, `timestamp`, `time`, `sent_at`, `date` |
| whether it is an internal note, if there is one | `public` (false), `private` (true), `part_type` (note) |

Messages of a conversation are sorted by their time, if all times of the file are numbers or in ISO 8601, and otherwise
stay in the order of the file. Successive messages of one role become one, with a blank line between them. Messages
without text, and internal notes, are left out and counted. All rows of the files are in memory.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import groupby
from typing import Any

from ...errors import InputError
from .conversations import ROLE_NAMES
from .keys import CALLERS, OF_TURNS, expect_truth, is_empty
from .local_files import check_text, shorten

Row = tuple[str, dict[str, Any]]
"""Place of a row, for errors, and its columns."""

_IDS = ("conversation_id", "ticket_id", "chat_id", "thread_id", "session_id")
_ROLES = ("role", "author_role", "author_type", "sender_type", "speaker", "from", "sender", "author")
_TEXTS = ("content", "text", "body", "message", "value")
_TIMES = ("created_at", "timestamp", "time", "sent_at", "date")
_MARKS = ("public", "private", "part_type")
MESSAGE_COLUMNS = (*_IDS, *_ROLES, *_TEXTS, *_TIMES, *_MARKS)
"""Names of the columns that are read of such a table."""

_JOINED_ROLES = ("user", "assistant")


@dataclass(frozen=True)
class MessageColumns:
    """The columns of a table with one message per row, by the names that they have in it.

    Attributes:
        conversation (`str`), role (`str`), text (`str`): the conversation of a message, who wrote it, and its text.
        time (`str`, *optional*): when it was written.
        marks (mapping of `str` to `str`): columns that mark internal notes, by the names of this module.
    """

    conversation: str
    role: str
    text: str
    time: str | None
    marks: Mapping[str, str]

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> "MessageColumns | None":
        """The columns of a table with this first row; None if it is not such a table."""
        names = {re.sub(r"[\s-]+", "_", name.strip().lower()): name for name in reversed(list(row))}

        def first(known: tuple[str, ...]) -> str | None:
            return next((names[name] for name in known if name in names), None)

        conversation, role, text = map(first, (_IDS, _ROLES, _TEXTS))
        if conversation is None or role is None or text is None or isinstance(row[text], list | Mapping):
            return None
        return cls(conversation, role, text, first(_TIMES), {name: names[name] for name in _MARKS if name in names})

    def __str__(self) -> str:
        return ", ".join(filter(None, (self.conversation, self.role, self.text, self.time, *self.marks.values())))

    def is_internal(self, row: Mapping[str, Any], where: str) -> bool:
        """Whether a message is a note that the customer does not see.

        Raises:
            `InputError`: a mark is neither true nor false.
        """
        for name, column in self.marks.items():
            if name == "part_type":
                is_internal = str(row[column]).strip().lower() == "note"
            else:
                is_internal = not is_empty(row[column]) and (
                    expect_truth(row[column], f"{where}: {column}", "write these") is (name == "private")
                )
            if is_internal:
                return True
        return False

    def message(self, row: Mapping[str, Any], where: str) -> tuple[str, dict[str, Any]]:
        """The conversation of a row, and its message with `role`, `content` and the other columns.

        Raises:
            `InputError`: the row has no conversation, or a role that is not known.
        """
        if is_empty(row[self.conversation]):
            raise InputError(f"{where}: {self.conversation} is empty, expected the conversation of the message")
        name = row[self.role]
        spelt = name.strip().lower().replace(" ", "-") if isinstance(name, str) else None
        role = spelt if spelt in CALLERS else ROLE_NAMES.get(spelt)
        if role is None:
            raise InputError(
                f"{where}: {self.role} is {shorten(name)}, expected who wrote the message: user (or customer, "
                "end-user, visitor), assistant (or agent, admin, bot), system or tool; write one of these"
            )
        read = {self.conversation, self.role, self.text, self.time, *self.marks.values()}
        others = {name: value for name, value in row.items() if name not in read}
        return str(row[self.conversation]).strip(), {**others, "role": role, "content": row[self.text].strip()}


def conversations_of_messages(rows: Iterable[Row], columns: MessageColumns) -> tuple[list[Row], list[str]]:
    """Group the rows of a table by conversation.

    Args:
        rows (iterable of `tuple[str, dict]`): place and columns of each message.
        columns ([`MessageColumns`]): the columns of the table.

    Returns:
        `tuple`: place and columns of each conversation, in the order of their first rows, of which the column
        `messages` has the messages with all that is not read of their rows; and lines about what was left out and how
        messages are ordered.

    Raises:
        `InputError`: a row with a text has no conversation, or a role that is not known; a mark of internal notes is
            neither true nor false; or no row has a text.
    """
    groups: dict[str, list[tuple[float | None, str, dict[str, Any]]]] = {}
    num_rows = num_empty = num_internal = 0
    not_a_time = ""
    for where, row in rows:
        num_rows += 1
        if is_empty(row[columns.text]) or not check_text(row[columns.text], where).strip():
            num_empty += 1
        elif columns.is_internal(row, where):
            num_internal += 1
        else:
            conversation, message = columns.message(row, where)
            time = row[columns.time] if columns.time else 0
            moment = _moment(time)
            if moment is None and not not_a_time:
                not_a_time = f"{where} is {shorten(time)}"
            groups.setdefault(conversation, []).append((moment, where, message))
    if not not_a_time:
        groups = {name: sorted(group, key=lambda entry: entry[0] or 0.0) for name, group in groups.items()}
    conversations: list[Row] = [
        (group[0][1], {"messages": _joined([message for _, _, message in group])}) for group in groups.values()
    ]
    num_joined = num_rows - num_empty - num_internal - sum(len(row["messages"]) for _, row in conversations)
    counts = (
        (num_empty, "without text are left out"),
        (num_internal, "internal are left out"),
        (num_joined, "are joined to the one before, of the same role"),
    )
    remarks = [f"{count:,} {what}" for count, what in counts if count]
    lines = ["; ".join([f"{num_rows:,} messages of {len(groups):,} conversations", *remarks])]
    if not_a_time:
        lines.append(
            f"messages stay in the order of the file, since {columns.time} of {not_a_time}, neither a number nor a "
            "time in ISO 8601, such as 2026-03-01 08:15"
        )
    return conversations, lines


def _moment(value: Any) -> float | None:
    """A time in seconds since 1970; None if it cannot be read."""
    if isinstance(value, datetime):
        time = value
    else:
        try:
            return float(value)
        except (TypeError, ValueError):
            pass
        try:
            time = datetime.fromisoformat(str(value).strip().removesuffix(" UTC"))
        except ValueError:
            return None
    return (time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp()


def _joined(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Messages, of which successive ones of one role are joined unless they have more than text to be trained on."""

    def speaker(numbered: tuple[int, dict[str, Any]]) -> Any:
        number, message = numbered
        has_more = any(not is_empty(message.get(key)) for key in OF_TURNS)
        return number if has_more or message["role"] not in _JOINED_ROLES else message["role"]

    turns = [[message for _, message in group] for _, group in groupby(enumerate(messages), speaker)]
    return [turn[0] | {"content": "\n\n".join(message["content"] for message in turn)} for turn in turns]
