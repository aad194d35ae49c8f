"""The chat in a real terminal and in a pipe, as programs."""

import subprocess
import sys

import pytest
from memorized import FRANCE, PARIS

pexpect = pytest.importorskip("pexpect")


@pytest.mark.thorough
def test_a_chat_in_a_terminal(chat_model, child_environment, tmp_path):
    """One program for many claims, since it takes seconds to start."""
    command = ["-m", "hmm_datasets.cli", "chat", chat_model, "--temperature", "0", "--max_new_tokens", "900"]
    terminal = pexpect.spawn(
        sys.executable,
        command,
        env=child_environment | {"TERM": "xterm"},
        cwd=str(tmp_path),
        encoding="utf-8",
        dimensions=(40, 200),
        timeout=500,
    )
    prompt = ">>> "

    def type_in(line: str) -> str:
        terminal.sendline(line)
        terminal.expect_exact(prompt)
        return terminal.before

    terminal.expect_exact(prompt)
    assert f"{chat_model}: " in terminal.before
    assert "context window 1,024 tokens, greedy" in terminal.before
    assert PARIS in type_in(FRANCE[0][1])
    assert "It is Tokyo." in type_in("And of Japan?")

    # An answer is shown while it is generated, and Ctrl-C ends it but not the program.
    type_in("/clear")
    terminal.sendline("Count")
    terminal.expect_exact("one two one two")
    terminal.sendintr()
    terminal.expect_exact(prompt)
    assert "(stopped)" in terminal.before
    assert terminal.before.count("one") < 400
    terminal.sendintr()
    terminal.expect_exact("(Ctrl-D or /quit ends the chat)")
    terminal.expect_exact(prompt)

    # A pasted text of several lines is one message.
    assert "(cleared)" in type_in("/clear")
    terminal.send("\x1b[200~Hello\nand goodbye\x1b[201~")
    assert "Second line." in type_in("")

    # The arrow brings back what was typed before.
    type_in("/clear")
    assert "Hello, friend." in type_in("Hello")
    assert type_in("\x1b[A").startswith("Hello\r\n")

    terminal.sendeof()
    terminal.expect(pexpect.EOF)
    terminal.close()
    assert terminal.exitstatus == 0


@pytest.mark.thorough
def test_a_chat_in_a_pipe_writes_the_answer_without_escape_codes(chat_model, warm_python, child_environment):
    done = subprocess.run(
        [warm_python, "-m", "hmm_datasets.cli", "chat", chat_model, "--temperature", "0"],
        input="Hello\nand goodbye\n",
        env=child_environment,
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "First line.\nSecond line.\n", "")
