"""Results of ranks in the key-value store of the rendezvous, which needs no collective.

A collective needs all ranks, so it hangs when one does not come, and cannot name it. Here each rank writes its results
under keys of its own into torch's `TCPStore`, and rank 0 reads those that are there. A rank that never writes is known
by its number; one that wrote its place is known by host and process too, and by the check that it was busy with. The
store is served by torch's launcher, or, if ranks were started without it, by rank 0.
"""

import contextlib
import json
import os
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict
from datetime import timedelta
from typing import Any

from ...errors import first_line
from ...runtime.process_identity import Place

_LOOK_EVERY = 0.1  # seconds


class StoreError(Exception):
    """The store of the rendezvous cannot be used; the message names where and why, with a remedy."""


class RankStore:
    """This rank's connection to the store.

    Args:
        place ([`~hmm_datasets.runtime.process_identity.Place`]): the place of this rank, which is written at once.
        timeout (`float`): seconds to connect.

    Raises:
        [`StoreError`]: there is no address, nothing answers there, or another process has the same rank.
    """

    def __init__(self, place: Place, timeout: float):
        import torch.distributed as dist

        self.place = place
        served_by_launcher = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == str(True)
        store = _connect(place.rank == 0 and not served_by_launcher, place.world_size, timeout)
        prefix = f"hmm_datasets_preflight/{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}"
        self._keys = dist.PrefixStore(prefix, store)
        if self._keys.add(f"processes/{place.rank}", 1) > 1:
            raise StoreError(f"another process has RANK {place.rank} too; give each process a RANK of its own")
        self.post("place", asdict(place))

    @property
    def group_store(self) -> Any:
        """A store for a process group."""
        import torch.distributed as dist

        return dist.PrefixStore("group", self._keys)

    def post(self, stage: str, value: Any) -> None:
        """Write this rank's result of a stage."""
        self._keys.set(f"{stage}/{self.place.rank}", json.dumps(value))

    def collect(self, stage: str, timeout: float) -> dict[int, Any]:
        """The results of all ranks by rank, without those that have not written any in time."""
        results: dict[int, Any] = {}
        deadline = time.monotonic() + timeout
        while True:
            for rank in range(self.place.world_size):
                if rank not in results and self._keys.check([f"{stage}/{rank}"]):
                    results[rank] = self.read(stage, rank)
            if len(results) == self.place.world_size or time.monotonic() > deadline:
                return results
            time.sleep(_LOOK_EVERY)

    def read(self, stage: str, rank: int) -> Any:
        """What a rank has written, or None."""
        key = f"{stage}/{rank}"
        return json.loads(self._keys.get(key)) if self._keys.check([key]) else None

    def wait(self, stage: str, timeout: float) -> Any:
        """What rank 0 writes for all; None if it does not in time, or the store is gone."""
        line = f"{self.place.short}: rank 0 does not answer; see whether it runs"
        deadline = time.monotonic() + timeout
        with _end_after(timeout + 5, line), contextlib.suppress(RuntimeError):  # torch's error of a store that is gone
            while time.monotonic() < deadline:
                if self._keys.check([f"{stage}/0"]):
                    return self.read(stage, 0)
                time.sleep(_LOOK_EVERY)
        return None


def _connect(serve: bool, world_size: int, timeout: float) -> Any:
    import torch.distributed as dist

    address, port = os.environ.get("MASTER_ADDR"), os.environ.get("MASTER_PORT")
    if not address or not port:
        raise StoreError(
            "MASTER_ADDR or MASTER_PORT is not set; start ranks with accelerate launch or torchrun, or set both"
        )
    options = {"wait_for_workers": False, "multi_tenant": True}
    try:
        return dist.TCPStore(address, int(port), world_size, serve, timedelta(seconds=timeout), **options)
    except (RuntimeError, ValueError) as error:
        remedy = (
            "set MASTER_PORT to a free port" if serve else "see whether rank 0 runs and whether a firewall is between"
        )
        raise StoreError(f"MASTER_ADDR {address}, port {port}: {first_line(error)}; {remedy}") from None


@contextlib.contextmanager
def _end_after(seconds: float, line: str) -> Iterator[None]:
    """End the process with a line if the context lasts too long, since a store on a stopped host answers nothing."""

    def end() -> None:
        print(f"FAIL  {line}", file=sys.stderr, flush=True)
        os._exit(1)

    timer = threading.Timer(seconds, end)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
