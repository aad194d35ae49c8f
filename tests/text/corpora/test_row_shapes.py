"""Whatever stands in a column of a row is read as what it is, or refused by row and column."""

import json
from itertools import product

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from hmm_datasets.errors import InputError
from hmm_datasets.text.corpora.conversations import PROMPTS
from hmm_datasets.text.corpora.formats import FORMATS, format_of_row

ASK, ANSWER = {"role": "user", "content": "Q"}, {"role": "assistant", "content": "A"}
WORSE = {"role": "assistant", "content": "B"}
ANSWERED = [form for form in FORMATS if form.kind == "conversations" and len(form.columns) == 2]
PAIRS = [form for form in FORMATS if form.kind == "preferences"]


def read(row, kind):
    form = format_of_row(row, kind)
    return form.document(form.unfolded(row, "a.jsonl:7"), "a.jsonl:7")


def refusal(row, kind):
    with pytest.raises(InputError) as caught:
        read(row, kind)
    assert str(caught.value).startswith("a.jsonl:7: ")
    assert "\n" not in str(caught.value)
    return str(caught.value)


TEXTS = st.text(st.characters(codec="utf-8"), max_size=9)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | TEXTS,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["role", "content", "from", "value", "messages", "x"]), inner, max_size=3)
    ),
    max_leaves=6,
)


@given(st.sampled_from(ANSWERED), VALUES)
def test_an_answer_is_the_text_or_the_messages_that_stand_there_and_nothing_else(form, value):
    ask, answer = form.columns
    try:
        turns = read({ask: "Q", answer: value}, "conversations")["messages"]
    except InputError:
        assert refusal({ask: "Q", answer: value}, "conversations")
        return
    assert turns[0] == ASK
    if len(turns) == 1:
        assert not str(value).strip() or not isinstance(value, str), "an empty answer"
    elif isinstance(value, str):
        assert turns[1:] == [{"role": "assistant", "content": value}]
    else:
        assert "content" in str(value) or "value" in str(value), "only messages have several turns"


@pytest.mark.thorough
@given(st.lists(TEXTS, min_size=1, max_size=4))
@pytest.mark.parametrize("column", ["messages", "conversations", "conversation"])
def test_a_list_of_texts_is_never_taken_for_turns(column, texts):
    assume(any(texts))
    assert "found a list of texts" in refusal({column: texts}, "conversations")
    for form in ANSWERED:
        ask, answer = form.columns
        assert f"{answer}: expected messages with role and content" in refusal(
            {ask: "Q", answer: texts}, "conversations"
        )
    for form in PAIRS:
        for columns in (form.columns, form.columns[::-1]):
            row = {"prompt": "Q"} | dict(zip(columns, (texts, "B"), strict=True))
            assert f"{columns[0]}: expected messages with role and content" in refusal(row, "preferences")


FORMS = {
    "a text": lambda turn: turn["content"],
    "a message": lambda turn: turn,
    "a message of ShareGPT": lambda turn: {
        "from": {"user": "human"}.get(turn["role"], "gpt"),
        "value": turn["content"],
    },
    "messages": lambda turn: [turn],
    "messages as JSON": lambda turn: json.dumps([turn]),
    "an object": lambda turn: {"messages": [turn], "tools": []},
    "an object as JSON": lambda turn: json.dumps({"messages": [turn]}),
}


@pytest.mark.thorough
@pytest.mark.parametrize(("form", "column"), product(PAIRS, PROMPTS))
def test_a_preference_is_the_same_in_every_form_of_its_prompt_and_answers(form, column):
    for asked, said in product(FORMS, FORMS):
        if column == "instruction" and asked != "a text":
            continue
        if column in ("messages", "conversations", "conversation") and asked in ("a text", "a message"):
            continue
        sides = (FORMS[said](ANSWER), FORMS[said](WORSE))
        row = {column: FORMS[asked](ASK)} | dict(zip(form.columns, sides, strict=True))
        assert read(row, "preferences") == {"prompt": [ASK], "chosen": [ANSWER], "rejected": [WORSE]}, row


@pytest.mark.parametrize("column", PROMPTS)
def test_a_prompt_that_the_answers_repeat_is_read_once_and_another_is_refused(column):
    for asked in ("messages", "messages as JSON", "an object"):
        sides = {"chosen": [ASK, ANSWER], "rejected": [ASK, WORSE]}
        pair = {"prompt": [ASK], "chosen": [ANSWER], "rejected": [WORSE]}
        if column == "instruction":
            assert read({column: "Q"} | sides, "preferences") == pair
            continue
        assert read({column: FORMS[asked](ASK)} | sides, "preferences") == pair
        system = {"role": "system", "content": "S"}
        assert read({column: [system]} | sides, "preferences") == pair | {"prompt": [system, ASK]}
        other = FORMS[asked]({"role": "user", "content": "Name a fruit."})
        assert "begin with other messages" in refusal({column: other} | sides, "preferences")
        assert f"{column} ends with" in refusal({column: [ASK, WORSE], "chosen": "A", "rejected": "C"}, "preferences")


@given(TEXTS, TEXTS, TEXTS)
def test_what_two_texts_have_in_common_is_no_prompt(common, first, second):
    assume((common + first).strip() and (common + second).strip())
    row = {"chosen": common + first, "rejected": common + second}
    assert "have no prompt" in refusal(row, "preferences")


@given(st.lists(st.tuples(TEXTS, TEXTS), max_size=3), TEXTS)
def test_a_transcript_is_cut_at_its_turns_alone(exchanges, asked):
    assume(all("\n" not in words for pair in exchanges for words in pair) and "\n" not in asked)
    begun = "".join(f"\n\nHuman: {ask}\n\nAssistant: {said}" for ask, said in exchanges) + f"\n\nHuman: {asked}"
    pair = read({"chosen": f"{begun}\n\nAssistant: yes", "rejected": f"{begun}\n\nAssistant: yellow"}, "preferences")
    assert [turn["content"] for turn in pair["prompt"]] == [
        words.strip() for words in [*(words for both in exchanges for words in both), asked]
    ]
    assert (pair["chosen"][0]["content"], pair["rejected"][0]["content"]) == ("yes", "yellow")
    alone = {"prompt": f"{begun}\n\nAssistant:", "chosen": "yes", "rejected": "yellow"}
    assert read(alone, "preferences") == pair


@pytest.mark.parametrize("kind", ["conversations", "preferences"])
def test_messages_as_python_prints_them_are_refused(kind):
    """So pandas and datasets write lists of messages to CSV."""
    for value in ([ASK, ANSWER], ANSWER, {"messages": [ANSWER]}, [{"from": "gpt", "value": "A"}]):
        row = {"prompt": "Q", "completion": str(value)}
        if kind == "preferences":
            row = {"prompt": "Q", "chosen": str(value), "rejected": "B"}
        assert "messages as Python prints them, not as JSON" in refusal(row, kind)


@given(st.dictionaries(TEXTS, st.integers(), max_size=3))
def test_an_answer_that_is_other_json_is_text(value):
    assume(not value.keys() & {"content", "messages", "from"})
    for text in (json.dumps(value), json.dumps([value])):
        turns = read({"prompt": "Q", "completion": text}, "conversations")["messages"]
        assert turns[1:] == [{"role": "assistant", "content": text}]


ARGUMENTS = [({}, {}), ("", {}), (None, {}), ("{}", {}), ('{"a": 1}', {"a": 1}), ({"a": None}, {"a": None})]


@pytest.mark.parametrize(("arguments", "expected"), ARGUMENTS)
@pytest.mark.parametrize("name", ["arguments", "parameters"])
def test_a_call_is_learnt_the_same_in_every_form(name, arguments, expected):
    call = {"name": "f", name: arguments}
    forms = [
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": call}]},
        {"role": "assistant", "function_call": call},
        *({"role": role, "content": json.dumps(call)} for role in ("function_call", "tool_call", "Function_Call")),
        *({"from": "function_call", "value": value} for value in (call, [call], json.dumps([call]))),
    ]
    written = json.dumps({"name": "f", "arguments": expected})
    for form in forms:
        turns = read({"messages": [ASK, form]}, "conversations")["messages"]
        assert turns[1] == {"role": "assistant", "content": f"<tool_call>\n{written}\n</tool_call>"}


@pytest.mark.parametrize(
    ("turn", "words"),
    [
        ({"from": "function_call", "value": "weather(Rome)"}, "a tool call needs a name and arguments"),
        ({"from": "function_call", "value": ""}, "a tool call needs a name and arguments"),
        ({"from": "function_call", "value": '{"name": "f", "arguments": [1]}'}, "expected one object of arguments"),
        (
            {"from": "function_call", "value": {"name": "f", "arguments": {"a": 1}, "parameters": {"a": 2}}},
            "expected one object of arguments of 'f'",
        ),
    ],
)
def test_a_call_that_is_none_is_refused(turn, words):
    assert words in refusal({"conversations": [ASK, turn]}, "conversations")


@pytest.mark.parametrize("pair", [("human", "assistant"), ("user", "assistant"), ("input", "output")])
def test_an_object_of_two_turns_is_both_with_all_that_belongs_to_its_answer(pair):
    first = dict(zip(pair, ("Q0", "A0"), strict=True)) | {"system": "S", "weight": "no"}
    row = {"conversation": [first, dict(zip(pair, ("Q", "A"), strict=True)) | {"reasoning": "R", "x": 1}]}
    document = read(row, "conversations")
    assert [(turn["role"], turn["content"]) for turn in document["messages"]] == [
        *(("system", "S"), ("user", "Q0"), ("assistant", "A0")),
        *(("user", "Q"), ("assistant", "<think>\nR\n</think>\n\nA")),
    ]
    assert document["weights"] == [1, 1, 0, 1, 1]
    assert list(format_of_row(row).unused(row)) == ["conversation.x"]


@pytest.mark.parametrize("prompt", ["Q", " Q\n", "Human: Q0 Assistant: A0 Human: Q"])
def test_a_prompt_as_text_beside_whole_conversations_has_the_words_of_the_user(prompt):
    earlier = [{"role": "user", "content": "Q0"}, {"role": "assistant", "content": "A0"}]
    sides = {"chosen": [*earlier, ASK, ANSWER], "rejected": [*earlier, ASK, WORSE]}
    pair = {"prompt": [*earlier, ASK], "chosen": [ANSWER], "rejected": [WORSE]}
    assert read({"prompt": prompt} | sides, "preferences") == pair
    assert "begin with other messages" in refusal({"prompt": "Name a fruit."} | sides, "preferences")


def test_unread_keys_are_counted_in_json_and_beside_messages_too():
    form = format_of_row({"chosen": "A", "rejected": "B"}, "preferences")
    row = {"input": {"messages": [ASK], "parallel_tool_calls": True}, "chosen": json.dumps([{**ANSWER, "id": 1}])}
    row = form.unfolded(row | {"rejected": "B"}, "a.jsonl:7")
    assert sorted(form.unused(row)) == ["chosen.id", "input.parallel_tool_calls"]


@pytest.mark.parametrize("answers", [{"output": "A"}, {"response": "A"}, {"chosen": "A", "rejected": "B"}])
@pytest.mark.parametrize("text", [json.dumps([ASK]), json.dumps({"content": "x"}), str([ASK])])
def test_what_an_instruction_is_about_is_text_whatever_it_is_written_in(answers, text):
    kind = "preferences" if "chosen" in answers else "conversations"
    document = read({"instruction": "Read this.", "input": text} | answers, kind)
    asked = document["messages" if kind == "conversations" else "prompt"][0]
    assert asked == {"role": "user", "content": f"Read this.\n\n{text}"}


def test_an_answer_that_begins_as_messages_do_is_refused_and_the_remedy_works():
    text = '{"content": "A"}'
    assert "meant as text as the content of a message" in refusal({"prompt": "Q", "completion": text}, "conversations")
    turn = {"role": "assistant", "content": text}
    for answer in (turn, [turn], json.dumps(turn)):
        assert read({"prompt": "Q", "completion": answer}, "conversations") == {"messages": [ASK, turn]}
