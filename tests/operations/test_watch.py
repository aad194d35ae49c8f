import json
import math

import pytest

from hmm_datasets.errors import InputError
from hmm_datasets.files import append_jsonl
from hmm_datasets.operations.progress import read_status, status_rows, summarize, two_columns


def rows_of(count: int, interval: float = 10.0, **more) -> list[dict]:
    return [
        {"step": 5 * s, "time": 1000 + interval * s, "loss": 2 + 1 / s, "tokens": 5000 * s, "host": "node7", **more}
        for s in range(1, count + 1)
    ]


def status_of(rows, now=None):
    return summarize(rows, rows[-1]["time"] if now is None else now)


def test_the_status_of_a_healthy_run_is_that_of_its_last_row():
    status = status_of(rows_of(10, max_steps=100))
    assert (status.step, status.max_steps, status.tokens, status.host) == (50, 100, 50_000, "node7")
    assert status.loss == pytest.approx(2.1)
    assert status.steps_per_second == pytest.approx(0.5)
    assert status.tokens_per_second == pytest.approx(500)
    assert status.seconds_left == pytest.approx(100)
    assert not status.finished


def test_one_long_pause_or_a_restart_does_not_change_the_rate():
    rows = rows_of(20)
    for row in rows[10:]:
        row["time"] += 5000
    for row in rows[15:]:
        row["step"] -= 15  # went back to a checkpoint
    assert status_of(rows).steps_per_second == pytest.approx(0.5)


def test_evaluation_rows_of_the_same_step_do_not_count_as_intervals():
    rows = []
    for row in rows_of(8):
        rows += [row, {"step": row["step"], "time": row["time"] + 1, "eval_loss": 3.0}]
    status = status_of(rows)
    assert status.steps_per_second == pytest.approx(0.5)
    assert status.loss == pytest.approx(2 + 1 / 8)
    assert status.tokens == 40_000


def test_a_finished_run_has_no_time_left():
    status = status_of(rows_of(10, max_steps=50), now=1e9)
    assert status.finished
    assert status.seconds_left == 0


def test_a_finished_run_is_complete_even_if_its_last_row_has_no_fraction():
    rows = rows_of(9, max_steps=10, fraction=0.9)
    rows.append({"step": 10, "time": 200.0, "max_steps": 10, "eval_loss": 1.0})
    status = status_of(rows)
    assert status.finished
    assert (status.fraction, status.seconds_left) == (1.0, 0.0)


def test_nan_and_infinite_losses_are_found_with_their_step_and_host():
    rows = rows_of(10)
    rows[6]["loss"], rows[8]["loss"] = math.nan, math.inf
    status = status_of(rows)
    assert [(step, host) for step, _, host in status.not_finite] == [(35, "node7"), (45, "node7")]


def test_one_row_is_enough_for_a_status():
    status = status_of(rows_of(1), now=1e9)
    assert status.steps_per_second is None
    assert status.seconds_left is None
    assert "unknown until there are two rows" in two_columns(status_rows(status))


def test_the_table_names_what_is_wrong():
    rows = rows_of(30, max_steps=1000)
    rows[-1]["loss"] = math.nan
    table = two_columns(status_rows(status_of(rows, now=rows[-1]["time"] + 90_061)))
    assert "step             150 of 1,000 (15.0%)" in table
    assert "0.5 steps per second, 500 tokens per second" in table
    assert "time left        28.3 min" in table
    assert "1 d 1 h ago, on node7" in table
    assert "nan at step 150 on node7" in table


def test_rows_without_step_and_a_truncated_last_line_of_a_history_are_ignored(tmp_path):
    path = tmp_path / "history.jsonl"
    for row in rows_of(4):
        append_jsonl(path, row)
    append_jsonl(path, {"note": "neither step nor time"})
    with path.open("a") as file:
        file.write('{"step": 25, "ti')
    assert read_status(tmp_path).step == 20


def test_bad_input_gives_an_error_of_one_line(tmp_path):
    with pytest.raises(InputError, match=r"history\.jsonl: no such file"):
        read_status(tmp_path)
    (tmp_path / "history.jsonl").write_text(json.dumps({"step": 1}) + "\n")
    with pytest.raises(InputError, match="no row with step and time yet"):
        read_status(tmp_path)
    (tmp_path / "history.jsonl").write_text("{\n")
    with pytest.raises(InputError, match="no row with step and time yet"):
        read_status(tmp_path)


def test_the_time_left_with_a_growing_batch_is_computed_from_rows():
    """Computed from steps it would be 7 steps of 15 s."""
    told = [(1, 10.0, 0.05), (2, 20.0, 0.1), (3, 40.0, 0.2), (4, 60.0, 0.3)]
    rows = [{"step": s, "time": t, "fraction": f, "max_steps": 11, "skipped_steps": s // 2} for s, t, f in told]
    status = summarize(rows, now=61.0)
    assert status.fraction == 0.3
    assert status.seconds_left == pytest.approx(140.0)
    assert status.skipped_steps == 2
    text = two_columns(status_rows(status))
    assert "4 of 11 (30.0%)" in text
    assert "2.3 min, until " in text
    assert "skipped" in text
