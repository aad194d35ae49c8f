"""The code in the README runs, and the files it names exist."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
PROGRAMS = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)


@pytest.mark.thorough
def test_the_first_program_comes_near_the_optimum(tmp_path):
    program = PROGRAMS[0]
    said = re.search(r"(-?\d\.\d+) nats per token above the optimum of (\d\.\d+)", output(program, tmp_path))
    assert -0.01 < float(said[1]) < 0.01 < 0.3 < float(said[2])


@pytest.mark.thorough
def test_the_second_program_prints_a_row_of_the_named_process(tmp_path):
    program = PROGRAMS[1]
    assert re.fullmatch(r"\[3(, [0-2]){64}\]", output(program, tmp_path).strip())


def output(program: str, folder: Path) -> str:
    """What a program prints, in a folder of its own."""
    result = subprocess.run([sys.executable, "-c", program], cwd=folder, capture_output=True, text=True, timeout=500)
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_it_is_short_and_its_links_lead_somewhere():
    assert len(README.splitlines()) <= 150
    links = [link.partition("#")[0] for link in re.findall(r"\]\(([^)]+)\)", README) if not link.startswith("https:")]
    assert len(links) > 15
    for link in links:
        assert (ROOT / link).exists(), link


def test_make_has_the_targets_it_names():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in re.findall(r"`?make (\w+)", README):
        assert re.search(rf"^{target}:", makefile, flags=re.MULTILINE), target
