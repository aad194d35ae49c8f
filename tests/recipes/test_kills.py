"""A run killed under ZeRO 1, 2, 3 or FSDP2 resumes on any world size like an uninterrupted run."""

import shutil

import pytest
from logged_runs import GLOBAL_BATCH, Runs, global_batches, indices_by_step, rows_of

pytestmark = [pytest.mark.thorough, pytest.mark.slow]

STEPS = 9


# Resumed on the same number of processes, two, and on other numbers.
@pytest.mark.parametrize(("config", "others"), [("zero1", 3), ("zero2", 1), ("zero3", 3), ("fsdp2", 3)])
def test_a_killed_and_resumed_sharded_run_equals_an_uninterrupted_one(config, others, program, tmp_path):
    rows = rows_of("hmm", None, (STEPS + 1) * GLOBAL_BATCH)

    def launch(name, kill=None, processes=2, micro_batch=3):
        run = Runs(program, tmp_path / name, "hmm", None)
        result, log = run.launch(STEPS, config=config, processes=processes, micro_batch=micro_batch, kill=kill)
        return run, result.stdout + result.stderr, indices_by_step(log, rows)

    undisturbed, _, found = launch("undisturbed")
    assert found == global_batches(0, STEPS)
    killed, _, found = launch("killed", kill="7:1")
    assert {step: found[step] for step in range(7)} == global_batches(0, 7)
    assert sorted(path.name for path in killed.output.iterdir() if path.is_dir()) == ["checkpoint-3", "checkpoint-6"]
    shutil.copytree(tmp_path / "killed", tmp_path / "elsewhere")

    resumed, _, found = launch("killed")
    assert found == global_batches(6, STEPS), "none twice, none missing"
    assert resumed.losses() == undisturbed.losses(), "the same to the bit"
    weights = [(run.output / "model.safetensors").read_bytes() for run in (resumed, undisturbed)]
    assert weights[0] == weights[1]

    # Weights, Adam's two moments, and under DeepSpeed its optimizer's copy of the weights, all in float32.
    tensors = (12 if config == "fsdp2" else 16) * resumed.summary()["parameters"]["total"]
    before = _files(tmp_path / "elsewhere" / "run" / "checkpoint-6")
    assert tensors < sum(before.values()) <= 1.02 * tensors

    moved, said, found = launch("elsewhere", processes=others, micro_batch=12 // others // 2)
    assert found == global_batches(6, STEPS)
    assert moved.losses() == pytest.approx(undisturbed.losses(), abs=2e-5)
    assert ("written by 2 processes; converting it" in said) == (config != "fsdp2")
    assert _files(moved.output / "checkpoint-6") == before, "what was made for the other number of processes is gone"
    assert moved.summary()["world_size"] == others


def _files(folder):
    return {path.relative_to(folder): path.stat().st_size for path in folder.rglob("*") if path.is_file()}


def test_a_sharded_run_cannot_be_resumed_under_another_framework(program, tmp_path):
    run = Runs(program, tmp_path, "hmm", None)
    run.launch(3, config="zero2", processes=2)
    result, log = run.launch(6, processes=2, kill="refused")
    assert log == []
    assert "checkpoint-3: written under DeepSpeed ZeRO 2 by 2 processes, but this run is under plain" in result.stderr
    assert result.stderr.count("Traceback (most") == 1, "the launcher's, none of a rank"
