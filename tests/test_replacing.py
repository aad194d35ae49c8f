"""Folders that are replaced while processes are killed, slow, or many."""

import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from replaced_folder import contents, in_child, write_folder

from hmm_datasets.errors import DiskFull, InputError
from hmm_datasets.files import (
    append_jsonl,
    atomic_file,
    atomic_folder,
    read_json,
    read_jsonl,
    read_log,
    replacing,
    restored,
    written_together,
)
from hmm_datasets.text.stream import TokenStream, check_replaceable, write_tokens
from hmm_datasets.text.stream.index import read_index


def killed_between_two_renames(work) -> None:
    """Do work in a fork that is killed once it has moved a folder out of the way."""

    def moved_away():
        rename = os.rename

        def kill(first, second):
            rename(first, second)
            if ".old." in str(second):
                os.kill(os.getpid(), signal.SIGKILL)

        os.rename = kill
        work()

    assert in_child(moved_away) == signal.SIGKILL


@pytest.mark.parametrize("writer", ["folder", "evaluation"])
@pytest.mark.parametrize("renames", ["exchange", "two renames"])
def test_a_folder_that_is_replaced_is_whole_whenever_its_writer_is_killed(
    tmp_path, child_environment, writer, renames
):
    command = [sys.executable, Path(__file__).with_name("replaced_folder.py"), tmp_path, writer, renames]
    result = subprocess.run(command, env=child_environment, capture_output=True, text=True, timeout=500)
    assert result.returncode == 0, result.stderr[-3000:]
    assert int(result.stdout) > 10


@pytest.mark.thorough
def test_a_folder_is_not_put_back_under_a_writer_that_is_only_slow(tmp_path, monkeypatch):
    monkeypatch.setattr(replacing, "_exchange", lambda first, second: False)
    write_folder(tmp_path / "run", "old")

    def slow():
        rename = os.rename

        def wait(first, second):
            rename(first, second)
            if ".old." in str(second):
                time.sleep(1)

        os.rename = wait
        write_folder(tmp_path / "run", "new")

    child = os.fork()
    if child == 0:
        slow()
        os._exit(0)
    while (tmp_path / "run").exists():
        time.sleep(0.001)
    # The reader gets the old folder, and the writer replaces that as well.
    assert contents(restored(tmp_path / "run")) == {"a": "old", "b": "old"}
    assert os.waitpid(child, 0)[1] == 0
    assert contents(tmp_path / "run") == {"a": "new", "b": "new"}
    assert os.listdir(tmp_path) == ["run"]


def test_a_folder_that_appeared_meanwhile_is_not_replaced_without_being_asked(tmp_path):
    def write():
        with atomic_folder(tmp_path / "a", replace=False) as temporary:
            (temporary / "mine").touch()
            (tmp_path / "a").mkdir()
            (tmp_path / "a" / "theirs").touch()

    with pytest.raises(InputError, match="exists already"):
        write()
    assert [path.name for path in tmp_path.rglob("*")] == ["a", "theirs"]
    (tmp_path / "file").write_text("weeks of work")
    with pytest.raises(InputError, match="is a file"), atomic_folder(tmp_path / "file"):
        pass
    assert (tmp_path / "file").read_text() == "weeks of work"


def test_temporary_files_of_running_processes_stay_and_those_of_ended_ones_go(tmp_path):
    def abandon():
        with atomic_file(tmp_path / "abandoned"):
            os.kill(os.getpid(), signal.SIGKILL)

    assert in_child(abandon) == signal.SIGKILL
    foreign = tmp_path / ".b.new.00000000-1-1-00000000"
    foreign.touch()
    (tmp_path / ".mine").touch()
    (tmp_path / ".vimrc.new.txt").touch()
    with atomic_file(tmp_path / "a") as temporary:
        assert in_child(lambda: write_folder(tmp_path / "run", "new")) == 0
        found = set(os.listdir(tmp_path))
        assert found == {".mine", ".vimrc.new.txt", "run", foreign.name, temporary.name}


def test_names_of_the_greatest_length_can_be_written(tmp_path):
    name = "ä" * 127
    with atomic_file(tmp_path / name) as temporary:
        temporary.write_text("whole")
    write_folder(tmp_path / name[1:], "whole")
    write_folder(tmp_path / name[1:], "again")
    assert sorted(os.listdir(tmp_path)) == sorted([name, name[1:]])


def write_report(folder: Path, version: str) -> None:
    with written_together(folder) as temporary:
        (temporary / "report.json").write_text(f'"{version}"')


def test_what_a_killed_writer_has_left_goes_with_the_next_one(tmp_path):
    def abandon():
        with written_together(tmp_path) as temporary:
            (temporary / "report.json").touch()
            os.kill(os.getpid(), signal.SIGKILL)

    assert in_child(abandon) == signal.SIGKILL
    assert len(os.listdir(tmp_path)) == 1
    write_report(tmp_path, "new")
    assert os.listdir(tmp_path) == ["report.json"]


def test_a_writer_finishes_what_another_was_moving_there_when_it_was_killed(tmp_path):
    with written_together(tmp_path) as temporary:
        (temporary / "report.json").write_text('"new"')
        (tmp_path / replacing._ARRIVING).mkdir()
        (tmp_path / replacing._ARRIVING / "theirs").write_text("theirs")
    assert contents(tmp_path) == {"report.json": '"new"', "theirs": "theirs"}
    assert set(os.listdir(tmp_path)) == {"report.json", "theirs"}


@pytest.mark.thorough
def test_readers_and_writers_at_the_same_time_lose_nothing_of_what_is_written_together(tmp_path):
    def write(version, times=30):
        for number in range(times):
            with written_together(tmp_path / "run") as temporary:
                (temporary / "items").mkdir()
                (temporary / "items" / version).write_text(str(number))
                (temporary / version).write_text(str(number))

    def read():
        for _ in range(300):
            restored(tmp_path / "run")

    children = []
    for number in (2, 3, *[None] * 6):
        children.append(os.fork())
        if children[-1] == 0:
            try:
                read() if number is None else write(str(number))
                os._exit(0)
            finally:
                os._exit(1)
    assert [os.waitpid(child, 0)[1] for child in children] == [0] * 8
    assert {(tmp_path / "run" / str(number)).read_text() for number in (2, 3)} == {"29"}
    (last,) = (tmp_path / "run" / "items").iterdir()
    assert last.read_text() == "29"
    assert in_child(lambda: write("4", 1)) == 0
    assert set(os.listdir(tmp_path / "run")) == {"items", "2", "3", "4"}, "the next writer deletes what is left"


def test_a_move_that_failed_is_finished_by_the_same_process(tmp_path, monkeypatch):
    def fail(first, second):
        monkeypatch.undo()
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(InputError, match="Input/output"):
        write_report(tmp_path, "new")
    assert contents(restored(tmp_path)) == {"report.json": '"new"'}


def test_a_file_is_read_of_a_folder_whose_writer_was_killed_between_two_renames(tmp_path, monkeypatch):
    monkeypatch.setattr(replacing, "_exchange", lambda first, second: False)

    def write(version):
        with atomic_folder(tmp_path / "run") as temporary:
            (temporary / "report.json").write_text(f'"{version}"')

    write("old")
    killed_between_two_renames(lambda: write("new"))
    assert not (tmp_path / "run").exists()
    assert read_json(tmp_path / "run" / "report.json") == "old"


# Writers


STREAM = {"vocab_size": 8, "eos_id": 0, "tokenizer_hash": "", "corpus": "two"}


@pytest.mark.thorough
def test_a_second_writer_without_overwrite_leaves_the_stream(tmp_path):
    def second():
        write_tokens([[7]], tmp_path / "a", **STREAM)

    def documents(first):
        yield [5, 6]
        ended.append(os.fork())
        if ended[-1] == 0:  # begins while the first one writes, and gets the lock when it is done
            try:
                second()
            except InputError as error:
                os._exit(0 if "exists already" in str(error) else 2)
            os._exit(1)
        time.sleep(0.5)

    ended = []
    write_tokens(documents, tmp_path / "a", **STREAM)
    assert os.waitstatus_to_exitcode(os.waitpid(ended[0], 0)[1]) == 0
    assert TokenStream(tmp_path / "a").read(0, 3).tolist() == [5, 6, 0]
    assert os.listdir(tmp_path) == ["a"]


def test_a_stream_that_was_moved_out_of_the_way_is_found(tmp_path, monkeypatch):
    monkeypatch.setattr(replacing, "_exchange", lambda first, second: False)
    write_tokens([[5, 6]], tmp_path / "a", **STREAM)

    killed_between_two_renames(lambda: write_tokens([[7]], tmp_path / "a", overwrite=True, **STREAM))
    assert not (tmp_path / "a").exists()
    with pytest.raises(InputError, match="exists already"):
        check_replaceable(tmp_path / "a", "index.json", overwrite=False)
    assert read_index(tmp_path / "a").num_tokens == 3


# Lines


def test_an_append_that_fails_leaves_the_file_as_it_was(tmp_path):
    path = tmp_path / "events.jsonl"
    append_jsonl(path, {"n": 1})
    before = path.read_bytes()

    def fill():
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) + 5, len(before) + 5))
        try:
            append_jsonl(path, {"n": 2, "text": "long" * 10})
        except DiskFull as error:
            os._exit(3 if "ulimit -f unlimited" in str(error) else 4)

    assert in_child(fill) == -3
    assert path.read_bytes() == before
    append_jsonl(path, {"n": 3})
    assert read_log(path) == read_jsonl(path) == [{"n": 1}, {"n": 3}]


def test_a_torn_line_is_ended_skipped_and_named_once(tmp_path, caplog):
    path = tmp_path / "events.jsonl"
    append_jsonl(path, {"n": 1})
    with path.open("ab") as file:
        file.write('{"n": 2, "text": "ä'.encode()[:-1])
    append_jsonl(path, {"n": 3})
    append_jsonl(path, {"n": 4})
    for _ in range(2):
        assert read_log(path) == [{"n": 1}, {"n": 3}, {"n": 4}]
    (record,) = caplog.records
    assert record.getMessage().startswith(f"{path}:2: not UTF-8 text (")
    path.write_text('5\n{"n": 6}\n[7]\n')
    assert read_log(path) == [{"n": 6}]
    with pytest.raises(InputError, match=":1: expected an object, found int"):
        read_jsonl(path)
