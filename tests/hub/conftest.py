"""A folder to push to the local Hub, and pushes."""

import json

import pytest
from hub_processes import PUSH, ForkedPushes


@pytest.fixture
def folder(tmp_path):
    """A small file, one in a subfolder, a binary one that goes to storage whole and one that goes there in parts."""
    folder = tmp_path / "a run"
    (folder / "deep" / "er").mkdir(parents=True)
    (folder / "README.md").write_text("---\nlicense: apache-2.0\n---\n# A run\n", encoding="utf-8")
    (folder / "deep" / "er" / "config.json").write_text('{"states": 3}\n')
    (folder / "empty.txt").touch()
    (folder / "small.safetensors").write_bytes(bytes(range(256)) * 4)
    (folder / "large.safetensors").write_bytes((2).to_bytes(8, "little") + b"{}" + bytes(range(256)) * 10_000)
    return folder


@pytest.fixture(scope="session")
def forked_pushes(local_hub, tmp_path_factory):
    with ForkedPushes(local_hub, tmp_path_factory.mktemp("home")) as pushes:
        yield pushes


@pytest.fixture
def push(local_hub, forked_pushes, tmp_path):
    """Push a folder in a process of its own; return the result or `{"error": ...}`."""

    def run(folder, repo_id, *, environment=None, **options):
        if environment is not None:  # read when huggingface_hub is imported
            return local_hub.child(PUSH, tmp_path / "home", folder, repo_id, json.dumps(options), **environment)
        (found,) = forked_pushes([{"folder": str(folder), "repo_id": repo_id, "options": options}])
        assert found.pop("status") == 0, found["log"]
        return {name: value for name, value in found.items() if name not in ("log", "seconds")}

    return run
