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

from hmm_datasets.operations.stages import Parallel, run_stages

WAIT = "while not os.path.exists(%r): time.sleep(0.01)"


def python(code: str) -> str:
    return f"python -c {shlex.quote(f'import os, sys, time; {code}')}"


def test_stages_run_in_order_up_to_the_first_that_fails(tmp_path, capfd):
    stages = [("One", python("print('a')")), ("Two", python("sys.exit(3)")), ("Three", python("print('c')"))]
    assert run_stages(stages, tmp_path) == 3
    said = capfd.readouterr()
    assert "[1/3] One" in said.out
    assert "Three" not in said.out
    assert "stage 2 failed with exit code 3" in said.err


def test_branches_run_at_the_same_time_and_what_they_say_is_not_mixed(tmp_path, capfd):
    """Each branch waits for a file of the other's: run one after the other they would never end."""
    first = python(f"print('a1', flush=True); open('x', 'w')\n{WAIT % 'y'}\nprint('a2')")
    second = python(f"print('b1', flush=True)\n{WAIT % 'x'}\nopen('y', 'w'); print('b2', file=sys.stderr)")
    branches = Parallel([[("A", first), ("A again", python("print('a3')"))], [("B", second)]])
    assert run_stages([branches, ("End", python("print('end')"))], tmp_path) == 0
    out = capfd.readouterr().out
    positions = [
        out.index(f"\n{word}") for word in ("[1/4] A", "a1", "a2", "[2/4]", "a3", "[3/4] B", "b1", "b2", "end")
    ]
    assert positions == sorted(positions)


@pytest.mark.parametrize("failing", [0, 1])
def test_where_a_lane_fails_the_others_end_and_nothing_more_starts(tmp_path, capfd, failing):
    branches = [[("Waits", python("open('x', 'w'); time.sleep(60)")), ("Next", python("print('next ran')"))]]
    branches.insert(failing, [("Fails", python(f"print('why')\n{WAIT % 'x'}\nsys.exit(5)"))])
    began = time.time()
    assert run_stages([Parallel(branches), ("End", python("print('end ran')"))], tmp_path) == 5
    assert time.time() - began < 30
    said = capfd.readouterr()
    assert "why" in said.out
    assert " ran" not in said.out
    assert said.err.count("failed with exit code") == 1


def test_branches_share_the_cores_unless_omp_num_threads_is_set(tmp_path, capfd, monkeypatch):
    branches = Parallel([[("A", python("print('threads', os.environ['OMP_NUM_THREADS'])"))], [("B", python("pass"))]])
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    run_stages([branches], tmp_path)
    assert "threads 4" in capfd.readouterr().out
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    run_stages([branches], tmp_path)
    assert "threads 3" in capfd.readouterr().out


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


def test_an_interrupt_ends_both_branches(tmp_path):
    waits = python("print('waits', flush=True); open(str(os.getpid()) + '.pid', 'w'); time.sleep(60)")
    program = textwrap.dedent(f"""
        from pathlib import Path
        from hmm_datasets.operations.stages import Parallel, run_stages
        run_stages([Parallel([[("A", {waits!r})], [("B", {waits!r})]])], Path({str(tmp_path)!r}))
    """)
    root = Path(__file__).resolve().parents[2]
    process = subprocess.Popen([sys.executable, "-c", program], cwd=root, stderr=subprocess.PIPE)
    while len(list(tmp_path.glob("*.pid"))) < 2:
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=20)
    assert process.returncode != 0
    for file in tmp_path.glob("*.pid"):
        with pytest.raises(ProcessLookupError):
            os.kill(int(file.stem), 0)
