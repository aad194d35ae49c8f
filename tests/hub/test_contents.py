"""Pushed files contain no access token and do not name the machine."""

import json
import socket
from pathlib import Path

import pytest
from local_hub import PULL, contents

from hmm_datasets.errors import InputError
from hmm_datasets.hub.push import push_folder


@pytest.mark.launch
def test_what_is_pushed_names_neither_host_nor_folder_and_local_records_stay(local_hub, push, folder, tmp_path):
    host = socket.gethostname()
    record = {"host": host, "command": f"python x.py --output_dir {folder}", "settings": {"hmm": f"{tmp_path}/hmm"}}
    (folder / "run.json").write_text(json.dumps(record))
    (folder / "history.jsonl").write_text(json.dumps({"step": 1, "host": host, "loss": 1.5}) + "\n")
    (folder / "train.log").write_text(f"rank 0 on {host}: writing {folder}/summary.json\n")
    (folder / "training_args.bin").write_bytes(b"pickled")
    (folder / "runs").mkdir()
    (folder / "runs" / f"events.out.tfevents.1.{host}.2").write_bytes(b"events")
    before = contents(folder)
    push(folder, "tester/placeless")
    pulled = Path(local_hub.child(PULL, tmp_path / "other home", "tester/placeless", "model"))
    found = contents(pulled)
    assert contents(folder) == before
    assert {"run.json", "history.jsonl", "train.log"} <= found.keys()
    assert not {name for name in found if "training_args" in name or "tfevents" in name}
    named = {name for name, content in found.items() for word in (host, str(tmp_path)) if word.encode() in content}
    assert named == set()
    assert json.loads(found["history.jsonl"]) == {"step": 1, "loss": 1.5}


@pytest.mark.parametrize("where", ["run.json", "model.safetensors", "optimizer.pt", "notes.txt"])
def test_a_file_with_a_token_stops_the_push_and_is_named_without_the_token(folder, monkeypatch, where):
    import torch
    from safetensors.torch import save_file

    monkeypatch.setenv("MY_API_KEY", "of no shape that anybody knows")
    token = "of no shape that anybody knows" if where == "notes.txt" else "hf_" + "aBcDeFgHiJ" * 3
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
