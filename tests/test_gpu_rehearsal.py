"""What `make gpu` runs on a machine with a GPU, rehearsed on the CPU at sizes that show nothing but that it runs."""

import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
REHEARSED = {
    "gpu_hmm.py": ("sampler", "em", "inference"),
    "gpu_training.py": ("packing", "attention", "fp16", "chunks", "generation", "nccl", "mfu_125m"),
    "gpu_recipes.py": ("kernels", "sharding"),
}
"""Parts by script. Those of one script share a process, or, of `gpu_recipes.py`, the run with which others compare."""


@pytest.fixture
def gpu(monkeypatch):
    """The module `benchmarks/gpu.py`."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import gpu

    return gpu


@pytest.mark.thorough
@pytest.mark.parametrize(
    "script",
    [pytest.param(name, marks=() if name == "gpu_hmm.py" else pytest.mark.slow) for name in REHEARSED],
)
def test_every_part_runs(script, warm_python, run_to_end, child_environment):
    command = [warm_python, f"benchmarks/{script}", *REHEARSED[script], "--tiny"]
    result = run_to_end(command, 500, cwd=ROOT, env=child_environment)
    assert result.returncode == 0, result.stdout[-3000:] + result.stderr[-5000:]


def test_the_parts_of_make_gpu_are_those_that_are_rehearsed_and_exist(gpu):
    started = {(arguments[0], arguments[-1]) for _, arguments in gpu.PARTS.values()}
    rehearsed = {(f"benchmarks/{script}", part) for script, parts in REHEARSED.items() for part in parts}
    others = {("benchmarks/gpu_training.py", f"mfu_{size}") for size in ("350m", "500m", "1.3b")}
    assert started - others == rehearsed | {("-m", "gpu"), ("-m", gpu.PREFLIGHT), ("benchmarks/training.py", "gpu")}
    assert (ROOT / gpu.PREFLIGHT).exists()
    assert "tests/training/test_cuda.py" in gpu._files_with_gpu_tests()


def test_the_table_of_what_a_gpu_shows_names_every_part(gpu):
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    table = text.split("## What a GPU has shown")[1].split("## Where things are")[0]
    named = re.findall(r'make gpu PART=(?:"([^"]+)"|(\w+))', table)
    assert {part for several, one in named for part in (several or one).split()} == set(gpu.PARTS)
    for path in re.findall(r"`(tests/[\w/.]+)`", table):
        assert (ROOT / path).exists(), path


@pytest.mark.thorough
def test_a_part_that_fails_or_is_cut_off_leaves_the_others_running_and_is_named(gpu, monkeypatch, capfd):
    parts = {
        "fails": ("that it fails", ["-c", "print('before'); raise SystemExit(3)"]),
        "hangs": ("that it is cut off", ["-c", "import time; print('begun', flush=True); time.sleep(100)"]),
        "runs": ("that it runs", ["-c", "print('after')"]),
    }
    monkeypatch.setattr(gpu, "PARTS", parts)
    monkeypatch.setattr(sys, "argv", ["gpu.py", "--tiny", "--limit", "3"])
    assert gpu.main() == 1
    lines = [line for line in capfd.readouterr().out.splitlines() if line]
    assert lines[:2] == ["## fails: to prove: that it fails", "before"]
    assert lines[2].startswith("## fails: FAILED with status 3 after ")
    assert lines[3:5] == ["## hangs: to prove: that it is cut off", "begun"]
    assert lines[6:8] == ["## runs: to prove: that it runs", "after"]
    assert lines[-1].endswith("; failed: fails, hangs")
