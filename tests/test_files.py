import errno
import os
import stat
import subprocess
import sys
import threading

import numpy as np
import pytest
from safetensors.numpy import save_file

from hmm_datasets.errors import InputError, is_disk_full, with_causes
from hmm_datasets.files import (
    append_jsonl,
    atomic_file,
    atomic_folder,
    inside,
    read_json,
    read_jsonl,
    read_yaml,
    write_json,
    write_yaml,
)
from hmm_datasets.runtime.one_line_errors import one_line_errors


class Stop(Exception):
    pass


def error(function, *arguments) -> str:
    with pytest.raises(InputError) as caught:
        function(*arguments)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def listing(folder) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


# Whole or absent


def test_a_file_is_there_when_it_is_whole(tmp_path):
    with atomic_file(tmp_path / "new" / "a.txt") as temporary:
        temporary.write_text("first")
        assert temporary.parent == tmp_path / "new", "a rename works within one file system alone"
        assert not (tmp_path / "new" / "a.txt").exists()
    assert (tmp_path / "new" / "a.txt").read_text() == "first"
    assert listing(tmp_path / "new") == ["a.txt"]


@pytest.mark.parametrize("old", [None, "old"])
def test_an_error_leaves_the_old_file_and_nothing_beside_it(tmp_path, old):
    path = tmp_path / "a.txt"
    if old is not None:
        path.write_text(old)

    def write_half():
        with atomic_file(path) as temporary:
            temporary.write_text("half")
            raise Stop

    with pytest.raises(Stop):
        write_half()
    assert listing(tmp_path) == ([] if old is None else ["a.txt"])
    assert old is None or path.read_text() == old


def test_a_file_replaces_the_old_one(tmp_path):
    write_json(tmp_path / "a.json", {"x": "ö"})
    write_json(tmp_path / "a.json", [1])
    assert read_json(tmp_path / "a.json") == [1]
    assert listing(tmp_path) == ["a.json"]


def test_json_that_cannot_be_written_leaves_the_old_file(tmp_path):
    write_json(tmp_path / "a.json", {"x": 1})
    with pytest.raises(TypeError):
        write_json(tmp_path / "a.json", {"x": object()})
    assert read_json(tmp_path / "a.json") == {"x": 1}
    assert listing(tmp_path) == ["a.json"]


def test_files_and_folders_have_the_modes_that_the_umask_leaves(tmp_path):
    before = os.umask(0o027)
    try:
        write_json(tmp_path / "a.json", 1)
        with atomic_folder(tmp_path / "b") as temporary:
            (temporary / "c").write_text("c")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "a.json").stat().st_mode) == 0o640
    assert stat.S_IMODE((tmp_path / "b").stat().st_mode) == 0o750


@pytest.mark.outside(
    "https://github.com/safetensors/safetensors/issues/782",
    "use a model that another user of the machine has trained",
    "weights have the permissions of the files beside them",
)
@pytest.mark.outside(
    "https://github.com/huggingface/sentence-transformers/issues/4010",
    "serve a saved model from a container of another user",
    "weights have the permissions of the files beside them",
)
def test_weights_can_be_read_by_those_who_can_read_what_is_beside_them(tmp_path):
    before = os.umask(0o022)
    try:
        with atomic_folder(tmp_path / "model") as folder:
            save_file({"a": np.zeros(2)}, folder / "model.safetensors")
            (folder / "config.json").write_text("{}")
            os.chmod(folder / "model.safetensors", 0o600)  # as some versions of safetensors leave it
    finally:
        os.umask(before)
    assert {stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "model").iterdir()} == {0o644}


@pytest.mark.outside(
    "https://github.com/nodejs/node/issues/32321",
    "read the process's mask while other threads make files",
    "the mask is read off a new file, and never set",
)
def test_threads_that_write_at_once_leave_the_mask_of_the_process_as_it_was(tmp_path):
    def write(number):
        for _ in range(40):
            write_json(tmp_path / f"{number}.json", number)

    before = os.umask(0o022)
    try:
        threads = [threading.Thread(target=write, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        (tmp_path / "later").touch()
        modes = {stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()}
    finally:
        assert os.umask(before) == 0o022
    assert modes == {0o644}


@pytest.mark.outside(
    "https://github.com/microsoft/terminal/pull/10908",
    "keep a settings file that is a link, of links that lead to a file",
    "the file at the end is replaced, the links stay",
)
def test_what_a_link_leads_to_is_written_and_the_link_stays(tmp_path):
    (tmp_path / "disk").mkdir()
    for name in ("a.json", "folder"):
        (tmp_path / name).symlink_to(tmp_path / "disk" / name)  # which does not exist yet
    for content in ("first", "second"):
        write_json(tmp_path / "a.json", content)
        with atomic_folder(tmp_path / "folder") as folder:
            (folder / content).touch()
        assert (tmp_path / "a.json").is_symlink()
        assert (tmp_path / "folder").is_symlink()
        assert read_json(tmp_path / "disk" / "a.json") == content
        assert listing(tmp_path / "disk" / "folder") == [content]
    assert listing(tmp_path / "disk") == ["a.json", "folder"]


@pytest.fixture
def unusable(tmp_path):
    """Paths that cannot be written, and the end of the message about each."""
    (tmp_path / "file").touch()
    (tmp_path / "folder").mkdir()
    for here, there in ("ab", "ba"):
        (tmp_path / here).symlink_to(tmp_path / there)
    return {
        tmp_path / "file" / "x": "choose another path, or move what is there",
        tmp_path / "file" / "x" / "y": "a part of the path is a file; choose another path",
        tmp_path / "a" / "x": "choose another path, or move what is there",
        tmp_path / ("n" * 300): "choose a shorter name; most disks take 255 bytes",
        tmp_path / ("n" * 300) / "x": "choose a shorter name; most disks take 255 bytes",
        tmp_path / "a\0b": "contains a NUL character; choose another name",
    }


@pytest.mark.parametrize("write", [lambda path: write_json(path, 1), lambda path: atomic_folder(path).__enter__()])
def test_a_path_that_cannot_be_used_is_an_error_of_one_line(unusable, tmp_path, write):
    before = listing(tmp_path)
    for path, end in unusable.items():
        assert error(write, path).endswith(end)
    assert error(write_json, tmp_path / "folder", 1).endswith("it is a folder; name a file")
    assert error(write, tmp_path / "a").endswith("links lead to one another in a circle; delete one of them")
    assert listing(tmp_path) == before


@pytest.mark.parametrize("number", [errno.EIO, errno.ESTALE])
def test_a_disk_that_fails_while_a_file_is_synced_is_an_error_of_one_line(tmp_path, monkeypatch, number):
    write_json(tmp_path / "a.json", 1)

    def fail(handle):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", fail)
    assert error(write_json, tmp_path / "a.json", 2).startswith(f"{tmp_path / 'a.json'}: cannot be used (")
    assert listing(tmp_path) == ["a.json"]
    assert read_json(tmp_path / "a.json") == 1


def test_an_error_that_is_its_own_cause_ends_the_search_for_causes():
    first, second = OSError(errno.EIO, "first"), ValueError("second")
    first.__cause__, second.__context__ = second, first
    assert list(with_causes(first)) == [first, second]
    assert not is_disk_full(first)
    second.__cause__ = second
    assert list(with_causes(second)) == [second]


def test_a_folder_is_there_when_it_is_whole_and_replaces_the_old_one(tmp_path):
    for content in ("first", "second"):
        with atomic_folder(tmp_path / "a") as temporary:
            (temporary / content).mkdir()
            (temporary / content / "file").write_text(content)
            assert temporary.parent == tmp_path
        assert listing(tmp_path) == ["a"]
        assert listing(tmp_path / "a") == [content]
        assert (tmp_path / "a" / content / "file").read_text() == content


@pytest.mark.parametrize("old", [False, True])
def test_an_error_leaves_the_old_folder_and_nothing_beside_it(tmp_path, old):
    if old:
        (tmp_path / "a").mkdir()
        (tmp_path / "a" / "kept").write_text("kept")

    def write_half():
        with atomic_folder(tmp_path / "a") as temporary:
            (temporary / "half").write_text("half")
            raise Stop

    with pytest.raises(Stop):
        write_half()
    assert listing(tmp_path) == (["a"] if old else [])
    assert not old or listing(tmp_path / "a") == ["kept"]


KILLED = """
import os, sys
from hmm_datasets.files import atomic_file
with atomic_file(sys.argv[1]) as temporary:
    temporary.write_text("half")
    os._exit(9)
"""


def test_a_killed_process_leaves_the_old_file(tmp_path, child_environment):
    path = tmp_path / "a.txt"
    path.write_text("old")
    done = subprocess.run([sys.executable, "-c", KILLED, path], env=child_environment, check=False)
    assert done.returncode == 9
    assert path.read_text() == "old"


# Reading


def test_a_missing_or_malformed_json_file_is_named_with_the_line(tmp_path):
    path = tmp_path / "a.json"
    assert error(read_json, path) == f"{path}: no such file"
    path.write_text('{"a": 1,\n "b": }')
    assert error(read_json, path) == f"{path}:2: not JSON (Expecting value)"
    path.write_bytes(b'{"a": "\xff"}')
    assert error(read_json, path) == f"{path}: not UTF-8 text (invalid start byte at byte 7)"


def test_rows_appended_come_back(tmp_path):
    path = tmp_path / "new" / "a.jsonl"
    # Some of these cut a line for str.splitlines, and JSON leaves them in strings as they are.
    rows = [{"n": 1}, {"text": "a\nb\u2028c\u2029d\x85e\x0bf\x1cg ö"}, {"n": [1, None, 0.1]}]
    for row in rows:
        append_jsonl(path, row)
    assert read_jsonl(path) == rows
    assert path.read_bytes().count(b"\n") == 3


def test_a_torn_last_line_is_left_out(tmp_path):
    path = tmp_path / "a.jsonl"
    for row in ({"n": 1}, {"text": "ö"}):
        append_jsonl(path, row)
    whole = path.read_bytes()
    for size in range(len(whole)):
        path.write_bytes(whole[:size])
        assert read_jsonl(path) == [{"n": 1}][: whole[:size].count(b"\n")], "cut inside a character too"


def test_a_malformed_line_that_is_not_the_last_is_named(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"n": 1}\n{"n": \n{"n": 3}\n')
    assert error(read_jsonl, path) == f"{path}:2: not JSON (Expecting value)"
    path.write_bytes(b'{"n": 1}\n{"n": "\xff"}\n')
    assert error(read_jsonl, path).startswith(f"{path}:2: not UTF-8 text (")
    assert error(read_jsonl, tmp_path / "no.jsonl") == f"{tmp_path / 'no.jsonl'}: no such file"


# Errors


def test_an_error_is_one_line_whatever_its_message():
    assert str(InputError("a\n  b\tc ")) == "a b c"
    assert isinstance(InputError("a"), ValueError)


def test_a_program_ends_with_one_line_and_code_2(capsys, monkeypatch):
    monkeypatch.delenv("RANK", raising=False)
    with pytest.raises(SystemExit) as stop, one_line_errors():
        raise InputError("field x is 3; expected 4")
    assert stop.value.code == 2
    assert capsys.readouterr().err == "error: field x is 3; expected 4\n"


def test_errors_of_other_kinds_keep_their_traceback():
    with pytest.raises(KeyError), one_line_errors():
        raise KeyError("a bug")


RECIPE = """
from dataclasses import dataclass
from hmm_datasets.errors import InputError
from hmm_datasets.runtime.program import run

@dataclass
class Settings:
    number: int = 1

def main(settings: Settings):
    if settings.number < 0:
        raise InputError(f"number is {settings.number}; expected 0 or more")
    print(settings.number)

run(main)
"""


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("flags", "code", "output", "errors"),
    [
        (["--number", "5"], 0, "5\n", ""),
        (["--number", "-5"], 2, "", "error: --number is -5; expected 0 or more\n"),
    ],
)
def test_a_recipe_runs_or_ends_in_one_line(tmp_path, warm_python, child_environment, flags, code, output, errors):
    (tmp_path / "recipe.py").write_text(RECIPE)
    done = subprocess.run(
        [warm_python, tmp_path / "recipe.py", *flags],
        env=child_environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (code, output, errors)


# Names that were read from files


@pytest.mark.parametrize(
    "name",
    [
        *(
            "",
            ".",
            "..",
            "../a",
            "a/../../b",
            "a/./b",
            "a//b",
            "/etc/passwd",
            "a\\b",
            "a\0b",
            "a\nb",
            "\ud800",
            "a" * 256,
        ),
        *(None, 3, ["a"]),
    ],
    ids=ascii,
)
def test_a_name_from_a_file_stays_in_its_folder(tmp_path, name):
    message = error(inside, tmp_path, name, tmp_path / "index.json")
    assert message.startswith(f"{tmp_path / 'index.json'}: names {ascii(name)[:200]}")
    assert inside(tmp_path, "a/b..c d.txt") == tmp_path / "a/b..c d.txt"


def test_a_link_that_was_named_in_a_file_stays_in_its_folder(tmp_path):
    folder = tmp_path / "folder"
    (folder / "within").mkdir(parents=True)
    (folder / "out").symlink_to(tmp_path)
    (folder / "here").symlink_to("within")
    (folder / "loop").symlink_to("loop")
    (tmp_path / "linked").symlink_to(folder)
    (folder / "itself").symlink_to(".")
    for name in ("out", "out/file", "itself"):
        assert "not in" in error(inside, folder, name)
    assert inside(tmp_path / "linked", "here/file") == tmp_path / "linked/here/file"
    assert inside(folder, "loop") == folder / "loop"
    # A link that is moved or deleted is not followed.
    assert inside(folder, "out", as_link=True) == folder / "out"
    assert "not in" in error(lambda: inside(folder, "out/file", as_link=True))


def test_a_snapshot_of_the_hub_cache_names_its_blobs(tmp_path):
    repository, other = tmp_path / "models--a--b", tmp_path / "models--c--d"
    snapshot = repository / "snapshots" / "0123"
    for folder in (snapshot, repository / "blobs", other / "blobs"):
        folder.mkdir(parents=True)
    (snapshot / "whole").symlink_to("../../blobs/4567")
    (snapshot / "other").symlink_to("../../../models--c--d/blobs/4567")
    assert inside(snapshot, "whole") == snapshot / "whole"
    assert "not in" in error(inside, snapshot, "other")


# Files that may come from anyone

BOMB = "a0: &a0 [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 10)
)
ODD_YAML = {
    "date": "a: 2026-02-30",
    "time": "a: 2026-01-01 25:61:61",
    "digits": f"a: {'9' * 5000}",
    "tag": "a: !!python/object/apply:os.system [echo]",
    "own tag": "a: !mine x",
    "integer": "a: !!int x",
    "float": "a: !!float x",
    "boolean": "a: !!bool x",
    "time by tag": "a: !!timestamp x",
    "bytes": "a: !!binary x",
    "pairs": "a: !!omap [1]",
    "unhashable key": "? [a]\n: b",
    "nesting": f"a: {'[' * 3000}{']' * 3000}",
    "bomb": BOMB,
    "bomb of merges": "a0: &a0 {x: 1}\n"
    + "".join(f"a{n}: &a{n}\n  <<: [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 12)),
    "bomb of text": f"a: &a {'x' * 100_000}\nb: &b [{', '.join(['*a'] * 100)}]\nc: [{', '.join(['*b'] * 100)}]",
    "within itself": "a: &a [*a, *a]",
    "two documents": "a: 1\n---\nb: 2",
    "control character": "a: \x01",
}


@pytest.mark.thorough
@pytest.mark.parametrize("name", ODD_YAML)
def test_yaml_that_cannot_be_read_is_one_line_that_names_the_file(tmp_path, name):
    path = tmp_path / "settings.yaml"
    path.write_text(ODD_YAML[name], encoding="utf-8")
    message = error(read_yaml, path)
    assert message.startswith(str(path))
    assert "\n" not in message
    assert len(message) < 1000


@pytest.mark.thorough
def test_yaml_may_have_as_many_words_as_a_vocabulary(tmp_path):
    (tmp_path / "a.yaml").write_text("words: [" + ", ".join(f"w{number}" for number in range(20_000)) + "]")
    assert len(read_yaml(tmp_path / "a.yaml")["words"]) == 20_000


def test_yaml_may_repeat_parts_of_itself(tmp_path):
    path = tmp_path / "settings.yaml"
    path.write_text("a: &a {x: 1, y: 2026-02-03}\nb: {<<: *a, z: *a}")
    assert read_yaml(path)["b"]["z"]["x"] == read_yaml(path)["b"]["x"] == 1


@pytest.mark.parametrize("content", ["[" * 100_000, "9" * 5000, '{"a": ' * 5000 + "1" + "}" * 5000])
def test_json_that_is_too_deep_or_too_long_is_one_line_that_names_the_file(tmp_path, content):
    path = tmp_path / "settings.json"
    path.write_text(content)
    message = error(read_json, path)
    assert message.startswith(str(path))
    assert "\n" not in message


def test_on_a_file_system_that_cannot_sync_files_are_written(tmp_path, monkeypatch):
    monkeypatch.setattr("os.fsync", lambda handle: os.lseek(handle, -1, 0))  # EINVAL
    write_json(tmp_path / "a.json", {})
    assert listing(tmp_path) == ["a.json"]


AMBIGUOUS = ["3:55:00", "0:12:00", "12:30", "-1:30", "1:30.5", "190:20:30", "0755", "007", "-010", "1_0:30"]


@pytest.mark.outside(
    "https://github.com/yaml/pyyaml/issues/395",
    "read `a: 1:10` as the text 1:10, or refuse it, but not as 70",
    "refused: `run.yaml:1: 1:10 is a number of base 60 in YAML; quote it, as in '1:10'`",
)
@pytest.mark.parametrize("text", AMBIGUOUS)
@pytest.mark.outside(
    "https://github.com/yaml/pyyaml/issues/165",
    "refuse a key that is twice in a YAML file, of which PyYAML takes the last",
    "refused: `run.yaml:4: a is there twice, first in line 1; leave one of them out`",
)
@pytest.mark.outside(
    "https://github.com/snowflakedb/ArcticTraining/issues/85",
    "refuse `max_length` twice in a file of settings",
    "refused: `run.yaml:3: max_length is there twice, first in line 2; leave one of them out`",
)
@pytest.mark.parametrize("form", ["a: 1\nb: {}", "a:\n  b: {}", "a:\n  - {}", "a: 1\nb: [1, {}]", "a: 1\n{}: 2"])
def test_a_number_of_base_60_or_8_is_refused_by_its_line_until_it_is_quoted(tmp_path, text, form):
    path = tmp_path / "settings.yaml"
    path.write_text(form.format(text))
    line = form.split("{}")[0].count("\n") + 1
    assert error(read_yaml, path).startswith(f"{path}:{line}: {text} is a number of base ")
    for quote in ("'", '"'):
        path.write_text(form.format(f"{quote}{text}{quote}"))
        assert text in str(read_yaml(path))


def test_text_that_would_be_a_number_of_base_60_or_8_is_written_so_that_it_is_read(tmp_path):
    settings = {"texts": AMBIGUOUS, **{text: text for text in AMBIGUOUS}, "numbers": [0, -10, 755, 0.5, 1e-5]}
    write_yaml(tmp_path / "settings.yaml", settings)
    assert read_yaml(tmp_path / "settings.yaml") == settings


@pytest.mark.parametrize(
    "form", ["{0}: 1\nb: 2\n{0}: 3", "b:\n  {0}: 1\n  {0}: 2", "{{{0}: 1, {0}: 2}}", "b: [{{{0}: 1, c: 3, {0}: 2}}]"]
)
@pytest.mark.parametrize("key", ["a", "learning_rate", "'quoted'", "1"])
def test_a_key_that_is_there_twice_is_refused_by_its_line(tmp_path, form, key):
    path = tmp_path / "settings.yaml"
    text = form.format(key)
    path.write_text(text)
    line = text.rindex(key)
    expected = f"{path}:{text.count(chr(10), 0, line) + 1}: {key.strip(chr(39))} is there twice, first in line "
    assert error(read_yaml, path).startswith(expected)


def test_numbers_and_times_that_are_meant_are_read(tmp_path):
    path = tmp_path / "settings.yaml"
    path.write_text("a: 0\nb: 1_000\nc: 0x1f\nd: 0.5\ne: 2026-01-31\nf: '3:55:00'\ng: 1-12\nh: 0.05\ni: 10:x\nj: -0\n")
    content = read_yaml(path)
    assert (content["a"], content["b"], content["f"], content["g"], content["i"]) == (
        0,
        1000,
        "3:55:00",
        "1-12",
        "10:x",
    )
