"""What is compared between ranks, on reports made up for it."""

import pytest

from hmm_datasets.operations.preflight.network import check_links
from hmm_datasets.operations.preflight.report import (
    Check,
    MissingRank,
    RankReport,
    check_gpus_are_separate,
    check_output_is_shared,
    check_versions_agree,
    count_failures,
    format_ranks,
    format_report,
)
from hmm_datasets.runtime.process_identity import Place


def report(rank, *, per_host=2, kind="H200", checks=(), uuid=None, **facts):
    """A report of a rank of a cluster with some GPUs on each host."""
    place = Place(
        rank=rank,
        world_size=8,
        local_rank=rank % per_host,
        host=f"node{rank // per_host}",
        process=1000 + rank,
        machine="boot",
        process_started=1.0,
        device=f"cuda:{rank % per_host} {kind}",
        uuid=uuid or f"GPU-{rank:08x}-0000",
    )
    return RankReport(place, list(checks), facts)


def test_the_host_whose_version_differs_is_named_with_both_versions():
    reports = [report(rank, versions={"torch": "2.13.0", "driver": "570"}) for rank in range(8)]
    assert check_versions_agree(reports).ok
    reports[5] = report(5, versions={"torch": "2.12.0", "driver": "570"})
    check = check_versions_agree(reports)
    assert not check.ok
    assert "torch is 2.12.0 on node2 (rank 5), but 2.13.0 on node0 (rank 0-1), node1 (rank 2-3)" in check.detail
    assert "driver" not in check.detail
    assert check.ranks == (5,)


@pytest.mark.outside(
    "https://github.com/NVIDIA/Megatron-LM/issues/661",
    "to know why NCCL detects a duplicate GPU",
    "`preflight` names the ranks, the GPU by its UUID, the host and the remedy",
)
def test_two_ranks_on_one_gpu_are_named():
    reports = [report(rank) for rank in range(4)]
    assert check_gpus_are_separate(reports).ok
    reports[3] = report(3, uuid="GPU-00000002-0000")
    check = check_gpus_are_separate(reports)
    assert not check.ok
    assert "ranks 2-3 are all on cuda:0 H200 (GPU-00000002-0000) of node1" in check.detail


def test_a_host_that_does_not_see_the_output_folder_is_named():
    reports = [report(0), report(2, sees_output=True, output="/run"), report(4, sees_output=False, output="/run")]
    check = check_output_is_shared(reports)
    assert not check.ok
    assert check.detail.startswith("node2 (rank 4) does not see the file that rank 0 wrote into /run")


def ring(world, rate):
    return {rank: {(rank + 1) % world: rate(rank, (rank + 1) % world)} for rank in range(world)}


def test_a_host_all_of_whose_links_are_slow_is_named():
    reports = [report(rank) for rank in range(8)]
    links = ring(8, lambda one, other: 9e9 if one // 2 == other // 2 else 1e9 if 2 in (one // 2, other // 2) else 5e9)
    check = check_links(reports, links)
    assert (check.warning, check.detail) == (True, "every link of node2 is slow, 1.00 GB/s where others have 5.00")


def test_a_single_slow_link_is_named_with_both_ends():
    reports = [report(rank) for rank in range(8)]
    links = ring(8, lambda one, other: 1e9 if (one, other) == (2, 3) else 9e9)
    detail = check_links(reports, links).detail
    assert detail.startswith("the link between rank 2 on node1, cuda:0 H200")
    assert "and rank 3 on node1" in detail
    assert not check_links(reports, ring(8, lambda one, other: 9e9)).warning


def test_ranks_are_written_as_ranges():
    assert format_ranks([3, 0, 1, 2, 7, 9, 10]) == "0-3, 7, 9-10"


def test_a_report_of_384_ranks_has_a_line_per_host_and_one_for_each_culprit():
    reports = [report(rank, per_host=8, checks=[Check("device", True, f"cuda:{rank % 8}")]) for rank in range(383)]
    reports[77].checks.append(Check("device memory", False, "3 words; take it out of use"))
    lost = MissingRank(383, reports[383 - 1].place, "rank 383 on node47: did not end")
    text = format_report(reports, [], [lost])
    lines = text.splitlines()
    assert len(lines) < 70
    assert sum(line.endswith("  ok") for line in lines) == 48
    (line,) = [line for line in lines if line.startswith("77 ")]
    assert line.split() == ["77", "node9", "cuda:5", "H200", "(GPU-0000004d-0000)", "FAIL", "device", "memory"]
    assert (
        "FAIL  rank 77 on node9, cuda:5 H200 (GPU-0000004d-0000): device memory: 3 words; take it out of use" in lines
    )
    assert "FAIL  rank 383 on node47: did not end" in lines
    assert lines[-1] == "preflight of 384 ranks on 48 hosts: 2 failures"
    assert count_failures(reports, [], [lost]) == 2


def test_the_same_failure_of_many_ranks_is_one_line():
    reports = [report(rank, per_host=8) for rank in range(384)]
    for one in reports:
        one.checks.append(Check("all-reduce", False, f"no result in 60 s; port {5000 + one.place.rank}"))
    lines = [line for line in format_report(reports, [], []).splitlines() if line.startswith("FAIL")]
    assert lines == [
        "FAIL  node0 (rank 0-7), node1 (rank 8-15), node2 (rank 16-23), node3 (rank 24-31) and 44 other hosts: "
        "all-reduce: no result in 60 s; port 5000 (and 383 more)"
    ]
