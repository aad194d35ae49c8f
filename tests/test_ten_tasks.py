"""The page with the ten tasks: one command and one Python program for each, which run from top to bottom."""

import re
import shlex
from pathlib import Path

import pytest

from hmm_datasets.cli import main
from hmm_datasets.files import read_json

PAGE = (Path(__file__).resolve().parents[1] / "docs/how_to/ten_tasks.md").read_text(encoding="utf-8")
SECTIONS = PAGE.split("\n## ")[1:]


def block(section: str, language: str) -> str:
    """The only code block of a section in one language."""
    (code,) = re.findall(rf"```{language}\n(.*?)```", section, flags=re.DOTALL)
    return code


def test_each_of_the_ten_tasks_has_one_way_by_command_and_one_in_python():
    assert [section.partition(".")[0] for section in SECTIONS] == [str(number) for number in range(1, 11)]
    assert all(block(section, "sh") and block(section, "python") for section in SECTIONS)


@pytest.mark.thorough
def test_the_commands_do_what_the_page_describes(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    printed = []
    for section in SECTIONS:
        for line in block(section, "sh").splitlines():
            assert main(shlex.split(line, comments=True)[1:]) == 0, line
        printed.append(capsys.readouterr())
    assert "mess3" in printed[0].out
    assert (tmp_path / "tokens.npy").stat().st_size == 2000 * 32 + 128
    assert (tmp_path / "fit" / "hmm" / "config.json").exists()
    assert (tmp_path / "text" / "tokenizer" / "tokenizer.json").exists()
    assert read_json(tmp_path / "run" / "evaluation" / "report.json")["optimum"]["bayes_gap"]["bayes_gap"] > 0
    assert "half" in printed[7].out
    assert "llama-on-mess3" in printed[8].out
    assert "finished" in printed[9].out + printed[9].err
