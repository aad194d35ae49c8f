"""Whatever fails during a push, readers see the old run or the new one, and pushing again completes the new one.

The rows are in `fault_table.py`, which prints them as a table. All of them are pushed once for the tests of this file.
"""

import json
import random
import signal
from collections import Counter

import pytest
from fault_table import BY_XET, IN_STORAGE, PART_SIZE, ROWS, Case, run_table, uploads
from hub_processes import PUSH, ForkedPushes, LocalHub, contents

from hmm_datasets.hmm import processes

pytestmark = pytest.mark.thorough

PULL = """
    import contextlib, io, json
    from hmm_datasets import HMM
    from hmm_datasets.runtime.one_line_errors import one_line_errors
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said), one_line_errors():
            print(json.dumps(HMM.from_pretrained("tester/large-hmm").num_states))
    except SystemExit as stopped:
        print(json.dumps([stopped.code, said.getvalue().splitlines()[-1]]))
"""


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory, warm_python):
    folder = tmp_path_factory.mktemp("faults")
    hub = LocalHub(folder / "hub", "--part-size", str(PART_SIZE), python=warm_python)
    try:
        return run_table(hub, folder)
    finally:
        hub.stop()


@pytest.fixture(params=range(len(ROWS)), ids=[f"{number}: {row}" for number, row in enumerate(ROWS)])
def case(request, outcomes):
    """A row and what came of it."""
    return ROWS[request.param], outcomes[request.param]


def test_a_fault_ends_in_the_new_run_or_in_one_line_that_says_what_to_do(case):
    row, outcome = case
    found = outcome.result
    assert found["status"] == (-9 if row.is_kill else 0), found["log"]
    if row.error:
        assert row.error.partition("{repo}")[0] in found["error"]
        assert "\n" not in found["error"]
    else:
        assert "error" not in found
    assert outcome.pause >= row.seconds
    assert (outcome.struck > 0) is (row.order.get("times") != 0)


def test_every_revision_that_a_reader_sees_is_one_of_the_two_runs(case):
    row, outcome = case
    for visible in (outcome.visible, outcome.visible_again):
        assert set(visible.values()) <= {"before", "after"}
    assert (outcome.visible.get("main") == "after") is row.completes


def test_pushing_again_completes_the_run_in_one_commit_and_sends_nothing_twice(case):
    row, found = case
    assert "error" not in found.again
    assert found.visible_again["main"] == "after"
    upload, *before = found.titles_again
    assert upload.startswith("Upload run-")
    assert before == (["initial commit"] if row.is_new else ["first run", "initial commit"])
    assert not found.sent_twice or row.may_send_again
    if row.order.get("moment") != "reply" or row.where not in (*IN_STORAGE, *BY_XET):
        assert len(found.sent_at_first) == len(set(found.sent_at_first))


def test_twenty_of_the_faults_are_kills_at_different_moments():
    assert len({(row.where, row.fault, row.is_new) for row in ROWS if row.is_kill}) >= 20


@pytest.mark.slow
def test_a_hundred_kills_at_random_moments_leave_the_old_run_or_the_new_one(tmp_path):
    chance, counts = random.Random(7), Counter()
    hub = LocalHub(tmp_path / "hub", "--part-size", str(PART_SIZE))
    case, number, seconds = None, 0, None
    try:
        with ForkedPushes(hub, tmp_path / "home") as pushes:
            while counts["killed"] < 100:
                if case is None:
                    case, number, sent = Case(ROWS[0], number, tmp_path), number + 1, len(hub.requests())
                    case.commit_old(hub)
                ends = {} if seconds is None else {"ends_after": chance.uniform(0, seconds)}
                (found,) = pushes([case.order() | ends])
                seconds = seconds or found["seconds"]
                was_killed = found["status"] == -signal.SIGALRM
                assert was_killed or found["status"] == 0, found["log"]
                counts["killed"] += was_killed
                visible = case.visible(hub)
                assert set(visible.values()) <= {"before", "after"}, visible
                counts[visible["main"]] += was_killed
                if visible["main"] == "after" or counts["killed"] == 100:
                    (again,) = pushes([case.order()])
                    assert again["status"] == 0
                    assert case.visible(hub)["main"] == "after"
                    assert len(hub.titles(case.repo)) == 3, "one commit, however often it was killed"
                    arrived = [name for name, _ in uploads(hub.requests()[sent:])]
                    assert len(arrived) == len(set(arrived)), "what had arrived is not sent again"
                    counts["finished"] += 1
                    case = None
    finally:
        hub.stop()
    print("push", dict(counts))
    assert counts["before"] > 20


def test_a_full_disk_of_the_cache_is_one_line_and_pulling_again_completes(local_hub, small_disk, tmp_path):
    disk = small_disk("1m")
    processes.random(300, 300, alpha=0.5, seed=1).save_pretrained(tmp_path / "hmm")
    local_hub.child(PUSH, tmp_path / "home", tmp_path / "hmm", "tester/large-hmm", "{}")
    code, said = local_hub.child(PULL, disk)
    assert code == 2
    assert said.startswith("error: ")
    assert "no room left on the disk" in said
    small_disk("20m")
    assert local_hub.child(PULL, disk) == 300


@pytest.mark.parametrize(("xet", "said"), [("1", "the disk of the server is full"), (None, "(413 ")])
def test_a_full_disk_of_the_server_is_one_line_and_pushing_again_completes(
    warm_python, small_disk, folder, tmp_path, xet, said
):
    disk = small_disk("1m")
    hub = LocalHub(disk / "hub", "--part-size", str(2**20), python=warm_python)
    try:
        found = hub.child(PUSH, tmp_path / "home", folder, "tester/big", "{}", HF_HUB_DISABLE_XET=xet)
        assert said in found["error"]
        assert hub.titles("tester/big") == ["initial commit"]
        small_disk("20m")
        assert hub.child(PUSH, tmp_path / "home", folder, "tester/big", "{}")["files"] == len(contents(folder))
        assert json.dumps(hub.titles("tester/big")[1:]) == '["initial commit"]'
    finally:
        hub.stop()
