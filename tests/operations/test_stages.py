import os
import shlex
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import pytest

from hmm_datasets.operations.stages import run_stages


def python(code: str) -> str:
    return f"python -c {shlex.quote(f'import os, sys, time; {code}')}"


def test_stages_run_in_order_up_to_the_first_that_fails(tmp_path, capfd):
    stages = [("One", python("print('a')")), ("Two", python("sys.exit(3)")), ("Three", python("print('c')"))]
    assert run_stages(stages, tmp_path) == 3
    said = capfd.readouterr()
    assert "[1/3] One" in said.out
    assert "Three" not in said.out
    assert "stage 2 failed with exit code 3" in said.err


def test_sigterm_reaches_the_running_stage_which_may_save_and_nothing_more_starts(tmp_path, capfd):
    saves = "signal.signal(15, lambda *_: (open('saved', 'w'), sys.exit(0)))"
    stage = python(f"import signal; {saves}; open('there', 'w'); time.sleep(60)")

    def terminate() -> None:
        while not (tmp_path / "there").exists():
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGTERM)

    before = signal.getsignal(signal.SIGTERM)
    thread = threading.Thread(target=terminate)
    thread.start()
    assert run_stages([("Saves", stage), ("Next", python("print('next ran')"))], tmp_path) == 128 + signal.SIGTERM
    thread.join()
    assert (tmp_path / "saved").exists()
    assert "next ran" not in capfd.readouterr().out
    assert signal.getsignal(signal.SIGTERM) == before


@pytest.mark.thorough
def test_an_interrupt_ends_the_running_stage(tmp_path):
    waits = python("open(str(os.getpid()) + '.pid', 'w'); time.sleep(60)")
    program = textwrap.dedent(f"""
        from pathlib import Path
        from hmm_datasets.operations.stages import run_stages
        run_stages([("A", {waits!r}), ("B", {waits!r})], Path({str(tmp_path)!r}))
    """)
    root = Path(__file__).resolve().parents[2]
    process = subprocess.Popen([sys.executable, "-c", program], cwd=root, stderr=subprocess.PIPE)
    while not list(tmp_path.glob("*.pid")):
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=500)
    assert process.returncode != 0
    (file,) = tmp_path.glob("*.pid")
    with pytest.raises(ProcessLookupError):
        os.kill(int(file.stem), 0)
