"""A named pipe in the place of a file of a run, or beside them, is refused or passed over: nobody waits for it."""

import contextlib
import os
import shutil
from pathlib import Path

import pytest

from hmm_datasets.cli import main
from hmm_datasets.errors import InputError
from hmm_datasets.files import read_json
from hmm_datasets.hmm import processes

COMMANDS = {"verify": ["verify"], "list": ["checkpoint", "list"], "watch": ["watch"]}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    from tiny_runs import trainer

    from hmm_datasets.training.run import train_and_save

    folder = tmp_path_factory.mktemp("made")
    run = trainer(folder / "run", max_steps=2, save_strategy="steps", save_steps=2, disable_tqdm=True)
    train_and_save(run, settings={}, data={})
    processes.mess3().save_pretrained(folder / "run" / "process")
    (folder / "run" / "heartbeats").mkdir(exist_ok=True)
    return folder


@pytest.mark.thorough
@pytest.mark.outside(
    "https://github.com/nrwl/nx/pull/35289",
    "a named pipe in a folder that is walked, or a link that leads to one",
    "verify and watch name it, list passes over it; no command waits",
)
@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no named pipes")
@pytest.mark.parametrize("command", ["verify", "list", "watch"])
def test_no_file_of_a_run_that_is_a_named_pipe_is_waited_for(command, made, tmp_path, capsys):
    files = [path.relative_to(made) for path in made.rglob("*") if path.is_file()]
    more = ["run/events.jsonl", "run/notes.json", "run/checkpoint-2/more.safetensors", "run/heartbeats/vm-1.json"]
    named = 0
    os.mkfifo(tmp_path / "elsewhere")
    for number, file in enumerate(sorted({*files, *map(Path, more)})):
        folder = shutil.copytree(made, tmp_path / "copy")
        (folder / file).unlink(missing_ok=True)
        if number % 2:
            (folder / file).symlink_to(tmp_path / "elsewhere")
        else:
            os.mkfifo(folder / file)
        with contextlib.suppress(SystemExit):
            main([*COMMANDS[command], str(folder / "run")])
        named += "a named pipe; expected a file" in str(capsys.readouterr())
        shutil.rmtree(folder)
    assert named or command == "list", "which passes over them"


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no named pipes")
def test_a_pipe_of_the_shell_is_read(tmp_path):
    os.mkfifo(tmp_path / "named")
    with pytest.raises(InputError, match="named: a named pipe; expected a file: move it away, or give a file"):
        read_json(tmp_path / "named")
    reading, writing = os.pipe()
    os.write(writing, b'{"a": 1}')
    os.close(writing)
    assert read_json(f"/dev/fd/{reading}") == {"a": 1}
    os.close(reading)
