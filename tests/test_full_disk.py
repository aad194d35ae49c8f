"""On a full disk every command ends with an error of one line, and existing files are kept."""

import contextlib
import shutil
import subprocess
import sys

import made_up
import numpy as np
import pytest

from hmm_datasets.cli import main
from hmm_datasets.errors import is_disk_full
from hmm_datasets.evaluation.evaluation import draw_pictures, write_evaluation
from hmm_datasets.hmm import processes
from hmm_datasets.runtime.one_line_errors import one_line_errors
from hmm_datasets.runtime.rank_heartbeats import FOLDER_NAME
from hmm_datasets.text.tokenizers.words import build_word_corpus


@pytest.fixture
def disk(small_disk):
    return small_disk("400k")


def fill(disk, left):
    """Leave so many bytes free."""
    (disk / "filler").write_bytes(bytes(max(0, shutil.disk_usage(disk).free - left)))


def contents(folder):
    found = (path for path in folder.rglob("*") if path.is_file() and path.name != "filler")
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in found}


def told(capsys, action):
    capsys.readouterr()
    with pytest.raises(SystemExit) as caught, one_line_errors():
        action()
    assert caught.value.code == 2
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error: ")]
    assert len(lines) == 1
    return lines[0]


def fit(disk):
    tokens = processes.random(3, 4, alpha=0.4, seed=7).sample(60, 20, seed=1)
    np.save(disk.parent / "tokens.npy", tokens)
    command = ["fit", str(disk.parent / "tokens.npy"), "--num_states", "40", "--num_symbols", "40"]
    main([*command, "--max_epochs", "3", "--output_dir", str(disk / "fit")])


def save(disk):
    processes.random(40, 40, alpha=0.4, seed=7).save_pretrained(disk / "hmm")


def sample(disk):
    processes.mess3(0.15, 0.6).save_pretrained(disk.parent / "mess3")
    main(
        [
            "sample",
            str(disk.parent / "mess3"),
            "--num_sequences",
            "9000",
            "--length",
            "64",
            "--output",
            str(disk / "tokens.npy"),
        ]
    )


def words(disk):
    letters = np.random.default_rng(0).choice(list("abcd"), (9000, 12))
    build_word_corpus([". ".join(map(" ".join, letters)) + "."], k=5).save(disk / "words", overwrite=True)


def evaluate(disk):
    report, items = made_up.report()
    write_evaluation(report, items, disk / "evaluation")
    draw_pictures(report, items, disk / "evaluation")


@pytest.mark.thorough
@pytest.mark.parametrize("action", [fit, save, sample, words, evaluate])
def test_a_full_disk_is_reported_in_one_line_and_destroys_nothing(action, disk, capsys):
    (disk / "older").write_text("as it was")
    fill(disk, left=8192)
    before = contents(disk)
    line = told(capsys, lambda: action(disk))
    assert f"{disk}/" in line
    assert "no room left on the disk: it needs " in line
    assert "are free; make room and start the same command again" in line
    after = contents(disk)
    assert after["older"] == before["older"]
    hidden = [name for name in after if "/." in f"/{name}" and FOLDER_NAME not in name]  # heartbeats say why it ended
    assert not hidden, "nothing half-written is left"


@pytest.mark.thorough
def test_an_evaluation_that_finds_no_room_leaves_the_one_before_it(small_disk, capsys):
    disk = small_disk("20m")
    evaluate(disk)
    before = contents(disk)
    fill(disk, left=50_000)
    assert "evaluation: no room left on the disk" in told(capsys, lambda: evaluate(disk))
    assert contents(disk) == before


def test_a_full_disk_that_was_not_caught_earlier_is_reported(disk, capsys, monkeypatch):
    """As that of a cache, which another library writes."""
    monkeypatch.setenv("HF_HOME", str(disk))
    fill(disk, left=0)

    def write():
        with open(disk / "cached", "wb") as file:
            file.write(bytes(1_000_000))

    line = told(capsys, write)
    assert f"no room left on the disk ([Errno 28] No space left on device); 0 bytes are free in {disk}" in line


@pytest.mark.parametrize("message", ["Error while serializing: I/O error: No space left on device (os error 28)"])
def test_what_libraries_say_of_a_full_disk_is_understood(message):
    assert is_disk_full(RuntimeError(message))
    assert not is_disk_full(RuntimeError("something else"))


@contextlib.contextmanager
def limited(size):
    """Files of this process may have so many bytes, as under `ulimit -f`."""
    resource = pytest.importorskip("resource")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def save_tensors(folder):
    import torch

    torch.save(torch.ones(100_000), folder / "tensors.pt")


@pytest.mark.thorough
@pytest.mark.parametrize("action", [fit, save, sample, words, evaluate, save_tensors])
def test_a_limit_on_the_size_of_files_is_named_in_one_line(action, tmp_path, capsys):
    for name in ("first", "folder"):
        (tmp_path / name / "in").mkdir(parents=True)
    action(tmp_path / "first" / "in")  # which compiles the loops, and keeps them in files of their own
    folder = tmp_path / "folder" / "in"
    with limited(2_000):
        line = told(capsys, lambda: action(folder))
    assert "(files may have 2.0 kB at most: raise it by ulimit -f unlimited)" in line
    assert "no room left on the disk" in line


@pytest.mark.skipif(sys.platform != "linux", reason="/dev/shm is of Linux")
@pytest.mark.thorough
def test_memory_that_processes_cannot_share_is_named_in_one_line(child_environment):
    code = "import multiprocessing; from hmm_datasets.runtime.one_line_errors import one_line_errors\n"
    code += "with one_line_errors(): multiprocessing.Lock()"
    mount = 'mount -t tmpfs -o ro none /dev/shm || exit 77; exec "$0" -c "$1"'
    command = ["unshare", "-m", "bash", "-c", mount, sys.executable, code]
    done = subprocess.run(command, env=child_environment, capture_output=True, text=True)
    if done.returncode in (1, 77):
        pytest.skip("/dev/shm can be mounted by root only")
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: /dev/shm: processes cannot share memory there ([Errno 30] Read-only file system); ")
