"""Programs that a model may write: each that misbehaves fails within the limits, and leaves nothing behind."""

import contextlib
import sys
import time
from pathlib import Path

import pytest

from hmm_datasets.evaluation.chat_core import sandbox
from hmm_datasets.evaluation.chat_core.sandbox import passes

if not sys.platform.startswith("linux"):
    pytest.skip("limits are those of Linux", allow_module_level=True)

pytestmark = pytest.mark.launch
MARK = "hmm-datasets-escaped"


@pytest.fixture(params=["with namespaces", "without"], autouse=True)
def namespaces(request, monkeypatch):
    if request.param == "without":
        monkeypatch.setattr(sandbox, "_own_namespaces", tuple)
    elif not sandbox._own_namespaces():
        pytest.skip("this machine lets nobody make namespaces")
    return request.param


def is_running(word: str) -> bool:
    """Whether some process has the word in its command line."""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if word in path.read_text(errors="replace").split("\0"):
                return True
    return False


def test_a_function_with_imports_passes():
    assert passes("import math, re, collections, hashlib, typing\nassert math.sqrt(4) == 2")


@pytest.mark.parametrize(
    "program",
    [
        "assert False",
        "def",
        "import sys; sys.exit(0)",
        "import os; os._exit(0)",
        "while True: pass",
        "import time; time.sleep(60)",
        "x = []\nwhile True: x.append(bytearray(10**8))",
        "x = 'a' * 10**10",
        "open('{there}', 'w').write('x')",
        "open('here', 'w').write('x')",
        "import os; os.mkdir('{there}')",
        "import os; os.remove('{here}')",
        "import shutil; shutil.rmtree('{folder}')",
        "import os; os.fork(); os.setsid()",
        "import subprocess; subprocess.Popen(['sleep', '{seconds}'])",
        "import os; os.system('sleep {seconds} &')",
        "import os; assert 'HF_TOKEN' in os.environ",
        "import os; assert 'hf_' in open(f'/proc/{{os.getppid()}}/environ').read()",
        "open('{here}').read()",
        "import socket; socket.create_connection(('127.0.0.1', 9))",
        "import ctypes; ctypes.CDLL(None)",
        "import os; os.kill(os.getppid(), 9)",
        "import resource; resource.setrlimit(resource.RLIMIT_CPU, (9, 9))",
        "import sqlite3; sqlite3.connect('{there}')",
    ],
)
def test_a_program_that_misbehaves_fails_in_time_and_leaves_nothing(program, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    there, here, seconds = tmp_path / MARK, tmp_path / "here.txt", 12345.678
    here.write_text("kept")
    found = {"there": there, "here": here, "folder": tmp_path, "seconds": seconds}
    before, started = set(Path(sandbox.tempfile.gettempdir()).glob("hmm-datasets-*")), time.monotonic()
    assert not passes(program.format(**found), seconds=1, megabytes=256)
    assert time.monotonic() - started < 4
    assert here.read_text() == "kept"
    assert not there.exists()
    assert set(Path(sandbox.tempfile.gettempdir()).glob("hmm-datasets-*")) <= before
    assert not is_running(str(seconds))


def test_in_namespaces_there_is_nothing_to_write_even_for_native_code(namespaces, tmp_path, monkeypatch):
    """What holds if the audit hook were got round: a copy of the program without it."""
    if namespaces == "without":
        pytest.skip("this is what namespaces are for")
    source = Path(sandbox._CONFINED).read_text().replace("    sys.addaudithook(_audit_hook())\n", "")
    monkeypatch.setattr(sandbox, "_CONFINED", tmp_path / "confined.py")
    (tmp_path / "confined.py").write_text(source)
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    refused = f"""
        import os
        def fails(action):
            try:
                action()
            except OSError:
                return True
        assert fails(lambda: open({str(tmp_path / MARK)!r}, "w"))
        assert fails(lambda: os.remove({str(tmp_path / "confined.py")!r}))
        assert os.listdir("/proc") == [] and os.listdir(".") == []
        assert len(os.environ) < 5 and "HF_TOKEN" not in os.environ
        import socket
        assert fails(lambda: socket.create_connection(("1.1.1.1", 53), timeout=1))
        assert os.system("mount -o remount,rw /") != 0
        assert os.system("unshare --user --map-root-user --mount mount -o remount,bind,rw /") != 0
        open("here", "w").write("x")  # in memory, and gone with the process
        os.system("setsid sleep 12345.678 &")
    """
    program = "\n".join(line.removeprefix("        ") for line in refused.splitlines())
    assert passes(program)
    time.sleep(0.1)
    assert not is_running("12345.678")
