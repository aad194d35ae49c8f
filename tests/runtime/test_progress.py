"""Progress bars: who sees them, and when."""

import contextlib
import os
import subprocess
import sys

import pytest

from hmm_datasets.runtime.progress import progress_bar


def test_rank_0_shows_a_bar_and_the_others_none(monkeypatch):
    monkeypatch.delenv("RANK", raising=False)
    for rank in (None, "0", "1"):
        if rank is not None:
            monkeypatch.setenv("RANK", rank)
        with progress_bar(3, " rows") as bar:
            assert bar.disable == (rank == "1")


def test_the_variable_of_tqdm_hides_all(child_environment):
    program = "from hmm_datasets.runtime.progress import progress_bar; print(progress_bar(3, ' rows').disable)"
    environment = child_environment | {"TQDM_DISABLE": "1"}  # tqdm reads it when it is imported
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True)
    assert done.stdout == "True\n", done.stderr


def test_a_caller_can_hide_it():
    with progress_bar(3, " rows", shown=False) as bar:
        assert bar.disable


def test_nothing_is_written_in_the_first_two_seconds(capsys):
    with progress_bar(3, " rows") as bar:
        bar.update(3)
    assert capsys.readouterr() == ("", "")


@pytest.mark.thorough
def test_a_command_that_imports_for_seconds_names_that_first_in_a_terminal_and_not_in_a_pipe(
    warm_python, child_environment
):
    command = [warm_python, "-m", "hmm_datasets.cli", "plan", "pretrain", "--model", "nothing"]
    ours, theirs = os.openpty()
    written = b""
    with subprocess.Popen(command, stderr=theirs, env=child_environment), contextlib.suppress(OSError):
        os.close(theirs)
        while part := os.read(ours, 4096):  # Linux ends it by an error
            written += part
    os.close(ours)
    lines = written.decode().splitlines()
    assert len(lines) == 2
    assert lines[0] == "importing torch and transformers ..."
    piped = subprocess.run(command, capture_output=True, text=True, env=child_environment).stderr
    assert piped.splitlines() == lines[1:]
