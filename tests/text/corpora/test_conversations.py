"""Conversations and preferences are read as their authors wrote them, and recognized by their columns."""

import json
import os
from pathlib import Path

import datasets
import pyarrow as pa
import pytest
from needed_versions import needs
from pyarrow import parquet

from hmm_datasets.errors import InputError
from hmm_datasets.text.corpora import loading as corpora
from hmm_datasets.text.corpora.conversations import read_messages
from hmm_datasets.text.corpora.loading import load_corpus
from hmm_datasets.text.tokenizers.bpe import train_bpe
from hmm_datasets.text.tokenizers.named_templates import set_chat_template

REAL_DATA = os.environ.get("HMM_DATASETS_CHAT_DATA")
CHATS = Path(REAL_DATA or "none")


def user(content):
    return {"role": "user", "content": content}


def assistant(content):
    return {"role": "assistant", "content": content}


SUM = [user("What is 2 + 3?"), assistant("5")]
OTHER = [user("Name a fruit."), assistant("A plum.")]

# Of each format: two rows, what the first becomes, and words of the line that says what was recognized.
FORMATS = {
    "messages": ([{"messages": SUM, "id": 1}, {"messages": OTHER, "id": 2}], SUM, "messages"),
    "ShareGPT": (
        [
            {
                "conversations": [
                    {"from": "system", "value": "Be brief."},
                    {"from": "human", "value": "How warm is it?"},
                    {"from": "function_call", "value": '{"name": "weather"}'},
                    {"from": "observation", "value": "21"},
                    {"from": "gpt", "value": "21 degrees."},
                ]
            },
            {"conversations": [{"from": "human", "value": "Name a fruit."}, {"from": "gpt", "value": "A plum."}]},
        ],
        [
            {"role": "system", "content": "Be brief."},
            user("How warm is it?"),
            assistant('<tool_call>\n{"name": "weather", "arguments": {}}\n</tool_call>'),
            {"role": "tool", "content": "21"},
            assistant("21 degrees."),
        ],
        "ShareGPT",
    ),
    "Alpaca": (
        [
            {"instruction": "Add.", "input": "2 and 3", "output": "5"},
            {"instruction": "Name a fruit.", "input": "", "output": "A plum."},
        ],
        [user("Add.\n\n2 and 3"), assistant("5")],
        "Alpaca (instruction, input, output), the input after the instruction and a blank line",
    ),
    "prompt and completion": (
        [{"prompt": "What is 2 + 3?", "completion": "5"}, {"prompt": "Name a fruit.", "completion": "A plum."}],
        SUM,
        "(prompt, completion)",
    ),
    "lists of prompt and completion": (
        [{"prompt": SUM[:1], "completion": SUM[1:]}, {"prompt": OTHER[:1], "completion": OTHER[1:]}],
        SUM,
        "(prompt, completion)",
    ),
    "question and answer": (
        [{"question": "What is 2 + 3?", "answer": "5"}, {"question": "Name a fruit.", "answer": "A plum."}],
        SUM,
        "(question, answer)",
    ),
    "bare lists": ([SUM, OTHER], SUM, "messages"),
}
PAIR = {"prompt": SUM[:1], "chosen": SUM[1:], "rejected": [assistant("6")]}
PREFERENCES = {
    "standard": {"prompt": "What is 2 + 3?", "chosen": "5", "rejected": "6"},
    "conversational": PAIR,
    "with an implicit prompt": {"chosen": SUM, "rejected": [SUM[0], assistant("6")]},
    "with a prompt that the answers repeat": {
        "prompt": "What is 2 + 3?",
        "chosen": SUM,
        "rejected": [SUM[0], assistant("6")],
    },
    "with messages that the answers repeat": {
        "prompt": SUM[:1],
        "chosen": SUM,
        "rejected": [SUM[0], assistant("6")],
    },
    "of an instruction": {
        "instruction": "What is 2 + 3?",
        "input": "",
        "output": "5",
        "chosen": "5",
        "rejected": "6",
    },
    "of a question": {"question": "What is 2 + 3?", "chosen": "5", "rejected": "6"},
    "as JSON": {"chosen": json.dumps(SUM), "rejected": json.dumps([SUM[0], assistant("6")])},
}


@pytest.fixture(autouse=True)
def said_anew(monkeypatch):
    monkeypatch.setattr(corpora, "_recognized", set())


def write_jsonl(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def conversations(path, **settings):
    return [row["messages"] for row in load_corpus(path, test_fraction=0.0, **settings)]


def message(function, *args, **settings) -> str:
    with pytest.raises(InputError) as caught:
        function(*args, **settings)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("suffix", ["jsonl", "json", "parquet"])
def test_a_format_of_conversations_is_recognized_by_its_columns(name, suffix, tmp_path, capfd):
    rows, first, told = FORMATS[name]
    file = tmp_path / f"chats.{suffix}"
    if suffix == "jsonl":
        write_jsonl(file, rows)
    elif suffix == "json":
        file.write_text(json.dumps(rows))
    elif name == "bare lists":
        pytest.skip("a table has named columns")
    else:
        parquet.write_table(pa.Table.from_pylist(rows), file)
    assert conversations(file) == [first, OTHER]
    assert list(load_corpus(file, streaming=False, test_fraction=0.0)["messages"]) == [first, OTHER]
    lines = capfd.readouterr().err.splitlines()
    unused = [f"{file}: not used, of 2 rows: id (2)"] if name == "messages" else []
    assert lines[1:] == unused, "said once, however often it is opened"
    assert lines[0].startswith(f"{file}: recognized as ")
    assert told in lines[0]


# The same conversation, as tools and people write it.
CALLED = [user("How warm?"), assistant('<tool_call>\n{"name": "warmth", "arguments": {"in": "C"}}\n</tool_call>')]
CALL = {"name": "warmth", "arguments": '{"in": "C"}'}
WAYS = {
    "roles in capitals": (SUM, {"messages": [{"role": "User", "content": SUM[0]["content"]}, assistant("5")]}),
    "Human and GPT": (
        SUM,
        {"conversations": [{"from": "Human", "value": SUM[0]["content"]}, {"from": "GPT", "value": "5"}]},
    ),
    "messages as JSON": (SUM, {"messages": json.dumps(SUM)}),
    "conversations as JSON": (
        SUM,
        {"conversations": json.dumps([{"from": "human", "value": SUM[0]["content"]}, SUM[1]])},
    ),
    "prompt and response": (SUM, {"prompt": SUM[0]["content"], "response": "5"}),
    "question and response": (SUM, {"question": SUM[0]["content"], "response": "5"}),
    "prompt as JSON of messages": (SUM, {"prompt": json.dumps(SUM[:1]), "completion": "5"}),
    "query after a history": (
        OTHER + SUM,
        {"query": SUM[0]["content"], "response": "5", "history": [[m["content"] for m in OTHER]]},
    ),
    "Dolly": (
        [user("Add them.\n\n2 and 3"), assistant("5")],
        {"instruction": "Add them.", "context": "2 and 3", "response": "5"},
    ),
    "Dolly without a context": (SUM, {"instruction": SUM[0]["content"], "context": "", "response": "5"}),
    "parts of OpenAI's second interface": (
        SUM,
        {
            "messages": [
                {"role": "user", "content": [{"type": "input_text", "text": SUM[0]["content"]}]},
                {"role": "assistant", "content": [{"type": "output_text", "text": "5", "annotations": []}]},
            ]
        },
    ),
    "function_call": (
        CALLED,
        {"messages": [CALLED[0], {"role": "assistant", "content": None, "function_call": CALL}]},
    ),
    "function_call as JSON": (CALLED, {"messages": [CALLED[0], assistant("") | {"function_call": json.dumps(CALL)}]}),
    "tool_calls as JSON": (
        CALLED,
        {
            "messages": [
                CALLED[0],
                assistant("") | {"tool_calls": json.dumps([{"type": "function", "function": CALL}])},
            ]
        },
    ),
}


@pytest.mark.outside(
    "https://github.com/vihangd/alpaca-qlora/issues/5",
    "train on databricks-dolly-15k, whose columns are instruction, context and response",
    "is recognized, the context after the instruction",
)
@pytest.mark.outside(
    "https://github.com/sgl-project/sglang/issues/17853",
    "parts of type input_text and output_text are read as text",
    "they are joined",
)
@pytest.mark.outside(
    "https://github.com/axolotl-ai-cloud/axolotl/issues/752",
    "ShareGPT rows with other names of roles than human and gpt",
    "assistant, GPT, User, Human and others are known, in small or capital letters",
)
@pytest.mark.parametrize("way", WAYS)
def test_a_conversation_is_the_same_however_it_is_written(way, tmp_path):
    expected, row = WAYS[way]
    assert conversations(write_jsonl(tmp_path / "chats.jsonl", [row])) == [expected]


@pytest.mark.parametrize(
    ("row", "told"),
    [
        ({"messages": "[1"}, "chats.jsonl:1: not JSON"),
        ({"messages": "[" * 1000 + "]" * 1000}, "chats.jsonl:1: JSON that is nested more than 200 deep"),
        ({"messages": "Hello"}, "chats.jsonl:1: expected a list of messages, found 'Hello'"),
        (
            {"messages": [assistant("") | {"tool_calls": [{"function": {"name": "f", "arguments": "9" * 5000}}]}]},
            "message 0: arguments of 'f': an integer of more than 4,300 digits",
        ),
        ({"messages": SUM, "tools": "[" * 100_000}, "chats.jsonl:1: tools: JSON that is nested more than 200 deep"),
        ({"messages": [{"role": "x" * 9999, "content": ""}]}, "has role 'xxxxx"),
        ({"messages": [{"role": ["user"], "content": ""}]}, "has role ['user'], expected one of system, user"),
    ],
)
def test_json_in_a_row_that_cannot_be_used_is_refused_by_line(row, told, tmp_path):
    error = message(conversations, write_jsonl(tmp_path / "chats.jsonl", [row]))
    assert told in error
    assert len(error) < 400


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["ShareGPT", "Alpaca", "lists of prompt and completion", "question and answer"])
@pytest.mark.parametrize("streaming", [True, False])
def test_a_folder_or_a_data_set_of_the_hub_takes_the_same_recognizers(name, streaming, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    rows, first, _ = FORMATS[name]
    folder = tmp_path / "someone" / "chats"
    folder.mkdir(parents=True)
    parquet.write_table(pa.Table.from_pylist(rows), folder / "train.parquet")
    for form in ("folder", "hub"):
        if form == "hub":
            names = "---\nconfigs:\n- config_name: default\n  data_files: train.parquet\n---\n"
            (folder / "README.md").write_text(names)
        read = load_corpus("someone/chats", streaming=streaming, test_fraction=0.0 if form == "folder" else None)
        assert list(read) == [{"messages": first}, {"messages": OTHER}]
        assert list(read.features) == ["messages"]


@pytest.mark.parametrize("name", PREFERENCES)
def test_preferences_become_rows_for_dpo_in_either_of_trls_forms(name, tmp_path, capfd):
    file = write_jsonl(tmp_path / "pairs.jsonl", [PREFERENCES[name]] * 2)
    rows = list(load_corpus(file, test_fraction=0.0))
    assert rows == [PAIR, PAIR]
    assert "recognized as preferences" in capfd.readouterr().err
    table = load_corpus(file, test_fraction=0.0, streaming=False, kind="preferences")
    assert list(table) == rows
    from trl.data_utils import is_conversational, maybe_extract_prompt

    assert is_conversational(table[0])
    assert maybe_extract_prompt(table[0]) == PAIR


def test_the_same_prompt_of_several_preferences_is_in_one_split(tmp_path):
    rows = [
        {"prompt": f"Question {number % 50}?", "chosen": f"yes {number}", "rejected": "no"} for number in range(200)
    ]
    file = write_jsonl(tmp_path / "a.jsonl", rows)
    train, test = (list(load_corpus(file, split=split, test_fraction=0.3)) for split in ("train", "test"))
    assert len(train) + len(test) == 200
    prompts = [{row["prompt"][0]["content"] for row in rows} for rows in (train, test)]
    assert prompts[0].isdisjoint(prompts[1])


def test_the_kind_that_is_asked_for_decides_between_the_columns(tmp_path):
    row = {**PREFERENCES["of an instruction"], "text": "Once upon a time."}
    file = write_jsonl(tmp_path / "a.jsonl", [row])
    assert list(load_corpus(file, test_fraction=0.0)) == [PAIR]
    assert list(load_corpus(file, test_fraction=0.0, kind="conversations")) == [{"messages": SUM}]
    assert list(load_corpus(file, test_fraction=0.0, kind="text")) == [{"text": "Once upon a time."}]


@pytest.mark.parametrize(
    ("rows", "kind", "told"),
    [
        ([{"prompt": "A", "chosen": "B", "rejected": "C"}], "conversations", "contains preferences (prompt, chosen"),
        ([{"messages": SUM}], "text", "contains conversations (messages), expected text"),
        ([{"text": "A"}], "conversations", "contains text (text), expected conversations"),
        ([{"body": "A"}], "conversations", "expected the columns of conversations: messages; conversations;"),
    ],
)
def test_another_kind_than_the_one_asked_for_is_refused_by_name(rows, kind, told, tmp_path):
    file = write_jsonl(tmp_path / "a.jsonl", rows)
    assert told in message(load_corpus, file, kind=kind)


@pytest.mark.parametrize(
    ("row", "told"),
    [
        ({"question": "A?", "answer": 3}, "a.jsonl:1: answer: expected text or a list of messages, found 3"),
        ({"prompt": None, "completion": "A"}, "a.jsonl:1: prompt: expected text or a list of messages"),
        ({"prompt": "A", "chosen": 3, "rejected": "B"}, "a.jsonl:1: chosen: expected text or a list of messages"),
        ({"instruction": "A", "output": "B", "input": 3}, "a.jsonl:1: input: expected text, found 3"),
        ({"messages": [user("A"), {"role": "narrator", "content": "B"}]}, "message 1 has role 'narrator', expected"),
        ({"conversations": [{"from": "human", "text": "A"}]}, "message 0 needs role and content, or from and value"),
        ({"messages": [user([{"type": "image", "image": "a.png"}])]}, "message 0: a part of type 'image'"),
        ({"messages": [{**user("A"), "tool_calls": [{"name": "f"}]}]}, "message 0 of user has tool_calls"),
    ],
)
def test_a_row_that_does_not_fit_its_format_is_named(row, told, tmp_path):
    file = write_jsonl(tmp_path / "a.jsonl", [row])
    assert told in message(load_corpus, file, test_fraction=0.0)


def test_calls_of_tools_become_words_of_the_assistant(tmp_path):
    calls = [{"type": "function", "function": {"name": "weather", "arguments": {"city": "Rome"}}}]
    turns = [
        user("How warm is Rome?"),
        {"role": "assistant", "content": None, "tool_calls": calls},
        {"role": "tool", "content": "21", "tool_call_id": "x"},
        {"role": "assistant", "content": [{"type": "text", "text": "21 degrees."}], "tool_calls": None},
    ]
    file = write_jsonl(tmp_path / "a.jsonl", [{"messages": turns, "tools": []}])
    found = conversations(file)[0]
    assert found[1:] == [
        assistant('<tool_call>\n{"name": "weather", "arguments": {"city": "Rome"}}\n</tool_call>'),
        {"role": "tool", "content": "21"},
        assistant("21 degrees."),
    ]


def test_the_template_writes_calls_as_they_are_read(tokenizer):
    first = {"function": {"name": "warmth", "arguments": {"city": "Orléans", "day": None}}}
    second = {"name": "warmth", "arguments": '{"city": "Rome"}'}
    for content, calls in ((None, [first]), ("Wait.", [first, second]), ("", [second])):
        turn = {"role": "assistant", "content": content, "tool_calls": calls}
        read = read_messages("messages", {"messages": [turn]}, "row 0")["messages"]
        assert tokenizer.apply_chat_template([turn], tokenize=False) == (
            tokenizer.apply_chat_template(read, tokenize=False)
        )
        output = tokenizer.apply_chat_template([turn], return_assistant_tokens_mask=True, return_dict=True)
        assert output["assistant_masks"] == [0] + [1] * (len(output["input_ids"]) - 1)


def test_only_rank_0_says_what_was_recognized(tmp_path, capfd, monkeypatch):
    file = write_jsonl(tmp_path / "a.jsonl", [{"question": "A?", "answer": "B"}])
    monkeypatch.setenv("RANK", "1")
    load_corpus(file, test_fraction=0.0)
    assert capfd.readouterr().err == ""


# The template


@pytest.fixture(scope="module")
def tokenizer():
    return train_bpe(["What is the weather in Rome? It is 21 degrees."] * 8, 280, show_progress=False)


WITH_DATA = pytest.mark.skipif(
    REAL_DATA is None, reason="HMM_DATASETS_CHAT_DATA names no folder with published conversations"
)
REAL = CHATS / "nanochat_identity_conversations.jsonl"
WITH_TOOLS = [
    {"role": "system", "content": "Be brief."},
    user("How warm is it?"),
    assistant('<tool_call>\n{"name": "weather"}\n</tool_call>'),
    {"role": "tool", "content": "21 <|end|> degrees"},
    assistant("It is 21 degrees.\n"),
    user("  And now? 🙂"),
    assistant(""),
]


@pytest.mark.parametrize(
    "count",
    [
        pytest.param(0, id="fixture"),
        pytest.param(40, id="40 real ones", marks=WITH_DATA),
        pytest.param(1000, id="1,000 real ones", marks=[WITH_DATA, pytest.mark.slow]),
    ],
)
def test_adding_a_turn_never_changes_the_tokens_of_those_before_it(count, tokenizer):
    for chat in [WITH_TOOLS, *(conversations(REAL)[:count] if count else [])]:
        whole = ids_of(tokenizer, chat)
        for length in range(1, len(chat)):
            part = ids_of(tokenizer, chat[:length])
            assert whole[: len(part)] == part


def ids_of(tokenizer, chat):
    return tokenizer.apply_chat_template(chat, return_dict=False, sanitize_control_tokens=True)


@pytest.mark.parametrize(
    "count", [pytest.param(0, id="fixture"), pytest.param(100, id="100 real ones", marks=WITH_DATA)]
)
def test_the_loss_is_on_the_assistants_words_and_their_end_and_on_nothing_else(count, tokenizer):
    chats = [[{**turn, "content": turn["content"].replace("<|end|>", "")} for turn in WITH_TOOLS]]
    for chat in [*chats, *(conversations(REAL)[:count] if count else [])]:
        output = tokenizer.apply_chat_template(chat, return_assistant_tokens_mask=True, return_dict=True)
        ids, mask = [], []
        for turn in chat:
            words = [*tokenizer.encode(turn["content"]), tokenizer.convert_tokens_to_ids("<|end|>")]
            ids += [tokenizer.convert_tokens_to_ids(f"<|{turn['role']}|>"), *words]
            mask += [0, *[int(turn["role"] == "assistant")] * len(words)]
        assert (output["input_ids"], output["assistant_masks"]) == (ids, mask)


@needs("trl>=1.16")
def test_trl_finds_the_template_fit_for_tools_and_training(tokenizer):
    from trl.chat_template_utils import is_chat_template_prefix_preserving, is_chat_template_stop_token_trained

    assert is_chat_template_stop_token_trained(tokenizer)
    assert is_chat_template_prefix_preserving(tokenizer)
    ids = ids_of(tokenizer, WITH_TOOLS[:4])
    assert ids.count(tokenizer.convert_tokens_to_ids("<|tool|>")) == 1
    assert ids.count(tokenizer.convert_tokens_to_ids("<|end|>")) == 4, "what a tool says cannot end its turn"


def test_content_that_is_not_text_is_refused_by_the_template(tokenizer):
    with pytest.raises(Exception, match="content of the message of assistant is not text"):
        tokenizer.apply_chat_template([user("A"), {"role": "assistant", "content": None}])


# Other people's files


@WITH_DATA
@pytest.mark.parametrize(
    ("name", "count", "roles"),
    [
        ("nanochat_identity_conversations.jsonl", 1000, None),
        ("gsm8k_test.jsonl", 1319, ["user", "assistant"]),
        ("rasbt_instruction_data.json", 1100, ["user", "assistant"]),
    ],
)
def test_a_real_file_is_read_whole(name, count, roles):
    chats = conversations(CHATS / name)
    assert len(chats) == count
    assert roles is None or all([turn["role"] for turn in chat] == roles for chat in chats)


@WITH_DATA
def test_real_preferences_are_read_whole():
    rows = list(load_corpus(CHATS / "rasbt_instruction_preference.json", test_fraction=0.0))
    assert len(rows) == 1100
    assert all([turn["role"] for turn in row["prompt"] + row["chosen"]] == ["user", "assistant"] for row in rows)
    plain = conversations(CHATS / "rasbt_instruction_data.json")
    assert [row["prompt"] for row in rows] == [chat[:1] for chat in plain]


ADD = {
    "type": "function",
    "function": {"name": "add", "description": "Add ⟨two⟩ numbers.", "parameters": {"a": {"type": "integer"}}},
}
TELL = {"type": "function", "function": {"name": "tell", "parameters": {"b": {"type": "string"}}}}


@pytest.mark.parametrize("system", [[], [{"role": "system", "content": "Be brief."}]])
@pytest.mark.parametrize("written", [list, json.dumps], ids=["as a list", "as JSON"])
def test_declarations_of_tools_are_written_as_the_templates_of_qwen_write_them(written, system, tmp_path):
    """Arrow gives each declaration the keys of the other, which are left out again."""
    rows = [{"messages": system + SUM, "tools": written([ADD, TELL])}, {"messages": OTHER, "tools": written([])}]
    found = list(load_corpus(str(write_jsonl(tmp_path / "a.jsonl", rows)), test_fraction=0))
    assert [message["role"] for message in found[0]["messages"]] == ["system", "user", "assistant"]
    assert found[1]["messages"] == OTHER
    for name in ("default", "chatml", "qwen3"):
        tokenizer = train_bpe(["low lower lowest"] * 9, 266, show_progress=False)
        set_chat_template(tokenizer, name)
        native = tokenizer.apply_chat_template(system + SUM, tools=[ADD, TELL], tokenize=False)
        assert tokenizer.apply_chat_template(found[0]["messages"], tokenize=False) == native


@pytest.mark.parametrize(
    ("tools", "told"),
    [
        ("[{", "tools: not JSON"),
        ('"add"', "tools: expected a list of declarations"),
        ("[1]", "expected a list of decl"),
    ],
)
def test_declarations_that_cannot_be_read_are_named_by_their_row(tools, told, tmp_path):
    file = write_jsonl(tmp_path / "a.jsonl", [{"messages": SUM, "tools": tools}])
    with pytest.raises(InputError, match=rf"a\.jsonl.*{told}"):
        list(load_corpus(str(file), test_fraction=0))
