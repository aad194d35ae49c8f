# JSON that anyone may have written, and records read into types

import json
import math
from dataclasses import dataclass, field

import pytest

from hmm_datasets.errors import InputError
from hmm_datasets.files import read_json, read_log
from hmm_datasets.foreign.json import MOST_NESTED, parse_json
from hmm_datasets.records import Count, Finite, as_record, is_record, read_record


@dataclass(frozen=True)
class Fit:
    steps: Count
    losses: list[Finite]
    name: str | None = None
    seconds: dict[str, Finite] = field(default_factory=dict)


@pytest.mark.parametrize(
    ("text", "end"),
    [
        ("1" * 5000, "an integer of more than 4,300 digits; write such a number as text"),
        ('{"a": -' + "9" * 4301 + "}", "an integer of more than 4,300 digits; write such a number as text"),
        ("[" * 100_000, "nested more than 200 deep; expected data of fewer levels"),
        ("[" * 300 + "]" * 300, "nested more than 200 deep; expected data of fewer levels"),
        ('{"a":' * 201 + "1" + "}" * 201, "nested more than 200 deep; expected data of fewer levels"),
        ("{", "not JSON (Expecting property name enclosed in double quotes)"),
        (b'"\xff"', "not UTF-8 text (invalid start byte at byte 1)"),
        ("", "not JSON (Expecting value)"),
    ],
)
def test_what_is_not_json_that_can_be_used_is_refused_in_one_line(tmp_path, text, end):
    with pytest.raises(InputError) as error:
        parse_json(text, "answer")
    assert str(error.value).startswith("answer: ")
    assert str(error.value).endswith(end)
    content = text if isinstance(text, bytes) else text.encode()
    (tmp_path / "a.json").write_bytes(content)
    with pytest.raises(InputError, match=r"a\.json"):
        read_json(tmp_path / "a.json")
    (tmp_path / "a.jsonl").write_bytes(b'{"n": 1}\n' + content + b'\n{"n": 2}\n')
    assert read_log(tmp_path / "a.jsonl") == [{"n": 1}, {"n": 2}]


def test_what_is_nested_as_deep_as_allowed_is_read_and_can_be_walked():
    text = '{"a":[' * (MOST_NESTED // 2) + "]}" * (MOST_NESTED // 2)
    value = parse_json(text, "answer")
    assert json.dumps(value, separators=(",", ":")) == text
    assert parse_json("[" + ",".join("[]" for _ in range(10_000)) + "]", "wide") == [[]] * 10_000


@pytest.mark.parametrize("text", ["\ufeff[1]", "\ufeff[1]".encode(), "[1]".encode("utf-16"), b"[1]"])
def test_a_byte_order_mark_is_no_part_of_the_value(text):
    assert parse_json(text, "answer") == [1]


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ([], "expected object, found array"),
        ({"steps": "3", "losses": []}, "steps: expected int, found str"),
        ({"steps": -1, "losses": []}, "steps: expected int >= 0"),
        ({"steps": 1 << 63, "losses": []}, "steps: expected int <= 9223372036854775807"),
        ({"steps": True, "losses": []}, "steps: expected int, found bool"),
        ({"steps": 1.0, "losses": []}, "steps: expected int, found float"),
        ({"steps": 1, "losses": [0.5, math.nan]}, "losses[1]: expected float >= "),
        ({"steps": 1, "losses": [math.inf]}, "losses[0]: expected float <= "),
        ({"steps": 1, "losses": [10**400]}, "losses[0]: number out of range"),
        ({"steps": 1, "losses": None}, "losses: expected array, found null"),
        ({"steps": 1, "losses": [], "seconds": {"data": "x"}}, "seconds[...]: expected float, found str"),
        ({"losses": []}, "object missing required field steps"),
        ({"steps": 1, "losses": [], "name": "\x1b[2J" * 99}, None),
    ],
)
def test_a_record_of_another_type_is_refused_by_file_and_field(tmp_path, value, message):
    (tmp_path / "fit.json").write_text(json.dumps(value))
    if message is None:
        assert read_record(tmp_path / "fit.json", Fit).name == value["name"]
        return
    with pytest.raises(InputError) as error:
        read_record(tmp_path / "fit.json", Fit)
    assert str(error.value).startswith(f"{tmp_path / 'fit.json'}: {message}")
    assert not is_record(value, Fit)


def test_a_record_may_have_fields_that_its_reader_does_not_name():
    assert as_record({"steps": 3, "losses": [1, 0.5], "later": {}}, Fit, "fit.json") == Fit(3, [1.0, 0.5])
    assert is_record({"a": [1, 2]}, dict[str, list[int]])
    assert not is_record({"a": [1, 2.5]}, dict[str, list[int]])


def test_half_a_character_in_a_record_is_refused_as_another_type():
    assert not is_record({"\ud800": 1}, Fit)
    with pytest.raises(InputError, match=r"a\.json: 'utf-8' codec can't encode"):
        as_record({"\ud800": 1}, Fit, "a.json")
