"""What is compared between ranks, on reports made up for it."""

from dataclasses import replace

import pytest

from hmm_datasets.operations.preflight.report import (
    Check,
    RankReport,
    check_gpus_are_separate,
    check_versions_agree,
    count_failures,
    format_ranks,
    format_report,
)
from hmm_datasets.runtime.process_identity import Place


def report(rank, *, per_host=2, kind="H200", checks=(), uuid=None, versions=()):
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
    return RankReport(place, list(checks), dict(versions))


def test_the_host_whose_version_differs_is_named_with_both_versions():
    reports = [report(rank, versions={"torch": "2.13.0", "driver": "570"}) for rank in range(8)]
    assert check_versions_agree(reports).ok
    reports[5] = report(5, versions={"torch": "2.12.0", "driver": "570"})
    check = check_versions_agree(reports)
    assert not check.ok
    assert "torch is 2.12.0 on node2 (rank 5), but 2.13.0 on node0 (rank 0-1), node1 (rank 2-3)" in check.detail
    assert "driver" not in check.detail


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
    assert (
        "cuda:0 H200 (GPU-00000002-0000) has 2 ranks, node1 (rank 2-3); give each rank its own LOCAL_RANK"
        in check.detail
    )


def test_ranks_are_written_as_ranges():
    assert format_ranks([3, 0, 1, 2, 7, 9, 10]) == "0-3, 7, 9-10"


def test_a_report_of_384_ranks_has_a_line_per_device_and_one_for_each_culprit():
    reports = [
        report(rank, per_host=8, checks=[Check("device", True, f"cuda:{rank % 8} H{200 if rank < 376 else 100}")])
        for rank in range(383)
    ]
    reports[77].checks.append(Check("device memory", False, "3 words; take it out of use"))
    reports.append(report(383, per_host=8, checks=[Check("answer", False, "process 1383 did not end")]))
    text = format_report(reports, [])
    assert text.splitlines() == [
        "ok    device: cuda:0 H200 (and 375 more); "
        "node0 (rank 0-7), node1 (rank 8-15), node2 (rank 16-23), node3 (rank 24-31) and 43 other hosts",
        "ok    device: cuda:0 H100 (and 6 more); node47 (rank 376-382)",
        "FAIL  rank 77 on node9, cuda:5 H200 (GPU-0000004d-0000): device memory: 3 words; take it out of use",
        "FAIL  rank 383 on node47, cuda:7 H200 (GPU-0000017f-0000): answer: process 1383 did not end",
        "",
        "preflight of 384 ranks on 48 hosts: 2 failures",
    ]
    assert count_failures(reports, []) == 2


def test_the_device_of_one_process_that_fails_is_named():
    reports = [replace(report(0), place=replace(report(0).place, device=f"cuda:{index} H200")) for index in range(4)]
    reports[2].checks.append(Check("device", False, "cuda:2 fails"))
    assert "FAIL  rank 0 on node0, cuda:2 H200 (GPU-00000000-0000): device: cuda:2 fails" in format_report(reports, [])


def test_the_same_failure_of_many_ranks_is_one_line():
    reports = [report(rank, per_host=8) for rank in range(384)]
    for one in reports:
        one.checks.append(Check("all-reduce", False, f"no result in 60 s; port {5000 + one.place.rank}"))
    lines = [line for line in format_report(reports, []).splitlines() if line.startswith("FAIL")]
    assert lines == [
        "FAIL  node0 (rank 0-7), node1 (rank 8-15), node2 (rank 16-23), node3 (rank 24-31) and 44 other hosts: "
        "all-reduce: no result in 60 s; port 5000 (and 383 more)"
    ]
