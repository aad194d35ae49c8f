"""The interpreter that tests of programs take: it does what `python` does, only sooner."""

import json
import signal
import subprocess
import sys
import time
from functools import partial

import psutil
import pytest

pytestmark = pytest.mark.thorough

PROGRAM = """
import os, sys
print(__name__, sys.argv, sys.path[0], os.getcwd(), os.environ["NAME"], sys.stdin.read())
sys.exit("no more" if len(sys.argv) > 2 else 3)
"""

LAST_WORDS = """
import atexit, tempfile, threading, time
folder = tempfile.TemporaryDirectory()
atexit.register(print, "at exit", flush=False)
threading.Thread(target=lambda: (time.sleep(0.2), print("a thread"))).start()
raise SystemExit(-1)
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
        ["-c", LAST_WORDS],
        ["-c", "import sys; sys.excepthook = lambda *_: print('interrupted'); raise KeyboardInterrupt"],
        ["-I", "-c", "print(1)"],
    ],
    ids=lambda arguments: " ".join(arguments)[:20].strip(),
)
def test_a_program_is_given_prints_and_ends_as_under_python(arguments, run):
    warm, cold = run(*arguments)
    assert warm == cold


def test_what_imports_read_of_the_environment_is_read_anew(run, tmp_path):
    """Every constant of the libraries of Hugging Face, and every default, is that of an interpreter of its own."""
    code = """
import json, pathlib, sys
import datasets, transformers.dynamic_module_utils
from huggingface_hub import hf_api, hf_file_system
found = {}
for name in ("huggingface_hub", "datasets", "transformers"):
    for module in [module for path, module in list(sys.modules.items()) if path.partition(".")[0] == name]:
        for constant, value in list(vars(module).items()):
            if constant in ("SESSION_ID", "PATH_TO_TRANSFORMERS"):  # by chance, and by the current folder
                continue
            if isinstance(value, str | bool | pathlib.Path):
                found[f"{module.__name__}.{constant}"] = str(value)
            elif "endpoint" in getattr(value, "__dict__", ()):
                found[f"{module.__name__}.{constant}"] = str(value.endpoint)
print(json.dumps(found))
"""
    changes = {"HF_HUB_OFFLINE": "0", "HF_HOME": str(tmp_path), "HF_ENDPOINT": "http://127.0.0.1:9", "HF_TOKEN": "x"}
    warm, cold = (json.loads(printed) for _, printed, _ in run("-c", code, **changes))
    assert len(cold) > 500
    assert {name: warm[name] for name in cold} == cold
    assert str(tmp_path) in " ".join(cold.values())


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
def test_signals_reach_the_program(number, warm_python, child_environment):
    """Ten times, since a signal comes at another moment each time: it was lost, or ended the server."""
    code = "import os, time; print(os.getpid(), flush=True); time.sleep(60)"
    usual = None if number == signal.SIGKILL else partial(signal.signal, number, signal.SIG_DFL)  # nohup ignores one
    for _ in range(10):
        with subprocess.Popen(
            [warm_python, "-c", code],
            env=child_environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            preexec_fn=usual,
        ) as process:
            program = int(process.stdout.readline())
            assert program != process.pid, "it is forked"
            process.send_signal(number)
            assert process.wait(10) == -number
            assert process.stdout.read() == ""
        limit = time.monotonic() + 500
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
