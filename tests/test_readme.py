"""The code in the README runs, and the files it names exist."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from hmm_datasets.cli import build_parsers
from hmm_datasets.operations.launching import split_command
from hmm_datasets.operations.stage_inputs import read_command
from hmm_datasets.runtime.shipped import local_or_shipped

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
PROGRAMS = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)
COMMANDS = [
    shlex.split(line, comments=True)
    for block in re.findall(r"```sh\n(.*?)```", README, flags=re.DOTALL)
    for line in block.replace("\\\n", " ").splitlines()
    if line.startswith("hmm-datasets")
]


@pytest.mark.launch
def test_the_first_program_comes_near_the_optimum(tmp_path):
    program = PROGRAMS[0]
    said = re.search(r"(-?\d\.\d+) nats per token above the optimum of (\d\.\d+)", output(program, tmp_path))
    assert -0.01 < float(said[1]) < 0.01 < 0.3 < float(said[2])


@pytest.mark.launch
def test_the_second_program_prints_a_row_of_the_named_process(tmp_path):
    program = PROGRAMS[1]
    assert re.fullmatch(r"\[3(, [0-2]){64}\]", output(program, tmp_path).strip())


def output(program: str, folder: Path) -> str:
    """What a program prints, in a folder of its own."""
    result = subprocess.run([sys.executable, "-c", program], cwd=folder, capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_it_is_short_and_its_links_lead_somewhere():
    assert len(README.splitlines()) <= 150
    links = [link.partition("#")[0] for link in re.findall(r"\]\(([^)]+)\)", README) if not link.startswith("https:")]
    assert len(links) > 15
    for link in links:
        assert (ROOT / link).exists(), link


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_its_commands_settings_and_launch_configurations_exist(words):
    recipe = split_command(words[1:])
    if recipe is None:
        build_parsers()[0].parse_args(words[1:])
    else:
        read_command(*recipe)  # the batch divides by the processes, and the optimizer can be sharded
    for flag, folder in (("--config", "recipes"), ("--launch", "accelerate_configs")):
        if flag in words:
            assert local_or_shipped(words[words.index(flag) + 1], folder).is_file()


def test_make_has_the_targets_it_names():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in re.findall(r"`?make (\w+)", README):
        assert re.search(rf"^{target}:", makefile, flags=re.MULTILINE), target
