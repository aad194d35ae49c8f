"""Pushed files contain no access token and do not name the machine."""

import json
import socket
from pathlib import Path

import pytest
from hub_processes import PULL, contents

from hmm_datasets.errors import InputError
from hmm_datasets.hub.contents import DEFAULT_IGNORE, files_to_push
from hmm_datasets.hub.push import push_folder


@pytest.mark.thorough
def test_what_is_pushed_names_neither_host_nor_folder_and_local_records_stay(local_hub, push, folder, tmp_path):
    host = socket.gethostname()
    record = {"host": host, "command": f"python x.py --output_dir {folder}", "settings": {"hmm": f"{tmp_path}/hmm"}}
    (folder / "run.json").write_text(json.dumps(record))
    (folder / "history.jsonl").write_text(json.dumps({"step": 1, "host": host, "loss": 1.5}) + "\n")
    (folder / "train.log").write_text(f"rank 0 on {host}: writing {folder}/summary.json\n")
    (folder / "training_args.bin").write_bytes(b"pickled")
    (folder / "runs" / f"Nov22_{host}").mkdir(parents=True)
    (folder / "runs" / f"Nov22_{host}" / f"events.out.tfevents.1764000000.{host}.1.0").write_bytes(host.encode())
    (folder / ".eval_results").mkdir()
    (folder / ".eval_results" / "hmm.yaml").write_text("[]")
    before = contents(folder)
    push(folder, "tester/placeless")
    pulled = Path(local_hub.child(PULL, tmp_path / "other home", "tester/placeless", "model"))
    found = contents(pulled)
    assert contents(folder) == before
    assert {"run.json", "history.jsonl", "train.log", ".eval_results/hmm.yaml"} <= found.keys()
    assert "training_args.bin" not in found
    named = {
        name
        for name, content in found.items()
        for word in (host, str(tmp_path))
        if word.encode() in name.encode() + content
    }
    assert named == set()
    assert json.loads(found["history.jsonl"]) == {"step": 1, "host": "this-host", "loss": 1.5}


@pytest.mark.parametrize("where", ["run.json", "model.safetensors", "optimizer.pt", "notes.txt"])
def test_a_file_with_a_token_stops_the_push_and_is_named_without_the_token(folder, monkeypatch, where):
    import torch
    from safetensors.torch import save_file

    monkeypatch.setenv("MY_API_KEY", "of no shape that anybody knows")
    token = "hf_" + "aBcDeFgHiJ" * 3 + "kLmN"
    token = "of no shape that anybody knows" if where in ("notes.txt", "optimizer.pt") else token
    path = folder / where
    if where == "model.safetensors":
        save_file({"weight": torch.zeros(3)}, path, metadata={"token": token})
    elif where == "optimizer.pt":
        torch.save({"hub_token": token}, path)
    else:
        path.write_text(json.dumps({"command": f"python pretrain.py --hub_token {token}"}))
    with pytest.raises(InputError, match="contains something that looks like an access token or key") as caught:
        push_folder(folder, "tester/x", token="hf_x", endpoint="http://127.0.0.1:9")
    assert str(path) in str(caught.value)
    assert token not in str(caught.value)


def test_a_link_out_of_the_folder_is_not_pushed(folder, tmp_path):
    (tmp_path / "private.txt").write_text("of this machine alone")
    (folder / "notes.txt").symlink_to(tmp_path / "private.txt")
    with pytest.raises(InputError, match=r"names 'notes.txt', which is a link to .*/private.txt, not in"):
        files_to_push(folder, DEFAULT_IGNORE)
    assert "notes.txt" not in files_to_push(folder, ["notes.txt"])


def test_logs_of_hosts_and_stacks_are_not_pushed_by_default(folder):
    private = ("events.jsonl", "stacks-20260101-000000.txt", ".heartbeats/node1-2.json", "run/events.jsonl")
    for name in private:
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text("{}")
    pushed = files_to_push(folder, DEFAULT_IGNORE)
    assert pushed
    assert not set(private) & set(pushed)
