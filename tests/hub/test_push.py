"""The real client and the local Hub: files are pushed completely and only once, whatever fails on the way."""

import json
import os
import signal
import socket
import textwrap
import urllib.error
from pathlib import Path

import pytest
from hub_processes import PULL, PUSH, LocalHub, contents

from hmm_datasets.errors import InputError
from hmm_datasets.files import write_digests
from hmm_datasets.hub.access import endpoint_of
from hmm_datasets.hub.push import push_folder


@pytest.mark.parametrize("repo_type", ["model", "dataset"])
def test_a_pushed_folder_comes_back_byte_for_byte(local_hub, push, folder, tmp_path, repo_type):
    pushed = push(folder, f"tester/whole-{repo_type}", repo_type=repo_type)
    pulled = local_hub.child(PULL, tmp_path / "other home", f"tester/whole-{repo_type}", repo_type)
    found = contents(Path(pulled))
    assert found.pop(".gitattributes")
    assert found == contents(folder)
    assert pushed["files"] == 5
    assert pushed["bytes"] == sum(map(len, found.values()))
    prefix = "datasets/" if repo_type == "dataset" else ""
    assert pushed["url"] == f"{local_hub.endpoint}/{prefix}tester/whole-{repo_type}"
    assert pulled.endswith(pushed["commit"])


@pytest.mark.skipif(
    "HMM_DATASETS_SMOKE_REPO" not in os.environ, reason="set HMM_DATASETS_SMOKE_REPO=USER/NAME by hand"
)
def test_the_real_hub_takes_and_gives_back_a_folder(folder, tmp_path):
    """By hand, with HF_TOKEN set: writes to that private repository of the public Hub, by Xet."""
    from huggingface_hub import snapshot_download

    pushed = push_folder(folder, os.environ["HMM_DATASETS_SMOKE_REPO"], private=True)
    pulled = Path(snapshot_download(pushed.repo_id, revision=pushed.commit, cache_dir=tmp_path / "cache"))
    assert contents(folder).items() <= contents(pulled).items()
    assert push_folder(folder, pushed.repo_id, private=True).commit == pushed.commit


def test_pushing_again_makes_no_commit_and_pushing_a_change_makes_one(local_hub, push, folder):
    first = push(folder, "tester/again")
    second = push(folder, "tester/again")
    assert second == first
    assert len(local_hub.titles("tester/again")) == 2
    (folder / "small.safetensors").write_bytes(b"other")
    third = push(folder, "tester/again", message="a better run")
    assert third["commit"] != first["commit"]
    assert local_hub.titles("tester/again")[0] == "a better run"


@pytest.mark.thorough
def test_files_of_the_repository_that_the_folder_lacks_are_kept(local_hub, push, folder):
    push(folder, "tester/kept")
    (folder / "empty.txt").rename(folder / "also empty.txt")
    push(folder, "tester/kept")
    found = {entry["path"] for entry in local_hub.get("/api/models/tester/kept/tree/main?recursive=true")}
    assert {"empty.txt", "also empty.txt"} <= found


@pytest.mark.thorough
def test_hidden_files_and_checkpoints_stay_at_home(local_hub, push, folder):
    for left_out in (".README.md.x1", "deep/.lock", "checkpoint-100/optimizer.pt", ".git/HEAD", "deep/.cache/x"):
        (folder / left_out).parent.mkdir(parents=True, exist_ok=True)
        (folder / left_out).write_text("no")
    push(folder, "tester/tidy")
    found = {entry["path"] for entry in local_hub.get("/api/models/tester/tidy/tree/main?recursive=true")}
    assert not [
        path for path in found if path != ".gitattributes" and ("/." in path or path.startswith((".", "check")))
    ]
    push(folder, "tester/chosen", ignore="*.safetensors")
    found = {entry["path"] for entry in local_hub.get("/api/models/tester/chosen/tree/main?recursive=true")}
    assert "checkpoint-100/optimizer.pt" in found
    assert not {"small.safetensors", ".git/HEAD", "deep/.cache/x"} & found


@pytest.mark.thorough
def test_more_files_than_a_page_of_the_listing_are_all_checked(local_hub, push, folder):
    for number in range(120):
        (folder / f"{number:03}.txt").write_text(str(number))
    assert push(folder, "tester/many")["files"] == 125
    pages = [row for row in local_hub.requests() if "tester/many/tree" in row["path"]]
    assert len(pages) == 3


@pytest.mark.thorough
def test_a_commit_names_the_head_it_was_made_for(local_hub, push, folder):
    """So that the Hub refuses it when another commit, or an earlier try that was slow, came in between."""
    first = push(folder, "tester/parents")["commit"]
    (folder / "empty.txt").write_text("no more")
    push(folder, "tester/parents")
    initial = local_hub.get("/api/models/tester/parents/commits/main")[-1]["id"]
    assert [row["parent"] for row in local_hub.requests() if "tester/parents/commit/" in row["path"]] == [
        initial,
        first,
    ]


@pytest.mark.thorough
def test_three_pushes_at_once_all_arrive(local_hub, tmp_path, folder):
    code = """
        import json, sys, threading
        from hmm_datasets.hub import push_folder
        failures = []
        def push(folder):
            try:
                push_folder(folder, "tester/shared")
            except Exception as error:
                failures.append(repr(error))
        threads = [threading.Thread(target=push, args=(folder,)) for folder in sys.argv[1:]]
        [thread.start() for thread in threads]
        [thread.join() for thread in threads]
        print(json.dumps(failures))
    """
    folders = []
    for number in range(3):
        folders.append(tmp_path / f"shard {number}")
        folders[-1].mkdir()
        (folders[-1] / f"{number}.bin").write_bytes(bytes([number]) * 5000)
    assert local_hub.child(code, tmp_path / "home", *folders) == []
    found = {entry["path"] for entry in local_hub.get("/api/models/tester/shared/tree/main")}
    assert found == {".gitattributes", "0.bin", "1.bin", "2.bin"}
    assert len(local_hub.titles("tester/shared")) == 4


def test_the_token_never_reaches_storage(local_hub, push, folder, tmp_path):
    # Contents of their own: what another test uploaded would not be sent again.
    (folder / "small.safetensors").write_bytes(b"secret " * 100)
    (folder / "large.safetensors").write_bytes((2).to_bytes(8, "little") + b"{}" + b"secret " * 500_000)
    before = len(local_hub.requests())
    push(folder, "tester/secret", private=True)
    local_hub.child(PULL, tmp_path / "other home", "tester/secret", "model")
    rows = local_hub.requests()[before:]
    at_storage = [row for row in rows if row["server"] == "storage"]
    assert {row["method"] for row in at_storage} == {"PUT", "POST", "GET"}
    assert not [row for row in at_storage if row["token"]]
    assert all(
        row["token"] for row in rows if row["server"] == "hub" and row["method"] == "POST" and row["path"] != "/faults"
    )


@pytest.mark.thorough
def test_a_client_that_leaks_its_token_to_storage_is_caught(local_hub, push, folder):
    """The test above could not fail if the server did not see tokens; urllib carries them across a redirect."""
    push(folder, "tester/leaky")
    with pytest.raises(urllib.error.HTTPError, match="400"):
        local_hub.get("/tester/leaky/resolve/main/small.safetensors")
    assert local_hub.requests()[-1]["server"] == "storage"
    assert local_hub.requests()[-1]["token"]


@pytest.mark.outside(
    "https://github.com/huggingface/huggingface_hub/issues/4786",
    "push to a Hub of one's own that has no Xet",
    "refused in one line that names the variable with which it works",
)
@pytest.mark.thorough
def test_a_hub_without_xet_is_pushed_to_by_git_lfs(local_hub, push, folder):
    local_hub.order_fault(method="GET", path="tester/lfs/xet-write-token/", status=404)
    assert (
        "has no Xet; set HF_HUB_DISABLE_XET=1"
        in push(folder, "tester/lfs", environment={"HF_HUB_DISABLE_XET": None})["error"]
    )
    assert push(folder, "tester/lfs", environment={"HF_HUB_DISABLE_XET": "1"})["files"] == 5


@pytest.mark.outside(
    "https://github.com/huggingface/huggingface_hub/issues/1826",
    "upload a folder whole, or hear which of its files were left out",
    "a file that is not in the commit is named in an error",
)
@pytest.mark.thorough
def test_a_listing_without_a_file_of_the_folder_is_an_error(local_hub, push, folder):
    listing = [{"type": "file", "path": path.relative_to(folder).as_posix(), "oid": "0" * 40, "size": 7}
               for path in folder.rglob("*") if path.is_file() and path.name != "README.md"]  # fmt: skip
    local_hub.order_fault(method="GET", path="tester/wrong/tree", status=200, body=json.dumps(listing))
    assert "README.md at commit" in push(folder, "tester/wrong")["error"]


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("repo_id", "environment", "complaint"),
    [
        (
            "tester/x",
            {"HF_TOKEN": "hf_of_someone_else"},
            "401 Invalid credentials in Authorization header; set HF_TOKEN",
        ),
        ("tester/x", {"HF_TOKEN": None}, "no token for the Hub: set HF_TOKEN"),
        ("stranger/x", {}, "403 You don't have the rights to write"),
        ("tester/x", {"HF_HUB_OFFLINE": "1"}, "HF_HUB_OFFLINE is set"),
    ],
)
def test_a_refused_push_says_why_in_one_line(push, folder, repo_id, environment, complaint):
    assert complaint in push(folder, repo_id, environment=environment)["error"]


@pytest.mark.thorough
def test_a_card_that_the_hub_refuses_is_an_error_with_its_reason(local_hub, push, folder):
    body = json.dumps({"errors": [{"message": '"license" must be one of [apache-2.0, mit]'}]})
    local_hub.order_fault(method="POST", path="validate-yaml", status=400, body=body)
    assert 'README.md. - "license" must be one of' in push(folder, "tester/unlicensed")["error"]
    assert len(local_hub.titles("tester/unlicensed")) == 1


@pytest.mark.thorough
def test_a_private_push_to_a_public_repository_is_refused(local_hub, push, folder):
    push(folder, "tester/open")
    (folder / "empty.txt").write_text("a secret")
    assert "tester/open exists and is public" in push(folder, "tester/open", private=True)["error"]
    assert len(local_hub.titles("tester/open")) == 2


@pytest.mark.thorough
def test_branches_and_tags_hold_the_commit_they_were_made_at(local_hub, push, folder, tmp_path):
    code = """
        import json
        from huggingface_hub import HfApi, hf_hub_download
        api, repo = HfApi(), "tester/tagged"
        api.create_tag(repo, tag="v1")
        api.create_branch(repo, branch="refs/heads/try", exist_ok=True)
        api.upload_file(path_or_fileobj=b"two", path_in_repo="empty.txt", repo_id=repo)
        refs = api.list_repo_refs(repo)
        texts = [open(hf_hub_download(repo, "empty.txt", revision=r)).read() for r in ("v1", "main")]
        print(json.dumps([api.whoami()["name"], [t.name for t in refs.tags], len(refs.branches), texts]))
    """
    push(folder, "tester/tagged")
    assert local_hub.child(code, tmp_path / "home") == ["tester", ["v1"], 2, ["", "two"]]


def test_an_endpoint_that_is_not_an_address_is_refused():
    with pytest.raises(InputError, match=r"endpoint is .huggingface\.co., expected an address"):
        endpoint_of("huggingface.co")


@pytest.mark.parametrize(
    ("make", "complaint"),
    [
        (lambda path: None, "expected a folder to push, found nothing"),
        (lambda path: path.write_text("x"), "expected a folder to push, found a file"),
        (lambda path: path.mkdir(), "no files to push, the folder is empty"),
        (lambda path: (path.mkdir(), (path / ".hidden").touch()), "1 found, all left out by ignore="),
    ],
)
def test_a_folder_that_cannot_be_pushed_is_named(tmp_path, make, complaint):
    make(tmp_path / "run")
    with pytest.raises(InputError, match=complaint) as caught:
        push_folder(tmp_path / "run", "me/x", token="hf_x")
    assert str(tmp_path / "run") in str(caught.value)


@pytest.mark.parametrize("repo_id", ["", "a/b/c", "me/what is it", "me/x..y", "me/x.git"])
def test_a_malformed_name_of_a_repository_is_refused(tmp_path, repo_id):
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match=r"cannot create the .*: (Repo id|Repo_id|Cannot have)|expected USER/NAME"):
        push_folder(tmp_path, repo_id, token="hf_x")


def test_an_unknown_kind_of_repository_is_refused(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="repo_type is 'space', expected 'model' or 'dataset'"):
        push_folder(tmp_path, "me/x", repo_type="space", token="hf_x")


@pytest.mark.thorough
def test_the_digests_that_are_pushed_are_those_of_the_files_that_are_pushed(tmp_path, local_hub):
    """A record that names the machine is pushed as a copy without it, which has another digest."""
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"_name_or_path": str(tmp_path / "base"), "size": 3}))
    (folder / "notes.bin").write_bytes(b"as it is")
    write_digests(folder)
    before = (folder / "digests.json").read_bytes()
    code = """
        import json, sys
        from huggingface_hub import snapshot_download
        from hmm_datasets.files import digest_problems
        from hmm_datasets.hub.push import push_folder
        push_folder(sys.argv[1], "tester/digests")
        pulled = snapshot_download("tester/digests", local_dir=sys.argv[1] + "-pulled")
        print(json.dumps([digest_problems(pulled), open(pulled + "/config.json").read()]))
    """
    problems, config = local_hub.child(code, tmp_path / "home", folder)
    assert problems == []
    assert str(tmp_path) not in config
    assert (folder / "digests.json").read_bytes() == before


@pytest.mark.thorough
def test_a_hub_that_stops_answering_is_one_line_and_pushing_again_sends_nothing_twice(warm_python, folder, tmp_path):
    """The server is suspended at the commit: the kernel still accepts connections for it, and nobody answers."""
    hub = LocalHub(tmp_path / "hub", python=warm_python)
    silent = """
        import os, signal, sys
        from huggingface_hub import HfApi
        from hmm_datasets.hub import push
        push.PATIENCE = 0.5
        upload = HfApi.preupload_lfs_files
        def suspended(*arguments, **options):
            upload(*arguments, **options)
            os.kill(int(sys.argv[4]), signal.SIGSTOP)
        HfApi.preupload_lfs_files = suspended
    """
    try:
        program = textwrap.dedent(silent) + textwrap.dedent(PUSH)
        words = (tmp_path / "home", folder, "tester/silent", "{}", hub.process.pid)
        said = hub.child(program, *words)["error"]
        os.kill(hub.process.pid, signal.SIGCONT)
        assert "could not commit for tester/silent in 2 tries, last: " in said
        assert "Timeout" in said
        assert "\n" not in said
        sent = [row["path"] for row in hub.requests() if row["method"] == "PUT" and row["server"] == "storage"]
        assert len(sent) == 2
        assert hub.child(PUSH, *words[:-1])["files"] == 5
        again = [row["path"] for row in hub.requests() if row["method"] == "PUT" and row["server"] == "storage"]
        assert again == sent
        assert len(hub.titles("tester/silent")) == 2
    finally:
        os.kill(hub.process.pid, signal.SIGCONT)
        hub.stop()


@pytest.mark.thorough
def test_a_hub_that_never_answers_is_one_line(folder, monkeypatch):
    monkeypatch.setattr("hmm_datasets.hub.push.PATIENCE", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as server:
        endpoint = f"http://127.0.0.1:{server.getsockname()[1]}"
        with pytest.raises(InputError, match=r"could not create the repository .* in 2 tries, last: ReadTimeout"):
            push_folder(folder, "tester/x", token="hf_x", endpoint=endpoint)
