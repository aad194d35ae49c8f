"""What a check reports, what can only be seen on all ranks together, and the report of all ranks.

Compared are versions, GPUs that ranks share, devices of hosts, products, clocks, the output folder, and rows. The
report has a line for each group of ranks that agree, a line for each check, and the failures.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from ...runtime.process_identity import Place

GIB = 1 << 30
TAKE_OUT = "take it out of use (CUDA_VISIBLE_DEVICES, sbatch --exclude=HOST)"

T = TypeVar("T")

_FEW = 4  # hosts to name
_CLOCK_LIMIT = 1.0  # seconds; logs of hosts are compared by time


@dataclass(frozen=True)
class Check:
    """The result of a check.

    Attributes:
        name (`str`): what was checked.
        ok (`bool`): whether a run can start.
        detail (`str`): what was found, in one line, with a remedy if there is a problem.
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
class Comparison(Check):
    """The result of a check of all ranks together, with those at fault, if they are known."""

    ranks: tuple[int, ...] = ()


@dataclass(frozen=True)
class RankReport:
    """What a rank found.

    Attributes:
        place ([`~hmm_datasets.runtime.process_identity.Place`]): where it is.
        checks (`list` of [`Check`]): its own checks.
        facts (`dict`): what is compared between ranks, by name.
    """

    place: Place
    checks: list[Check] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class MissingRank:
    """A rank that did not answer: its number, its place if it said so before, and what is known, as a sentence."""

    rank: int
    place: Place | None
    detail: str


def format_checks(checks: list[Check]) -> str:
    """Checks as a table, one line each."""
    width = max(len(check.name) for check in checks)
    return "\n".join(f"{check.mark:<4}  {check.name:<{width}}  {check.detail}" for check in checks)


def format_ranks(ranks: Sequence[int]) -> str:
    """Ranks in short: `0-7, 9`."""
    ranges: list[list[int]] = []
    for rank in sorted(ranks):
        if ranges and rank == ranges[-1][1] + 1:
            ranges[-1][1] = rank
        else:
            ranges.append([rank, rank])
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in ranges)


def compare(places: Sequence[Place], reports: Sequence[RankReport]) -> list[Comparison]:
    """All comparisons between ranks, of their places and of what they reported."""
    return [
        check_versions_agree(reports),
        check_gpus_are_separate(places),
        check_hosts_are_alike(places),
        check_products(reports),
        check_clocks(reports),
        check_output_is_shared(reports),
    ]


def by_value(ones: Sequence[T], value: Callable[[T], Hashable]) -> list[tuple[Hashable, list[T]]]:
    """Ranks in groups of the same value, the largest first; of equally large ones that of the lowest rank."""
    groups: dict[Hashable, list[T]] = defaultdict(list)
    for one in ones:
        groups[value(one)].append(one)
    return sorted(groups.items(), key=lambda group: -len(group[1]))  # keeps the order of equals


def hosts_of(reports: Sequence[RankReport]) -> str:
    """The hosts of some ranks, with the ranks; of many the first."""
    groups = by_value(reports, lambda report: report.place.host)
    found = [f"{host} (rank {format_ranks(ranks_of(ones))})" for host, ones in groups[:_FEW]]
    more = len(groups) - _FEW
    return ", ".join(found) + (f" and {more} other hosts" if more > 0 else "")


def ranks_of(reports: Sequence[RankReport]) -> tuple[int, ...]:
    """The numbers of ranks."""
    return tuple(report.place.rank for report in reports)


def check_versions_agree(reports: Sequence[RankReport]) -> Comparison:
    """The same Python, packages, sources, driver, CUDA and NCCL everywhere."""
    known = [report for report in reports if "versions" in report.facts]
    names = dict.fromkeys(name for report in known for name in report.facts["versions"])
    wrong, ranks = [], set()
    for name in names:
        usual, *others = by_value(known, lambda report, name=name: report.facts["versions"].get(name, "missing"))
        for version, ones in others:
            ranks |= {*ranks_of(ones)}
            wrong.append(f"{name} is {version} on {hosts_of(ones)}, but {usual[0]} on {hosts_of(usual[1])}")
    if wrong:
        detail = f"{'; '.join(wrong)}; use the same environment on every host"
        return Comparison("same versions", False, detail, ranks=tuple(ranks))
    return Comparison("same versions", True, f"{len(names)} versions are the same on {len(known)} ranks")


def check_gpus_are_separate(places: Sequence[Place]) -> Comparison:
    """No two ranks on one GPU."""
    groups = by_value([place for place in places if place.uuid is not None], lambda place: place.uuid)
    shared = [ones for _, ones in groups if len(ones) > 1]
    if shared:
        found = [
            f"ranks {format_ranks([place.rank for place in ones])} are all on {ones[0].device} ({ones[0].uuid}) of "
            f"{ones[0].host}"
            for ones in shared
        ]
        remedy = "give each rank its own LOCAL_RANK, and start no more ranks than the host has GPUs (--num_processes)"
        ranks = tuple(place.rank for ones in shared for place in ones)
        return Comparison("own GPU", False, f"{'; '.join(found)}; {remedy}", ranks=ranks)
    return Comparison("own GPU", True, f"each of {len(groups)} GPUs has one rank" if groups else "no GPUs")


def check_hosts_are_alike(places: Sequence[Place]) -> Comparison:
    """The same number and kind of devices on every host; if not, the run is as slow as the slowest."""
    devices = {host: Counter(map(kind_of, ones)) for host, ones in by_value(places, lambda place: place.host)}
    described = {
        host: ", ".join(f"{count} x {kind}" for kind, count in sorted(kinds.items()))
        for host, kinds in devices.items()
    }
    usual = Counter(described.values()).most_common(1)[0][0]
    others = {host: found for host, found in described.items() if found != usual}
    if others:
        found = "; ".join(f"{host} has {devices}" for host, devices in others.items())
        ranks = tuple(place.rank for place in places if place.host in others)
        detail = f"{found}; the others have {usual}; every step waits for the slowest"
        return Comparison("like hosts", True, detail, warning=True, ranks=ranks)
    many = len(devices) > 1
    return Comparison("like hosts", True, f"{usual} on each of {len(devices)} hosts" if many else f"one host, {usual}")


def kind_of(place: Place) -> str:
    """The kind of a device, without its index."""
    return place.device.partition(" ")[2] if place.device.startswith("cuda:") else place.device


def check_products(reports: Sequence[RankReport]) -> Comparison:
    """The same bits from the same kind of device."""
    measured = [one for one in reports if "product" in one.facts]
    wrong, ranks = [], set()
    kinds = by_value(measured, lambda one: one.facts["product"]["kind"])
    for kind, ones in kinds:
        usual, *others = by_value(ones, lambda one: one.facts["product"]["digest"])
        if not others:
            continue
        ranks |= {rank for _, differing in others for rank in ranks_of(differing)}
        if len(usual[1]) == len(others[0][1]):
            both = " and ".join(ones[0].place.short for _, ones in (usual, others[0]))
            ranks |= {*ranks_of(usual[1])}
            wrong.append(f"{both} ({kind}) compute different bits; start three ranks or more to see which is wrong")
            continue
        for _, differing in others:
            wrong += [f"{one.place.short} {_computes(one, usual[1], kind)}" for one in differing]
    if wrong:
        return Comparison("same product", False, "; ".join(wrong), ranks=tuple(ranks))
    return Comparison(
        "same product", True, f"the same bits on {len(measured)} ranks ({', '.join(str(kind) for kind, _ in kinds)})"
    )


def _computes(one: RankReport, usual: Sequence[RankReport], kind: str) -> str:
    found, expected = one.facts["product"]["computed_with"], usual[0].facts["product"]["computed_with"]
    told = f"computes other bits than {len(usual)} other ranks of its kind, {kind}"
    if found != expected:
        return f"{told}, with {found} where they use {expected}; unset the variable that asks for it on this rank"
    return f"{told}; {TAKE_OUT}"


def check_clocks(reports: Sequence[RankReport]) -> Comparison:
    """Clocks that differ by a second or more."""
    known = {one.place.host: one.facts["clock"] for one in reports if one.facts.get("clock")}
    far = [
        f"{host} is {'behind' if offset > 0 else 'ahead'} by {abs(offset):.1f} s"
        for host, (offset, uncertainty) in known.items()
        if abs(offset) - uncertainty > _CLOCK_LIMIT
    ]
    if far:
        detail = f"{'; '.join(far)}, compared with the host of rank 0; set its clock (chronyc makestep)"
        return Comparison("clocks", True, detail, warning=True)
    if not known:
        return Comparison("clocks", True, "one host")
    largest = max(abs(offset) for offset, _ in known.values())
    return Comparison("clocks", True, f"{len(known) + 1} hosts differ by {largest * 1e3:.1f} ms at most")


def check_output_is_shared(reports: Sequence[RankReport]) -> Comparison:
    """Every host sees what rank 0 writes into the output folder."""
    answers = [one for one in reports if one.facts.get("sees_output") is not None]
    blind = [one for one in answers if not one.facts["sees_output"]]
    if blind:
        detail = (
            f"{hosts_of(blind)} does not see the file that rank 0 wrote into {blind[0].facts['output']}; choose an "
            "output_dir on a disk that all hosts share"
        )
        return Comparison("shared output", False, detail, ranks=ranks_of(blind))
    return Comparison("shared output", True, f"seen from {len(answers) + 1} hosts" if answers else "one host")


def check_rows(rows: Mapping[int, Mapping[str, Any]], reports: Sequence[RankReport]) -> Comparison:
    """No row on two ranks, and the same data on all hosts."""
    places = {one.place.rank: one for one in reports}
    owners: dict[int, list[int]] = defaultdict(list)
    for rank, found in rows.items():
        for index in found["rows"]:
            owners[index].append(rank)
    shared = {index: ranks for index, ranks in owners.items() if len(ranks) > 1}
    if shared:
        index, ranks = min(shared.items())
        both = " and ".join(places[rank].place.short for rank in ranks[:2])
        detail = f"{len(shared)} rows are read by several ranks, the first of them, row {index}, by {both}"
        remedy = f"see that every rank has a RANK of its own, and WORLD_SIZE {len(rows)}"
        return Comparison("own rows", False, f"{detail}; {remedy}", ranks=tuple(ranks))

    def own(one: RankReport) -> str:
        return rows[one.place.rank]["own"]

    usual, *others = by_value([places[rank] for rank in rows], lambda one: rows[one.place.rank]["data"])
    if others:
        wrong = "; ".join(hosts_of(ones) for _, ones in others)
        detail = f"{wrong} reads other data than {hosts_of(usual[1])}; copy the data anew, or share the disk"
        return Comparison("own rows", False, detail)
    equal = next((ones for _, ones in by_value([places[rank] for rank in rows], own) if len(ones) > 1), None)
    if equal is not None:
        both = " and ".join(one.place.short for one in equal[:2])
        detail = f"{both} read rows of equal content under different indices; look for copies in the data"
        return Comparison("own rows", True, detail, warning=True)
    return Comparison("own rows", True, f"{len(owners)} first rows, each on one rank; the same data on all hosts")


_NUMBER = re.compile(r"(?<![\w.])\d+(?:\.\d+)?(?![.\w]*\.\d)")  # neither in a version nor in an address
_ORDER = ("FAIL", "warn", "ok")
_BELOW = "see below"
_FEW_RANKS = 4  # ranks with the same problem, each of which is named by itself
_WIDTH = 24  # of a list of ranks in the table of checks


def format_report(
    reports: Sequence[RankReport],
    compared: Sequence[Comparison],
    missing: Sequence[MissingRank],
    advice: Sequence[str] = (),
) -> str:
    """The report as text.

    Args:
        reports (sequence of [`RankReport`]): the ranks that answered.
        compared (sequence of [`Comparison`]): checks of all ranks together.
        missing (sequence of [`MissingRank`]): the ranks that did not answer.
        advice (sequence of `str`, *optional*): settings to try.
    """
    parts = [
        format_table(["ranks", "host", "device", "UUID of GPU", "result"], _place_lines(reports, compared, missing))
    ]
    parts.append(format_table(["check", "result", "ranks", "what was found"], _check_lines(reports, compared)))
    problems = _problems(reports, compared, missing)
    if problems:
        parts.append("\n".join(problems))
    if advice:
        parts.append("\n".join(["Settings to try:", *(f"  {line}" for line in advice)]))
    parts.append(_verdict(reports, compared, missing))
    return "\n\n".join(parts)


def _place_lines(
    reports: Sequence[RankReport], compared: Sequence[Comparison], missing: Sequence[MissingRank]
) -> list[list[str]]:
    groups = by_value(reports, lambda one: (one.place.host, kind_of(one.place), _result(one, compared)))
    lines = []
    for (host, kind, result), ones in groups:
        uuids = [one.place.uuid for one in ones if one.place.uuid is not None]
        # All of a UUID is only needed to find a GPU that fails.
        shown = uuids if len(ones) == 1 else [uuid.removeprefix("GPU-")[:8] for uuid in uuids]
        device = ones[0].place.device if len(ones) == 1 else f"{len(ones)} x {kind}"
        ranks = ranks_of(ones)
        lines.append((ranks[0], [format_ranks(ranks), host, device, " ".join(shown) or "-", result]))
    for one in missing:
        place = one.place
        known = ["?", "?", "-"] if place is None else [place.host, place.device, place.uuid or "-"]
        lines.append((one.rank, [str(one.rank), *known, "FAIL no answer"]))
    return [line for _, line in sorted(lines)]


def _result(report: RankReport, compared: Sequence[Comparison]) -> str:
    found = [*report.checks, *(check for check in compared if report.place.rank in check.ranks)]
    names = {mark: [check.name for check in found if check.mark == mark] for mark in _ORDER[:2]}
    return "; ".join(f"{mark} {', '.join(names[mark])}" for mark in names if names[mark]) or "ok"


def _check_lines(reports: Sequence[RankReport], compared: Sequence[Comparison]) -> list[list[str]]:
    lines = []
    for name in dict.fromkeys(check.name for report in reports for check in report.checks):
        ones = [one for one in reports if any(check.name == name for check in one.checks)]
        groups = by_value(ones, lambda one, name=name: _check(one, name).mark)
        for mark, same in sorted(groups, key=lambda group: _ORDER.index(group[0])):
            found = folded([_check(one, name).detail for one in same]) if mark == "ok" else _BELOW
            lines.append([name, mark, _who(same, reports), found])
    lines += [[one.name, one.mark, "together", one.detail if one.mark == "ok" else _BELOW] for one in compared]
    return lines


def _who(same: Sequence[RankReport], reports: Sequence[RankReport]) -> str:
    """The ranks that found the same, in few words."""
    if len(same) == len(reports):
        return "all"
    if len(same) > 1 and all(one.place.local_rank == 0 for one in same):
        return f"one of {len(same)} hosts each"
    listed = format_ranks(ranks_of(same))
    return listed if len(listed) <= _WIDTH else f"{len(same)} ranks"


def _check(report: RankReport, name: str) -> Check:
    return next(check for check in report.checks if check.name == name)


def folded(details: Sequence[str]) -> str:
    """What several ranks found in one line: numbers that differ become ranges, and of other differences the first.

    ```python
    >>> folded(["812.5 GiB free at /run", "90 GiB free at /run", "81 GiB free at /run"])
    '81..812.5 GiB free at /run'

    ```
    """
    templates = list(dict.fromkeys(_NUMBER.sub("\0", detail) for detail in details))
    same = [detail for detail in details if _NUMBER.sub("\0", detail) == templates[0]]
    columns = list(zip(*(_NUMBER.findall(detail) for detail in same), strict=True))
    ranges = []
    for column in columns:
        low, high = min(column, key=float), max(column, key=float)
        ranges.append(low if low == high else f"{low}..{high}")
    parts = templates[0].split("\0")
    found = "".join(part + number for part, number in zip(parts, [*ranges, ""], strict=True))
    more = len(templates) - 1
    return found if more == 0 else f"{found} (and {more} other{'s' if more > 1 else ''})"


def _problems(
    reports: Sequence[RankReport], compared: Sequence[Comparison], missing: Sequence[MissingRank]
) -> list[str]:
    """One line for each failure and warning; the same of many ranks is printed once."""
    lines = [f"FAIL  {one.detail}" for one in missing]
    lines += [f"{check.mark}  {check.name}: {check.detail}" for check in compared if check.mark != "ok"]
    found: dict[tuple[str, str, str], list[tuple[RankReport, str]]] = {}
    for report in reports:
        for check in report.checks:
            if check.mark != "ok":
                key = check.mark, check.name, _NUMBER.sub("\0", check.detail)
                found.setdefault(key, []).append((report, check.detail))
    for (mark, name, _), ones in found.items():
        if len(ones) <= _FEW_RANKS:
            lines += [f"{mark}  {report.place.short}: {name}: {detail}" for report, detail in ones]
        else:
            who, details = hosts_of([report for report, _ in ones]), [detail for _, detail in ones]
            lines.append(f"{mark}  {who}: {name}: {folded(details)}")
    return sorted(lines, key=lambda line: _ORDER.index(line[:4]))


def _verdict(reports: Sequence[RankReport], compared: Sequence[Comparison], missing: Sequence[MissingRank]) -> str:
    total = len(reports) + len(missing)
    failed = count_failures(reports, compared, missing)
    hosts = len({one.place.host for one in reports})
    place = f"preflight of {total} ranks on {hosts} host{'s' if hosts > 1 else ''}"
    if failed:
        return f"{place}: {failed} failure{'s' if failed > 1 else ''}"
    return f"{place}: a run can start"


def count_failures(
    reports: Sequence[RankReport], compared: Sequence[Comparison], missing: Sequence[MissingRank]
) -> int:
    """The number of checks that failed, and of ranks that did not answer."""
    return (
        sum(not check.ok for one in reports for check in [*one.checks])
        + sum(not c.ok for c in compared)
        + len(missing)
    )


def format_table(head: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """Lines in columns, the last of which is not padded."""
    widths = [max(len(row[column]) for row in [head, *lines]) for column in range(len(head) - 1)]
    rows = [head, ["-" * width for width in [*widths, len(head[-1])]], *lines]
    return "\n".join(
        "  ".join([*(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=False)), row[-1]]) for row in rows
    )
