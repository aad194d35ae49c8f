"""What is read from the output of nvidia-smi; the lines are in the format that its manual describes."""

import os

import pytest
import torch

from hmm_datasets.operations.preflight.device import (
    check_device,
    foreign,
    gpu_processes,
    gpu_states,
    parse_process,
    parse_state,
    state_check,
)

LINE = "GPU-5c1e4ae7-0000-1111-2222-333344445555, 570.86.15, 1980, 1980, 45, 0, 0x0000000000000000"


def test_a_gpu_that_computes_at_its_full_clock_is_fine():
    check = state_check(parse_state(LINE), [])
    assert check.ok
    assert not check.warning
    assert check.detail == "1980 of 1980 MHz, 45 °C, driver 570.86.15"


def test_a_gpu_slowed_by_heat_is_a_warning_and_one_limited_by_its_power_is_not():
    check = state_check(parse_state(LINE.replace("0x0000000000000000", "0x0000000000000044")), [])
    assert check.warning
    assert "slowed by heat (by the hardware)" in check.detail
    assert not state_check(parse_state(LINE.replace("0x0000000000000000", "0x0000000000000004")), []).warning


def test_memory_errors_that_were_not_corrected_fail():
    check = state_check(parse_state(LINE.replace(", 45, 0,", ", 45, 2,")), [])
    assert not check.ok
    assert check.detail.startswith("2 uncorrected memory errors; take this GPU out of use")


def test_fields_that_a_gpu_does_not_have_are_unknown():
    state = parse_state("GPU-1, 570.86, 300, [N/A], 45, [N/A], [Not Supported]")
    assert (state.max_clock, state.errors, state.reasons) == (None, None, None)
    assert state_check(state, []).ok


def test_processes_that_hold_memory_are_named():
    ours = parse_process(f"{os.getpid()}, GPU-1, 1024")
    gone = parse_process("999999999, GPU-1, 70000")
    little = parse_process("1, GPU-1, 10")
    check = state_check(parse_state(LINE), [ours, gone, little])
    assert check.warning
    assert f"process {os.getpid()} holds 1024 MiB" in check.detail
    assert "process 999999999 holds 70000 MiB" in check.detail
    assert "kill -9 999999999" in check.detail
    assert "process 1 " not in check.detail


def test_processes_of_this_job_are_not_foreign_also_where_their_ids_are_those_outside_a_container():
    one, other = parse_process("10, GPU-1, 500"), parse_process("11, GPU-1, 60000")
    assert foreign([one, other], job={10}) == [other]
    assert foreign([one, other], job={7}) == [other]
    assert foreign([one], job={7}) == []


@pytest.fixture
def older_nvidia_smi(tmp_path, monkeypatch):
    """A program of that name that knows only the older name of the reasons, and prints two GPUs."""
    program = tmp_path / "nvidia-smi"
    program.write_text(
        '#!/bin/sh\ncase "$*" in\n'
        "*clocks_event_reasons*) echo 'Field is not a valid field to query.'; exit 2;;\n"
        f"*query-gpu*) echo '{LINE}'; echo '{LINE.replace('GPU-5', 'GPU-6')}';;\n"
        "*query-compute-apps*) echo '4321, GPU-5c1e4ae7, 1024';;\n"
        "esac\n"
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


def test_older_drivers_are_asked_for_the_reasons_by_their_older_name(older_nvidia_smi):
    assert [state.uuid[:5] for state in gpu_states()] == ["GPU-5", "GPU-6"]
    assert [(one.process, one.memory) for one in gpu_processes()] == [(4321, 1024)]


@pytest.mark.skipif(torch.cuda.is_available(), reason="is about a torch that cannot use the GPUs")
def test_gpus_that_torch_cannot_use_fail_unless_they_are_hidden(older_nvidia_smi, monkeypatch):
    check = check_device(None)
    assert not check.ok
    assert check.detail.startswith("nvidia-smi lists 2 GPUs with driver 570.86.15, but torch ")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert check_device(None).ok


def test_without_nvidia_smi_nothing_is_known(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert (gpu_states(), gpu_processes()) == ([], [])
