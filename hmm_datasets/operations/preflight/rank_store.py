"""Results of ranks in the key-value store of the rendezvous, which needs no collective.

A collective needs all ranks, so it hangs when one does not come, and cannot name it. Here each rank writes its results
under keys of its own into torch's `TCPStore`, and rank 0 reads those that are there. A rank that never writes is known
by its number; one that wrote its place is known by host and process too. The
store is served by torch's launcher, or, if ranks were started without it, by rank 0. A store on a stopped host answers
nothing, so each question is given up after its time.
"""

import json
import os
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict
from datetime import timedelta
from typing import Any

from ...errors import first_line
from ...runtime.process_identity import Place
from ...runtime.time_limit import within

_LOOK_EVERY = 0.1  # seconds
_GRACE = 5.0  # seconds beyond those that a question may take


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
        self.group_store = dist.PrefixStore("group", self._keys)  # for a process group
        if self._ask(0.0, lambda: self._keys.add(f"processes/{place.rank}", 1)) > 1:
            raise StoreError(f"another process has RANK {place.rank} too; give each process a RANK of its own")
        self.post("place", asdict(place))

    def post(self, stage: str, value: Any) -> None:
        """Write this rank's result of a stage."""
        self._ask(0.0, lambda: self._keys.set(f"{stage}/{self.place.rank}", json.dumps(value)))

    def collect(self, stage: str, timeout: float, ranks: Iterable[int] | None = None) -> dict[int, Any]:
        """The results of ranks, by default of all, without those that have not written any in time."""
        keys = {rank: f"{stage}/{rank}" for rank in (range(self.place.world_size) if ranks is None else ranks)}

        def read() -> dict[int, Any]:  # not by TCPStore.wait, which prints warnings where a rank does not come
            deadline = time.monotonic() + timeout
            while True:
                there = {rank: key for rank, key in keys.items() if self._keys.check([key])}
                if len(there) == len(keys) or time.monotonic() > deadline:
                    return {rank: json.loads(self._keys.get(key)) for rank, key in there.items()}
                time.sleep(_LOOK_EVERY)

        return self._ask(timeout, read)

    def wait(self, stage: str, timeout: float) -> Any:
        """What rank 0 writes for all."""
        results = self.collect(stage, timeout, [0])
        if not results:
            raise StoreError(f"no answer of rank 0 within {timeout:g} s; see whether it runs")
        return results[0]

    def _ask(self, seconds: float, question: Callable[[], Any]) -> Any:
        outcome = within(seconds + _GRACE, question)
        if outcome.error is not None or outcome.hangs:
            raise StoreError("the store of rank 0 does not answer; see whether rank 0 and its launcher run")
        return outcome.value


def _connect(serve: bool, world_size: int, timeout: float) -> Any:
    import torch.distributed as dist

    address, port = os.environ.get("MASTER_ADDR"), os.environ.get("MASTER_PORT")
    if not address or not port:
        remedy = "start ranks with accelerate launch or torchrun, or set both"
        raise StoreError(f"MASTER_ADDR or MASTER_PORT is not set; {remedy}")
    options = {"wait_for_workers": False, "multi_tenant": True}
    try:
        return dist.TCPStore(address, int(port), world_size, serve, timedelta(seconds=timeout), **options)
    except (RuntimeError, ValueError) as error:
        remedy = "see whether rank 0 runs and whether a firewall is between"
        remedy = "set MASTER_PORT to a free port" if serve else remedy
        raise StoreError(f"MASTER_ADDR {address}, port {port}: {first_line(error)}; {remedy}") from None
