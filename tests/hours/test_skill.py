"""What `SKILL.md` teaches a coding agent is followed literally, in an empty folder, in the order of the page."""

import re
import shlex
from pathlib import Path

import pytest

from hmm_datasets.files import read_json

pytestmark = pytest.mark.thorough

SKILL = Path(__file__).parents[2] / "hmm_datasets" / "skills" / "hmm-datasets" / "SKILL.md"
BLOCKS = re.findall(r"^```(sh|python)\n(.*?)^```$", SKILL.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)


def test_every_block_of_the_skill_runs_as_it_stands(hmm_datasets_command, python_program, tmp_path):
    program, printed = "", {}
    for language, text in BLOCKS:
        if language == "python":
            program += text
            python_program(program)
            continue
        for line in text.replace("\\\n", " ").splitlines():
            words = shlex.split(line)
            assert words[0] == "hmm-datasets"
            printed[words[1]] = hmm_datasets_command(*words[1:])
    assert len(BLOCKS) >= 8
    assert {
        "describe",
        "sample",
        "pretrain",
        "evaluate",
        "tokenize",
        "chat",
        "plan",
        "push",
    } <= printed.keys()
    assert "optimum" in read_json(tmp_path / "outputs" / "first" / "evaluation" / "report.json")
    assert (tmp_path / "outputs" / "book" / "model.safetensors").is_file()
    assert "zero3" in printed["plan"]
    assert "cc0-1.0" in SKILL.read_text(encoding="utf-8")
