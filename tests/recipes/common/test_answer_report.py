import pytest
from answer_report import answers_table, compare_answers, exact_match, transcripts

from hmm_datasets.evaluation.chat.answers import Question
from hmm_datasets.files import read_json, read_jsonl
from hmm_datasets.intervals import wilson

QUESTIONS = [
    Question([{"role": "user", "content": "What is red?"}], "The red hat.", "color", 1 / 3),
    Question([{"role": "user", "content": "Who came first?"}], "First came Tom.", "order", 1 / 3),
    Question([{"role": "user", "content": "What is blue?"}], "The blue box.", "color", 1 / 3),
    Question([{"role": "user", "content": "What is pink?"}], "The pink car.", "color", 1 / 3),
]


@pytest.mark.thorough
def test_answers_are_counted_before_and_after_and_shown_verbatim(tmp_path):
    after = ["The red hat.", "First came Mia.", "The blue box.", "?"]
    figures, listed = compare_answers(tmp_path, QUESTIONS, ["", "", "", "The pink car."], after)
    assert read_json(tmp_path / "answers.json") == figures
    rows = read_jsonl(tmp_path / "answers.jsonl")
    assert rows == listed
    assert [row["after"] for row in rows] == after
    table = answers_table(figures).rows
    assert [row[0] for row in table] == ["color", "order", "all"]
    assert table[0][1:] == ["3", "33.3%", "66.7% (20.8% .. 93.9%)", "33.3%"]
    assert transcripts(rows[:2]).splitlines() == [
        "user: What is red?",
        "assistant: The red hat.",
        "(right)",
        "",
        "user: Who came first?",
        "assistant: First came Mia.",
        "(expected: First came Tom.)",
    ]


def test_without_a_known_chance_the_most_common_answer_is_the_guess(tmp_path):
    questions = [Question(question.messages, "yes") for question in QUESTIONS]
    figures, _ = compare_answers(tmp_path, questions, ["no"] * 4, ["yes"] * 4)
    table = answers_table(figures).rows
    assert table == [["all", "4", "0.0%", "100.0% (51.0% .. 100.0%)", "100.0%"]]


def test_accuracy_is_counted_by_kind_with_the_accuracy_of_guessing():
    questions = [Question([], "red", "color", 1 / 3)] * 3 + [Question([], "blue", "color", 1 / 3)]
    questions.append(Question([], "two", "count", 1 / 4))
    found = exact_match(questions, ["red", " red\n", "Red", "red", "two"])
    assert list(found) == ["color", "count", "all"]
    assert found["color"]["accuracy"] == 0.5
    assert (found["color"]["low"], found["color"]["high"]) == wilson(2, 4)
    assert found["color"]["most_common"] == 0.75
    assert found["all"] | {"low": None, "high": None} == {
        "questions": 5, "right": 3, "accuracy": 0.6, "low": None, "high": None, "most_common": 0.6,
        "chance": pytest.approx((4 / 3 + 1 / 4) / 5),
    }  # fmt: skip
    assert exact_match([], []) == {}
    assert list(exact_match([Question([], "a")], ["a"])) == ["all"]
