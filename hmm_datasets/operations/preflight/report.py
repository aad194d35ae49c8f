"""The results of checks, what can only be seen on all ranks together, and the report of all ranks.

Compared are versions, and GPUs that ranks share. The report has a line for each check and its result, with hosts and
ranks, first what passed and last the failures.
"""

import re
from collections import defaultdict
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from ...display import counted
from ...runtime.process_identity import Place

GIB = 1 << 30
UNKNOWN_HOST = "unknown host"
"""The host of a rank that has written nothing."""

T = TypeVar("T")

_FEW_HOSTS, _FEW_RANKS = 4, 4  # named one by one
_NUMBER = re.compile(r"(?<![\w.])\d+(?:\.\d+)?(?![.\w]*\.\d)")  # neither in a version nor in an address


@dataclass(frozen=True)
class Check:
    """The result of a check.

    Attributes:
        name (`str`): what was checked.
        ok (`bool`): whether a run can start.
        detail (`str`): the measurement in one line, with a remedy if there is a problem.
        warning (`bool`): whether there is a problem that does not keep a run from starting.
    """

    name: str
    ok: bool
    detail: str
    warning: bool = False

    @property
    def mark(self) -> str:
        """The result in one word."""
        return "FAIL" if not self.ok else "warn" if self.warning else "ok"


@dataclass(frozen=True)
class RankReport:
    """The results of a rank.

    Attributes:
        place ([`~hmm_datasets.runtime.process_identity.Place`]): where it is.
        checks (`list` of [`Check`]): its own checks.
        versions (`dict`): what must be the same on all ranks, by name; empty of a rank that did not answer.
    """

    place: Place
    checks: list[Check] = field(default_factory=list)
    versions: dict[str, str] = field(default_factory=dict)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "RankReport":
        """The report whose fields were written as JSON."""
        return cls(Place(**values["place"]), [Check(**check) for check in values["checks"]], values["versions"])


def format_ranks(ranks: Sequence[int]) -> str:
    """Ranks in short: `0-7, 9`."""
    ranges: list[list[int]] = []
    for rank in sorted({*ranks}):
        if ranges and rank == ranges[-1][1] + 1:
            ranges[-1][1] = rank
        else:
            ranges.append([rank, rank])
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in ranges)


def compare(reports: Sequence[RankReport]) -> list[Check]:
    """All comparisons between ranks."""
    return [check_versions_agree(reports), check_gpus_are_separate(reports)]


def group_by(items: Sequence[T], value: Callable[[T], Hashable]) -> list[tuple[Any, list[T]]]:
    """Groups of the same value, the largest first; of equally large ones that of the first item."""
    groups: dict[Hashable, list[T]] = defaultdict(list)
    for item in items:
        groups[value(item)].append(item)
    return sorted(groups.items(), key=lambda group: -len(group[1]))  # keeps the order of equals


def hosts_of(reports: Sequence[RankReport]) -> str:
    """The hosts of some ranks, with the ranks; of many the first."""
    groups = group_by(reports, lambda report: report.place.host)
    ranks = {host: [report.place.rank for report in same] for host, same in groups[:_FEW_HOSTS]}
    names = [f"{host} (rank {format_ranks(numbers)})" for host, numbers in ranks.items()]
    more = len(groups) - _FEW_HOSTS
    return ", ".join(names) + (f" and {more} other hosts" if more > 0 else "")


def check_versions_agree(reports: Sequence[RankReport]) -> Check:
    """The same Python, packages, sources, driver, CUDA and NCCL everywhere."""
    known = [report for report in reports if report.versions]
    wrong, same = [], []
    for name in dict.fromkeys(name for report in known for name in report.versions):
        usual, *others = group_by(known, lambda report, name=name: report.versions.get(name, "missing"))
        same.append(f"{name} {usual[0]}")
        for version, differing in others:
            wrong.append(f"{name} is {version} on {hosts_of(differing)}, but {usual[0]} on {hosts_of(usual[1])}")
    detail = f"{'; '.join(wrong)}; use the same environment on every host" if wrong else ", ".join(same)
    return Check("same versions", not wrong, detail)


def check_gpus_are_separate(reports: Sequence[RankReport]) -> Check:
    """No two ranks on one GPU."""
    groups = group_by([entry for entry in reports if entry.place.uuid is not None], lambda report: report.place.uuid)
    shared = [same for _, same in groups if len(same) > 1]
    if not shared:
        return Check("own GPU", True, f"each of {len(groups)} GPUs has one rank" if groups else "no GPUs")
    parts = [f"{same[0].place.device_with_uuid} has {len(same)} ranks, {hosts_of(same)}" for same in shared]
    remedy = "give each rank its own LOCAL_RANK, and start no more ranks than the host has GPUs (--num_processes)"
    return Check("own GPU", False, f"{'; '.join(parts)}; {remedy}")


def format_report(reports: Sequence[RankReport], compared: Sequence[Check]) -> str:
    """The report as text.

    Args:
        reports (sequence of [`RankReport`]): all ranks.
        compared (sequence of [`Check`]): checks of all ranks together.
    """
    failed, hosts = count_failures(reports, compared), len({report.place.host for report in reports} - {UNKNOWN_HOST})
    result = counted(failed, "failure") if failed else "a run can start"
    last = f"preflight of {counted(len(reports), 'rank')} on {counted(hosts, 'host')}: {result}"
    return "\n".join([*_lines(reports, compared), "", last])


def count_failures(reports: Sequence[RankReport], compared: Sequence[Check]) -> int:
    """The number of checks that failed."""
    return sum(not check.ok for check in [*compared, *(check for report in reports for check in report.checks)])


def _lines(reports: Sequence[RankReport], compared: Sequence[Check]) -> list[str]:
    """One line for each check that passed, then the warnings and failures; the same of many ranks is one line."""
    lines = [f"{check.mark:<4}  {check.name}: {check.detail}" for check in compared]
    pairs = [(report, check) for report in reports for check in report.checks]
    groups = group_by(pairs, lambda pair: (pair[1].mark, pair[1].name, _NUMBER.sub("\0", pair[1].detail)))
    for (mark, name, _), same in groups:
        more = f" (and {len(same) - 1} more)" if len(same) > 1 else ""
        where, detail = hosts_of([report for report, _ in same]), same[0][1].detail
        if mark == "ok":
            lines.append(f"ok    {name}: {detail}{more}; {where}")
        elif len(same) <= _FEW_RANKS:
            lines += [f"{mark}  {report.place.short}: {name}: {check.detail}" for report, check in same]
        else:
            lines.append(f"{mark}  {where}: {name}: {detail}{more}")
    return sorted(lines, key=lambda line: ("ok  ", "warn", "FAIL").index(line[:4]))
