"""The calculator computes arithmetic exactly and nothing else; annotated answers become conversations with calls."""

import json
import re

import datasets
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hmm_datasets.errors import InputError
from hmm_datasets.text.corpora.calculator import calculator, with_calls
from hmm_datasets.text.corpora.loading import load_corpus

ANSWER = "He sold 48/2 = <<48/2=24>>24 in May.\nIn all 48+24 = <<48+24=72>>72.\n#### 72"
ROWS = [{"question": "How many?", "answer": ANSWER}, {"question": "None?", "answer": "None.\n#### 0"}]


@pytest.mark.parametrize(
    ("expression", "result"),
    [
        ("(48+24)/2", "36"),
        ("1,200*3", "3600"),
        ("0.1+0.2", "0.3"),
        ("1/3", "0.333333"),
        ("-7/2", "-3.5"),
        ("-1/10000000", "0"),
        ("10-10", "0"),
        ("2**10 % 1000", "24"),
        ("7//2", "3"),
        (" 05 + .5", "5.5"),
        ("100", "100"),
    ],
)
def test_results_are_exact_and_written_without_needless_zeros(expression, result):
    assert calculator(expression) == result


@given(st.integers(0, 10**9), st.integers(0, 10**9), st.sampled_from("+-*"))
def test_whole_numbers_are_computed_as_python_does(left, right, operation):
    assert calculator(f"{left}{operation}{right}") == str(eval(f"{left}{operation}{right}"))


@pytest.mark.parametrize(
    "expression",
    ["__import__('os')", "x+1", "1/0", "9**9**9", "2**0.5", "(", "'a'*9", "1 if 1 else 2", "1" * 201, "True", "", 7],
)
def test_anything_else_is_refused_at_once(expression):
    with pytest.raises(ValueError, match=r"expected|not |division by zero|too large"):
        calculator(expression)


@pytest.fixture
def hub(tmp_path, monkeypatch):
    folder = tmp_path / "openai" / "gsm8k"
    for split in ("train", "test"):
        (folder / "main").mkdir(parents=True, exist_ok=True)
        (folder / "main" / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    files = "".join(f"  - split: {split}\n    path: main/{split}.jsonl\n" for split in ("train", "test"))
    (folder / "README.md").write_text(f"---\nconfigs:\n- config_name: main\n  data_files:\n{files}---\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    return folder


@pytest.mark.parametrize("streaming", [True, False])
def test_gsm8k_is_read_with_its_annotations_or_with_calls(hub, streaming):
    plain = list(load_corpus("gsm8k", split="test", streaming=streaming))
    assert [row["messages"][1]["content"] for row in plain] == [row["answer"] for row in ROWS]
    first, second = (row["messages"] for row in load_corpus("gsm8k-calculator", streaming=streaming))
    assert [message["role"] for message in first] == ["system", "user", *["assistant", "tool"] * 2, "assistant"]
    assert [message["content"] for message in first if message["role"] == "tool"] == ["24", "72"]
    said = "".join(message["content"] for message in first if message["role"] == "assistant")
    assert re.sub(r"\n<tool_call>.*?</tool_call>", "", said, flags=re.DOTALL) == re.sub("<<.*?>>", "", ANSWER)
    assert [message["role"] for message in second] == ["system", "user", "assistant"]
    assert '"name": "calculator"' in second[0]["content"]


def test_an_annotation_that_is_no_calculation_is_named_by_its_row(hub):
    (hub / "main" / "train.jsonl").write_text(json.dumps({"question": "?", "answer": "<<a+b=c>>c #### 1"}) + "\n")
    with pytest.raises(InputError, match=r"gsm8k-calculator.*answer: not arithmetic: a; drop the row"):
        list(load_corpus("gsm8k-calculator"))


def test_a_system_message_comes_before_the_declaration():
    found = with_calls([{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}])
    assert found[0]["content"].startswith("Be brief.\n\n# Tools")
    assert len(found) == 2
