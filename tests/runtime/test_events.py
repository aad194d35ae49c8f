"""The log of events of a run."""

import socket

import pytest

from hmm_datasets.runtime.events import EVENTS_NAME, append_event, read_events


def test_events_are_read_in_order_with_time_host_and_rank(tmp_path, monkeypatch):
    monkeypatch.setenv("RANK", "3")
    first = append_event(tmp_path / "run", "spike", "the loss\nrose", step=7)
    second = append_event(tmp_path / "run", "restart", "started again", host="node2", rank=1)
    assert read_events(tmp_path / "run") == [first, second]
    assert first["message"] == "the loss rose"
    assert (first["host"], first["rank"], first["step"]) == (socket.gethostname(), 3, 7)
    assert (second["host"], second["rank"]) == ("node2", 1)
    assert first["time"] <= second["time"]


@pytest.mark.parametrize("torn", ["", '{"time": 1, "ki'])
def test_a_run_without_events_has_none(tmp_path, torn):
    if torn:
        (tmp_path / EVENTS_NAME).write_text(torn)
    assert read_events(tmp_path) == []
