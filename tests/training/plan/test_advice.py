"""What `hmm-datasets plan --devices` advises: what fits, by the numbers of the plan, and the fastest of it."""

import math

import pytest

from hmm_datasets.cli import main
from hmm_datasets.errors import InputError
from hmm_datasets.hmm import processes
from hmm_datasets.operations.planning import advise, plan_recipe
from hmm_datasets.training.plan.accelerators import Device, find_device
from hmm_datasets.training.plan.forecast import memory_per_rank
from hmm_datasets.training.plan.sharding_strategies import (
    USABLE,
    Job,
    last_data_parallel,
    linear_activations,
    options,
    reason,
)

G = 10**9
SMALL = Device("small", 1e14, 1e14, 20 * G, 1e11)


def job(
    parameters=G,
    batch=64,
    activations=lambda micro, recomputes, sharded: micro * (G if recomputes else 4 * G),
    **given,
):
    defaults = {"largest_layer": parameters // 32, "flops_per_token": 6 * parameters, "row_length": 2048}
    return Job(
        parameters=parameters,
        global_batch_size=batch,
        batch_divisor=given.pop("batch_divisor", batch),
        low_precision=True,
        moments=2,
        reduces_once=True,
        activations=activations,
        **defaults | given,
    )


def test_all_that_fits_is_offered_and_nothing_else():
    found = {(one.strategy, one.micro_batch_size, one.recomputes): one for one in options(job(), SMALL, 8)}
    for strategy in ("ddp", "zero1", "zero2", "zero3", "fsdp2"):
        for micro in (1, 2, 4, 8):
            for recomputes in (False, True):
                memory = memory_per_rank(
                    strategy,
                    parameters=G,
                    world_size=8,
                    activations=micro * (G if recomputes else 4 * G),
                    largest_layer=G // 32,
                    low_precision=True,
                    reduces_once=micro < 8,  # which are all rows of a rank
                ).total
                assert ((strategy, micro, recomputes) in found) == (memory <= USABLE * 20 * G)
                if (strategy, micro, recomputes) in found:
                    assert found[strategy, micro, recomputes].memory == memory
    assert ("ddp", 1, True) not in found
    assert {micro for _, micro, _ in found} <= {1, 2, 4, 8}, "rows of a rank"
    host = found["zero2_offload", 1, True]
    assert host.host_memory == 12 * G // 8
    assert host.memory == found["zero2", 1, True].memory - host.host_memory
    nvme = found["zero3_nvme", 1, True]
    assert (nvme.nvme, nvme.host_memory) == ((2 + 12) * G // 8, 2_600_000_000)
    assert nvme.memory == found["zero3_offload", 1, True].memory == found["zero3", 1, True].memory - nvme.nvme


@pytest.mark.launch
def test_a_growing_batch_needs_work_for_all_ranks_from_its_first_step_on():
    """The run of tr1 on 32 ranks was recommended, and refused when it was started."""
    ramp = job(batch=1024, batch_divisor=16)
    assert options(ramp, SMALL, 16)
    assert options(ramp, SMALL, 32) == []
    assert "batch_ramp has batches of 16 rows" in reason(ramp, SMALL, 32)
    found = advise(
        "recipes/experiments/tr1/13b.yaml", devices=["H100"], ranks=[16, 32], models=["1m"], assumed_vocab_size=1_000
    )
    assert [("strategy" in row, row["ranks"]) for row in found] == [(True, 16), (False, 32)]


def test_a_step_is_estimated_by_computing_and_by_the_bytes_that_a_rank_receives():
    work = job()
    found = {(one.strategy, one.micro_batch_size, one.recomputes): one for one in options(work, SMALL, 8, mfu=0.5)}
    computing = 6 * G * 2048 * 64 / 8 / 0.5e14
    plain = found["zero1", 2, False]
    assert plain.computing == pytest.approx(computing)
    assert plain.communicating == pytest.approx(7 / 8 * 2 * 2 * G / 1e11)
    assert plain.seconds == max(plain.computing, plain.communicating)
    assert found["zero1", 2, True].computing == pytest.approx(computing * 4 / 3)
    assert found["zero2", 2, False].communicating == pytest.approx(7 / 8 * 2 * G * (4 + 1) / 1e11)
    for strategy in ("zero3", "fsdp2"):
        assert found[strategy, 2, False].communicating == pytest.approx(7 / 8 * 2 * G * 3 * 4 / 1e11)
    (large,) = {one.communicating for one in options(job(G // 10), SMALL, 8) if one.strategy == "ddp"}
    assert large == pytest.approx(7 / 8 * 8 * G / 10 / 1e11)
    (between,) = {one.communicating for one in options(work, SMALL, 64, network=1e10) if one.strategy == "zero1"}
    assert between == pytest.approx(63 / 64 * 2 * 2 * G / 1e10), "more than one machine"


def test_the_fastest_comes_first_and_offloading_last():
    found = options(job(), SMALL, 8)
    on_device = [one for one in found if not one.host_memory]
    assert [one.seconds for one in on_device] == sorted(one.seconds for one in on_device)
    assert (found[0].strategy, found[0].recomputes) == ("zero1", False)
    assert found[0].micro_batch_size == 2, "the largest that fits without recomputing"
    assert all(one.host_memory and math.isnan(one.seconds) for one in found[len(on_device) :])
    assert len(on_device) < len(found)
    # On a slow link gathering the weights for every micro-batch costs more than recomputing for larger ones.
    tight = job(5 * G, activations=lambda micro, recomputes, sharded: micro * (G // 2 if recomputes else 3 * G))
    slow = options(tight, Device("slow", 1e14, 1e14, 24 * G, 1e9), 8)[0]
    assert (slow.strategy, slow.recomputes) == ("zero3", True)


def test_it_says_why_nothing_fits_and_what_to_do():
    assert options(job(100 * G), SMALL, 8) == []
    assert "its states do not fit on 8; they do on 512 (zero3)" in reason(job(100 * G, 1024), SMALL, 8)
    assert "with data parallelism alone: split layers" in reason(job(100 * G), SMALL, 8)
    # Two gathered layers take 12.5 GB; with them a row of 4 GB fits, and neither one of 6 GB nor two of 4 GB.
    row = [job(100 * G, 1024, activations=lambda micro, *_, size=size: micro * size * G) for size in (4, 6)]
    assert "they do on 1024 (zero3)" in reason(row[0], SMALL, 8)
    assert reason(row[1], SMALL, 8).startswith("one row and one gathered layer do not fit")
    wide = job(activations=lambda micro, recomputes, sharded: 30 * G)
    assert reason(wide, SMALL, 8).startswith("one row and one gathered layer do not fit")
    assert "64 rows per step are less than one for each rank; use fewer ranks" in reason(job(), SMALL, 128)
    assert "64 rows per step cannot be divided among 12 ranks" in reason(job(), SMALL, 12)
    assert options(job(), SMALL, 128) == options(job(), SMALL, 12) == []


@pytest.mark.parametrize("network", [1e12, 2.5e10, 1e10, 3e9, 1e9, 1e8, 1e7])
@pytest.mark.parametrize("batch", [64, 96])
def test_data_parallelism_ends_where_communicating_takes_longer_than_computing(batch, network):
    """Of a billion parameters in bfloat16, ZeRO 1 and 2 receive 4 bytes each, and DDP does not fit; by hand."""
    work = job(batch=batch, activations=lambda *_: 0)

    def seconds(ranks):
        link = 1e11 if ranks <= 8 else min(network, 1e11)
        return 4 * G * (ranks - 1) / ranks / link, 6 * G * 2048 * batch / ranks / (0.5 * 1e14)

    ends = [ranks for ranks in range(1, batch + 1) if batch % ranks == 0 and seconds(ranks)[0] <= seconds(ranks)[1]]
    ranks, why = last_data_parallel(work, SMALL, mfu=0.5, network=network)
    assert ranks == ends[-1]
    if ranks == batch:
        assert why == f"each has one of the {batch} rows that divide a step"
    else:
        following = next(number for number in range(ranks + 1, batch + 1) if batch % number == 0)
        communicating, computing = (f"{value:.2g} s" for value in seconds(following))
        assert why.startswith(f"on {following}, a step of zero")
        assert why.endswith(f"communicates for {communicating} and computes for {computing}")


def test_without_a_device_rows_end_data_parallelism_and_a_row_that_does_not_fit_forbids_it():
    assert last_data_parallel(job(batch=1024, batch_divisor=16)) == (
        16,
        "each has one of the 16 rows that divide a step",
    )
    ranks, why = last_data_parallel(job(activations=lambda *_: 30 * G), SMALL)
    assert (ranks, why) == (
        0,
        "not even on 64 ranks do states and activations fit (--devices tries other micro-batches)",
    )
    # Where its states fit, on 512 ranks and more, a step of 1,024 rows communicates longer than it computes.
    ranks, why = last_data_parallel(job(100 * G, 1024), SMALL, network=1e9)
    assert ranks == 0
    assert why.startswith("on 512, a step of")


def test_activations_are_measured_twice_for_each_choice():
    calls = []

    def measure(micro, recomputes, sharded):
        calls.append((micro, recomputes, sharded))
        return 100 - 50 * sharded + micro * (10 if recomputes else 40)

    activations = linear_activations(measure)
    assert [activations(micro, False, False) for micro in (1, 2, 8)] == [140, 180, 420]
    assert activations(8, True, True) == 130
    assert calls == [(1, False, False), (16, False, False), (1, True, True), (16, True, True)]


@pytest.fixture
def file(tmp_path):
    processes.mess3(0.15, 0.6).save_pretrained(tmp_path / "hmm")
    content = {"hmm": tmp_path / "hmm", "length": 63, "model": "1m", "train_tokens": 10_000_000, "bf16": "true"}
    content |= {"global_batch_size": 64, "per_device_train_batch_size": 4, "output_dir": tmp_path / "run"}
    path = tmp_path / "pretrain.yaml"
    path.write_text("".join(f"{name}: {value}\n" for name, value in content.items()))
    return str(path)


@pytest.mark.launch
def test_a_recipe_is_advised_with_the_numbers_of_its_plan(file, capsys):
    found = advise(file, ["--price_per_hour", "2"], devices=["H100", "T4"], models=["1m"], ranks=[1, 8, 7])
    assert [(row["model"], row["device"], row["ranks"]) for row in found] == [
        (model, device, ranks) for model in ("1m",) for device in ("H100 SXM", "T4") for ranks in (1, 8, 7)
    ]
    flags = ["--model", "1m", "--assumed_rate", "H100", "--per_device_train_batch_size", "64"]
    plan = plan_recipe(file, flags)
    row = next(row for row in found if (row["model"], row["device"], row["ranks"]) == ("1m", "H100 SXM", 1))
    assert (row["strategy"], row["micro_batch_size"], row["recomputes"]) == ("ddp", 64, False)
    assert row["parameters"] == plan["parameters"]
    assert row["memory"] == pytest.approx(plan["memory"]["ddp"]["total"], rel=0.02)
    assert row["hours"] == pytest.approx(plan["time"]["seconds"] / 3600)
    assert row["cost"] == pytest.approx(2 * row["hours"])
    assert "cannot be divided among 7 ranks" in found[2]["reason"]
    assert main(["plan", file, "--models", "1m", "--devices", "H100", "A100", "--ranks", "1", "7"]) == 0
    printed = capsys.readouterr().out
    assert "H100 SXM" in printed
    assert "none [1]" in printed
    assert "[1] 64 rows per step cannot be divided among 7 ranks" in printed
    for unknown in ("X9", "X9:0.3", "H200:0.3:cheap", "TPU v3-32", "H200:0.3:1:1"):
        with pytest.raises(InputError, match=f"device '{unknown}' is unknown; expected .* as in H200:0.5:2.5"):
            advise(file, devices=[unknown])


@pytest.mark.launch
def test_each_device_has_its_share_of_the_peak_and_its_price(file):
    """Hours follow from them, by hand: 6 N and attention per token; a T4 counts with its peak in float16."""
    devices = {"T4:0.3:0.35": 0.3 * 65e12, "H200:0.43": 0.43 * 989.4e12, "TPU v3-8": 0.25 * 492e12}
    found = advise(file, ["--assumed_rate", "H100:0.25", "--price_per_hour", "3"], devices=list(devices))
    plan = plan_recipe(file)
    hours = [plan["flops"] / rate / 3600 for rate in devices.values()]
    assert [row["hours"] for row in found] == pytest.approx(hours)
    assert [row["mfu"] for row in found] == [0.3, 0.43, 0.25]
    prices = [0.35, 3, 3]
    assert [row["cost"] for row in found] == pytest.approx([a * b for a, b in zip(prices, hours, strict=True)])


def test_devices_have_the_memory_and_links_of_their_data_sheets():
    assert (find_device("NVIDIA H200").memory, find_device("NVIDIA H200").link) == (141 * G, 450 * G)
    assert (find_device("Tesla T4").memory, find_device("A100").memory) == (16 * G, 80 * G)


def test_names_of_tpus_are_those_that_people_and_drivers_write():
    """Peaks of a chip in bfloat16, as Google's pages on their architectures have them."""
    chips = {"v4": 275, "v5e": 197, "v5 lite": 197, "v5e-1": 197, "v5p": 459, "v6e": 918, "v6 lite": 918}
    for name, peak in chips.items():
        assert find_device(f"TPU {name}").bf16 == find_device(f"TPU{name}").bf16 == peak * 1e12
    for host, part, parts in (("v2-8", "v2", 8), ("v3-8", "v3", 8), ("v5e-8", "v5e", 8)):
        whole, one = find_device(f"TPU {host}"), find_device(f"TPU {part}")
        assert (whole.bf16, whole.memory) == (parts * one.bf16, one.memory), "each part has all weights"
    assert find_device("TPU v3-32") is find_device("TPU v6e-16") is find_device("TPU v9") is None
    assert (find_device("TPU v3").peak("fp16"), find_device("T4").peak("bf16")) == (61.5e12, 65e12)
    for name in ("Tesla T4", "Tesla V100-SXM2-32GB", "Tesla P100-PCIE-16GB"):  # no TF32: 8, 8 and 2 times slower
        device = find_device(name)
        assert device.fp16 / device.peak("fp32") == pytest.approx(2 if "P100" in name else 8, rel=0.02)
    assert find_device("H100").peak("fp32") == find_device("H100").peak("bf16")
    boards = map(find_device, ("V100", "V100 PCIe", "Tesla V100-SXM2-16GB"))
    assert [board.peak("fp16") for board in boards] == [125e12, 112e12, 125e12]
