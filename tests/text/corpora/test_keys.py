"""What a row has beside its text is obeyed, refused by name, or counted; nothing is dropped without a word."""

import csv
import json

import datasets
import pyarrow as pa
import pytest
from pyarrow import parquet

from hmm_datasets.errors import InputError
from hmm_datasets.text.corpora import loading
from hmm_datasets.text.corpora.conversations import TOOLS_BEGIN
from hmm_datasets.text.corpora.loading import load_corpus, load_prompts
from hmm_datasets.training.post_training.conversations import conversation_splits, preference_splits, prompts_of
from hmm_datasets.training.sources import PreferenceSettings


@pytest.fixture(autouse=True)
def printed_anew(monkeypatch):
    monkeypatch.setattr(loading, "_recognized", set())


def user(content):
    return {"role": "user", "content": content}


def assistant(content, **keys):
    return {"role": "assistant", "content": content, **keys}


SYSTEM = {"role": "system", "content": "Be kind."}
ASKED = [user("Q?"), assistant("A.")]
PAIR = {"prompt": [user("Q?")], "chosen": [assistant("A.")], "rejected": [assistant("B.")]}


def read(folder, *rows, **settings):
    file = folder / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return list(load_corpus(file, streaming=False, test_fraction=0.0, **settings))


@pytest.mark.parametrize(
    ("row", "messages"),
    [
        ({"instruction": "Q?", "output": "A.", "system": "Be kind."}, [SYSTEM, *ASKED]),
        ({"question": "Q?", "answer": "A.", "system_prompt": "Be kind."}, [SYSTEM, *ASKED]),
        ({"conversations": [{"from": "human", "value": "Q?"}, {"from": "gpt", "value": "A."}], "system": "Be kind."},
         [SYSTEM, *ASKED]),
        ({"messages": [SYSTEM, *ASKED], "system": "Be kind."}, [SYSTEM, *ASKED]),
        ({"messages": ASKED, "system": ""}, ASKED),
        ({"instruction": "Q?", "output": "A.", "history": [["Q0?", "A0."]], "system": "Be kind."},
         [SYSTEM, user("Q0?"), assistant("A0."), *ASKED]),
        ({"messages": [user("Q?"), assistant(None, function_call={"name": "f", "arguments": '{"x": null}'})]},
         [user("Q?"), assistant('<tool_call>\n{"name": "f", "arguments": {"x": null}}\n</tool_call>')]),
        ({"messages": [user("Q?"), assistant("A.", reasoning_content="Hm.")]},
         [user("Q?"), assistant("<think>\nHm.\n</think>\n\nA.")]),
    ],
)  # fmt: skip
@pytest.mark.outside(
    "https://github.com/hiyouga/LlamaFactory/issues/5743",
    "a system message beside the preferences of a data set for DPO",
    "the column `system` becomes the system message of the prompt, in every format",
)
def test_what_precedes_an_answer_is_read_from_every_column_that_has_it(row, messages, tmp_path):
    assert [row["messages"] for row in read(tmp_path, row)] == [messages]
    if "system" in row and "history" not in row and "messages" not in row:
        paired = {"prompt": "Q?", "chosen": "A.", "rejected": "B.", "system": row["system"]}
        assert read(tmp_path, paired) == [PAIR | {"prompt": [SYSTEM, *PAIR["prompt"]]}]


def test_functions_of_openai_are_declared_as_tools(tmp_path):
    rows = read(tmp_path, {"messages": ASKED, "functions": [{"name": "f", "parameters": {"default": None}}]})
    assert rows[0]["messages"][0]["content"].startswith(TOOLS_BEGIN)
    assert '{"type": "function", "function": {"name": "f", "parameters": {"default": null}}}' in str(rows[0])


@pytest.mark.parametrize(
    "keys", [{"weight": 0}, {"train": False}, {"training": False}, {"loss": False}, {"mask": True}, {"masked": 1}]
)
@pytest.mark.parametrize("from_parquet", [False, True])
def test_a_turn_without_a_loss_has_weight_0_in_memory_and_is_refused_in_a_stream(keys, from_parquet, tmp_path):
    talk = [user("Q?"), assistant("wrong", **keys), user("Again?"), assistant("right")]
    if from_parquet:
        file = tmp_path / "rows.parquet"
        parquet.write_table(pa.Table.from_pylist([{"messages": talk}, {"messages": ASKED}]), file)
        rows = list(load_corpus(file, streaming=False, test_fraction=0.0))
    else:
        rows = read(tmp_path, {"messages": talk}, {"messages": ASKED})
        file = tmp_path / "rows.jsonl"
    assert [row["weights"] for row in rows] == [[1, 0, 1, 1], None]
    with pytest.raises(InputError, match=r"turn 1 \('wrong'\) has weight 0.*hmm-datasets sft"):
        list(load_corpus(file, test_fraction=0.0))


@pytest.mark.outside(
    "https://github.com/modelscope/ms-swift/issues/4535",
    "rows of `messages` with `label`, `loss: null` and an empty image, as ms-swift writes them",
    "the empty keys say nothing, and the label decides whether the row is learnt",
)
def test_keys_that_are_empty_say_nothing(tmp_path, capsys):
    talk = [{"role": "system", "content": "", "loss": None}, *({**one, "loss": None} for one in ASKED)]
    rows = [{"messages": talk, "images": [{"bytes": None, "path": ""}], "label": label} for label in (True, False)]
    assert read(tmp_path, *rows) == [{"messages": [{"role": "system", "content": ""}, *ASKED]}]
    assert "not used" not in capsys.readouterr().err


def test_the_answer_of_a_prompt_is_a_turn_to_learn_from(tmp_path):
    talk = [user("Q?"), assistant("wrong", weight=0), user("Again?"), assistant("right", weight=1)]
    only_wrong = {"messages": talk[:2]}
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ({"messages": talk}, only_wrong)))
    train, _ = conversation_splits(str(tmp_path / "a.jsonl"), test_fraction=0)
    assert len(train) == 1, "a conversation with nothing to learn from is left out"
    assert prompts_of(train)[0]["answer"] == "right"


@pytest.mark.outside(
    "https://github.com/axolotl-ai-cloud/axolotl/issues/1200",
    "KTO on unpaired preferences: prompt, completion, label",
    "no KTO; `sft` learns from the rows with a true label, and counts the others: 3 of 9 rows are left out, since "
    "their label is false",
)
def test_rows_whose_label_is_false_are_left_out_and_counted(tmp_path, capsys):
    rows = [{"prompt": f"{n}?", "completion": "good" if n % 3 else "bad", "label": n % 3 > 0} for n in range(9)]
    kept = read(tmp_path, *rows)
    assert {row["messages"][1]["content"] for row in kept} == {"good"}
    assert len(kept) == 6
    assert "rows.jsonl: 3 of 9 rows are left out, since their label is false" in capsys.readouterr().err


# True and false, as a column of one type has them.
TRUTHS = {
    "booleans": (True, False),
    "integers": (1, 0),
    "floats": (1.0, 0.0),
    "words": ("Yes", "no"),
    "letters with space": (" T ", "f "),
}
CONTAINERS = ("jsonl", "json", "csv", "tsv", "parquet", "folder of csv", "folder of jsonl", "folder of parquet")


def write_as(container, folder, rows):
    """A file of rows, or the folder that has it."""
    suffix = container.removeprefix("folder of ")
    file = folder / "data" / f"train.{suffix}"
    file.parent.mkdir(parents=True)
    if suffix == "parquet":
        parquet.write_table(pa.Table.from_pylist(rows), file)
    elif suffix in ("csv", "tsv"):
        with open(file, "w", newline="", encoding="utf-8") as lines:
            writer = csv.writer(lines, delimiter="," if suffix == "csv" else "\t")
            writer.writerows([list(rows[0]), *(row.values() for row in rows)])
    else:
        file.write_text(json.dumps(rows) if suffix == "json" else "".join(json.dumps(row) + "\n" for row in rows))
    return str(file.parent if container.startswith("folder") else file)


def load(place):
    return list(load_corpus(place, kind="conversations", streaming=False, test_fraction=0.0))


@pytest.mark.thorough
@pytest.mark.parametrize("container", CONTAINERS)
@pytest.mark.outside(
    "https://github.com/huggingface/trl/pull/7045",
    "labels of KTO that are 0 and 1, or text in a table, not booleans",
    "booleans, 0 and 1, and words as True, no, f are one thing in files of every kind and in folders",
)
def test_a_label_is_obeyed_whatever_it_is_written_as_and_wherever_it_stands(container, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    for name, (true, false) in TRUTHS.items():
        column = "kto_tag" if name == "words" else "label"
        rows = [
            {"prompt": f"{n}?", "completion": "good" if n % 3 else "bad", column: true if n % 3 else false}
            for n in range(9)
        ]
        place = write_as(container, tmp_path / name, rows)
        assert [row["messages"][1]["content"] for row in load(place)] == ["good"] * 6, name
        printed = capsys.readouterr().err
        assert f"{place}: 3 of 9 rows are left out, since their label is false" in printed
        assert "not used" not in printed


@pytest.mark.thorough
@pytest.mark.parametrize("container", CONTAINERS)
@pytest.mark.parametrize("values", [("good", "bad"), (2, 1), (0.5, 1.0)])
def test_a_label_that_is_no_truth_value_is_refused_and_the_remedy_works(container, values, tmp_path, monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    for column in ("label", "class"):
        rows = [{"prompt": f"{n}?", "completion": "A.", column: value} for n, value in enumerate(values)]
        place = write_as(container, tmp_path / column, rows)
        if column == "class":
            assert len(load(place)) == 2
            continue
        with pytest.raises(InputError) as caught:
            load(place)
        words = "expected true or false; write these (false: an answer to avoid), or rename the column label"
        assert words in str(caught.value)


def test_the_label_of_a_prompt_alone_is_kept_for_rewards(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"prompt": "6 * 7?", "label": "42"}\n{"prompt": "1 - 1?", "label": "0"}\n')
    assert list(load_prompts(tmp_path / "a.jsonl", test_fraction=0.0)["label"]) == ["42", "0"]


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["weight", "train", "training", "loss", "mask", "masked"])
@pytest.mark.parametrize("truths", TRUTHS.values(), ids=TRUTHS)
@pytest.mark.parametrize("container", ["jsonl", "parquet"])
def test_a_key_about_the_loss_is_obeyed_whatever_it_is_written_as(name, truths, container, tmp_path):
    learnt, other = truths[::-1] if name in ("mask", "masked") else truths
    talk = [user("Q?"), assistant("wrong", **{name: other}), user("Again?"), assistant("right", **{name: learnt})]
    (row,) = load(write_as(container, tmp_path, [{"messages": talk}]))
    assert row["weights"] == [1, 0, 1, 1]
    with pytest.raises(InputError, match=f"message 1: {name} is 'perhaps', expected true or false"):
        read(tmp_path, {"messages": [user("Q?"), assistant("A.", **{name: "perhaps"})]})


# Answers without a word


WITHOUT_WORDS = ("", "  \n", None)
ANSWERED = (("instruction", "output"), ("query", "response"), ("prompt", "completion"), ("question", "answer"))


@pytest.mark.thorough
@pytest.mark.parametrize("container", CONTAINERS)
@pytest.mark.outside(
    "https://github.com/allenai/open-instruct/issues/161",
    "conversations of which some have an empty answer",
    "are left out, and counted: 2 of 8 conversations in split 'train' have no turn of the assistant",
)
@pytest.mark.outside(
    "https://github.com/unslothai/unsloth/pull/10813",
    "blank cells of answers in CSV",
    "are empty answers, whose rows are left out and counted; no word None is learnt",
)
def test_an_empty_answer_among_good_ones_is_left_out_and_counted(container, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    for (ask, answer), words in zip(ANSWERED, (*WITHOUT_WORDS, ""), strict=True):
        rows = [{ask: f"{n}?", answer: words if n in (3, 5) else "A."} for n in range(8)]
        train, _ = conversation_splits(write_as(container, tmp_path / answer, rows), test_fraction=0)
        assert [row["messages"][1]["content"] for row in train] == ["A."] * 6
        assert "2 of 8 conversations in split 'train' have no turn of the assistant" in capsys.readouterr().out
        with pytest.raises(InputError, match="has no turn of the assistant"):
            conversation_splits(write_as(container, tmp_path / f"no {answer}", [rows[3], rows[5]]), test_fraction=0)


@pytest.mark.thorough
@pytest.mark.parametrize("last", [assistant(""), assistant(" "), assistant(None), {"from": "gpt", "value": ""}])
@pytest.mark.parametrize("container", ["jsonl", "parquet", "folder of jsonl", "folder of parquet"])
def test_a_last_turn_without_words_is_no_answer_and_those_before_it_are_learnt(last, container, tmp_path, monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    place = write_as(container, tmp_path, [{"messages": [*ASKED, user("And?"), last]}, {"messages": ASKED}])
    assert load(place) == [{"messages": [*ASKED, user("And?")]}, {"messages": ASKED}]


@pytest.mark.thorough
@pytest.mark.parametrize("container", CONTAINERS)
def test_a_preference_with_an_empty_answer_is_left_out_and_counted(container, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    for words in WITHOUT_WORDS:
        rows = [{"prompt": f"{n}?", "chosen": "A.", "rejected": "B."} for n in range(6)]
        rows[2]["chosen"] = rows[4]["rejected"] = words
        place = write_as(container, tmp_path / f"some {words!r}", rows)
        train, _ = preference_splits(PreferenceSettings(model="none", preferences=place, test_fraction=0))
        assert [row["prompt"][0]["content"] for row in train] == ["0?", "1?", "3?", "5?"]
        assert f"{place}: 2 of 6 rows are left out, since an answer is empty" in capsys.readouterr().err
        place = write_as(container, tmp_path / f"all {words!r}", [rows[2], rows[4]])
        with pytest.raises(InputError, match="all 2 rows are left out, since an answer is empty; add rows"):
            preference_splits(PreferenceSettings(model="none", preferences=place, test_fraction=0))


@pytest.mark.parametrize(
    ("row", "words"),
    [
        (
            {"messages": [user("Q?"), assistant("A.", weight=0.5)]},
            "message 1: weight is 0.5, expected true or false; ",
        ),
        ({"messages": [user("Q?"), assistant("A.", weight=1, train=False)]}, "weight 1 and train False, which contra"),
        ({"messages": [user("Q?"), assistant("A.", train_detail=[{"begin_offset": 0}])]}, "train_detail is"),
        ({"messages": ASKED, "images": ["a.png"]}, "images is ['a.png'], but models of text cannot"),
        ({"messages": ASKED, "chat_template_kwargs": {"enable_thinking": False}}, "chat_template_kwargs is"),
        ({"messages": [SYSTEM, *ASKED], "system": "Be brief."}, "begins with another"),
        ({"prompt": "Q?", "completion": "A.", "label": 2}, "label is 2, expected true or false"),
        ({"instruction": "Q?", "output": "A.", "history": [["Q0?"]]}, "history: expected pairs"),
        (PAIR | {"chosen": [assistant("A.", weight=0)]}, "a turn of preferences has weight 0"),
    ],
)
@pytest.mark.outside(
    "https://github.com/huggingface/trl/issues/5761",
    "weights between -1 and 1 for the turns of a conversation in SFT",
    "0 and 1 are obeyed; else: weight is 0.5, expected true or false; write these, or 1 or 0; or drop the turn",
)
def test_a_meaning_that_cannot_be_obeyed_is_refused_in_one_line(row, words, tmp_path):
    with pytest.raises(InputError) as caught:
        read(tmp_path, row)
    assert words in str(caught.value)
    assert "rows.jsonl:1" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_every_key_that_is_not_used_is_named_with_its_count(tmp_path, capsys):
    talk = [user("Q?") | {"name": "Ann"}, assistant("A.", tool_calls=[{"id": "c1", "function": {"name": "f"}}])]
    rows = [{"messages": talk, "id": 1, "score": 2}, {"messages": ASKED, "id": 2, "url": None}]
    read(tmp_path, *rows)
    line = capsys.readouterr().err.splitlines()[-1]
    assert line.endswith("not used, of 2 rows: id (2), messages.name (1), messages.tool_calls.id (1), score (1)")
    read(tmp_path, {"text": "Once", "url": "x"}, {"text": "upon", "url": "y", "label": False})
    assert capsys.readouterr().err.endswith("rows.jsonl: not used, of 2 rows: label (1), url (2)\n")
    read(tmp_path, PAIR | {"score_chosen": 4.0})
    assert "rows.jsonl: not used, of 1 rows: score_chosen (1)" in capsys.readouterr().err


@pytest.mark.parametrize("streaming", [True, False])
def test_what_a_data_set_of_the_hub_has_beside_its_text_is_named_too_and_again_from_the_cache(
    streaming, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    folder = tmp_path / "someone" / "chats"
    folder.mkdir(parents=True)
    rows = [{"prompt": f"{n}?", "completion": "A.", "label": n >= 300, "id": n} for n in range(601)]
    parquet.write_table(pa.Table.from_pylist(rows), folder / "train.parquet")
    (folder / "README.md").write_text("---\nconfigs:\n- config_name: default\n  data_files: train.parquet\n---\n")
    for _ in range(2):
        loading._recognized.clear()
        assert len(list(load_corpus("someone/chats", streaming=streaming))) == 301
        printed = capsys.readouterr().err
        if streaming:
            assert "someone/chats: not used: id\n" in printed
        else:
            assert "someone/chats: not used, of 601 rows: id (601)\n" in printed
            assert "someone/chats: 300 of 601 rows are left out" in printed


def test_transcripts_of_helpful_and_harmless_data_are_cut_into_turns(tmp_path):
    begun = "\n\nHuman: Q?\n\nAssistant: A.\n\nHuman: And?\n\nAssistant:"
    assert read(tmp_path, {"chosen": f"{begun} Yes.", "rejected": f"{begun} No."}) == [
        {
            "prompt": [*ASKED, user("And?")],
            "chosen": [assistant("Yes.")],
            "rejected": [assistant("No.")],
        }
    ]


def tool_row(name, arguments):
    properties = {key: {"type": "string"} for key in arguments}
    return {
        "messages": [user("Q?"), assistant("", tool_calls=[{"function": {"name": name, "arguments": arguments}}])],
        "tools": [{"type": "function", "function": {"name": name, "parameters": {"properties": properties}}}],
    }


CALLS = [tool_row("weather", {"city": "Paris", "days": [1, None]}), tool_row("add", {"expression": "1 + 1"})]


@pytest.mark.parametrize(
    "way", ["parquet", "save_to_disk", "save_to_disk of splits", "parquet of datasets", "jsonl", "folder of jsonl"]
)
@pytest.mark.outside(
    "https://github.com/modelscope/ms-swift/pull/10125",
    "schemas of tools as they were written, after Arrow has given each the keys of the others",
    "what only other rows have is left out again, in declarations, calls and messages",
)
@pytest.mark.outside(
    "https://github.com/pandas-dev/pandas/issues/53798",
    "objects with different keys survive Parquet",
    "nulls that Parquet adds to an object are not read; those in JSON columns and JSON files are",
)
def test_calls_and_declarations_have_only_what_their_author_wrote(way, tmp_path, monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    place, lines = tmp_path / "rows.parquet", "".join(json.dumps(row) + "\n" for row in CALLS)
    if way == "parquet":
        parquet.write_table(pa.Table.from_pylist(CALLS), place)
    elif way.startswith("save_to_disk"):
        place, rows = tmp_path / "saved", datasets.Dataset.from_list(CALLS)
        (datasets.DatasetDict(train=rows) if "splits" in way else rows).save_to_disk(place)
    elif way == "jsonl":
        place = tmp_path / "rows.jsonl"
        place.write_text(lines)
    else:
        folder = tmp_path / "folder"
        folder.mkdir()
        (folder / "train.jsonl").write_text(lines)
        if way == "folder of jsonl":
            place = folder
        else:  # with a column of JSON
            datasets.load_dataset(str(folder), split="train").to_parquet(place)
    written = [row["messages"] for row in load_corpus(place, streaming=False, test_fraction=0.0)]
    assert [messages[-1]["content"] for messages in written] == [
        '<tool_call>\n{"name": "weather", "arguments": {"city": "Paris", "days": [1, null]}}\n</tool_call>',
        '<tool_call>\n{"name": "add", "arguments": {"expression": "1 + 1"}}\n</tool_call>',
    ]
    for messages, row in zip(written, CALLS, strict=True):
        assert json.dumps(row["tools"][0]) in messages[0]["content"]


def test_a_null_that_an_author_wrote_in_json_stays(tmp_path):
    call = {"function": {"name": "f", "arguments": {"day": None}}}
    rows = read(tmp_path, {"messages": [user("Q?"), assistant("", tool_calls=[call])]})
    assert '"arguments": {"day": null}' in rows[0]["messages"][1]["content"]


def test_rows_that_are_all_to_be_avoided_are_refused(tmp_path):
    with pytest.raises(InputError, match="all 2 rows are left out, since their label is false"):
        read(tmp_path, *({"prompt": "Q?", "completion": words, "label": "no"} for words in ("bad", "worse")))
