"""The network between ranks: what connects the hosts, and all-reduces over all ranks.

Of a host the interfaces, InfiniBand, and what the environment says about them are checked. An all-reduce must give the
right sum; its latency and bandwidth are measured, and the links between neighbours in the ring of ranks. Links much
slower than the others are named, and settings for machines without fast ones.

The bandwidth is the bus bandwidth of nccl-tests: 2 (n - 1) / n times the bytes of the array, per second, which does
not depend on the number of ranks `n` (github.com/NVIDIA/nccl-tests, doc/PERFORMANCE.md). An all-reduce between
machines that cannot reach each other hangs, so everything runs in a thread that is given up after a timeout.
"""

import os
import socket
import statistics
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...errors import first_line
from ...runtime import environment
from ...runtime.process_identity import uses_gpu
from ...runtime.time_limit import within
from .report import Check, RankReport

if TYPE_CHECKING:
    from torch.distributed import Store

_SMALL = 1 << 24  # bytes, for all links
_LARGE = {"nccl": 1 << 28, "gloo": 1 << 26}
_LATENCIES, _REPEATS = 100, 3
_REMEDIES = {
    "nccl": "try NCCL_P2P_DISABLE=1, NCCL_IB_DISABLE=1 or another NCCL_SOCKET_IFNAME, and look for dead ranks",
    "gloo": "try GLOO_SOCKET_IFNAME with the interface between the hosts, and look for dead ranks",
}


def check_all_reduce(timeout: float) -> Check:
    """Time an all-reduce of 16 MiB over all processes of the launcher, with a timeout in seconds.

    If there is no process group, one is created and destroyed afterwards.
    """
    check, _ = measure_all_reduce(timeout)
    origin = f"rank {environment.rank()} of {environment.world_size()} on {socket.gethostname()}"
    return Check(check.name, check.ok, f"{origin}: {check.detail}")


def measure_all_reduce(timeout: float, store: "Store | None" = None) -> tuple[Check, dict[str, Any]]:
    """All-reduces over all ranks, and the links to this rank's neighbours; call it on all ranks.

    Args:
        timeout (`float`): seconds for all of it.
        store ([`~torch.distributed.Store`], *optional*): through which ranks find each other; by default that of the
            environment.

    Returns:
        `tuple`: the check, and what was measured: `latency` in seconds, `bus_bandwidth` by number of bytes and `links`
        by rank of the neighbour, both in bytes per second; empty after a failure.
    """
    done = within(timeout, lambda: _measure(timeout, store))
    if done.error is not None:
        return Check("all-reduce", False, f"{first_line(done.error)}; {_remedy()}"), {}
    if done.value is None:
        return Check("all-reduce", False, f"no result in {timeout:g} s, hangs in {done.hangs_in}; {_remedy()}"), {}
    return done.value


def _remedy() -> str:
    return _REMEDIES["nccl" if uses_gpu() else "gloo"]


def _measure(timeout: float, store: "Store | None") -> tuple[Check, dict[str, Any]]:
    import torch
    import torch.distributed as dist

    rank, world = environment.rank(), environment.world_size()
    cuda = uses_gpu()
    if cuda:
        torch.cuda.set_device(environment.local_rank())
    ours = not dist.is_initialized()
    if ours:
        given = {} if store is None else {"store": store, "rank": rank, "world_size": world}
        backend = "nccl" if cuda else "gloo"
        dist.init_process_group(backend, timeout=timedelta(seconds=max(timeout, 1.0)), **given)
    try:
        device, backend = "cuda" if cuda else "cpu", dist.get_backend()
        small = torch.full((_SMALL // 4,), float(rank + 1), device=device)
        dist.all_reduce(small)  # also sets up the connections
        total, expected = (small.min().item(), small.max().item()), world * (world + 1) / 2
        if total != (expected, expected):
            found = f"1, 2, ... {world} summed to {total[0]:g} .. {total[1]:g} by {backend}, not {expected:g}"
            return Check("all-reduce", False, f"{found}; {_remedy()}"), {}
        seconds = _median_time(small)
        measured = {
            "backend": backend,
            "latency": _median_time(torch.zeros(2, device=device), _LATENCIES),
            "bus_bandwidth": {_SMALL: _bus_bandwidth(_SMALL, seconds, world)},
        }
        large = _LARGE[backend]
        if seconds * large / _SMALL * _REPEATS < timeout / 4 and _has_room(torch, device, large):
            values = torch.zeros(large // 4, device=device)
            measured["bus_bandwidth"][large] = _bus_bandwidth(large, _median_time(values), world)
        measured["links"] = _links(small, rank, world) if world > 1 else {}
    finally:
        if ours:
            dist.destroy_process_group()
    bandwidths = ", ".join(
        f"{rate / 1e9:.2f} GB/s with {size >> 20} MiB" for size, rate in measured["bus_bandwidth"].items()
    )
    timing = (
        f"16 MiB in {seconds * 1e3:.1f} ms; 8 bytes in {measured['latency'] * 1e6:.0f} µs; bus bandwidth {bandwidths}"
    )
    return Check("all-reduce", True, f"{timing}; by {backend}"), measured


def _bus_bandwidth(size: int, seconds: float, world: int) -> float:
    return 2 * (world - 1) / world * size / seconds


def _median_time(values, repeats: int = _REPEATS) -> float:
    """The median time of an all-reduce, that of the slowest rank."""
    import torch
    import torch.distributed as dist

    times = []
    for _ in range(repeats):
        _wait(values)
        began = time.perf_counter()
        dist.all_reduce(values)
        _wait(values)
        times.append(time.perf_counter() - began)
    slowest = torch.tensor(statistics.median(times), dtype=torch.float64, device=values.device)
    dist.all_reduce(slowest, dist.ReduceOp.MAX)
    return slowest.item()


def _has_room(torch, device: str, size: int) -> bool:
    """Whether every rank has the memory for it twice."""
    import torch.distributed as dist

    free = torch.cuda.mem_get_info()[0] if device == "cuda" else 2 * size
    enough = torch.tensor(int(free >= 2 * size), device=device)
    dist.all_reduce(enough, dist.ReduceOp.MIN)
    return bool(enough.item())


def _links(values, rank: int, world: int) -> dict[int, float]:
    """Bytes per second between this rank and its neighbours in the ring of ranks, in each direction at once."""
    pairs = [(one, (one + 1) % world) for one in range(world)] if world > 2 else [(0, 1)]
    # In each round a rank is in one pair at most; in a ring of odd length the last pair has a round of its own.
    rounds = [pairs[0 : world - 1 : 2], pairs[1 : world - 1 : 2], pairs[world - 1 :]]
    found: dict[int, float] = {}
    for pairs_of_round in rounds:
        mine = next((pair for pair in pairs_of_round if rank in pair), None)
        times = [_exchange(values, mine, rank) for _ in range(1 + _REPEATS)][1:]  # the first one connects
        if mine is not None:
            found[mine[0] + mine[1] - rank] = values.numel() * values.element_size() / min(times)
    return found


def _exchange(values, pair: tuple[int, int] | None, rank: int) -> float:
    """The time in which the two ranks of a pair send each other an array; 0 for other ranks."""
    import torch
    import torch.distributed as dist

    dist.all_reduce(torch.zeros(1, device=values.device))  # all start together
    _wait(values)
    if pair is None:
        return 0.0
    other, received = sum(pair) - rank, torch.empty_like(values)
    began = time.perf_counter()
    for work in dist.batch_isend_irecv(
        [dist.P2POp(dist.isend, values, other), dist.P2POp(dist.irecv, received, other)]
    ):
        work.wait()
    _wait(values)
    return time.perf_counter() - began


def _wait(values) -> None:
    """Wait until the device has done what it was given."""
    if values.is_cuda:
        import torch

        torch.cuda.synchronize()


_FEW = 4  # hosts to name
_SLOW_LINK = 0.5  # of a good link, which one of four is at least


def slow_links(reports: Sequence[RankReport], links: Mapping[int, Mapping[str, float]]) -> list[str]:
    """Hosts and pairs of ranks whose links are much slower than others of their sort.

    Args:
        reports (sequence of [`RankReport`]): all ranks.
        links (`dict`): for each rank, bytes per second to its neighbours by rank.
    """
    places = {one.place.rank: one.place for one in reports}
    rates = {tuple(sorted((rank, int(other)))): rate for rank, own in links.items() for other, rate in own.items()}
    found = []
    for within_host in (True, False):
        pairs = {
            pair: rate for pair, rate in rates.items() if (places[pair[0]].host == places[pair[1]].host) == within_host
        }
        if len(pairs) < 3:
            continue  # nothing to compare with
        # Not the median: in a ring of three hosts, two of three links are those of a slow one.
        good = sorted(pairs.values())[3 * len(pairs) // 4]
        slow = {pair: rate for pair, rate in pairs.items() if rate < _SLOW_LINK * good}
        hosts = Counter(host for pair in slow for host in {places[rank].host for rank in pair})
        all_of = Counter(host for pair in pairs for host in {places[rank].host for rank in pair})
        culprits = [host for host, count in hosts.items() if count == all_of[host] and count > 1]
        for host in culprits:
            rate = max(rate for pair, rate in slow.items() if host in {places[rank].host for rank in pair})
            found.append(f"every link of {host} is slow, {rate / 1e9:.2f} GB/s where others have {good / 1e9:.2f}")
        for pair, rate in slow.items():
            if not {places[rank].host for rank in pair} & set(culprits):
                ends = " and ".join(places[rank].short for rank in pair)
                found.append(f"the link between {ends} has {rate / 1e9:.2f} GB/s where others have {good / 1e9:.2f}")
    return found


def advice(reports: Sequence[RankReport], all_reduce_failed: bool) -> list[str]:
    """Environment variables for machines without NVLink or InfiniBand, where they apply.

    NVLink is what `nvidia-smi nvlink --status` lists, InfiniBand a port in `/sys/class/infiniband` that is active.
    """
    hosts = {one.place.host: one.facts["links"] for one in reports if one.facts.get("links", {}).get("gpus")}
    found = {}
    if all_reduce_failed and any(facts["gpus"] > 1 and facts["nvlink"] is False for facts in hosts.values()):
        found["NCCL_P2P_DISABLE"] = "1 (these GPUs have no NVLink, and reach each other through memory then)"
    without = [host for host, facts in hosts.items() if facts["infiniband"] != "active"]
    if len(hosts) > 1 and without:
        if all_reduce_failed or any(hosts[host]["infiniband"] == "down" for host in without):
            more = f" and {len(without) - _FEW} other hosts" if len(without) > _FEW else ""
            why = f"no active InfiniBand port on {', '.join(without[:_FEW])}{more}"
            found["NCCL_IB_DISABLE"] = f"1 ({why}), so that all hosts use the same network"
        ways = {facts["interface"] for facts in hosts.values()}
        if len(ways) == 1 and None not in ways and any(len(facts["interfaces"]) > 1 for facts in hosts.values()):
            (way,) = ways
            found["NCCL_SOCKET_IFNAME"] = f"{way} (hosts have several interfaces, and this one leads to rank 0)"
    known = set.intersection(*({*facts["set"]} for facts in hosts.values())) if hosts else set()
    return [f"export {name}={value}" for name, value in found.items() if name not in known]


_NOT_BETWEEN_HOSTS = ("lo", "docker", "veth", "virbr", "br-", "cni", "flannel", "tun", "tap")


def interfaces() -> list[str]:
    """The network interfaces of this host that are up."""
    import psutil

    return sorted(name for name, state in psutil.net_if_stats().items() if state.isup)


def interface_to(address: str) -> tuple[str | None, str]:
    """The interface through which packets to an address leave this host, and this host's own address there.

    Raises:
        `OSError`: the name is unknown, or there is no way to the address.
    """
    import psutil

    family, kind, protocol, _, target = socket.getaddrinfo(address, 9, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind, protocol) as probe:
        probe.connect(target)  # chooses the way; a datagram socket sends nothing here
        own = probe.getsockname()[0]
    for name, addresses in psutil.net_if_addrs().items():
        if any(one.address.partition("%")[0] == own for one in addresses):
            return name, own
    return None, own


def named_interfaces(variable: str, value: str, existing: list[str]) -> list[str]:
    """The interfaces that `NCCL_SOCKET_IFNAME` or `GLOO_SOCKET_IFNAME` allows, of those that exist.

    gloo takes names. NCCL takes beginnings of names, names after `=`, and after `^` those to leave out.
    """
    names = [name for name in value.lstrip("^=").split(",") if name]
    exactly = variable != "NCCL_SOCKET_IFNAME" or "=" in value[:2]
    match = {one for one in existing if one in names or (not exactly and one.startswith(tuple(names)))}
    return [one for one in existing if (one not in match) == value.startswith("^")]


def check_network(address: str) -> Check:
    """Whether the address of rank 0 is reached, through which interface, and whether the interfaces named exist."""
    try:
        interface, own = interface_to(address)
    except OSError as error:
        return Check(
            "network",
            False,
            f"MASTER_ADDR {address} cannot be reached ({error.strerror or error}); set it to an address of the host "
            "of rank 0 that this host knows",
        )
    found = f"{address} is reached through {interface or 'an unknown interface'} ({own})"
    there = interfaces()
    for variable in ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"):
        value = os.environ.get(variable)
        if value and not named_interfaces(variable, value, there):
            remedy = f"export {variable}={interface}" if interface else f"unset {variable}"
            return Check(
                "network",
                False,
                f"{variable}={value} is no interface of this host, which has {', '.join(there)}; {remedy}",
            )
    if interface not in (None, "lo") and "GLOO_SOCKET_IFNAME" not in os.environ and _gloo_listens_on_loopback():
        detail = f"{found}; by its own name this host would tell other hosts to call it on loopback (gloo)"
        return Check("network", True, f"{detail}: export GLOO_SOCKET_IFNAME={interface}", warning=True)
    return Check("network", True, found)


def between_hosts(there: list[str]) -> list[str]:
    """The interfaces that can connect hosts: neither loopback nor those of containers and virtual machines."""
    return [name for name in there if not name.startswith(_NOT_BETWEEN_HOSTS)]


def infiniband(root: str | os.PathLike = "/sys/class/infiniband") -> str:
    """`active` if a port of an InfiniBand or RoCE card is, `down` if there are only others, `none` without a card."""
    ports = list(Path(root).glob("*/ports/*/state"))
    if not ports:
        return "none"
    return "active" if any("ACTIVE" in port.read_text() for port in ports) else "down"


def _gloo_listens_on_loopback() -> bool:
    """Whether the host's own name is an address of loopback, or of nothing, when gloo takes loopback too."""
    try:
        return socket.gethostbyname(socket.gethostname()).startswith("127.")
    except OSError:
        return True
