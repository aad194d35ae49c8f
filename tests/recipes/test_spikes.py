"""Two spikes in a run of two processes: rolled back by itself, killed, resumed; rows and losses as without them."""

from pathlib import Path

import pytest
from bad_rows import GLOBAL_BATCH, LENGTH, WithBadRows, Without, losses, rows_by_step, train

from hmm_datasets.files import read_json
from hmm_datasets.runtime.events import read_events

pytestmark = pytest.mark.thorough

BAD = (*range(128, 136), *range(192, 200))
LEFT_OUT = {*range(120, 144), *range(184, 208)}
"""Rows of steps 16 to 18, around step 17; and of 21 to 23, around row 192, which is then in step 22."""
SETTINGS = {
    **{"max_steps": 30, "global_batch_size": GLOBAL_BATCH, "per_device_train_batch_size": 2, "logging_steps": 1},
    **{"learning_rate": 1e-2, "save_steps": 5, "report_to": "none", "log_indices": "true", "spike_margin": 1},
    **{"on_spike": "rollback"},
}


def test_two_spikes_are_rolled_back_and_their_rows_left_out_also_after_a_kill(program, succeeded, tmp_path):
    flags = [word for name, value in SETTINGS.items() for word in (f"--{name}", value)]
    command = ("cpu2", Path(__file__).with_name("spiked_run.py"), "--output_dir", tmp_path / "run", *flags)
    bad = ",".join(map(str, BAD))
    killed = program.launch(*command, BAD=bad, KILL="27:1")
    assert killed.returncode != 0
    for step, checkpoint, rows in ((17, 15, "120 to 143"), (22, 20, "184 to 207")):
        told = f"step {step}: the run goes back to checkpoint-{checkpoint} and skips rows {rows} of the data set"
        assert told in killed.stdout
    assert rows_by_step(tmp_path / "run")[26], "it went on by itself after each"
    succeeded(program.launch(*command, BAD=bad))

    kept = [row for row in range(1000) if row not in LEFT_OUT]
    expected = {step + 1: kept[step * GLOBAL_BATCH : (step + 1) * GLOBAL_BATCH] for step in range(30)}
    assert rows_by_step(tmp_path / "run") == expected
    summary = read_json(tmp_path / "run" / "summary.json")
    assert (summary["resumed_from"], summary["tokens"]) == ("checkpoint-25", 30 * GLOBAL_BATCH * (LENGTH + 1))
    train(tmp_path / "never given", Without(WithBadRows(), LEFT_OUT))
    assert losses(tmp_path / "run") == pytest.approx(losses(tmp_path / "never given"), abs=2e-5)

    spikes = [event for event in read_events(tmp_path / "run") if event["kind"] == "spike"]
    assert [spike["step"] for spike in spikes] == [17, 22]
    rows = [[part["rows"] for part in rank["micro_batches"]] for rank in spikes[1]["ranks"]]
    assert rows == [[[192, 193], [196, 197]], [[194, 195], [198, 199]]], "ranks take micro-batches in turn"
