"""The lock of torch's compilations: a killed one stops no later run, and one that goes on is waited for."""

import os
import subprocess
import sys
import threading
import time

import psutil
import pytest
from torch.utils import cpp_extension, file_baton

from hmm_datasets.compat import torch_extensions as module
from hmm_datasets.errors import InputError


@pytest.fixture
def lock(tmp_path, monkeypatch):
    """A function that makes torch's lock of an extension that is compiled in `tmp_path`."""
    for place in (file_baton, cpp_extension):
        if hasattr(place, "FileBaton"):  # torch 2.15 takes a lock of the system
            monkeypatch.setattr(place, "FileBaton", file_baton.FileBaton)
    for name, seconds in {
        "LOCAL_SILENCE": 0.3,
        "SHARED_SILENCE": 0.3,
        "_SAY_AFTER": 0.05,
        "_LOOK_EVERY": 0.05,
    }.items():
        monkeypatch.setattr(module, name, seconds)
    module.mend_compiler_locks()
    (tmp_path / "build.ninja").touch()
    return lambda: file_baton.FileBaton(str(tmp_path / "lock"))


@pytest.mark.outside(
    "https://github.com/pytorch/pytorch/issues/189245",
    "a lock that a killed compilation left stops every later run for ever",
    "it is taken over after a minute without a change (ten on a shared disk), and both are printed",
)
@pytest.mark.outside(
    "https://github.com/NVlabs/nvdiffrast/issues/190",
    "the lock of an extension exists, and the program is stuck",
    "the lock is taken over; before that the line says what is waited for and how long",
)
@pytest.mark.outside(
    "https://github.com/nandometzger/metal-gauss/issues/19",
    "an interrupted first build makes every later run hang silently",
    "the lock is taken over; before that the line says what is waited for and how long",
)
def test_a_lock_that_a_killed_compilation_left_is_taken_over_by_one_of_those_who_wait(tmp_path, lock, capsys):
    (tmp_path / "lock").touch()
    acquired = []

    def compile_once():
        own = lock()
        if own.try_acquire():
            acquired.append(own)

    threads = [threading.Thread(target=compile_once) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(acquired) == 1
    acquired[0].release()
    assert os.listdir(tmp_path) == ["build.ninja"]
    said = capsys.readouterr().err
    assert "lock: waiting up to 0 s to see whether another machine compiles there" in said
    assert said.count("left by a process that was killed while it compiled; it is deleted") == 1


@pytest.mark.outside(
    "https://github.com/pytorch/pytorch/pull/149382",
    "a warning that names the lock file that is waited for",
    "the line names folder, process and the longest wait, after which it is an error",
)
def test_a_compilation_that_goes_on_is_waited_for_until_its_end_or_the_patience(tmp_path, lock, monkeypatch, capsys):
    compiling, other = lock(), lock()
    assert compiling.try_acquire()
    time.sleep(0.5)
    assert not other.try_acquire(), "though nothing has changed for longer than the silence"
    timer = threading.Timer(0.3, compiling.release)
    timer.start()
    other.wait()
    assert f"waiting up to 30.0 min for process {os.getpid()} to compile it" in capsys.readouterr().err
    assert compiling.try_acquire()
    monkeypatch.setattr(module, "PATIENCE", 0.1)
    with pytest.raises(InputError, match=rf"process {os.getpid()} has compiled there for .*, or end it and start"):
        other.wait()
    os.close(compiling.fd)
    with pytest.raises(InputError, match="the process that compiled there was killed; start the same command again"):
        other.wait()


COMPILES = """
import sys
from hmm_datasets.compat.torch_extensions import end_compilers_with_this_process
end_compilers_with_this_process()
from torch.utils import cpp_extension
cpp_extension.load_inline("slow", "int f() { return 1; }", functions="f", build_directory=sys.argv[1])
"""


@pytest.mark.skipif(sys.platform != "linux", reason="prctl is of Linux")
@pytest.mark.launch
def test_ninja_and_its_compilers_end_with_a_process_that_is_killed(tmp_path, child_environment):
    """The compiler writes its process id and sleeps; with `--version` and other questions it is the real one."""
    compiler = tmp_path / "slow-c++"
    compiler.write_text(f'#!/bin/sh\n[ "$1" = -MMD ] || exec c++ "$@"\necho $$ > {tmp_path}/id\nexec sleep 300\n')
    compiler.chmod(0o755)
    (tmp_path / "build").mkdir()
    command = [sys.executable, "-c", COMPILES, tmp_path / "build"]
    process = subprocess.Popen(command, env=child_environment | {"CXX": str(compiler)}, stderr=subprocess.PIPE)
    deadline = time.monotonic() + 120
    while not (tmp_path / "id").is_file() or not (tmp_path / "id").read_text():
        assert process.poll() is None, process.stderr.read().decode()[-2000:]
        assert time.monotonic() < deadline
        time.sleep(0.05)
    sleeping = psutil.Process(int((tmp_path / "id").read_text()))
    assert sleeping.parent().name() in ("ninja", "sh")
    process.kill()
    process.wait()
    assert psutil.wait_procs([sleeping], timeout=20)[1] == []
