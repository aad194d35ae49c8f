"""An interrupted download of a corpus from the Hub continues where it stopped."""

import json
from urllib.parse import urlsplit

import pytest
from cutting_proxy import CuttingProxy
from hub_processes import LocalHub

pytestmark = pytest.mark.thorough

PUSH = """
    import sys
    from huggingface_hub import HfApi

    api = HfApi()
    api.create_repo("tester/corpus", repo_type="dataset")
    api.upload_folder(folder_path=sys.argv[1], repo_id="tester/corpus", repo_type="dataset")
    print("{}")
"""
READ = """
    import hashlib, json
    from hmm_datasets.errors import InputError
    from hmm_datasets.text.corpora.loading import load_corpus

    try:
        rows = load_corpus("tester/corpus", streaming=False)
        text = "".join(rows["text"])
        print(json.dumps({"rows": len(rows), "sha256": hashlib.sha256(text.encode()).hexdigest()}))
    except InputError as error:
        print(json.dumps({"error": str(error)}))
"""


@pytest.fixture
def hub(tmp_path, warm_python):
    hub = LocalHub(tmp_path / "hub", python=warm_python)
    yield hub
    hub.stop()


def test_a_download_that_breaks_off_keeps_the_files_it_has(hub, tmp_path):
    """Of a file that was cut the client keeps nothing from one run to the next: what goes on is the list of files."""
    (tmp_path / "files").mkdir()
    sizes = []
    for name, count in (("train-0.jsonl", 10_000), ("train-1.jsonl", 40_000)):
        rows = [
            {"text": f"Story {number} of {name} is about {number * 7919 % 10**9} cats."} for number in range(count)
        ]
        (tmp_path / "files" / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
        sizes.append((tmp_path / "files" / name).stat().st_size)
    hub.child(PUSH, tmp_path / "pusher", tmp_path / "files")
    proxy = CuttingProxy(("127.0.0.1", urlsplit(hub.endpoint).port))
    changes = {"HF_ENDPOINT": f"http://127.0.0.1:{proxy.port}"}
    try:
        proxy.limit = (sizes[0] + sizes[1]) // 2
        broken = hub.child(READ, tmp_path / "reader", **changes)
        proxy.limit, proxy.passed = None, 0
        whole = hub.child(READ, tmp_path / "reader", **changes)
        untouched = hub.child(READ, tmp_path / "other")
    finally:
        proxy.close()
    assert broken["error"].startswith("tester/corpus: split 'train' of tester/corpus cannot be loaded (")
    assert whole == untouched
    assert whole["rows"] == 50_000
    assert sizes[1] < proxy.passed < sizes[1] + 20_000
