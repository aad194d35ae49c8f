"""No command lets a terminal obey codes that stand in the names of files, in data or in records."""

import contextlib
import io
import json
import logging
import re
import sys

import pytest
import yaml
from tqdm import tqdm

from hmm_datasets.cli import main
from hmm_datasets.hmm import processes
from hmm_datasets.runtime import progress
from hmm_datasets.runtime.plain_output import PlainStream, plain_output, terminal

ODD = "x\r\x1b]52;c;eA==\x07\x1b]0;owned\x07\x1b[2J\x9b31m\u202ey"
CODES = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e]")


@pytest.fixture
def odd(tmp_path):
    """A folder with an odd name, in which everything has odd names."""
    folder = tmp_path / ODD
    hmm = processes.mess3(0.15, 0.6)
    hmm.save_pretrained(folder / "hmm")
    run = folder / "run"
    run.mkdir()
    row = {"step": 1, "tokens": 8, "max_steps": 2, "loss": 1.0, "host": ODD, ODD: 1.0}
    (run / "history.jsonl").write_text(json.dumps(row) + "\n")
    event = {"time": 1.0, "kind": ODD, "message": ODD, "host": ODD, "rank": 0}
    (run / "events.jsonl").write_text(json.dumps(event) + "\n")
    (run / "digests.json").write_text(json.dumps({"sha256": {ODD: "0" * 64}}))
    (run / f"checkpoint-{ODD}").mkdir()
    (folder / "words.jsonl").write_text(json.dumps({ODD: ODD}) + "\n")
    (folder / "settings.yaml").write_text(yaml.safe_dump({ODD: ODD, "output_dir": ODD}, allow_unicode=True))
    sweep = {"recipe": "fit", "output_dir": str(folder / "sweep"), "grid": {ODD: [1]}, "settings": {"corpus": ODD}}
    (folder / "sweep.yaml").write_text(yaml.safe_dump(sweep))
    return folder


COMMANDS = """
describe {}/hmm --length 4 --num_sequences 2
describe {}/none
sample {}/hmm -n 1 --length 4
sample {}
sample mess3 --{}
score {}/hmm {}/words.jsonl
corpora {}
fit {}
plan {}/settings.yaml
pretrain --config {}/settings.yaml
evaluate {}/run
compare {}/run {}/run
answers {}
experiment {}
push {}/run
push {}/none
report {}
chat {}/run --prompt x
sweep {}/sweep.yaml --table
sweep {}/none.yaml
watch {}/run
watch {}/none
supervise {}/run -- false
checkpoint list {}/run
verify {}/run
verify {}/hmm
configs {}
preflight --{}
{}
--{}
"""


@pytest.mark.thorough
@pytest.mark.outside(
    "https://github.com/Canop/broot/issues/1188",
    "names of files with escape codes, such as OSC 52, that do not reach the terminal",
    "written as text (`\\x1b]52;`) by every command, as by its warnings and logs",
)
@pytest.mark.outside(
    "https://github.com/martinus/oans/issues/202",
    "codes in names that block a terminal or overwrite the line above",
    "written as text, a carriage return too",
)
@pytest.mark.parametrize("command", COMMANDS.strip().splitlines())
def test_a_command_prints_no_code_of_a_name(odd, command, capfd, monkeypatch):
    monkeypatch.chdir(odd)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr(progress, "_DELAY", 1e9)  # a bar draws carriage returns
    with contextlib.suppress(SystemExit):
        main([word.format(odd) for word in command.split()])
    printed = "".join(capfd.readouterr())
    assert CODES.findall(printed) == []
    assert "\\x1b]0;owned" in printed or "owned" not in printed


def test_logs_and_bars_are_printed_without_codes_and_a_bar_still_moves(monkeypatch):
    out, err = io.StringIO(), io.StringIO()
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setattr(sys, "stderr", err)
    with plain_output(), plain_output():
        print(ODD, end="\r\n")
        handler = logging.StreamHandler()
        handler.emit(logging.makeLogRecord({"msg": ODD}))
        for _ in tqdm(range(2), desc=ODD, ncols=200, mininterval=0):
            tqdm.write(ODD, file=sys.stderr)
        terminal(sys.stdout).write("\x1b[A")
        assert json.loads(json.dumps("\x7f\x9b\u202e", ensure_ascii=False)) == "\x7f\x9b\u202e"
        print(json.dumps("\x7f\x9b\u202e", ensure_ascii=False))
    assert sys.stdout is out
    assert not isinstance(sys.stderr, PlainStream)
    printed, drawn = out.getvalue(), CODES.findall(err.getvalue())
    assert CODES.findall(printed) == ["\x1b"]
    assert json.loads(printed.splitlines()[-1].removeprefix("\x1b[A")) == "\x7f\x9b\u202e"
    assert set(drawn) == {"\r"}  # of the bar
    assert err.getvalue().count("\\x1b]0;owned") >= 5


@pytest.mark.parametrize("name", ["stdin", "stdout", "stderr"])
def test_a_program_whose_streams_were_closed_reads_nothing_and_writes_nowhere(monkeypatch, name):
    monkeypatch.setattr(sys, name, None)  # as Python finds them after `command <&- >&-`
    with plain_output():
        print("a line")
        print("a line", file=sys.stderr)
        assert name != "stdin" or (sys.stdin.read() == "" and not sys.stdin.isatty())
