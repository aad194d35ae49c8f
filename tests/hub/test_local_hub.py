"""The local Hub: clients of the Hub use it as they use the real one, and what it keeps outlives a kill."""

import contextlib
import os
import random
import signal
import socket
import subprocess
import urllib.error
from pathlib import Path

import pyarrow
import pytest
from hub_processes import PULL, PUSH, PYTHONPATH, START, LocalHub, contents, variables_to_paste
from local_hub.reading import front_matter
from local_hub.repositories import Refusal, Repo, Repositories
from local_hub.xet import _decompressed, files_of

USUAL_CALLS = """
    import json, sys
    from pathlib import Path
    from huggingface_hub import CommitOperationAdd, CommitOperationCopy, CommitOperationDelete, HfApi, HfFileSystem
    from huggingface_hub.errors import (
        EntryNotFoundError, HfHubHTTPError, RepositoryNotFoundError, RevisionNotFoundError
    )
    api, name, found = HfApi(), "tester/usual", {}

    def refused(error, call, *arguments, **options):
        try:
            call(*arguments, **options)
        except error as caught:
            return type(caught).__name__

    found["who"] = api.whoami()["name"]
    api.create_repo(name)
    api.create_repo(name, exist_ok=True)
    found["exists already"] = refused(HfHubHTTPError, api.create_repo, name)
    api.upload_file(path_or_fileobj=b"one", path_in_repo="deep/a.txt", repo_id=name)
    api.upload_file(path_or_fileobj=b"weights", path_in_repo="b.bin", repo_id=name)
    first = api.repo_info(name).sha
    found["files"] = api.list_repo_files(name)
    found["by its first letters"] = api.repo_info(name, revision=first[:8]).sha == first
    found["exist"] = [
        api.repo_exists(name), api.repo_exists("tester/none"), api.repo_exists("gpt2"),
        api.file_exists(name, "deep/a.txt"), api.file_exists(name, "deep"),
        api.revision_exists(name, "main"), api.revision_exists(name, "none"),
    ]
    found["refused"] = [
        refused(RepositoryNotFoundError, api.repo_info, "tester/none"),
        refused(RepositoryNotFoundError, api.hf_hub_download, "gpt2", "config.json"),
        refused(RevisionNotFoundError, api.repo_info, name, revision="none"),
        refused(EntryNotFoundError, api.hf_hub_download, name, "none.txt"),
        refused(HfHubHTTPError, api.create_repo, "tester/room", repo_type="space", space_sdk="static"),
    ]
    api.create_branch(name, branch="try", revision=first)
    api.create_tag(name, tag="v1")
    api.create_commit(
        name, commit_message="all operations", revision="try",
        operations=[CommitOperationCopy("b.bin", "c.bin"), CommitOperationDelete("deep/"),
                    CommitOperationAdd("card.txt", b"two")],
    )
    found["on the branch"] = api.list_repo_files(name, revision="try")
    found["on main"] = api.list_repo_files(name, revision="refs/heads/main") == found["files"]
    request = api.create_commit(
        name, commit_message="proposed", create_pr=True, operations=[CommitOperationAdd("p.txt", b"three")]
    )
    refs = api.list_repo_refs(name, include_pull_requests=True)
    found["refs"] = [[ref.name for ref in refs.branches], [ref.name for ref in refs.tags],
                     [ref.ref for ref in refs.pull_requests]]
    found["pull request"] = [request.pr_num, api.file_exists(name, "p.txt"),
                             api.file_exists(name, "p.txt", revision="refs/pr/1")]
    api.delete_branch(name, branch="try")
    api.delete_tag(name, tag="v1")
    found["deleted"] = [api.revision_exists(name, "try"), api.revision_exists(name, "v1")]
    api.delete_file("b.bin", name)
    found["commits"] = [commit.title for commit in api.list_repo_commits(name)]
    api.super_squash_history(name, commit_message="one of all")
    found["squashed"] = [[commit.title for commit in api.list_repo_commits(name)], api.list_repo_files(name)]
    card = "---\\ntags: [tiny]\\npipeline_tag: text-generation\\n---\\n# A card\\n"
    api.upload_file(path_or_fileobj=card.encode(), path_in_repo="README.md", repo_id=name)
    found["card"] = [api.model_info(name).pipeline_tag, api.model_info(name).card_data.tags]
    api.create_repo("tester/rows", repo_type="dataset", private=True)
    api.update_repo_settings(name, private=True)
    found["private"] = [api.repo_info(name).private, HfApi(token=False).repo_exists(name)]
    api.move_repo(name, "tester/moved")
    found["listed"] = [
        [info.id for info in api.list_models(author="tester", search="moved")],
        [info.id for info in api.list_models(author="tester", filter="tiny")],
        [info.id for info in api.list_models(author="nobody")],
        [info.id for info in api.list_datasets(search="rows")],
        [info.id for info in HfApi(token=False).list_datasets(search="rows")],
    ]
    files = HfFileSystem()
    with files.open("tester/moved/deep/d.txt", "w") as file:
        file.write("by fsspec")
    found["fsspec"] = [files.cat("tester/moved/deep/d.txt").decode(), sorted(files.glob("tester/moved/deep/*.txt"))]
    folder = Path(sys.argv[1])
    (folder / "more").mkdir(parents=True)
    (folder / "more" / "x.bin").write_bytes(b"x" * 1000)
    api.upload_folder(repo_id="tester/moved", folder_path=folder, delete_patterns="deep/*")
    found["uploaded"] = api.list_repo_files("tester/moved")
    api.delete_repo("tester/moved")
    api.delete_repo("tester/moved", missing_ok=True)
    found["gone"] = api.repo_exists("tester/moved")
    print(json.dumps(found))
"""

OTHER_LIBRARIES = """
    import json, sys, torch
    import hf_xet
    from datasets import Dataset, load_dataset
    from huggingface_hub import constants
    from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM
    from hmm_datasets import load_source, processes, push_folder
    from hmm_datasets.hmm.causal_lm import HMMForCausalLM
    from hmm_datasets.hmm.families import PermutedSymbols
    from hmm_datasets.hmm.process_causal_lm import ProcessForCausalLM
    assert not constants.HF_HUB_DISABLE_XET
    found = [push_folder(sys.argv[1], "tester/xet-folder").files, push_folder(sys.argv[1], "tester/xet-folder").files]
    for way in ("xet", "lfs"):
        constants.HF_HUB_DISABLE_XET = way == "lfs"
        torch.manual_seed(len(found))
        config = LlamaConfig(vocab_size=512, hidden_size=64, intermediate_size=128, num_hidden_layers=2,
                             num_attention_heads=2, num_key_value_heads=2, max_position_embeddings=16)
        model, tokens = LlamaForCausalLM(config).eval(), torch.arange(12)[None]
        model.push_to_hub(f"tester/{way}-llama")
        back = AutoModelForCausalLM.from_pretrained(f"tester/{way}-llama").eval()
        with torch.no_grad():
            found.append(torch.equal(model(tokens).logits, back(tokens).logits))
        rows = [{"input_ids": [i % 7, i % 11, i], "text": f"row {i} came by {way} " * 5} for i in range(3000)]
        Dataset.from_list(rows).push_to_hub(f"tester/{way}-rows", num_shards=2)
        found.append(list(load_dataset(f"tester/{way}-rows", split="train")) == rows)
        streamed = load_dataset(f"tester/{way}-rows", split="train", streaming=True)
        found.append(list(streamed) == rows and list(streamed.skip(2990)) == rows[2990:])
    # What this package writes beside the files of transformers was not pushed by this keyword.
    constants.HF_HUB_DISABLE_XET, mess3 = False, processes.mess3()
    for kind, process in ((HMMForCausalLM, mess3), (ProcessForCausalLM, PermutedSymbols(mess3))):
        model, name = kind.from_process(process, 3), f"tester/exact-{kind.__name__}"
        model.save_pretrained(f"{sys.argv[1]}-{kind.__name__}", push_to_hub=True, repo_id=name, commit_message="try")
        back = AutoModelForCausalLM.from_pretrained(name, trust_remote_code=True)
        found.append(torch.equal(model(tokens[:, :3]).logits, back(tokens[:, :3]).logits))
        found.append(load_source(name).fingerprint() == process.fingerprint())
    print(json.dumps(found))
"""


@pytest.fixture
def command(tmp_path):
    """Start the local Hub with options; return its process."""
    started = []

    def start(*options: object, **changes: str) -> subprocess.Popen:
        words = [*START, "--port", "0", *map(str, options)]
        environment = {**os.environ, "PYTHONPATH": PYTHONPATH, "TMPDIR": str(tmp_path), **changes}
        streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        started.append(subprocess.Popen(words, env=environment, **streams))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.communicate()


@pytest.mark.thorough
@pytest.mark.parametrize("xet", ["1", None], ids=["lfs", "xet"])
def test_the_usual_calls_of_huggingface_hub_do_what_they_do_on_the_real_hub(warm_python, tmp_path, xet):
    hub = LocalHub(tmp_path / "hub", python=warm_python)
    try:
        found = hub.child(USUAL_CALLS, tmp_path / "home", tmp_path / "folder", HF_HUB_DISABLE_XET=xet)
    finally:
        hub.stop()
    assert found == {
        "who": "tester",
        "exists already": "HfHubHTTPError",
        "files": [".gitattributes", "b.bin", "deep/a.txt"],
        "by its first letters": True,
        "exist": [True, False, False, True, False, True, False],
        "refused": [
            "RepositoryNotFoundError",
            "RepositoryNotFoundError",
            "RevisionNotFoundError",
            "RemoteEntryNotFoundError",
            "BadRequestError",
        ],
        "on the branch": [".gitattributes", "b.bin", "c.bin", "card.txt"],
        "on main": True,
        "refs": [["main", "try"], ["v1"], ["refs/pr/1"]],
        "pull request": [1, False, True],
        "deleted": [False, False],
        "commits": [
            "Delete b.bin with huggingface_hub",
            "Upload b.bin with huggingface_hub",
            "Upload deep/a.txt with huggingface_hub",
            "initial commit",
        ],
        "squashed": [["one of all"], [".gitattributes", "deep/a.txt"]],
        "card": ["text-generation", ["tiny"]],
        "private": [True, False],
        "listed": [["tester/moved"], ["tester/moved"], [], ["tester/rows"], []],
        "fsspec": ["by fsspec", ["tester/moved/deep/a.txt", "tester/moved/deep/d.txt"]],
        "uploaded": [".gitattributes", "README.md", "more/x.bin"],
        "gone": False,
    }


@pytest.mark.thorough
def test_models_and_data_sets_come_back_by_xet_without_a_variable_and_by_lfs(local_hub, folder, tmp_path):
    # What Xet compresses in each of its three ways: text, numbers of four bytes, and noise.
    (folder / "small.safetensors").write_bytes(b"".join(i.to_bytes(4, "little") for i in range(50_000)))
    (folder / "text.bin").write_bytes(b"".join(f"a line of text, number {i}\n".encode() for i in range(20_000)))
    (folder / "noise.bin").write_bytes(random.Random(0).randbytes(300_000))
    before = len(local_hub.requests())
    found = local_hub.child(OTHER_LIBRARIES, tmp_path / "home", folder, HF_HUB_DISABLE_XET=None)
    assert found == [7, 7, *10 * [True]]
    rows = local_hub.requests()[before:]
    assert len([row for row in rows if "/v1/xorbs/" in row["path"]]) >= 3
    assert {row["path"] for row in rows if row["path"].endswith("/objects/batch")} == {
        "/tester/lfs-llama.git/info/lfs/objects/batch",
        "/datasets/tester/lfs-rows.git/info/lfs/objects/batch",
    }
    assert not [row for row in rows if row["server"] == "storage" and row["token"]]
    assert [len(local_hub.titles(f"tester/{way}-llama")) for way in ("xet", "lfs")] == [2, 2]
    pulled = local_hub.child(PULL, tmp_path / "other home", "tester/xet-folder", "model")
    assert contents(folder).items() <= contents(Path(pulled)).items()


@pytest.mark.thorough
def test_what_was_pushed_is_there_after_the_server_was_killed(command, warm_python, folder, tmp_path):
    kept = tmp_path / "kept"
    pushes = """
        import json, sys
        from huggingface_hub import HfApi
        from hmm_datasets import push_folder
        api, commit = HfApi(), push_folder(sys.argv[1], "USER/run").commit
        api.create_tag("USER/run", tag="v1")
        api.create_repo("USER/empty", repo_type="dataset", private=True)
        print(json.dumps(commit))
    """
    first = command("--folder", kept)
    hub = LocalHub.of(first, kept, warm_python)
    commit = hub.child(pushes, tmp_path / "home", folder)
    first.send_signal(signal.SIGKILL)
    first.wait()
    (kept / "objects" / ".half-written").write_bytes(b"ha")
    hub = LocalHub.of(command("--folder", kept), kept, warm_python)
    assert hub.get("/api/models/USER/run")["sha"] == commit
    assert [row["targetCommit"] for row in hub.get("/api/models/USER/run/refs")["tags"]] == [commit]
    assert hub.get("/api/datasets/USER/empty")["private"]
    pulled = hub.child(PULL, tmp_path / "other home", "USER/run", "model")
    assert contents(folder).items() <= contents(Path(pulled)).items()
    assert hub.child(PUSH, tmp_path / "home", folder, "USER/run", "{}")["commit"] == commit
    assert not list((kept / "objects").glob(".*"))


def test_a_commit_during_which_the_server_died_is_as_if_it_had_not_been(tmp_path, monkeypatch):
    repositories = Repositories(tmp_path)
    repo = repositories.create("models", "USER/run", False, {"a.txt": b"one"})
    files = {"a.txt": repositories.store(b"two")}

    def die(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Repo, "change", die)  # the last step of a commit
    with pytest.raises(KeyboardInterrupt):
        repo.add_commit("refs/heads/main", "second", "", files)
    (repo.folder / ".repository.json.half").write_text('{"refs": ')
    again = Repositories(tmp_path).get("models", "USER/run")
    assert [commit.title for commit in again.history("main")] == ["initial commit"]
    assert again.commit("main") == repo.commit("main")


def refusal(process: subprocess.Popen) -> str:
    """The only line that a refused command writes."""
    output, errors = process.communicate(timeout=500)
    assert process.returncode == 2
    assert output == ""
    assert errors.startswith("error: ")
    assert errors.count("\n") == 1
    return errors


@pytest.mark.thorough
def test_a_port_that_is_taken_is_one_line(command):
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        held.listen()
        port = held.getsockname()[1]
        said = refusal(command("--port", port))
    assert f"port {port} of 127.0.0.1 cannot be listened at" in said
    assert "choose another one with --port" in said


@pytest.mark.thorough
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_without_a_folder_nothing_is_left_at_the_end(command, tmp_path, number):
    process = command(HTTPS_PROXY="http://proxy:3128")
    variables = variables_to_paste(process)
    assert variables.keys() == {"HF_ENDPOINT", "HF_TOKEN", "NO_PROXY"}
    assert len(list(tmp_path.iterdir())) == 1
    process.send_signal(number)
    output, errors = process.stdout.read(), process.stderr.read()
    assert (process.wait(), errors) == (0, "")
    assert "hmm-datasets push FOLDER USER/NAME" in output
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("chunk", [b"", b"no frame", pyarrow.compress(b"abc" * 9999, codec="lz4", asbytes=True)[:-5]])
def test_a_chunk_that_cannot_be_decompressed_is_refused(chunk):
    with pytest.raises(Refusal, match="cannot be decompressed") as caught:
        _decompressed(chunk, 1)
    assert caught.value.status == 400


def test_chunks_in_four_groups_of_bytes_are_put_together_again():
    for size in (0, 1, 2, 3, 4, 5, 6, 7, 1001):
        content = random.Random(size).randbytes(size)
        grouped = b"".join(content[first::4] for first in range(4))
        assert _decompressed(pyarrow.compress(grouped, codec="lz4", asbytes=True), 2) == content


@pytest.mark.parametrize("shard", [b"", b"other" * 50, b"HFRepoMetaData" + bytes(40)])
def test_what_is_no_shard_is_refused(shard):
    with pytest.raises(Refusal):
        list(files_of(shard))


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("request_lines", "status"),
    [
        ("GET /api/models/tester/none/revision/a%0d%0aX-Mine:%20yes HTTP/1.1", 404),
        ("GET /api/models/tester/headers/revision/a%0d%0aX-Mine:%20yes HTTP/1.1", 404),
        ("GET /api/models/tester/headers/revision/%E2%98%83 HTTP/1.1", 404),
        ("POST /api/validate-yaml HTTP/1.1\r\nContent-Length: -1", 400),
        ("POST /api/validate-yaml HTTP/1.1\r\nContent-Length: 0x10", 400),
        ("POST /api/validate-yaml HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n-5", 400),
    ],
)
def test_no_request_adds_a_header_or_waits_without_end(local_hub, request_lines, status):
    with contextlib.suppress(urllib.error.HTTPError):
        local_hub.post("/api/repos/create", {"name": "headers"})
    host, _, port = local_hub.endpoint.removeprefix("http://").rpartition(":")
    head = f"\r\nHost: {host}:{port}\r\nAuthorization: Bearer {local_hub.token}\r\nConnection: close\r\n\r\n"
    with socket.create_connection((host, int(port)), timeout=500) as connection:
        first, body, rest = request_lines.partition("\r\n\r\n")
        connection.sendall(f"{first}{head}{rest}{body}".encode())
        reply = b"".join(iter(lambda: connection.recv(2**16), b"")).decode("latin-1")
    assert reply.startswith(f"HTTP/1.1 {status} ")
    assert "\r\nX-Mine" not in reply


BOMB = "a0: &a0 [x, x, x]\n" + "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 12))


@pytest.mark.thorough
@pytest.mark.parametrize(
    "metadata", [BOMB, "date: 2026-02-30", f"a: {'9' * 5000}", f"a: {'[' * 3000}", "a: !!int x"], ids=range(5)
)
def test_metadata_that_cannot_be_read_are_refused(metadata):
    with pytest.raises(Refusal) as caught:
        front_matter(f"---\n{metadata}\n---\n")
    assert caught.value.status == 400


def test_a_date_in_the_metadata_is_text():
    assert front_matter("---\nday: 2026-02-03\n---\n") == {"day": "2026-02-03"}
