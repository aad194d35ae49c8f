"""How a program of several processes ends."""

import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from hmm_datasets.errors import InputError, LostPeer, RankError
from hmm_datasets.runtime.command_line import named_setting
from hmm_datasets.runtime.one_line_errors import one_line_errors
from hmm_datasets.runtime.program import _one_line_of_lost_peers

SCRIPT = """
import atexit, sys
from hmm_datasets.errors import InputError, LostPeer, RankError
from hmm_datasets.runtime.one_line_errors import one_line_errors
from hmm_datasets.runtime.program import exit_without_teardown

class Teardown:
    def __del__(self, say=sys.stderr.write):
        say("torn down")

with exit_without_teardown(), one_line_errors():
    atexit.register(lambda: print("handler ran"))
    sys.kept_to_the_end = Teardown()
    print("buffered", end=" ")
    {ending}
"""


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("ending", "code"),
    [("pass", 0), ("raise InputError('bad')", 2), ("raise RuntimeError('bug')", 1), ("sys.exit()", 0)],
)
@pytest.mark.parametrize("world_size", ["1", "2"])
def test_one_of_several_processes_ends_with_its_code_before_python_is_torn_down(
    ending, code, world_size, child_environment
):
    result = subprocess.run(
        [sys.executable, "-c", SCRIPT.format(ending=ending)],
        env=child_environment | {"WORLD_SIZE": world_size, "RANK": "0"},
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert result.returncode == code, result.stderr
    assert result.stdout == "buffered handler ran\n"
    assert ("torn down" in result.stderr) == (world_size == "1")
    assert ("error: bad" in result.stderr) == (code == 2)
    assert ("RuntimeError: bug" in result.stderr) == (code == 1)


FAILING = """
import os, sys
from dataclasses import dataclass
from hmm_datasets.errors import InputError
from hmm_datasets.runtime.program import run

@dataclass
class Settings:
    pass

def main(settings: Settings):
    import torch
    from accelerate import PartialState
    state = PartialState(cpu=True)
    if state.process_index == 1:
        raise InputError("data.txt: no such file; name another")
    torch.distributed.all_reduce(torch.ones(1))

if __name__ == "__main__":
    run(main)
"""


def on_two_ranks(launch, folder, program: str):
    """What two CPU processes that accelerate has launched print and return for a program."""
    script = folder / "program.py"
    script.write_text(program)
    config = Path(__file__).parents[2] / "accelerate_configs" / "cpu2.yaml"
    return launch("accelerate.commands.accelerate_cli", "launch", "--config_file", config, script)


def test_an_error_of_one_rank_is_printed_once_and_last(launch, tmp_path):
    said = on_two_ranks(launch, tmp_path, FAILING).stderr
    lines = said.splitlines()
    expected = f"error: rank 1 on {socket.gethostname()}: data.txt: no such file; name another"
    assert [line for line in lines if "error: " in line] == [expected]
    assert "lost another process" not in said
    assert lines[-1].strip("=") == "", "the end of the launcher's own report"
    assert lines[-2] == expected


ALONE = """
import time
from dataclasses import dataclass
from datetime import timedelta
from hmm_datasets.runtime.program import run

@dataclass
class Settings:
    pass

def main(settings: Settings):
    import torch
    from accelerate import PartialState
    state = PartialState(cpu=True, timeout=timedelta(seconds=2))
    torch.distributed.all_reduce(torch.ones(1))
    if state.process_index == 0:
        time.sleep(5)
        print("answered")

if __name__ == "__main__":
    run(main)
"""


@pytest.mark.thorough
def test_rank_0_may_work_alone_for_longer_than_a_barrier_waits(launch, tmp_path):
    result = on_two_ranks(launch, tmp_path, ALONE)
    assert result.returncode == 0, result.stderr[-3000:]
    assert "answered" in result.stdout


def ending_of(error, monkeypatch, capsys, **environment):
    """What a rank says that ends by an error, and whether it waited first."""
    waited = []
    monkeypatch.setattr("time.sleep", waited.append)
    for name in ("RANK", "WORLD_SIZE", "TORCHELASTIC_ERROR_FILE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(SystemExit) as stop, one_line_errors(), _one_line_of_lost_peers():
        raise error
    assert stop.value.code == 2
    return capsys.readouterr().err, bool(waited)


@pytest.mark.parametrize("rank", ["0", "1"])
def test_a_rank_that_lost_another_names_itself_once_after_waiting_for_its_own_end(monkeypatch, capsys, rank):
    error = RuntimeError("Connection closed by peer [10.0.0.1]:8089\nmore")
    said, waited = ending_of(error, monkeypatch, capsys, RANK=rank, WORLD_SIZE="2")
    assert said.startswith(f"error: rank {rank} on {socket.gethostname()}: lost another process (Connection closed")
    assert said.count(f"rank {rank} on") == said.count(socket.gethostname()) == said.count("\n") == 1
    assert waited


def nccl(kind, code, last):
    """An error of NCCL as torch 2.13 gives it."""
    place = "/pytorch/torch/csrc/distributed/c10d/NCCLUtils.hpp:268"
    return f"NCCL error in: {place}, {kind}, NCCL version 2.21.5\n{code}\nLast error:\n{last}"


NCCL_REMOTE = nccl(
    "remote process exited or there was a network error",
    "ncclRemoteError: A call failed possibly due to a network error or a remote process exiting prematurely.",
    "socketProgressOpt: Call to recv from 10.1.0.7<33759> failed : Connection reset by peer",
)
SYSTEM = "unhandled system error (run with NCCL_DEBUG=INFO for details)"
SYSTEM_CODE = "ncclSystemError: System call (e.g. socket, malloc) or external library call failed or device error."
INTERNAL = ("internal error", "ncclInternalError: Internal check failed.")
WATCHDOG = (
    "[PG ID 0 PG GUID 0(default_pg) Rank 3] Process group watchdog thread terminated with exception: [Rank 3] "
    "Watchdog caught collective operation timeout: WorkNCCL(SeqNum=199, OpType=ALLREDUCE, NumelIn=7098994688, "
    "NumelOut=443687168, Timeout(ms)=600000) ran for 600074 milliseconds before timing out.\nException raised from "
    "checkTimeout at /pytorch/torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:632 (most recent call first):\n"
    "frame #0: c10::Error::Error(c10::SourceLocation, std::string) + 0x96 (0x7f83f296c1b6 in libc10.so)"
)
ABORTED = (
    "NCCL communicator was aborted on rank 1.\nOriginal reason for failure was: "
    "NCCL error: remote process exited or there was a network error, NCCL version 2.19.3"
)
STORE = (
    "[3] is setting up NCCL communicator and retrieving ncclUniqueId from [0] via c10d key-value store by "
    "store->get('0'), but store->get('0') got error: Failed to recv, got 0 bytes. Connection was likely closed. "
    "Did the remote server shutdown or crash?\nException raised from recvBytes at Utils.hpp:678"
)
GLOO = (
    "rank 0 lost its pair\n[/gloo/transport/tcp/pair.cc:553] Connection closed by peer [10.1.0.7]:1. This is typically"
)


@pytest.mark.parametrize(
    ("trace", "reason"),
    [
        (NCCL_REMOTE, "remote process exited or there was a network error"),
        (nccl(SYSTEM, SYSTEM_CODE, "Net : Call to recv from 10.1.0.7<583> failed : Broken pipe"), SYSTEM),
        (nccl(*INTERNAL, "Net : Connection closed by remote peer node7<502>"), "(Net : Connection closed by remote"),
        (
            nccl(*INTERNAL, "NET/IB : Got completion from peer 10.1.0.7<385> with status=12"),
            "(NET/IB : Got completion",
        ),
        (WATCHDOG, "Watchdog caught collective operation timeout"),
        (ABORTED, "(NCCL communicator was aborted on rank 1."),
        (STORE, "Failed to recv, got 0 bytes"),
        (GLOO, "(Connection closed by peer [10.1.0.7]:1)"),
    ],
)
@pytest.mark.parametrize(
    "kind", [RuntimeError, torch.distributed.DistBackendError, torch.distributed.DistNetworkError]
)
def test_a_lost_peer_is_recognised_on_any_line_of_a_trace(trace, reason, kind, monkeypatch, capsys):
    said, waited = ending_of(kind(trace), monkeypatch, capsys, RANK="1", WORLD_SIZE="4")
    assert "lost another process (" in said
    assert reason in said
    assert said.count("\n") == 1
    assert waited


@pytest.mark.parametrize(
    "trace",
    [
        f"CUDA error: uncorrectable ECC error encountered\nmore of it\n{NCCL_REMOTE}",
        nccl(SYSTEM, SYSTEM_CODE, "Error while creating shared memory segment /dev/shm/nccl-yHqWBx (size 9637888)"),
        nccl("unhandled cuda error", "ncclUnhandledCudaError: Call failed.", "Cuda failure 2 'out of memory'"),
        "Data processing error: CAS service error : Reqwest Error: Connection reset by peer (os error 104)",
        "The size of tensor a (3) must match the size of tensor b (4)",
    ],
)
def test_a_fault_of_its_own_is_no_lost_peer(trace, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "4")
    with pytest.raises(RuntimeError) as raised, _one_line_of_lost_peers():
        raise torch.distributed.DistBackendError(trace)
    assert str(raised.value) == trace


@_one_line_of_lost_peers()
def lose_a_peer_while_leaving_after(first):
    try:
        raise first
    finally:
        raise torch.distributed.DistBackendError(NCCL_REMOTE)


@pytest.mark.parametrize(
    "own", [torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."), RankError("the loss is nan")]
)
def test_the_fault_of_a_rank_is_raised_if_it_lost_a_peer_while_it_left(own, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "4")
    with pytest.raises(type(own)) as raised:
        lose_a_peer_while_leaving_after(own)
    assert raised.value is own


def test_a_handled_error_before_is_no_fault(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "4")
    with pytest.raises(LostPeer):
        lose_a_peer_while_leaving_after(KeyError("missing"))


def test_a_loss_that_is_not_finite_is_reported_with_rank_and_host_even_for_rank_0(monkeypatch, capsys):
    said, waited = ending_of(RankError("step 3: the loss is nan"), monkeypatch, capsys, WORLD_SIZE="2", RANK="0")
    assert said == f"error: rank 0 on {socket.gethostname()}: step 3: the loss is nan\n"
    assert not waited


def test_an_error_is_printed_where_no_launcher_reports_it(monkeypatch, capsys, tmp_path):
    reported = {"TORCHELASTIC_ERROR_FILE": str(tmp_path / "error.json")}
    said, waited = ending_of(InputError("bad"), monkeypatch, capsys, WORLD_SIZE="2", RANK="0")
    assert (said, waited) == ("error: bad\n", False)
    restarts = {"TORCHELASTIC_RESTART_COUNT": "0", "TORCHELASTIC_MAX_RESTARTS": "3"}
    said, _ = ending_of(InputError("bad"), monkeypatch, capsys, WORLD_SIZE="2", **reported, **restarts)
    assert said == "error: bad\n"
    said, _ = ending_of(InputError("bad"), monkeypatch, capsys, WORLD_SIZE="2", TORCHELASTIC_ERROR_FILE="/no/such/x")
    assert said == "error: bad\n"


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([], None),
        (["--output_dir", "a", "--output_dir=b"], "b"),
        (["--output-dir", "a"], "a"),
        (["--config", "FILE"], "runs/from file"),
        (["--config=FILE", "--output_dir", "c"], "c"),
        (["--config", "nowhere.yaml"], None),
        (["--config"], None),
        (["--config", "demo/pretrain_hmm.yaml"], "outputs/demo/pretrain_hmm"),
    ],
)
def test_the_folder_of_a_run_is_known_before_anything_is_imported(arguments, expected, tmp_path):
    path = tmp_path / "settings.yaml"
    path.write_text("output_dir: runs/from file\nlearning_rate: 1\n")
    assert named_setting([word.replace("FILE", str(path)) for word in arguments], "output_dir") == expected
