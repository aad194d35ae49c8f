from hmm_datasets.files import read_json, read_jsonl
from hmm_datasets.metrics.answers import Question, compare_answers
from hmm_datasets.report.answers import answers_text

QUESTIONS = [
    Question([{"role": "user", "content": "What is red?"}], "The red hat.", "color", 1 / 3),
    Question([{"role": "user", "content": "Who came first?"}], "First came Tom.", "order", 1 / 3),
    Question([{"role": "user", "content": "What is blue?"}], "The blue box.", "color", 1 / 3),
    Question([{"role": "user", "content": "What is pink?"}], "The pink car.", "color", 1 / 3),
]


def test_answers_are_counted_before_and_after_and_the_first_three_stand_as_they_are(tmp_path):
    after = ["The red hat.", "First came Mia.", "The blue box.", "?"]
    found = compare_answers(tmp_path, QUESTIONS, ["", "", "", "The pink car."], after)
    assert read_json(tmp_path / "answers.json") == found
    assert [row["after"] for row in read_jsonl(tmp_path / "answers.jsonl")] == after
    lines = answers_text(found).splitlines()
    assert [line.split("  ")[0] for line in lines[3:6]] == ["color", "order", "all"]
    assert lines[3].split()[1:] == ["3", "33.3%", "66.7%", "+-", "27.2%", "33.3%"]
    assert lines[-8:] == [
        "user: What is red?",
        "assistant: The red hat.    (right)",
        "",
        "user: Who came first?",
        "assistant: First came Mia.    (expected First came Tom.)",
        "",
        "user: What is blue?",
        "assistant: The blue box.    (right)",
    ]


def test_without_a_known_chance_the_most_common_answer_is_the_guess(tmp_path):
    questions = [Question(question.messages, "yes") for question in QUESTIONS]
    text = answers_text(compare_answers(tmp_path, questions, ["no"] * 4, ["yes"] * 4))
    assert text.splitlines()[3].split() == ["all", "4", "0.0%", "100.0%", "+-", "0.0%", "100.0%"]
