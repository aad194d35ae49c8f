import json
import socket
import subprocess
import sys
import types

import pytest
import transformers

from hmm_datasets.errors import InputError
from hmm_datasets.runtime.shipped import shipped
from hmm_datasets.training.record import History, git_commit, package_versions, write_record

DATA = {"hmm": "abc", "length": 64, "splits": (1, 2), "seed": None}


def rows(folder) -> list[dict]:
    return [json.loads(line) for line in (folder / "history.jsonl").read_text().splitlines()]


def test_the_record_has_settings_data_versions_and_command(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "argv", [str(shipped("recipes/pretrain.py")), "--config", "a file.yaml"])
    monkeypatch.setenv("WORLD_SIZE", "4")
    returned = write_record(tmp_path, {"learning_rate": 1e-3}, DATA)
    written = json.loads((tmp_path / "run.json").read_text())
    assert json.loads(json.dumps(returned)) == written
    assert written["data"] == {"hmm": "abc", "length": 64, "splits": [1, 2], "seed": None}
    assert written["settings"] == {"learning_rate": 1e-3}
    assert written["command"] == "hmm-datasets pretrain --config 'a file.yaml'"
    assert written["versions"]["transformers"] == transformers.__version__
    assert written["host"] == socket.gethostname()
    assert written["world_size"] == 4
    assert written["python"].count(".") == 2


def test_a_run_on_the_same_data_may_continue_with_other_settings(tmp_path):
    write_record(tmp_path, {"learning_rate": 1}, DATA)
    write_record(tmp_path, {"learning_rate": 2}, DATA)
    assert json.loads((tmp_path / "run.json").read_text())["settings"] == {"learning_rate": 2}


@pytest.mark.parametrize(
    ("change", "differs"),
    [
        ({"length": 65}, "data.length was 64 and is 65"),
        ({"hmm": "xyz"}, "data.hmm was 'abc' and is 'xyz'"),
        ({"tokens": "new"}, "data.tokens was None and is 'new'"),
        ({"splits": (1, 3)}, "data.splits was [1, 2] and is [1, 3]"),
    ],
)
def test_the_folder_of_a_run_on_other_data_is_refused_and_not_changed(tmp_path, change, differs):
    write_record(tmp_path, {}, DATA)
    before = (tmp_path / "run.json").read_bytes()
    with pytest.raises(InputError) as caught:
        write_record(tmp_path, {}, {**DATA, **change})
    remedy = f"choose another output_dir, or accept the changes with --allow_changed data.{next(iter(change))}"
    assert str(caught.value) == f"{tmp_path / 'identity.json'}: of another run: {differs}; {remedy}"
    assert (tmp_path / "run.json").read_bytes() == before


def test_only_rank_0_writes_the_record_and_every_rank_checks_it(tmp_path, monkeypatch):
    monkeypatch.setenv("RANK", "1")
    write_record(tmp_path, {}, DATA)
    assert not (tmp_path / "run.json").exists()
    monkeypatch.setenv("RANK", "0")
    write_record(tmp_path, {}, DATA)
    monkeypatch.setenv("RANK", "1")
    with pytest.raises(InputError, match=r"data\.length was 64 and is 1"):
        write_record(tmp_path, {}, {**DATA, "length": 1})


def test_the_command_of_a_notebook_is_not_that_of_its_kernel(tmp_path, monkeypatch):
    monkeypatch.setattr("sys.argv", ["/somewhere/ipykernel_launcher.py", "-f", "/tmp/kernel.json"])
    assert write_record(tmp_path, {}, DATA)["command"] == "(in a notebook)"


def test_versions_are_those_installed():
    found = package_versions()
    assert found["torch"].startswith("2.")
    assert {"transformers", "accelerate", "datasets", "tokenizers", "trl"} <= found.keys()


def test_the_commit_is_that_of_the_working_tree():
    """Without a repository there is no commit."""
    found = git_commit()
    head = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=__file__.rpartition("/")[0], capture_output=True, text=True, check=False
    )
    if head.returncode != 0:
        assert found is None
    else:
        assert found.removesuffix("+") == head.stdout.strip()


# History


def state(step: int, rank_0: bool = True):
    return types.SimpleNamespace(
        global_step=step, max_steps=9, num_input_tokens_seen=100 * step, is_world_process_zero=rank_0
    )


def log(history: History, step: int, rank_0: bool = True, **logs) -> None:
    history.on_log(None, state(step, rank_0), None, logs=logs)


def test_a_log_step_is_a_row_with_its_step_tokens_and_host(tmp_path):
    history = History(tmp_path)
    history.on_train_begin(None, state(0), None)
    log(history, 2, loss=1.5, epoch=0.1, num_input_tokens_seen=200)
    (row,) = rows(tmp_path)
    assert row.pop("time") > 1.7e9
    assert row == {"step": 2, "max_steps": 9, "tokens": 200, "host": socket.gethostname(), "loss": 1.5}


def test_other_ranks_and_empty_logs_write_nothing(tmp_path):
    log(History(tmp_path), 1, rank_0=False, loss=1.0)
    log(History(tmp_path), 1)
    assert not (tmp_path / "history.jsonl").exists()


def test_a_resumed_run_has_every_step_once(tmp_path):
    first = History(tmp_path)
    first.on_train_begin(None, state(0), None)
    for step in (2, 4, 6):
        log(first, step, loss=1.0)
    second = History(tmp_path)
    second.on_train_begin(None, state(4), None)
    for step in (6, 8):
        log(second, step, loss=2.0)
    assert [(row["step"], row["loss"]) for row in rows(tmp_path)] == [(2, 1.0), (4, 1.0), (6, 2.0), (8, 2.0)]


def test_a_run_from_the_start_starts_a_new_history(tmp_path):
    for step in (0, 2):
        log(History(tmp_path), step, loss=1.0)
    History(tmp_path).on_train_begin(None, state(0), None)
    assert rows(tmp_path) == []


def test_a_row_truncated_by_a_crash_does_not_stop_the_next_run(tmp_path):
    log(History(tmp_path), 2, loss=1.0)
    with (tmp_path / "history.jsonl").open("a") as file:
        file.write('{"step": 3, "lo')
    history = History(tmp_path)
    history.on_train_begin(None, state(2), None)
    log(history, 3, loss=1.0)
    assert [row["step"] for row in rows(tmp_path)] == [2, 3]
