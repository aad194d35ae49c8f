"""Ranks exchange what they found through a store, here from one process with a connection for each."""

import os
import socket
from dataclasses import replace

import pytest

from hmm_datasets.operations.preflight.rank_store import RankStore, StoreError
from hmm_datasets.runtime.process_identity import Place

PLACE = Place("node0", 1, "boot", 1.0, 0, 3, 0, "CPU")


@pytest.fixture
def ranks(monkeypatch):
    """Ranks 0 and 1 of three."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", str(port))
    monkeypatch.delenv("TORCHELASTIC_USE_AGENT_STORE", raising=False)
    return [RankStore(replace(PLACE, rank=rank, process=rank + 1), timeout=500) for rank in (0, 1)]


@pytest.mark.thorough
def test_rank_0_collects_what_is_there(ranks):
    for rank in ranks:
        rank.post("report", {"rank": rank.place.rank})
    assert ranks[0].collect("report", timeout=0.5) == {0: {"rank": 0}, 1: {"rank": 1}}
    places = ranks[0].collect("place", timeout=0)
    assert Place(**places[1]).process == 2
    assert places.keys() == {0, 1}


def test_a_rank_waits_for_rank_0_and_not_for_ever(ranks):
    with pytest.raises(StoreError, match=r"no answer of rank 0 within 0.3 s; see whether it runs"):
        ranks[1].wait("begin", timeout=0.3)
    ranks[0].post("begin", True)
    assert ranks[1].wait("begin", timeout=500) is True


def test_a_second_process_of_a_rank_is_refused(ranks):
    with pytest.raises(StoreError, match="another process has RANK 1 too"):
        RankStore(replace(PLACE, rank=1), timeout=500)


@pytest.mark.thorough
def test_an_address_at_which_nothing_answers_is_named_with_the_remedy(monkeypatch):
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", "9")
    with pytest.raises(StoreError, match=r"MASTER_ADDR 127.0.0.1, port 9: .*; see whether rank 0 runs"):
        RankStore(replace(PLACE, rank=1), timeout=1)
    monkeypatch.delenv("MASTER_ADDR")
    assert "MASTER_ADDR" not in os.environ
    with pytest.raises(StoreError, match="MASTER_ADDR or MASTER_PORT is not set; start ranks with accelerate launch"):
        RankStore(PLACE, timeout=1)
