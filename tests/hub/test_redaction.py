"""Redacted copies of records do not name the machine; other files are never changed."""

import json
import os
import socket

import pytest

from hmm_datasets.hub.redaction import Redaction


@pytest.fixture
def folder(tmp_path, monkeypatch):
    (tmp_path / "work" / "outputs" / "a run").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "work")
    return tmp_path / "work" / "outputs" / "a run"


def cleaned(folder, name, content):
    (folder / name).write_text(content if isinstance(content, str) else json.dumps(content))
    text = Redaction(folder).cleaned(folder / name)
    return json.loads(text) if text is not None and name.endswith(".json") else text


def test_a_record_loses_the_name_of_its_host_and_its_absolute_paths_and_nothing_else(folder):
    record = {
        "settings": {
            "output_dir": str(folder),
            "hmm": "/data/models/hmm200/hmm",
            "learning_rate": 1e-3,
        },
        "command": f"python {os.getcwd()}/recipes/pretrain.py --output_dir={folder} --config /home/me/a.yaml",
        "best_model_checkpoint": f"{folder}/checkpoint-3",
        "source": "https://huggingface.co/home/me and nats/token, hf://datasets/tmp/x/y, 3/4",
        "host": "node17",
        "world_size": 2,
    }
    assert cleaned(folder, "run.json", record) == {
        "settings": {"output_dir": "outputs/a run", "hmm": "hmm", "learning_rate": 1e-3},
        "command": "python recipes/pretrain.py --output_dir=outputs/a run --config ~/a.yaml",
        "best_model_checkpoint": "outputs/a run/checkpoint-3",
        "source": record["source"],
        "host": "this-host",
        "world_size": 2,
    }


def test_rows_lose_the_name_of_their_host_and_keep_one_of_no_run(folder):
    (folder / "run.json").write_text(json.dumps({"host": "node17"}))
    rows = '{"step": 1, "host": "node17", "loss": 0.5}\n{"url": "x", "host": "example.org"}\n{"host": "node17", "lo'
    assert cleaned(folder, "rows.jsonl", rows) == rows.replace("node17", "this-host")


def test_logs_and_cards_lose_this_host_and_those_of_the_records(folder):
    (folder / "run.json").write_text(json.dumps({"host": "node17"}))
    text = f"rank 1 on node17: no; rank 2 on {socket.gethostname()}: yes; node170 and node17-b stay"
    assert cleaned(folder, "train.log", text) == (
        "rank 1 on this-host: no; rank 2 on this-host: yes; node170 and node17-b stay"
    )


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("tokenizer.json", {"model": {"vocab": {"/home/me": 1, "/tmp/x": 2}}}),
        ("samples.jsonl", '{"text": "Save it as /home/user/file.txt, on node17."}\n'),
        ("config.json", {"hidden_size": 8, "vocabulary": ["once", "node17", "/"]}),
        ("corpus.txt", "cd /home/user/project && ls"),
    ],
)
def test_files_without_paths_of_this_run_are_not_changed(folder, name, content):
    (folder / "run.json").write_text(json.dumps({"host": "node17"}))
    assert cleaned(folder, name, content) is None


@pytest.mark.parametrize(
    "home", ["/home/ada", "/Users/ada", "/nfs/home/ada", "/cluster/users/ada", "/export/homes/ada"]
)
def test_no_record_of_a_run_names_a_host_or_a_home(folder, home):
    record = {
        "host": "node17",
        "settings": {
            **{"cache": home, "trailing": f"{home}/", "deep": f"{home}/runs/x", "uri": f"file://{home}/y"},
            **{"address": "node17:29500", "name": "on node17", "keys": {"node17": 1}},
        },
        "command": f"HOME={home} python --main_process_ip node17 '{home}/my runs/a.py' --dir={home}",
    }
    text = json.dumps(cleaned(folder, "run.json", record))
    assert "ada" not in text
    assert text.count("node17") == 1  # a key, which programs read
    assert json.loads(text)["settings"]["cache"] == "~"


def test_data_of_a_run_do_not_name_the_home_of_this_machine(folder, monkeypatch):
    monkeypatch.setenv("HOME", "/people/ada")
    rows = '{"file": "/people/ada/x.txt", "other": "/people/adam/x.txt"}\n'
    assert cleaned(folder, "items.jsonl", rows) == '{"file": "~/x.txt", "other": "/people/adam/x.txt"}\n'
