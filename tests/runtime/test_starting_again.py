"""A process that starts its command again is the same process, with nothing left of what it was."""

import subprocess
import sys

import pytest

pytestmark = pytest.mark.thorough

PROGRAM = """
import multiprocessing, os, signal, sys, time
from hmm_datasets.runtime.program import start_again

if __name__ == "__main__":
    print(os.getpid(), sys.argv[1:], os.environ.get("AGAIN"), flush=True)
    if "AGAIN" in os.environ:
        print(sorted(int(name) for name in os.listdir("/proc/self/fd"))[:-1])
        assert "CHANGED" not in os.environ
        os.kill(int(os.environ["AGAIN"]), 0)  # raises if the worker is gone
    before = dict(os.environ)
    os.environ["CHANGED"] = "by a library"
    held = os.open("/dev/null", os.O_RDONLY)
    os.set_inheritable(held, True)
    worker = multiprocessing.get_context("fork").Process(target=time.sleep, args=(60,))
    worker.start()
    start_again(before | {"AGAIN": str(worker.pid)})
"""


def test_it_keeps_its_command_and_process_and_leaves_its_workers_and_files(tmp_path, child_environment):
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    result = subprocess.run(
        [sys.executable, "-u", program, "--flag", "a b"],
        env=child_environment,
        capture_output=True,
        text=True,
        timeout=500,
    )
    first, again, files = result.stdout.splitlines()
    process, told = first.split(" ", 1)
    assert told == "['--flag', 'a b'] None"
    assert again.startswith(f"{process} ['--flag', 'a b'] ")
    assert files == "[0, 1, 2]"
    assert "ProcessLookupError" in result.stderr, "the worker was ended"
