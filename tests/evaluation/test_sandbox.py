"""Functions that a model may write: none that misbehaves passes, takes long, or leaves anything behind."""

import contextlib
import resource
import subprocess
import sys
import time
from pathlib import Path

import pytest
from bubblewrap import needs_bubblewrap

from hmm_datasets.evaluation.chat_core import sandbox
from hmm_datasets.evaluation.chat_core.sandbox import passes

pytestmark = [pytest.mark.launch, needs_bubblewrap]

TEST = "def check(f):\n    assert f(2) == 4\n    assert f(3) == 9\n"


def is_running(word: str) -> bool:
    """Whether some process has the word in its command line."""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if word in path.read_text(errors="replace").split("\0"):
                return True
    return False


def children_in_megabytes() -> float:
    return resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024


def test_a_function_with_imports_passes():
    assert passes("import math, re, collections, hashlib, typing\ndef f(x): return int(math.pow(x, 2))", TEST, "f")


@pytest.mark.parametrize(
    "value",
    [
        *(None, True, -3, 0.1, float("inf"), -1e999, 2 + 1j, "a'\n\\", b"\0\xff", 10**5000),
        *([], (), set(), {}, (1,), [1, (2.5, {"a": {3}})], {(1, 2): [None], "b": -0.0}),
    ],
    ids=lambda value: repr(value)[:20] if not isinstance(value, int) else f"{value.bit_length()} bits",
)
def test_values_go_to_a_function_and_come_back_as_they_are(value):
    sys.set_int_max_str_digits(6000)
    try:
        text = repr(value).replace("inf", "1e999")
    finally:
        sys.set_int_max_str_digits(4300)
    head = "import sys; sys.set_int_max_str_digits(0)\n"
    test = f"VALUE = eval({text!r})\ndef check(f):\n    found = f(VALUE)\n    assert repr(found) == repr(VALUE)\n"
    assert passes("def f(x): return x", head + test, "f")


def test_a_test_may_call_the_function_by_name_and_read_what_it_yields():
    test = "def check(g):\n    assert tuple(g([1, 2])) == tuple(f([1, 2])) == (2, 4)\n"
    assert passes("def f(x):\n    for one in x:\n        yield 2 * one", test, "f")
    assert passes("class L(list): pass\nimport collections\ndef f(x): return collections.Counter(L('aab'))",
                  "def check(f): assert f(1) == {'a': 2, 'b': 1}", "f")  # fmt: skip


ATTACKS = {
    "wrong": "def f(x): return 4",
    "no function": "def g(x): return x * x",
    "syntax": "def",
    "exit": "import sys; sys.exit(0)",
    "exit at once": "import os; os._exit(0)",
    "exit when called": "import os\ndef f(x): os._exit(0)",
    "raises": "def f(x): raise SystemExit(0)",
    "loop": "while True: pass",
    "loop when called": "def f(x):\n    while True: pass",
    "sleep": "import time; time.sleep(60)",
    "memory": "x = []\nwhile True: x.append(bytearray(10**7))",
    "one string": "def f(x): return 'a' * 10**10",
    "equal to everything": (
        "class E:\n    def __eq__(self, other): return True\n    def __ne__(self, other): return False\n"
        "    def __hash__(self): return 4\ndef f(x): return E()"
    ),
    "equal integers": "class E(int):\n    def __eq__(self, other): return True\ndef f(x): return E(7)",
    "asserts are changed": "import builtins\nbuiltins.AssertionError = None\ndef f(x): return 1",
    "check is replaced": (
        "import sys\nmain = sys.modules['__main__']\nmain.check = lambda f: None\ndef check(f): pass\n"
        "def f(x): return 1"
    ),
    "reads the test": "text = open('/source.py').read()\nassert 'che' 'ck' in text\ndef f(x): return x * x",
    "writes to every descriptor": (
        "import os\npiece = b'x' * 2**16\nfor fd in range(64):\n    try:\n        while True: os.write(fd, piece)\n"
        "    except OSError: pass\n"
    ),
    "writes results of its own": (
        "import os\nfor fd in range(3, 16):\n    try: os.write(fd, b\"('value', 4)\\n('value', 8)\\n\")\n"
        "    except OSError: pass\ndef f(x): return 0"
    ),
    "results that are code": (
        "import os\nfor fd in range(3, 16):\n    try: os.write(fd, b\"__import__('os')._exit(0)\\n\")\n"
        "    except OSError: pass\ndef f(x): return 0"
    ),
    "deep results": (
        "import os\nfor fd in range(3, 16):\n    try: os.write(fd, b'(' * 60000 + b'\\n')\n"
        "    except OSError: pass\ndef f(x): return 0"
    ),
    "kills": "import os\nos.kill(-1, 9)",
    "kills its parent": "import os\nos.kill(os.getppid(), 9)",
    "kills the first": "import os\nos.kill(1, 9)",
    "processes": "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass",
}


@pytest.mark.parametrize("attack", ATTACKS)
def test_a_function_that_is_wrong_does_not_pass_in_time_and_memory(attack):
    started = time.monotonic()
    assert not passes(ATTACKS[attack], TEST, "f", seconds=0.7, megabytes=128)
    assert time.monotonic() - started < 4


def test_an_answer_fills_the_memory_of_no_one():
    """The processes of this one have never more than the limit and the interpreter, nor has this one."""
    code = (
        "import re, resource\nfrom hmm_datasets.evaluation.chat_core.sandbox import passes\n"
        "for attack in ATTACKS:\n    assert not passes(attack, TEST, 'f', seconds=2, megabytes=256)\n"
        # The maximum in the usage of this process is inherited from the one that started it.
        "print(int(re.search(r'VmHWM:\\s+(\\d+)', open('/proc/self/status').read())[1]) // 1024)\n"
        "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss // 1024)\n"
    )
    attacks = [ATTACKS[name] for name in ("writes to every descriptor", "memory", "one string")]
    program = f"ATTACKS, TEST = {attacks!r}, {TEST!r}\n{code}"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    own, theirs = map(int, done.stdout.split())
    assert own < 200
    assert theirs < 300


@pytest.mark.parametrize("native", [False, True], ids=["by Python", "by native code"])
def test_there_is_nothing_to_read_or_write_or_reach(native, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    here = tmp_path / "here.txt"
    here.write_text("kept")
    tries = {
        "write": f"""open({str(tmp_path / "there")!r}, "w")""",
        "remove": f"os.remove({str(here)!r})",
        "read": f"open({str(here)!r})",
        "home": "os.listdir(os.path.expanduser('~'))",
        "here": "open('here', 'w')",
        "tmp": "open('/tmp/x', 'w')",
        "shm": "open('/dev/shm/x', 'w')",
        "library": "open(os.__file__, 'a')",
        "source": "open('/source.py', 'w')",
        "proc": "os.listdir('/proc')",
        "network": "socket.create_connection(('1.1.1.1', 53), timeout=1)",
        "fork": "os.fork()",
        "program": "subprocess.run(['/bin/true'])",
        "thread": "subprocess.Popen(['/bin/sleep', '12345.678'])",
        "root": "os.setuid(0)",
        "limits": "resource.setrlimit(resource.RLIMIT_AS, (2**40, 2**40))",
        "namespaces": "os.unshare(os.CLONE_NEWUSER) if hasattr(os, 'unshare') else missing()",
        "passwords": "open('/etc/passwd')",
    }
    if native:
        call = "ctypes.CDLL(None, use_errno=True)"
        tries = {
            "mount": f"if0({call}.mount(b'none', b'/usr', b'tmpfs', 0, b''))",
            "remount": f"if0({call}.mount(b'none', b'/', b'', 32 | 4096, b''))",
            "unshare": f"if0({call}.unshare(0x20000))",
            "umount": f"if0({call}.umount2(b'/usr', 2))",
        }
    lines = [
        "import ctypes, os, resource, socket, subprocess",
        "def if0(result):\n    if result != 0: raise OSError(ctypes.get_errno(), 'refused')",
        "def missing(): raise OSError",
        "found = [name for name in ('HF_TOKEN', 'HOME', 'PYTHONPATH') if name in os.environ]",
    ]
    for name, attempt in tries.items():
        lines.append(f"try:\n    {attempt}\n    found.append({name!r})\nexcept (OSError, ValueError): pass")
    test = "def check(f):\n    found = f()\n    assert found == []\n"
    answer = "\n".join([*lines, "def f(): return found"])
    assert passes(answer, test, "f"), sandbox._run(answer, "def check(f): raise SystemExit(str(f()))", "f", 5, 512)
    assert here.read_text() == "kept"
    assert [path.name for path in tmp_path.iterdir()] == ["here.txt"]
    assert not is_running("12345.678")


def test_nothing_stays_after_a_function_that_did_not_end(tmp_path, monkeypatch):
    monkeypatch.setattr(sandbox.tempfile, "tempdir", str(tmp_path))
    name, deadline = "never_ends_12345", time.monotonic() + 5
    assert not passes("import time; time.sleep(60)", TEST, name, seconds=0.5)
    assert list(tmp_path.iterdir()) == []
    while is_running(name) and time.monotonic() < deadline:  # the kernel ends a namespace in a moment
        time.sleep(0.02)
    assert not is_running(name)
