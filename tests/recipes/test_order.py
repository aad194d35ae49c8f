"""Step t trains on examples [t G, (t + 1) G), on any number of processes, after any kill and resume."""

import signal
import subprocess

import numpy as np
import pytest
from logged_runs import GLOBAL_BATCH, LENGTH, Runs, global_batches, indices_by_step, rows_of


@pytest.fixture(scope="module")
def tokens(tmp_path_factory):
    """A stream of slightly more than 36 different windows, so three steps per epoch."""
    from hmm_datasets.text.stream import write_tokens

    folder = tmp_path_factory.mktemp("tokens") / "stream"
    numbers = np.random.default_rng(0).integers(0, 598, 36 * (LENGTH + 1) + 7)
    write_tokens([numbers], folder, vocab_size=600, eos_id=599, tokenizer_hash="none", corpus="numbers")
    return folder


@pytest.fixture
def runs(program, tmp_path, tokens):
    def make(source, name="a"):
        return Runs(program, tmp_path / name, source, tokens)

    return make


@pytest.fixture(scope="module")
def undisturbed(program, tmp_path_factory, tokens):
    """Nine uninterrupted steps on two processes."""
    run = Runs(program, tmp_path_factory.mktemp("undisturbed"), "hmm", tokens)
    run.launch(9, processes=2)
    return run


# The mixture contains the same windows, also beyond the end of an epoch.
@pytest.mark.thorough
@pytest.mark.parametrize("source", ["hmm", pytest.param("windows", marks=pytest.mark.slow), "mixture"])
def test_a_run_resumed_on_other_processes_trains_on_the_same_rows_as_an_uninterrupted_one(
    source, runs, tokens, undisturbed
):
    """Killed, and resumed with another world size, micro-batch and number of workers, over several epochs."""
    rows = rows_of(source, tokens, 12 * GLOBAL_BATCH)
    run = runs(source)
    chain = {
        "hmm": [(1, 4, 0, "4:0"), (4, 3, 0, None)],
        "windows": [(2, 3, 2, "5:1"), (1, 12, 0, None)],
        "mixture": [(3, 4, 0, "7:0"), (2, 2, 2, None)],
    }[source]
    start = 0
    for processes, micro_batch, workers, kill in chain:
        _, log = run.launch(9, processes=processes, micro_batch=micro_batch, workers=workers, kill=kill)
        found = indices_by_step(log, rows)
        stopped = 9 if kill is None else int(kill.split(":")[0])
        whole = {step: indices for step, indices in found.items() if step < stopped}
        assert whole == global_batches(start, stopped), "none twice, none missing"
        computed = min(index for row in log for index in row.get("computed", [1 << 40]))
        assert computed == start * GLOBAL_BATCH, "none of the rows before is computed"
        start = stopped // 3 * 3
        names = sorted(path.name for path in run.output.glob("checkpoint-*"))
        assert names == [f"checkpoint-{step}" for step in range(3, start + 1, 3)]
    assert run.summary()["tokens"] == 9 * GLOBAL_BATCH * (LENGTH + 1)
    assert run.indices() == global_batches(0, 9), "what --log_indices wrote, in its files of all ranks"
    if source == "hmm":
        assert run.losses() == pytest.approx(undisturbed.losses(), abs=2e-5)


def test_a_killed_run_resumed_on_the_same_processes_is_the_same_bit_for_bit(runs, undisturbed):
    run = runs("hmm")
    run.launch(9, processes=2, kill="7:1")
    result, _ = run.launch(9, processes=2, settings=("--learning_rate", 0.5), kill="refused")
    assert "identity.json: of another run: settings.learning_rate was 0.001 and is 0.5" in result.stderr
    run.launch(9, processes=2)
    assert run.losses() == undisturbed.losses()
    weights = [(one.output / "model.safetensors").read_bytes() for one in (run, undisturbed)]
    assert weights[0] == weights[1]
    # Under plain data parallelism every rank has and optimizes all parameters.
    total = run.summary()["parameters"]["total"]
    assert [(held["parameters"], held["optimized"]) for held in run.summary()["shard_sizes"]] == [(total, total)] * 2


@pytest.mark.thorough
def test_a_signal_to_one_rank_stops_all_with_a_checkpoint_of_the_same_step(runs, tokens):
    run = runs("hmm")
    rows = rows_of("hmm", tokens, 400 * GLOBAL_BATCH)
    log = run.folder / "log.jsonl"
    wait = f"until [ $(cat {log} 2>/dev/null | wc -l) -gt 10 ]; do sleep 0.1; done"
    killer = subprocess.Popen(f"{wait}; pkill -{signal.SIGTERM.value} -n -f {run.script}", shell=True)
    result, log = run.launch(400, processes=2, settings=("--save_steps", 1000))
    killer.wait(10)
    (checkpoint,) = run.output.glob("checkpoint-*")
    step = int(checkpoint.name.split("-")[1])
    assert 0 < step < 400
    assert f"step {step:,}: saving and stopping" in result.stdout + result.stderr
    assert indices_by_step(log, rows) == global_batches(0, step)
    assert not (run.output / "model.safetensors").exists()
    _, log = run.launch(step + 2, processes=2)
    assert indices_by_step(log, rows) == global_batches(step, step + 2)
