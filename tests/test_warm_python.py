"""The interpreter that tests of programs take: it does what `python` does, only sooner."""

import signal
import subprocess
import sys
import time

import psutil
import pytest

pytestmark = pytest.mark.launch

PROGRAM = """
import os, sys
print(__name__, sys.argv, sys.path[0], os.getcwd(), os.environ["NAME"], sys.stdin.read())
sys.exit("no more" if len(sys.argv) > 2 else 3)
"""


@pytest.fixture
def run(warm_python, child_environment, tmp_path):
    (tmp_path / "program.py").write_text(PROGRAM)

    def run(python, *arguments, **changes):
        environment = child_environment | {"NAME": "value"} | changes
        done = subprocess.run(
            [python, *arguments], cwd=tmp_path, env=environment, capture_output=True, text=True, input="given"
        )
        return done.returncode, done.stdout, done.stderr

    return lambda *arguments, **changes: [
        run(python, *arguments, **changes) for python in (warm_python, sys.executable)
    ]


@pytest.mark.parametrize(
    "arguments",
    [
        ["program.py", "a"],
        ["program.py", "a", "b"],
        ["-u", "program.py"],
        ["-m", "program", "a"],
        ["-c", PROGRAM, "a", "b"],
        ["-c", "import os; os.kill(os.getpid(), 9)"],
        ["-I", "-c", "print(1)"],
    ],
    ids=lambda arguments: " ".join(arguments)[:20].strip(),
)
def test_a_program_is_given_prints_and_ends_as_under_python(arguments, run):
    warm, cold = run(*arguments)
    assert warm == cold


def test_what_imports_read_of_the_environment_is_read_anew(run):
    warm, cold = run("-c", "from datasets import config; print(config.HF_HUB_OFFLINE)", HF_HUB_OFFLINE="0")
    assert warm == cold == (0, "False\n", "")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
def test_signals_reach_the_program(number, warm_python, child_environment):
    """Ten times, since a signal comes at another moment each time: it was lost, or ended the server."""
    code = "import os, time; print(os.getpid(), flush=True); time.sleep(60)"
    for _ in range(10):
        with subprocess.Popen(
            [warm_python, "-c", code],
            env=child_environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        ) as process:
            program = int(process.stdout.readline())
            assert program != process.pid, "it is forked"
            process.send_signal(number)
            assert process.wait(10) == -number
            assert process.stdout.read() == ""
        limit = time.monotonic() + 5
        while psutil.pid_exists(program) and time.monotonic() < limit:
            time.sleep(0.01)
        assert not psutil.pid_exists(program)


def test_programs_that_do_not_end_in_time_print_their_stacks(run_to_end, warm_python, child_environment):
    """Also one that the program has started, as a launcher starts ranks."""
    rank = "import time\ndef waits_for_its_peer(): time.sleep(60)\nwaits_for_its_peer()"
    launcher = "import subprocess, sys\ndef launches(code): subprocess.run([sys.executable, '-c', code])\n"
    for patience in (2, 8, 30):  # until both have begun, which takes long on a busy machine
        with pytest.raises(pytest.fail.Exception) as failure:
            run_to_end([warm_python, "-c", f"{launcher}launches({rank!r})"], patience, env=child_environment)
        assert f"did not end in {patience} s" in str(failure.value)
        if "in waits_for_its_peer" in str(failure.value):
            break
    assert "in launches" in str(failure.value)
    assert "in waits_for_its_peer" in str(failure.value)
