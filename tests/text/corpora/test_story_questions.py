"""Story questions: answers agree with another reading of the stories, and test facts never occur in training."""

import gzip
import itertools
import json
import re

import pytest
from story_questions import NUM_TEST, split_file, story_question, story_questions

from hmm_datasets.errors import InputError
from hmm_datasets.evaluation.targets import held_out_part
from hmm_datasets.evaluation.trained_on import TrainedOn
from hmm_datasets.text.corpora.loading import load_corpus, load_prompts, read_splits
from hmm_datasets.text.corpora.presets import CORPORA, SAMPLES

NUMBERS = ("none", "one", "two", "three", "four")


def facts(row: dict) -> set[tuple]:
    """What a story tells, read off its words."""
    story = row["messages"][0]["content"]
    if row["kind"] == "order":
        return {("order", *re.search(r"First (\w+) came .* then (\w+) came, then (\w+) came", story).groups())}
    if row["kind"] == "count":
        friend, things = re.match(r"(\w+) has ([^.]*)\.", story).groups()
        return {("count", friend, frozenset(re.findall(r"a (\w+)", things)))}
    return {("spelling", name) for name in re.findall(r"[A-Z]\w\w\b", story.partition(".")[0])}


def right_answer(row: dict, question: str) -> str:
    told = facts(row)
    if row["kind"] == "order":
        ((_, *friends),) = told
        asked = re.search(r"Who came (?:first|after (\w+))\?", question).group(1)
        return f"First came {friends[0]}." if not asked else f"After {asked} came {friends[friends.index(asked) + 1]}."
    if row["kind"] == "count":
        ((_, friend, things),) = told
        return f"{friend} has {NUMBERS[len(things)]}."
    name = re.search(r"How do you spell (\w+)\?", question).group(1)
    assert ("spelling", name) in told
    return " ".join(name) + "."


@pytest.fixture(scope="module")
def rows() -> dict[str, list[dict]]:
    return {split: list(itertools.islice(story_questions(split), 2000)) for split in ("train", "test")}


def test_every_answer_is_right_and_everything_told_is_asked_about(rows):
    for row in rows["train"] + rows["test"]:
        users, assistants = row["messages"][::2], row["messages"][1::2]
        assert {message["role"] for message in users} == {"user"}
        assert {message["role"] for message in assistants} == {"assistant"}
        for question, answer in zip(users, assistants, strict=True):
            assert answer["content"] == right_answer(row, question["content"])
        assert len(users) == (1 if row["kind"] == "count" else 3)
    assert {row["kind"] for row in rows["test"][:6]} == {"order", "count", "spelling"}


def test_what_a_test_story_tells_no_training_story_tells(rows):
    told = {split: set().union(*map(facts, rows[split])) for split in rows}
    assert told["train"].isdisjoint(told["test"])
    words = {
        split: set(re.findall(r"\w+", str(sorted(map(str, told[split] - spelled(told[split])))))) for split in told
    }
    assert words["test"] <= words["train"], "every name and thing of a test is known from other facts"


def spelled(told: set[tuple]) -> set[tuple]:
    return {fact for fact in told if fact[0] == "spelling"}


def test_a_row_is_a_pure_function_of_seed_split_and_index(rows):
    assert story_question(1234, "train") == rows["train"][1234]
    assert story_question(1234, "train", seed=1) != rows["train"][1234]
    assert story_question(1, "test")["messages"] == GOLDEN
    assert len({str(row) for row in rows["train"]}) > 1950


def test_an_answer_by_chance_is_as_often_right_as_said(rows):
    counts = [row["messages"][1]["content"].split()[-1] for row in rows["test"] if row["kind"] == "count"]
    assert set(counts) == {f"{number}." for number in NUMBERS[1:]}
    assert {row["chance"] for row in rows["test"] if row["kind"] != "count"} == {1 / 3}
    assert all(0.18 < counts.count(number) / len(counts) < 0.32 for number in set(counts))


def test_a_larger_test_fraction_only_moves_facts_from_train_to_test():
    small, large = (set().union(*map(facts, itertools.islice(story_questions("test", test_fraction=f), 400)))
                    for f in (0.1, 0.6))  # fmt: skip
    train = set().union(*map(facts, itertools.islice(story_questions("train", test_fraction=0.6), 400)))
    assert train.isdisjoint(small | large)


@pytest.mark.thorough
@pytest.mark.parametrize("split", ["train", "test"])
def test_the_bundled_files_are_what_the_program_writes(split):
    assert gzip.decompress((SAMPLES / "story_questions" / f"{split}.jsonl.gz").read_bytes()) == split_file(split)
    assert CORPORA["story-questions"].documents == split_file("train").count(b"\n")


def test_it_is_a_corpus_like_others(capsys):
    test = load_corpus("story-questions", split="test")
    assert next(iter(test)) == story_question(0, "test")
    assert list(test.skip(5).take(2)) == [story_question(5, "test"), story_question(6, "test")]
    held = load_corpus("story-questions", split="test", streaming=False)
    assert (len(held), held[7]) == (NUM_TEST, story_question(7, "test"))
    assert load_prompts("story-questions", split="test")[7] == held[7]
    kept = load_corpus("story-questions", split="test").filter(lambda row: row["kind"] == "order")
    assert {row["kind"] for row in kept.take(20)} == {"order"}
    assert "not used" not in capsys.readouterr().err


@pytest.mark.parametrize("given", [None, 0.05])
def test_models_are_measured_on_its_own_test_split_whatever_share_of_texts_was_held_out(given):
    assert held_out_part("story-questions", given, TrainedOn(test_fraction=0.1)) == {"split": "test"}


def test_token_streams_have_no_row_of_its_test_split():
    rows = read_splits("story-questions", kind="conversations", test_fraction=0.3, max_documents=50)
    assert [row for _, row in rows] == [story_question(index) for index in range(50)]


def test_a_file_is_read_as_it(tmp_path):
    path = tmp_path / "mine.jsonl"
    path.write_text("".join(json.dumps(story_question(index)) + "\n" for index in range(9)))
    rows = load_corpus(f"story-questions:{path}", test_fraction=0.0, streaming=False)
    assert list(rows) == [story_question(index) for index in range(9)]


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"split": "validation"}, "split='validation', but its files have the splits train, test"),
        ({"split": "train", "messages_column": "chat"}, "no column 'chat'"),
    ],
)
def test_bad_settings_are_refused_in_one_line(settings, told):
    with pytest.raises(InputError, match=re.escape(told)) as caught:
        load_corpus("story-questions", **settings)
    assert "\n" not in str(caught.value)


GOLDEN = [
    {"role": "user", "content": "Tim has a stick, a car and a truck. How many things does Tim have?"},
    {"role": "assistant", "content": "Tim has three."},
]
