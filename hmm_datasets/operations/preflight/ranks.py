"""Preflight on all ranks: each does its own checks, then together the all-reduce and the first rows; rank 0 reports.

Between two stages rank 0 reads the results of all ranks. If one is missing, the stages that need all ranks are left
out, and the rank is named with what it was busy with.

Ranks tell each other what they found without collectives ([`Exchange`]): a collective needs all ranks, so it hangs
when one does not come, and cannot say which. Each rank writes its results under keys of its own into the key-value
store of the rendezvous, torch's `TCPStore`, and rank 0 reads those that are there. A rank that never writes is known
by its number; one that wrote its place is known by host and process too, and by the check that it was busy with. The
store is served by torch's launcher, or, if ranks were started without it, by rank 0.
"""

import contextlib
import json
import os
import secrets
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

from ...errors import InputError, first_line
from ...runtime import environment
from ...runtime.process_identity import Place, this_place, uses_gpu
from ...runtime.settings import option, rest
from ...runtime.time_limit import within
from .device import check_device, check_device_memory, check_devices, check_gpu_state, has_nvlink, measure_product
from .host import (
    check_builds,
    check_disk,
    check_disk_speed,
    check_host,
    check_hub,
    check_limits,
    check_memory,
    check_shared_memory,
    check_versions,
    existing_folder,
    versions_to_compare,
)
from .network import (
    advice,
    between_hosts,
    check_all_reduce,
    check_network,
    infiniband,
    interface_to,
    interfaces,
    measure_all_reduce,
    slow_links,
)
from .report import (
    Check,
    Comparison,
    MissingRank,
    RankReport,
    check_products,
    check_rows,
    compare,
    count_failures,
    format_checks,
    format_report,
)
from .rows import first_rows, problem_of

_LOOK_EVERY = 0.1  # seconds
_LOOK_AT_CLOCK_EVERY = 0.001
_NUMBER_IS_LOST = 1.0
_CLOCK_TRIPS = 8


@dataclass(frozen=True)
class PreflightSettings:
    """What a run needs.

    Workers of a DataLoader send batches through `/dev/shm`. Other ranks have the same time to report after this one as
    an all-reduce has, with the rendezvous. Flags of the recipe override its file.
    """

    push: bool = option(False, None, "the run pushes to the Hub, so fail if the Hub does not answer")
    config: str | None = option(
        None,
        "FILE.yaml",
        "settings of pretrain or midtrain, whose first rows are then read on every rank and compared",
    )
    min_disk_gib: float = option(10.0, "GIB", "free space needed in OUTPUT_DIR, default 10")
    min_memory_gib: float = option(2.0, "GIB", "free memory needed, default 2")
    min_shm_gib: float = option(0.5, "GIB", "free /dev/shm needed, default 0.5")
    min_bus_bandwidth: float = option(0.0, "GB/S", "bus bandwidth of all-reduces needed, default 0")
    seconds: float = option(2.0, "S", "seconds for which each device multiplies matrices, default 2")
    timeout: float = option(60.0, "S", "seconds to wait for other ranks, default 60")
    flags: list[str] = rest("flags")

    def __post_init__(self):
        for name in ("min_disk_gib", "min_memory_gib", "min_shm_gib", "min_bus_bandwidth", "seconds", "timeout"):
            if not getattr(self, name) >= 0:
                raise InputError(f"{name} is {getattr(self, name)}; expected 0 or more")


class NoStore(Exception):
    """The store of the rendezvous cannot be used; the message says where and why, with a remedy."""


class Exchange:
    """This rank's connection to the store.

    Args:
        place ([`~hmm_datasets.runtime.process_identity.Place`]): the place of this rank, which is written at once.
        timeout (`float`): seconds to connect, and to wait for an answer.

    Raises:
        [`NoStore`]: there is no address, nothing answers there, or another process has the same rank.
    """

    def __init__(self, place: Place, timeout: float):
        import torch.distributed as dist

        self.place, self.timeout = place, timeout
        self._clocks: threading.Thread | None = None
        self._clocks_end = threading.Event()
        self._connect = lambda serve: _connect(serve, place.world_size, timeout)
        served_by_launcher = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == str(True)
        self._store = self._connect(place.rank == 0 and not served_by_launcher)
        prefix = f"hmm_datasets_preflight/{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}"
        self._prefixed = lambda store: dist.PrefixStore(prefix, store)
        self._keys = self._prefixed(self._store)
        if self._keys.add(f"processes/{place.rank}", 1) > 1:
            raise NoStore(f"another process has RANK {place.rank} too; give each process a RANK of its own")
        self.post("place", asdict(place))

    @property
    def group_store(self) -> Any:
        """A store for a process group."""
        import torch.distributed as dist

        return dist.PrefixStore("group", self._keys)

    def post(self, stage: str, value: Any) -> None:
        """Write this rank's result of a stage."""
        self._keys.set(f"{stage}/{self.place.rank}", json.dumps(value))

    def begin(self, what: str) -> None:
        """Write what this rank is busy with, in case that it never ends."""
        self.post("busy", what)

    def collect(self, stage: str, timeout: float) -> dict[int, Any]:
        """The results of all ranks by rank, without those that have not written any in time."""
        found: dict[int, Any] = {}
        deadline = time.monotonic() + timeout
        while True:
            for rank in range(self.place.world_size):
                if rank not in found and self._keys.check([f"{stage}/{rank}"]):
                    found[rank] = self.read(stage, rank)
            if len(found) == self.place.world_size or time.monotonic() > deadline:
                return found
            time.sleep(_LOOK_EVERY)

    def read(self, stage: str, rank: int) -> Any:
        """What a rank has written, or None."""
        key = f"{stage}/{rank}"
        return json.loads(self._keys.get(key)) if self._keys.check([key]) else None

    def wait(self, stage: str, timeout: float) -> Any:
        """What rank 0 writes for all; None if it does not in time, or the store is gone."""
        with self._end_without_answer(timeout):
            return self.read(stage, 0) if self._appears(f"{stage}/0", timeout) else None

    def _appears(self, key: str, timeout: float, look_every: float = _LOOK_EVERY) -> bool:
        """Whether a key is written in time. (A store can wait too, but warns on stderr when a key does not come.)"""
        deadline = time.monotonic() + timeout
        try:
            while not self._keys.check([key]):
                if time.monotonic() > deadline:
                    return False
                time.sleep(look_every)
        except RuntimeError:  # torch has no class for a store that is gone
            return False
        return True

    # Clocks.

    def answer_clocks(self) -> None:
        """Tell other ranks the time of this host, in a thread, until [`Exchange.end_clocks`]; called by rank 0."""
        keys = self._prefixed(self._connect(False))  # a connection serves one request at a time

        def answer() -> None:
            number, since = 1, time.monotonic()
            while not self._clocks_end.wait(_LOOK_AT_CLOCK_EVERY):
                if keys.check([f"clock/ask/{number}"]):
                    keys.set(f"clock/answer/{number}", json.dumps(time.time()))
                elif time.monotonic() - since < _NUMBER_IS_LOST or not keys.check([f"clock/ask/{number + 1}"]):
                    continue
                number, since = number + 1, time.monotonic()  # also past one who took a number and never asked

        self._clocks = threading.Thread(target=answer, daemon=True)
        self._clocks.start()

    def end_clocks(self) -> None:
        """End the thread of [`Exchange.answer_clocks`]; one that uses a store would abort Python at its end."""
        self._clocks_end.set()
        if self._clocks is not None:
            self._clocks.join(_LOOK_EVERY * 20)

    def clock_offset(self) -> tuple[float, float] | None:
        """Seconds by which the clock of rank 0 is ahead of this one, and how far this may be wrong.

        The other clock is read between question and answer, so it belongs to the midpoint of the round trip, give or
        take half of it (Cristian, 1989). Of several round trips the shortest counts.
        """
        with self._end_without_answer(self.timeout):
            return self._clock_offset()

    def _clock_offset(self) -> tuple[float, float] | None:
        best = None
        for _ in range(_CLOCK_TRIPS):
            number = self._keys.add("clock/number", 1)
            asked = time.time()
            self._keys.set(f"clock/ask/{number}", "")
            if not self._appears(f"clock/answer/{number}", min(self.timeout, 10.0), _LOOK_AT_CLOCK_EVERY):
                return best
            trip = time.time() - asked
            told = json.loads(self._keys.get(f"clock/answer/{number}"))
            if best is None or trip / 2 < best[1]:
                best = told - (asked + trip / 2), trip / 2
        return best

    def _end_without_answer(self, timeout: float) -> contextlib.AbstractContextManager[None]:
        return _end_after(timeout + 5, f"{self.place.short}: rank 0 does not answer; see whether it runs")


def _connect(serve: bool, world_size: int, timeout: float) -> Any:
    import torch.distributed as dist

    address, port = os.environ.get("MASTER_ADDR"), os.environ.get("MASTER_PORT")
    if not address or not port:
        raise NoStore(
            "MASTER_ADDR or MASTER_PORT is not set; start ranks with accelerate launch or torchrun, or set both"
        )
    try:
        return dist.TCPStore(
            address,
            int(port),
            world_size,
            serve,
            timedelta(seconds=timeout),
            wait_for_workers=False,
            multi_tenant=True,  # the process group of the recipe's settings is served there too
        )
    except (RuntimeError, ValueError) as error:
        remedy = (
            "set MASTER_PORT to a free port" if serve else "see whether rank 0 runs and whether a firewall is between"
        )
        raise NoStore(f"MASTER_ADDR {address}, port {port}: {first_line(error)}; {remedy}") from None


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


def checks_of_host(
    output_dir: str | os.PathLike, settings: PreflightSettings
) -> list[tuple[str, Callable[[], Check]]]:
    """The checks that one process of a host does for all, with what they are about."""
    return [
        ("host", check_host),
        ("versions", check_versions),
        ("disk", lambda: check_disk(output_dir, settings.min_disk_gib)),
        ("disk speed", lambda: check_disk_speed(output_dir)),
        ("memory", lambda: check_memory(settings.min_memory_gib)),
        ("shared memory", lambda: check_shared_memory(settings.min_shm_gib)),
        ("limits", check_limits),
        ("builds", check_builds),
        ("Hub", lambda: check_hub(settings.push)),
    ]


def checks_of_rank(
    place: Place, settings: PreflightSettings
) -> Iterator[tuple[str, Callable[[], tuple[Check, dict]]]]:
    """The checks of a rank's own device and network, which also give facts to compare."""
    index = None if place.device == "CPU" else place.local_rank

    def product() -> tuple[Check, dict]:
        found = measure_product(settings.seconds, index)
        return found.check, {"product": asdict(found)}

    yield "device", lambda: (check_device(index), {"versions": versions_to_compare()})
    if os.environ.get("MASTER_ADDR"):
        yield "network", lambda: (check_network(os.environ["MASTER_ADDR"]), {"links": links_of_host(index)})
    yield "device memory", lambda: (check_device_memory(index), {})
    yield "matrix product", product
    if place.uuid is not None:
        uuid = place.uuid
        yield "GPU state", lambda: (check_gpu_state(uuid, _this_job()), {})


def attempted(name: str, check: Callable[[], Check | tuple[Check, dict]]) -> tuple[Check, dict]:
    """The result of a check, and its facts; an error that it did not expect is a failure, and hides no other check."""
    try:
        found = check()
    except Exception as error:
        found = Check(name, False, problem_of(error))
    return (found, {}) if isinstance(found, Check) else found


def run_checks(output_dir: str | os.PathLike, settings: PreflightSettings | None = None) -> list[Check]:
    """Run every check that needs no other rank; `run_preflight` runs those of all ranks.

    Args:
        output_dir (path): where the run will write; it need not exist, and is not created.
        settings ([`PreflightSettings`], *optional*): what the run needs.

    Returns:
        `list` of [`Check`]: host, versions, disk, memory, shared memory, limits, builds, Hub, devices, device memory
        and matrix product; for several processes also network and all-reduce.
    """
    settings = settings or PreflightSettings()
    checks = [attempted(name, check)[0] for name, check in checks_of_host(output_dir, settings)]
    checks.append(check_devices())
    if checks[-1].ok:
        checks += _checks_of_devices(settings)
    if environment.world_size() > 1:
        checks.append(check_all_reduce(settings.timeout))
    return checks


def _checks_of_devices(settings: PreflightSettings) -> list[Check]:
    """The checks of the device of this process; of all GPUs of the host, compared, if it is the only process."""
    import torch

    reports, several = [], environment.world_size() == 1 and uses_gpu() and torch.cuda.device_count() > 1
    for place in map(this_place, range(torch.cuda.device_count())) if several else [this_place()]:
        found = [attempted(name, check) for name, check in checks_of_rank(place, settings) if name != "device"]
        prefix = f"{place.device}: " if several else ""
        checks = [replace(check, detail=f"{prefix}{check.detail}") for check, _ in found]
        reports.append(RankReport(place, checks, {name: fact for _, facts in found for name, fact in facts.items()}))
    compared = [check_products(reports)] if several else []
    return [check for report in reports for check in report.checks] + compared


def links_of_host(index: int | None) -> dict:
    """What connects the GPUs of this host, and the host with others."""
    import torch

    try:
        interface = interface_to(os.environ["MASTER_ADDR"])[0]
    except OSError:
        interface = None
    return {
        "gpus": 0 if index is None else torch.cuda.device_count(),
        "nvlink": None if index is None else has_nvlink(),
        "infiniband": infiniband(),
        "interface": interface,
        "interfaces": between_hosts(interfaces()),
        "set": [name for name in os.environ if name.startswith("NCCL_")],
    }


def _this_job() -> set[int]:
    """Ids of the processes that the launcher of this one has started, and of this one."""
    import psutil

    try:
        siblings = psutil.Process(os.getppid()).children(recursive=True)
    except psutil.Error:
        siblings = []
    return {os.getpid(), *(process.pid for process in siblings)}


_LOOKS = 5
"""Seconds that a host looks for a file of rank 0 in the output folder."""


def run_preflight(output_dir: str | os.PathLike, settings: PreflightSettings) -> int:
    """Run all checks, print the report on rank 0, and return how many failed, on all ranks.

    Args:
        output_dir (path): where the run will write; it need not exist, and is not created.
        settings ([`PreflightSettings`]): what the run needs.
    """
    if environment.world_size() == 1:
        checks = run_checks(output_dir, settings)
        if settings.config is not None:
            checks.append(_first_rows(settings, 1)[0])
        print(format_checks(checks), flush=True)
        return sum(not check.ok for check in checks)
    place = this_place()
    try:
        exchange = Exchange(place, settings.timeout)
    except NoStore as problem:
        print(f"FAIL  rank {place.rank} on {place.host}: {problem}", flush=True)
        return 1
    return _Preflight(exchange, output_dir, settings).run()


class _Preflight:
    """The stages on one rank."""

    def __init__(self, exchange: Exchange, output_dir: str | os.PathLike, settings: PreflightSettings):
        self.exchange, self.place, self.settings = exchange, exchange.place, settings
        self.output_dir = output_dir
        # Rank 0 does the checks of its host first, and then waits for all ranks.
        self.patience = 3 * settings.timeout + 60
        self.reports: dict[int, RankReport] = {}
        self.compared: list[Comparison] = []
        self.missing: dict[int, MissingRank] = {}
        self.advice: list[str] = []

    @property
    def leads(self) -> bool:
        return self.place.rank == 0

    def run(self) -> int:
        own = self._own_checks()
        self.exchange.post("report", {"place": asdict(self.place), **own})
        if self.leads:
            for rank, found in self._collect("report", "own checks").items():
                self.reports[rank] = RankReport(
                    Place(**found["place"]), [Check(**check) for check in found["checks"]], found["facts"]
                )
            places = [one.place for one in (*self._in_order(), *self.missing.values()) if one.place is not None]
            self.compared += compare(sorted(places, key=lambda place: place.rank), self._in_order())
        if self._go_on("all-reduce"):
            self._all_reduce()
            if self.settings.config is not None and self._go_on("first rows"):
                self._rows()
        return self._end()

    # What each rank does.

    def _own_checks(self) -> dict[str, Any]:
        """The checks and facts of this rank, in the form in which they are sent."""
        checks, facts = [], {}
        token = self._write_token() if self.leads else None
        if self.place.local_rank == 0:
            for name, check in checks_of_host(self.output_dir, self.settings):
                self.exchange.begin(name)
                checks.append(attempted(name, check)[0])
        for name, check in checks_of_rank(self.place, self.settings):
            self.exchange.begin(name)
            found, more = attempted(name, check)
            checks.append(found)
            facts |= more
        self.exchange.begin("waiting for the others")
        if self.place.local_rank == 0 and not self.leads:
            facts["clock"] = self.exchange.clock_offset()
            path = self.exchange.wait("token", self.settings.timeout)
            facts |= {"sees_output": None if path is None else _appears(Path(path)), "output": str(self.output_dir)}
        self._token = token
        return {"checks": [asdict(check) for check in checks], "facts": facts}

    def _write_token(self) -> Path | None:
        """Write a file into the output folder that other hosts look for, and answer their questions for the time."""
        self.exchange.answer_clocks()
        token = existing_folder(self.output_dir) / f".preflight-{secrets.token_hex(8)}"
        try:
            token.touch()
        except OSError:
            token = None  # the check of the disk reports it
        self.exchange.post("token", None if token is None else str(token))
        return token

    def _all_reduce(self) -> None:
        self.exchange.begin("all-reduce")
        check, measured = measure_all_reduce(self.settings.timeout, self.exchange.group_store)
        found = self._checked("reduced", "all-reduce", check, measured)
        if not self.leads:
            return
        failed = bool(self.missing) or not all(one["check"]["ok"] for one in found.values())
        if failed:
            self.advice = advice(self._in_order(), all_reduce_failed=True)
            return
        self.advice = advice(self._in_order(), all_reduce_failed=False)
        slow = slow_links(self._in_order(), {rank: one["found"]["links"] for rank, one in found.items()})
        best = max(measured["bus_bandwidth"].values()) / 1e9
        wanted = self.settings.min_bus_bandwidth
        detail = "; ".join(slow) or f"no link is much slower than the others; bus bandwidth {best:.2f} GB/s"
        if best < wanted:
            detail = f"bus bandwidth {best:.2f} GB/s, {wanted:g} needed; {detail}"
        self.compared.append(Comparison("links", best >= wanted, detail, warning=bool(slow)))

    def _rows(self) -> None:
        self.exchange.begin("first rows")
        check, found = _first_rows(self.settings, self.place.world_size)
        everything = self._checked("rows", "first rows", check, found)
        rows = {rank: one["found"] for rank, one in everything.items() if one["found"]}
        if rows:
            self.compared.append(check_rows(rows, self._in_order()))

    def _checked(self, stage: str, name: str, check: Check, found: dict[str, Any]) -> dict[int, Any]:
        """Post a check; on rank 0 the checks of all ranks and what they found, which their reports have then."""
        self.exchange.post(stage, {"check": asdict(check), "found": found})
        everything = self._collect(stage, name) if self.leads else {}
        for rank, one in everything.items():
            self.reports[rank].checks.append(Check(**one["check"]))
        return everything

    # What rank 0 does with it.

    def _in_order(self) -> list[RankReport]:
        return [self.reports[rank] for rank in sorted(self.reports)]

    def _absent(self) -> list[MissingRank]:
        return [self.missing[rank] for rank in sorted(self.missing)]

    def _collect(self, stage: str, name: str) -> dict[int, Any]:
        """The results of a stage by rank; the ranks without one are noted as missing."""
        found = self.exchange.collect(stage, self.settings.timeout)
        for rank in range(self.place.world_size):
            if rank not in found and rank not in self.missing:
                self.missing[rank] = self._missing(rank, name)
        return found

    def _missing(self, rank: int, name: str) -> MissingRank:
        found, busy = self.exchange.read("place", rank), self.exchange.read("busy", rank)
        waited = f"{self.settings.timeout:g} s"
        if found is None:
            detail = (
                f"rank {rank} did not report within {waited}: it did not start, or cannot reach MASTER_ADDR "
                f"{os.environ['MASTER_ADDR']}; look for its error in the log of its host"
            )
            return MissingRank(rank, None, detail)
        place = Place(**found)
        detail = (
            f"{place.short}, process {place.process}: did not end {name!r} within {waited} after rank 0; it was busy "
            f"with {busy!r}; see there whether it is stopped (ps -o stat {place.process}), or raise --timeout"
        )
        return MissingRank(rank, place, detail)

    def _go_on(self, stage: str) -> bool:
        """Whether all ranks begin a stage that needs all of them; decided by rank 0."""
        key = f"begin {stage}"
        if self.leads:
            # The stages after a failed all-reduce would hang in the same way.
            reduced = [check for one in self.reports.values() for check in one.checks if check.name == "all-reduce"]
            self.exchange.post(key, not self.missing and all(check.ok for check in reduced))
        return bool(self.exchange.wait(key, self.patience))

    def _end(self) -> int:
        """Print the report on rank 0, and tell all ranks how many checks failed."""
        if self.leads:
            if self._token is not None:
                self._token.unlink(missing_ok=True)
            reports = self._in_order()
            print(format_report(reports, self.compared, self._absent(), self.advice), flush=True)
            self.exchange.post("failures", count_failures(reports, self.compared, self._absent()))
        failures = self.exchange.wait("failures", self.patience)
        self.exchange.post("end", True)
        if failures is None:
            print(f"FAIL  {self.place.short}: rank 0 did not say how the checks ended", flush=True)
            return 1
        if self.leads:  # it may serve the store, which the others read from
            present = len(self.reports)
            self.exchange.end_clocks()
            self.exchange.collect("end", min(5.0, self.settings.timeout) if present < self.place.world_size else 10.0)
        return failures


def _appears(path: Path) -> bool:
    """Whether a file is seen; a network disk may show it after some seconds."""
    for _ in range(_LOOKS):
        if path.exists():
            return True
        time.sleep(1.0)
    return False


def _first_rows(settings: PreflightSettings, world_size: int) -> tuple[Check, dict[str, Any]]:
    done = within(settings.timeout, lambda: first_rows(settings.config, settings.flags, world_size))
    if done.error is not None:
        return Check("first rows", False, problem_of(done.error)), {}
    if done.value is None:
        return Check(
            "first rows", False, f"not read in {settings.timeout:g} s, hangs in {done.hangs_in}; raise --timeout"
        ), {}
    return done.value
