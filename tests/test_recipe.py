"""How a program of several processes ends."""

import subprocess
import sys

import pytest

SCRIPT = """
import atexit, sys
from hmm_datasets.errors import InputError, one_line_errors
from hmm_datasets.recipe import exit_without_teardown

class Teardown:
    def __del__(self, say=sys.stderr.write):
        say("torn down")

with exit_without_teardown(), one_line_errors():
    atexit.register(lambda: print("handler ran"))
    sys.kept_to_the_end = Teardown()
    print("buffered", end=" ")
    {ending}
"""


@pytest.mark.parametrize(
    ("ending", "code"),
    [("pass", 0), ("raise InputError('bad')", 2), ("raise RuntimeError('bug')", 1), ("sys.exit()", 0)],
)
@pytest.mark.parametrize("world_size", ["1", "2"])
def test_one_of_several_processes_ends_with_its_code_before_python_is_torn_down(
    ending, code, world_size, child_environment
):
    result = subprocess.run(
        [sys.executable, "-c", SCRIPT.format(ending=ending)],
        env=child_environment | {"WORLD_SIZE": world_size, "RANK": "0"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert result.returncode == code, result.stderr
    assert result.stdout == "buffered handler ran\n"
    assert ("torn down" in result.stderr) == (world_size == "1")
    assert ("error: bad" in result.stderr) == (code == 2)
    assert ("RuntimeError: bug" in result.stderr) == (code == 1)
