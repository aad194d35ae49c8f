"""Rewards that are computed from a completion."""

from decimal import Decimal

import pytest

from hmm_datasets.errors import InputError
from hmm_datasets.training.post_training.rewards import final_number, gsm8k, reward

ANSWER = "Natalia sold 48/2 = <<48/2=24>>24 clips in May.\nIn all 48+24 = <<48+24=72>>72 clips.\n#### 72"


@pytest.mark.parametrize(
    ("text", "number"),
    [
        (ANSWER, 72),
        ("#### 1,200", 1200),
        ("#### $5.50", Decimal("5.5")),
        ("#### -3", -3),
        ("First #### 3, no: #### 4.", 4),
        ("####\n10", 10),
        ("#### ten, after 7 tries", None),
        ("The answer is 42.", 42),
        ("2 + 2 = 4, so it costs $1,000,000.", 1_000_000),
        ("He owes -$5", -5),
        ("It is .5", Decimal("0.5")),
        ("no idea", None),
        ("", None),
        ("#### 1.2.3", None),
        ("####", None),
    ],
)
def test_the_final_number_is_found(text, number):
    assert final_number(text) == number


def test_an_answer_of_gsm8k_counts_if_its_number_is_right_however_it_is_written():
    messages = [[{"role": "assistant", "content": text}] for text in ("It is 72.0", "#### 72", "72 or 73", "")]
    assert gsm8k(messages, [ANSWER] * 4) == [1.0, 1.0, 0.0, 0.0]
    assert gsm8k(["no number"], ["none either"]) == [0.0]


def test_what_a_tool_returned_is_not_the_answer():
    said, told = {"role": "assistant", "content": "I do not know."}, {"role": "tool", "content": "72"}
    assert gsm8k([[said, told, said], [said, told, {**said, "content": "72"}]], [ANSWER] * 2) == [0.0, 1.0]


def test_exact_format_and_length():
    completions = [" yes \n", "no", "yes, yes"]
    assert reward("exact")(completions=completions, answer=["yes"] * 3) == [1.0, 0.0, 0.0]
    assert reward("format:(yes|no)")(completions=completions) == [1.0, 1.0, 0.0]
    assert reward("format:<think>.*</think>.+")(completions=["<think>a\nb</think>c", "<think>a"]) == [1.0, 0.0]
    assert reward("length:4")(completions=["", "1234", "123456", "12345678", "1" * 99]) == [1, 1, 0.5, 0, 0]


def test_a_function_of_the_user_is_imported_from_the_current_folder(tmp_path, monkeypatch):
    (tmp_path / "my_rewards.py").write_text(
        "def vowels(completions, **_):\n    return [c.count('a') for c in completions]"
    )
    monkeypatch.chdir(tmp_path)
    assert reward("my_rewards:vowels")(completions=["banana"]) == [3]


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("gsm", "expected gsm8k, exact, format:REGEX, length:N or MODULE:FUNCTION"),
        ("format:(", "not a regular expression"),
        ("length:-1", "expected a number of characters, as in length:400"),
        ("length:0", "expected a number of characters"),
        ("no_such_module:f", "cannot be imported (No module named 'no_such_module')"),
        ("math:no_such", "cannot be imported"),
        ("math:pi", "is float, expected a function"),
    ],
)
def test_a_reward_that_does_not_exist_is_refused(name, told):
    with pytest.raises(InputError) as caught:
        reward(name)
    assert str(caught.value).startswith(f"rewards: {name}: ")
    assert told in str(caught.value)
