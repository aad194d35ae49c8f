"""The local Hub, and a folder to push to it."""

import json

import pytest
from local_hub import PUSH, LocalHub


@pytest.fixture(scope="session")
def local_hub(tmp_path_factory):
    hub = LocalHub(tmp_path_factory.mktemp("hub"), "--part-size", str(2**20))
    yield hub
    hub.stop()


@pytest.fixture
def folder(tmp_path):
    """A small file, one in a subfolder, a binary one that goes to storage whole and one that goes there in parts."""
    folder = tmp_path / "a run"
    (folder / "deep" / "er").mkdir(parents=True)
    (folder / "README.md").write_text("---\nlicense: apache-2.0\n---\n# A run\n", encoding="utf-8")
    (folder / "deep" / "er" / "config.json").write_text('{"states": 3}\n')
    (folder / "empty.txt").touch()
    (folder / "small.safetensors").write_bytes(bytes(range(256)) * 4)
    (folder / "large.safetensors").write_bytes(bytes(range(256)) * 10_000)
    return folder


@pytest.fixture
def push(local_hub, tmp_path):
    def run(folder, repo_id, *, environment=None, **options):
        home = tmp_path / "home"
        return local_hub.child(PUSH, home, folder, repo_id, json.dumps(options), **(environment or {}))

    return run
