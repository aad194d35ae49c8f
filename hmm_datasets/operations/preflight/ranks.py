"""Preflight on all ranks: each makes its own checks, then together the all-reduce; rank 0 reports.

Before the all-reduce rank 0 reads the results of all ranks. If one is missing, the all-reduce is left out, and the
rank is named.
"""

import contextlib
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace

from ...errors import first_line
from ...runtime.process_identity import Place, this_place, uses_gpu
from ...runtime.setting_rules import check_object
from ...runtime.settings import option
from .collective import check_all_reduce
from .device import check_device
from .disk import check_disk, check_shared_output, file_to_share
from .rank_store import RankStore, StoreError
from .report import UNKNOWN_HOST, Check, RankReport, compare, count_failures, format_report
from .versions import versions_to_compare


@dataclass(frozen=True)
class PreflightSettings:
    """What a run needs.

    Other ranks have the same time to report after this one as an all-reduce has, with the rendezvous.
    """

    min_disk_gib: float = option(10.0, "GIB", "free space needed in OUTPUT_DIR, default 10")
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
    return _print_report([_own_report(place, _own_checks(place, output_dir, settings)) for place in places])


def _own_checks(
    place: Place, output_dir: str | os.PathLike, settings: PreflightSettings
) -> dict[str, Callable[[], Check]]:
    """The checks of a rank by name; the first rank of a host makes those of the host."""
    index = None if place.device == "CPU" else place.local_rank
    checks = {"device": lambda: check_device(index)}
    if place.local_rank == 0:
        checks["disk"] = lambda: check_disk(output_dir, settings.min_disk_gib)
    return checks


def _own_report(place: Place, checks: dict[str, Callable[[], Check]]) -> RankReport:
    """The results of a rank's checks."""
    report = RankReport(place, versions=versions_to_compare())
    for name, check in checks.items():
        try:
            report.checks.append(check())
        except Exception as error:  # a failure, which hides no other check
            report.checks.append(Check(name, False, f"{type(error).__name__}: {first_line(error)}"))
    return report


def _print_report(reports: list[RankReport]) -> int:
    """Print the report, and return how many checks failed."""
    compared = compare(reports)
    print(format_report(reports, compared), flush=True)
    return count_failures(reports, compared)


class _Preflight:
    """The stages on one rank."""

    def __init__(self, store: RankStore, output_dir: str | os.PathLike, settings: PreflightSettings):
        self.store, self.place, self.settings, self.output_dir = store, store.place, settings, output_dir
        # Rank 0 makes the checks of its host first, and then waits for all ranks.
        self.patience = 3 * settings.timeout + 60

    def run(self) -> int:
        store, leads = self.store, self.place.rank == 0
        with file_to_share(self.output_dir) if leads else contextlib.nullcontext() as path:
            reports = self._check(path)
        if leads:
            store.post("failures", _print_report(reports))
        failures = store.wait("failures", self.patience)
        store.post("end", True)
        if leads:  # it may serve the store, which the others read from
            store.collect("end", 5.0)
        return failures

    def _check(self, path: str | None) -> list[RankReport]:
        """This rank's part in all checks; on rank 0 the results of all ranks."""
        leads = self.place.rank == 0
        store, checks = self.store, _own_checks(self.place, self.output_dir, self.settings)
        if leads:
            store.post("path", path)
        elif self.place.local_rank == 0:
            checks["shared output"] = lambda: check_shared_output(store.wait("path", self.patience))
        report = _own_report(self.place, checks)
        reports = self._exchange("own checks", report)
        if leads:
            store.post("complete", all(found.versions for found in reports))
        if store.wait("complete", self.patience):
            report.checks.append(check_all_reduce(self.settings.timeout, store.group_store))
            reports = self._exchange("all-reduce", report)
        return reports

    def _exchange(self, stage: str, report: RankReport) -> list[RankReport]:
        """Write this rank's results; on rank 0, collect those of all ranks, with a failure for each missing one."""
        self.store.post(stage, asdict(report))
        if self.place.rank != 0:
            return []
        answers = self.store.collect(stage, self.settings.timeout)
        places = self.store.collect("place", 0.0)
        reports = []
        for rank in range(self.place.world_size):
            if rank in answers:
                reports.append(RankReport.from_dict(answers[rank]))
                continue
            if rank in places:
                place = Place(**places[rank])
                detail = (
                    f"process {place.process} did not end {stage!r} within {self.settings.timeout:g} s after rank 0; "
                    f"see there whether it is stopped (ps -o stat {place.process}), or raise --timeout"
                )
            else:
                place = replace(self.place, rank=rank, host=UNKNOWN_HOST, device="unknown device", uuid=None)
                detail = (
                    f"none within {self.settings.timeout:g} s: it did not start, or cannot reach MASTER_ADDR "
                    f"{os.environ['MASTER_ADDR']}; look for its error in the log of its host"
                )
            reports.append(RankReport(place, [Check("answer", False, detail)]))
        return reports
