"""Preflight on all ranks: each makes its own checks, then together the all-reduce; rank 0 reports.

Before the all-reduce rank 0 reads the results of all ranks. If one is missing, the all-reduce is left out, and the
rank is named with the check that it was busy with.
"""

import os
import secrets
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ...errors import first_line
from ...runtime.process_identity import Place, this_place, uses_gpu
from ...runtime.setting_rules import check_object
from ...runtime.settings import option
from .device import check_device
from .host import check_disk, check_memory, check_shared_memory, existing_folder
from .network import check_all_reduce, check_links, check_network
from .rank_store import RankStore, StoreError
from .report import Check, MissingRank, RankReport, compare, count_failures, format_report
from .versions import check_versions, versions_to_compare

_FILE_SECONDS = 5  # until a file of rank 0 is seen on another host


@dataclass(frozen=True)
class PreflightSettings:
    """What a run needs.

    Workers of a DataLoader send batches through `/dev/shm`. Other ranks have the same time to report after this one as
    an all-reduce has, with the rendezvous.
    """

    min_disk_gib: float = option(10.0, "GIB", "free space needed in OUTPUT_DIR, default 10")
    min_memory_gib: float = option(2.0, "GIB", "free memory needed, default 2")
    min_shm_gib: float = option(0.5, "GIB", "free /dev/shm needed, default 0.5")
    timeout: float = option(60.0, "S", "seconds to wait for other ranks, default 60")

    __post_init__ = check_object


def run_preflight(output_dir: str | os.PathLike, settings: PreflightSettings) -> int:
    """Run all checks, print the report on rank 0, and return how many failed, on all ranks.

    Args:
        output_dir (path): where the run will write; it need not exist, and is not created.
        settings ([`PreflightSettings`]): what the run needs.
    """
    place = this_place()
    if place.world_size > 1:
        try:
            return _Preflight(RankStore(place, settings.timeout), output_dir, settings).run()
        except StoreError as problem:
            print(f"FAIL  rank {place.rank} on {place.host}: {problem}", flush=True)
            return 1
    import torch

    places = [place, *map(this_place, range(1, torch.cuda.device_count() if uses_gpu() else 1))]
    reports = [_own_report(place, output_dir, settings) for place in places]
    compared = compare(reports)
    print(format_report(reports, compared), flush=True)
    return count_failures(reports, compared)


def _own_report(
    place: Place,
    output_dir: str | os.PathLike,
    settings: PreflightSettings,
    begin: Callable[[str], None] = lambda name: None,
) -> RankReport:
    """The checks of a rank by itself; `begin` is called with the name of each before it begins."""
    report = RankReport(place)
    for name, check in _checks(place, output_dir, settings):
        begin(name)
        try:
            result = check()
        except Exception as error:  # a failure, which hides no other check
            result = Check(name, False, f"{type(error).__name__}: {first_line(error)}")
        result, facts = result if isinstance(result, tuple) else (result, {})
        report.checks.append(result)
        report.facts.update(facts)
    return report


def _checks(
    place: Place, output_dir: str | os.PathLike, settings: PreflightSettings
) -> Iterator[tuple[str, Callable[[], Check | tuple[Check, dict]]]]:
    """The checks of a rank by name; the first rank of a host makes those of the host."""
    index = None if place.device == "CPU" else place.local_rank
    if place.local_rank == 0:
        yield "versions", check_versions
        yield "disk", lambda: check_disk(output_dir, settings.min_disk_gib)
        yield "memory", lambda: check_memory(settings.min_memory_gib)
        yield "shared memory", lambda: check_shared_memory(settings.min_shm_gib)
    yield "device", lambda: (check_device(index), {"versions": versions_to_compare()})
    if os.environ.get("MASTER_ADDR"):
        yield "network", lambda: check_network(os.environ["MASTER_ADDR"])


class _Preflight:
    """The stages on one rank."""

    def __init__(self, store: RankStore, output_dir: str | os.PathLike, settings: PreflightSettings):
        self.store, self.place, self.settings, self.output_dir = store, store.place, settings, output_dir
        # Rank 0 makes the checks of its host first, and then waits for all ranks.
        self.patience = 3 * settings.timeout + 60
        self.reports: dict[int, RankReport] = {}
        self.compared: list[Check] = []
        self.missing: dict[int, MissingRank] = {}

    @property
    def leads(self) -> bool:
        return self.place.rank == 0

    def run(self) -> int:
        token = self._write_token() if self.leads else None
        report = _own_report(self.place, self.output_dir, self.settings, lambda name: self.store.post("busy", name))
        self.store.post("busy", "waiting for the others")
        if self.place.local_rank == 0 and not self.leads:
            path = self.store.wait("token", self.settings.timeout)
            report.facts["sees_output"] = None if path is None else _appears(Path(path))
            report.facts["output"] = str(self.output_dir)
        self.store.post("report", asdict(report))
        if self.leads:
            for rank, answer in self._collect("report", "own checks").items():
                checks = [Check(**check) for check in answer["checks"]]
                self.reports[rank] = RankReport(Place(**answer["place"]), checks, answer["facts"])
            self.compared += compare(self._in_order())
            self.store.post("complete", not self.missing)
        if self.store.wait("complete", self.patience):
            self._all_reduce()
        return self._end(token)

    def _write_token(self) -> Path | None:
        """Write a file into the output folder that other hosts look for."""
        token = existing_folder(self.output_dir) / f".preflight-{secrets.token_hex(8)}"
        try:
            token.touch()
        except OSError:
            token = None  # the check of the disk reports it
        self.store.post("token", None if token is None else str(token))
        return token

    def _all_reduce(self) -> None:
        self.store.post("busy", "all-reduce")
        check, rates = check_all_reduce(self.settings.timeout, self.store.group_store)
        self.store.post("reduced", {"check": asdict(check), "rates": rates})
        if not self.leads:
            return
        results = self._collect("reduced", "all-reduce")
        for rank, result in results.items():
            self.reports[rank].checks.append(Check(**result["check"]))
        if not self.missing and all(result["check"]["ok"] for result in results.values()):
            rates_of = {rank: result["rates"] for rank, result in results.items()}
            self.compared.append(check_links(self._in_order(), rates_of))

    def _in_order(self) -> list[RankReport]:
        return [self.reports[rank] for rank in sorted(self.reports)]

    def _collect(self, stage: str, name: str) -> dict[int, Any]:
        """The results of a stage by rank; the ranks without one are noted as missing."""
        results = self.store.collect(stage, self.settings.timeout)
        for rank in range(self.place.world_size):
            if rank not in results and rank not in self.missing:
                self.missing[rank] = self._missing(rank, name)
        return results

    def _missing(self, rank: int, name: str) -> MissingRank:
        written, busy = self.store.read("place", rank), self.store.read("busy", rank)
        waited = f"{self.settings.timeout:g} s"
        if written is None:
            detail = (
                f"rank {rank} did not report within {waited}: it did not start, or cannot reach MASTER_ADDR "
                f"{os.environ['MASTER_ADDR']}; look for its error in the log of its host"
            )
            return MissingRank(rank, None, detail)
        place = Place(**written)
        detail = (
            f"{place.short}, process {place.process}: did not end {name!r} within {waited} after rank 0; it was busy "
            f"with {busy!r}; see there whether it is stopped (ps -o stat {place.process}), or raise --timeout"
        )
        return MissingRank(rank, place, detail)

    def _end(self, token: Path | None) -> int:
        """Print the report on rank 0; all ranks get the number of checks that failed."""
        if self.leads:
            if token is not None:
                token.unlink(missing_ok=True)
            report = (self._in_order(), self.compared, [self.missing[rank] for rank in sorted(self.missing)])
            print(format_report(*report), flush=True)
            self.store.post("failures", count_failures(*report))
        failures = self.store.wait("failures", self.patience)
        self.store.post("end", True)
        if failures is None:
            print(f"FAIL  {self.place.short}: no answer of rank 0 how the checks ended", flush=True)
            return 1
        if self.leads:  # it may serve the store, which the others read from
            self.store.collect("end", min(5.0, self.settings.timeout) if self.missing else 10.0)
        return failures


def _appears(path: Path) -> bool:
    """Whether a file is seen; a network disk may show it after some seconds."""
    for _ in range(_FILE_SECONDS):
        if path.exists():
            return True
        time.sleep(1.0)
    return False
