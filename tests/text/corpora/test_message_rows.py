"""Tables with one message per row, as help desks export them, are read as conversations."""

import csv
import json
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest
from pyarrow import parquet

from hmm_datasets.errors import InputError
from hmm_datasets.text.corpora.loading import load_corpus

NAMES = ("Zoë Müller", "O'Brien, Sean", "李雷", "Иван")
FIRST = datetime(2026, 3, 1, 8, 15, tzinfo=UTC)


def talks(count: int) -> list[list[tuple[str, str]]]:
    """Conversations with quotes, line breaks and names in several scripts; the customer often writes twice."""
    asked = ('Hello,\n\nmy router; model "K{0}", shows error E{0}.\nRegards, {1}', "{1}: is K{0} back?")
    return [
        [
            ("customer", asked[number % 2].format(number, NAMES[number % 4])),
            *([("customer", "(photo attached)")] if number % 3 == 0 else []),
            ("agent", f"Dear {NAMES[number % 4]}, choose channel {number}."),
            ("customer", "Thanks!"),
            ("agent", "Gern!"),
        ]
        for number in range(count)
    ]


def expected(talk):
    """The messages of a conversation: those by the customer in a row are one."""
    asked = "\n\n".join(text for _, text in talk[:-3])
    names = ("user", "assistant", "user", "assistant")
    texts = [asked, *(text for _, text in talk[-3:])]
    return [{"role": role, "content": text} for role, text in zip(names, texts, strict=True)]


def messages_by_time(talks):
    """Conversation, role, time and text of all messages; several conversations are open at a time."""
    rows = [
        (f"{1000 + number}", role, FIRST + timedelta(minutes=number + 3 * turn), text)
        for number, talk in enumerate(talks)
        for turn, (role, text) in enumerate(talk)
    ]
    return sorted(rows, key=lambda row: row[2])


def write_csv(path, names, rows, *, delimiter=",", encoding="utf-8"):
    with open(path, "w", newline="", encoding=encoding) as file:
        writer = csv.writer(file, delimiter=delimiter)
        writer.writerows([names, *rows])
    return path


def tickets(folder, rows):
    names = ("conversation_id", "role", "author", "created_at", "text")
    return write_csv(folder / "tickets.csv", names, [(c, r, "Mia", t.isoformat(), x) for c, r, t, x in rows])


def excel(folder, rows):
    """Semicolons, a byte order mark, headings in words, and times as Excel writes them in Germany."""
    roles = {"customer": "End-user", "agent": "Agent"}
    cells = [(c, roles[r], t.strftime("%d.%m.%Y %H:%M"), x) for c, r, t, x in rows]
    names = ("Ticket ID", "Author Type", "Created At", "Body")
    return write_csv(folder / "excel.csv", names, cells, delimiter=";", encoding="utf-8-sig")


def zendesk(folder, rows):
    """Newest first, with internal notes and messages without text."""
    roles = {"customer": "end-user", "agent": "agent"}
    cells = [(c, roles[r], t.strftime("%Y-%m-%d %H:%M:%S UTC"), "true", x) for c, r, t, x in rows]
    cells += [("1000", "agent", "2026-03-01 09:00:00 UTC", "false", "INTERNAL: complains often")]
    cells += [("1001", "agent", "2026-03-09 09:00:00 UTC", "true", " ")]
    names = ("ticket_id", "author_role", "created_at", "public", "body")
    return write_csv(folder / "zendesk.csv", names, sorted(cells, key=lambda cell: cell[2], reverse=True))


def intercom(folder, rows):
    """JSON Lines with Unix times in any order, a note, and events without text."""
    roles = {"customer": "user", "agent": "admin"}
    parts = [
        {"conversation_id": int(c), "part_type": "comment", "author_type": roles[r], "created_at": t.timestamp()}
        | {"body": x}
        for c, r, t, x in rows
    ]
    spare = {"conversation_id": 1000, "author_type": "bot", "created_at": 0}
    parts += [spare | {"part_type": "assignment", "body": None}, spare | {"part_type": "note", "body": "INTERNAL"}]
    path = folder / "intercom.jsonl"
    path.write_text("".join(json.dumps(part) + "\n" for part in parts[::-1]), encoding="utf-8")
    return path


def table(folder, rows):
    """Parquet, with times of its own type."""
    columns = [{"chat_id": c, "sender": r, "timestamp": t, "message": x, "score": 1.5} for c, r, t, x in rows]
    parquet.write_table(pa.Table.from_pylist(columns), folder / "chats.parquet")
    return folder / "chats.parquet"


def conversations(path, **settings):
    return load_corpus(path, kind="conversations", streaming=False, test_fraction=0.0, **settings)["messages"]


def error(*arguments, **settings):
    with pytest.raises(InputError) as caught:
        conversations(*arguments, **settings)
    return str(caught.value)


@pytest.mark.outside(
    "https://github.com/hiyouga/LlamaFactory/issues/2962",
    "real conversations, in which one side writes several messages before the other answers",
    "successive messages of one role become one, and their number is printed",
)
@pytest.mark.outside(
    "https://github.com/unslothai/unsloth/pull/6131",
    "a CSV file of conversations whose fields have line breaks within quotes",
    "the fields are read whole",
)
@pytest.mark.parametrize("export", [tickets, excel, zendesk, intercom, table])
def test_the_conversations_of_an_export_are_those_that_were_held(export, tmp_path):
    held = talks(7)
    by_time = messages_by_time(held)
    if export is excel:
        by_time.sort(key=lambda row: row[0])
    found = conversations(export(tmp_path, by_time))
    assert sorted(found, key=str) == sorted(map(expected, held), key=str)


@pytest.mark.outside(
    "https://github.com/oobabooga/textgen/issues/7184",
    "train on the chats of a chat program, exported as ShareGPT with an id and a length",
    "is recognized; id and length are counted as not used",
)
def test_a_chat_that_a_program_exports_as_sharegpt_is_read(tmp_path, capfd):
    turns = [("system", "Be brief."), ("human", "Who's there?"), ("gpt", "A plover.")]
    rows = [{"id": 1, "length": 9, "conversations": [{"from": name, "value": text} for name, text in turns]}]
    (tmp_path / "chats.json").write_text(json.dumps(rows, indent=2))
    found = conversations(tmp_path / "chats.json")
    assert [message["role"] for message in found[0]] == ["system", "user", "assistant"]
    assert "not used, of 1 rows: id (1), length (1)" in capfd.readouterr().err


@pytest.mark.outside(
    "https://github.com/Mintplex-Labs/anything-llm/issues/697",
    "a CSV file of a chat program, whose columns are id, username, workspace_name, prompt, response and sent_at",
    "each row is a conversation of prompt and response; the other columns are counted as not used",
)
def test_a_chat_that_a_program_exports_as_prompts_and_responses_is_read(tmp_path, capfd):
    names = ("id", "username", "workspace_name", "prompt", "response", "sent_at")
    file = write_csv(tmp_path / "chats.csv", names, [(1, "mia", "birds", "Who's there?", "A plover.", "2024-02-09")])
    assert [message["content"] for message in conversations(file)[0]] == ["Who's there?", "A plover."]
    assert "not used, of 1 rows: id (1), sent_at (1), username (1), workspace_name (1)" in capfd.readouterr().err


def test_what_is_left_out_joined_or_not_used_is_counted(tmp_path, capfd):
    held = talks(6)
    conversations(zendesk(tmp_path, messages_by_time(held)))
    told = capfd.readouterr().err
    assert "recognized as one message per row (ticket_id, author_role, body, created_at, public)" in told
    assert (
        "28 messages of 6 conversations; 1 without text are left out; 1 internal are left out; 2 are joined to the "
        "one before, of the same role\n" in told
    )
    conversations(tickets(tmp_path, messages_by_time(held)))
    assert "not used, of 6 rows: messages.author (24)" in capfd.readouterr().err


def test_without_times_that_can_be_read_the_order_of_the_file_is_kept_and_printed(tmp_path, capfd):
    conversations(excel(tmp_path, messages_by_time(talks(3))))
    assert (
        "excel.csv: messages stay in the order of the file, since Created At of "
        f"{tmp_path / 'excel.csv'}:2 is '01.03.2026 08:15', neither a number nor a time in ISO 8601"
    ) in capfd.readouterr().err


def test_conversations_are_held_out_whole_and_alike_in_every_export(tmp_path):
    by_time = messages_by_time(talks(60))
    splits = []
    for export in (tickets, zendesk, table):
        file = export(tmp_path, by_time)
        train, test = (
            {row[0]["content"] for row in load_corpus(file, split=split, streaming=False)["messages"]}
            for split in ("train", "test")
        )
        assert len(train) + len(test) == 60
        assert train.isdisjoint(test)
        splits.append(test)
    assert splits[0] == splits[1] == splits[2]
    assert len(splits[0]) > 1


def test_turns_with_more_than_text_stay_apart(tmp_path):
    call = [{"function": {"name": "lookup", "arguments": {}}}]
    rows = [
        {"session_id": 1, "role": "user", "content": "Where is it?"},
        {"session_id": 1, "role": "assistant", "content": "I look.", "tool_calls": call},
        {"session_id": 1, "role": "assistant", "content": "There.", "weight": 0},
        {"session_id": 1, "role": "assistant", "content": "And here."},
        {"session_id": 1, "role": "assistant", "content": "Or there."},
    ]
    path = tmp_path / "log.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = load_corpus(path, streaming=False, test_fraction=0.0)
    texts = [message["content"] for message in found[0]["messages"]]
    assert texts[1].startswith("I look.\n<tool_call>")
    assert texts[2:] == ["There.", "And here.\n\nOr there."]
    assert found[0]["weights"] == [1, 1, 0, 1]


def test_a_conversation_in_a_row_and_a_text_that_is_asked_for_are_no_messages(tmp_path):
    file = write_csv(tmp_path / "a.csv", ("chat_id", "role", "question", "answer"), [(1, "x", "Who?", "Tom.")] * 2)
    assert [message["content"] for message in conversations(file)[0]] == ["Who?", "Tom."]
    file = tickets(tmp_path, messages_by_time(talks(3)))
    assert len(load_corpus(file, kind="text", streaming=False, test_fraction=0.0)) == 13


@pytest.mark.parametrize(
    ("row", "words"),
    [
        (("1", "Anna", "true", "Hello"), "a.csv:3: Sender is 'Anna', expected who wrote the message: user (or"),
        (("", "agent", "true", "Hello"), "a.csv:3: Ticket ID is empty, expected the conversation of the message"),
        (("1", "agent", "nein", "Hello"), "a.csv:3: Public is 'nein', expected true or false; write these"),
    ],
)
def test_a_row_that_cannot_be_read_is_refused_by_line(row, words, tmp_path):
    names = ("Ticket ID", "Sender", "Public", "Body")
    file = write_csv(tmp_path / "a.csv", names, [("1", "customer", "true", "Hello"), row, ("1", "agent", "", "x")])
    assert words in error(file)


def test_other_columns_are_answered_with_those_that_are_known(tmp_path):
    file = write_csv(tmp_path / "a.csv", ("Vorgang", "Absender", "Nachricht"), [(1, "Kunde", "Hallo")])
    told = error(file)
    assert "found Vorgang, Absender, Nachricht" in told
    assert "or of one message per row: conversation_id, role, content; rename columns" in told
