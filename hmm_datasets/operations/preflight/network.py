"""The network between ranks: the way to rank 0, all-reduces over all ranks, and the links between neighbours.

An all-reduce must give the right sum; its bus bandwidth is that of nccl-tests, 2 (n - 1) / n times the bytes of the
array, per second, which does not depend on the number of ranks `n` (github.com/NVIDIA/nccl-tests,
doc/PERFORMANCE.md); the other collectives are measured too. Links between neighbours in the ring of ranks that are
much slower than the others are named. An all-reduce between machines that cannot reach each other hangs, so everything
runs in a thread that is given up after a timeout.
"""

import os
import socket
import statistics
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING

import psutil

from ...errors import first_line
from ...runtime import environment
from ...runtime.process_identity import uses_gpu
from ...runtime.time_limit import within
from .collectives import bandwidths_text, bus_bandwidths
from .report import Check, RankReport

if TYPE_CHECKING:
    from torch.distributed import Store

_BYTES = 1 << 24  # of the array of an all-reduce
_REPEATS = 3
_SLOW_LINK = 0.5  # of a good link, which one of four is at least
_REMEDIES = {
    "nccl": "try NCCL_P2P_DISABLE=1 (without NVLink), NCCL_IB_DISABLE=1 (without InfiniBand) or another "
    "NCCL_SOCKET_IFNAME, and look for dead ranks",
    "gloo": "try GLOO_SOCKET_IFNAME with the interface between the hosts, and look for dead ranks",
}


def check_all_reduce(timeout: float, store: "Store | None" = None) -> tuple[Check, dict[int, float]]:
    """All-reduces over all ranks, and the links to this rank's neighbours; call it on all ranks.

    Args:
        timeout (`float`): seconds for all of it.
        store ([`~torch.distributed.Store`], *optional*): through which ranks meet; by default that of the environment.

    Returns:
        `tuple`: the check, and bytes per second by rank of the neighbour; empty after a failure.
    """
    outcome = within(timeout, lambda: _measure(timeout, store))
    if outcome.value is not None:
        return outcome.value
    problem = f"no result in {timeout:g} s, hangs in {outcome.hangs_in}"
    if outcome.error is not None:
        problem = first_line(outcome.error)
    return Check("all-reduce", False, f"{problem}; {_REMEDIES['nccl' if uses_gpu() else 'gloo']}"), {}


def _measure(timeout: float, store: "Store | None") -> tuple[Check, dict[int, float]]:
    import torch
    import torch.distributed as dist

    rank, world, cuda = environment.rank(), environment.world_size(), uses_gpu()
    device, backend = ("cuda", "nccl") if cuda else ("cpu", "gloo")
    if cuda:
        torch.cuda.set_device(environment.local_rank())
    place = {} if store is None else {"store": store, "rank": rank, "world_size": world}
    dist.init_process_group(backend, timeout=timedelta(seconds=max(timeout, 1.0)), **place)
    try:
        values = torch.full((_BYTES // 4,), float(rank + 1), device=device)
        dist.all_reduce(values)  # also sets up the connections
        low, high, expected = values.min().item(), values.max().item(), world * (world + 1) / 2
        if (low, high) != (expected, expected):
            total = f"1, 2, ... {world} summed to {low:g} .. {high:g} by {backend}, not {expected:g}"
            return Check("all-reduce", False, f"{total}; {_REMEDIES[backend]}"), {}
        seconds = statistics.median(_seconds(lambda: dist.all_reduce(values), values) for _ in range(_REPEATS))
        links = _links(values, rank, world) if world > 1 else {}
        others = f"; {bandwidths_text(bus_bandwidths(device, _seconds))}" if world > 1 else ""
    finally:
        dist.destroy_process_group()
    rate = 2 * (world - 1) / world * _BYTES / seconds / 1e9
    timing = f"{_BYTES >> 20} MiB in {seconds * 1e3:.1f} ms, bus bandwidth {rate:.2f} GB/s, by {backend}"
    timing += others
    return Check("all-reduce", True, timing), links


def _links(values, rank: int, world: int) -> dict[int, float]:
    """Bytes per second between this rank and its neighbours in the ring of ranks, in each direction at once."""
    import torch
    import torch.distributed as dist

    def exchange() -> None:
        sends = [dist.P2POp(dist.isend, values, other), dist.P2POp(dist.irecv, received, other)]
        for work in dist.batch_isend_irecv(sends):
            work.wait()

    pairs = [(first, (first + 1) % world) for first in range(world)] if world > 2 else [(0, 1)]
    # In each round a rank is in one pair at most; in a ring of odd length the last pair has a round of its own.
    rounds = [pairs[0 : world - 1 : 2], pairs[1 : world - 1 : 2], pairs[world - 1 :]]
    rates, received = {}, torch.empty_like(values)
    for pairs_of_round in rounds:
        pair = next((pair for pair in pairs_of_round if rank in pair), None)
        times = []
        for _ in range(1 + _REPEATS):
            dist.all_reduce(torch.zeros(1, device=values.device))  # all start together
            if pair is not None:
                other = sum(pair) - rank
                times.append(_seconds(exchange, values))
        if pair is not None:
            rates[other] = values.numel() * values.element_size() / min(times[1:])  # the first one connects
    return rates


def _seconds(call, values) -> float:
    """How long a call takes, with what it starts on the device of an array."""
    import torch

    def wait() -> None:
        if values.is_cuda:
            torch.cuda.synchronize()

    wait()
    began = time.perf_counter()
    call()
    wait()
    return time.perf_counter() - began


def check_links(reports: Sequence[RankReport], rates: Mapping[int, Mapping[str, float]]) -> Check:
    """Hosts and pairs of ranks whose links are much slower than others of their sort.

    Args:
        reports (sequence of [`RankReport`]): all ranks.
        rates (`dict`): for each rank, bytes per second to its neighbours by rank.
    """
    places = {report.place.rank: report.place for report in reports}
    by_pair = {tuple(sorted((rank, int(other)))): rate for rank, of in rates.items() for other, rate in of.items()}
    hosts_of = {pair: {places[rank].host for rank in pair} for pair in by_pair}
    slow_ones = []
    for is_within in (True, False):
        pairs = {pair: rate for pair, rate in by_pair.items() if (len(hosts_of[pair]) == 1) == is_within}
        if len(pairs) < 3:
            continue  # nothing to compare with
        # Not the median: in a ring of three hosts, two of three links are those of a slow one.
        good = sorted(pairs.values())[3 * len(pairs) // 4]
        slow = {pair: rate for pair, rate in pairs.items() if rate < _SLOW_LINK * good}
        of_host = Counter(host for pair in pairs for host in hosts_of[pair])
        slow_of_host = Counter(host for pair in slow for host in hosts_of[pair])
        culprits = {host for host, count in slow_of_host.items() if count == of_host[host] > 1}
        for host in sorted(culprits):
            rate = max(rate for pair, rate in slow.items() if host in hosts_of[pair])
            slow_ones.append(f"every link of {host} is slow, {rate / 1e9:.2f} GB/s where others have {good / 1e9:.2f}")
        for pair, rate in slow.items():
            if not hosts_of[pair] & culprits:
                ends = " and ".join(places[rank].short for rank in pair)
                slow_ones.append(
                    f"the link between {ends} has {rate / 1e9:.2f} GB/s where others have {good / 1e9:.2f}"
                )
    detail = "; ".join(slow_ones) or "no link is much slower than the others"
    return Check("links", True, detail, warning=bool(slow_ones))


def check_network(address: str) -> Check:
    """Whether the address of rank 0 is reached, through which interface, and whether the interfaces named exist."""
    try:
        interface, here = interface_to(address)
    except OSError as error:
        reason = error.strerror or error
        remedy = "set it to an address of the host of rank 0 that this host knows"
        return Check("network", False, f"MASTER_ADDR {address} cannot be reached ({reason}); {remedy}")
    existing = _interfaces()
    for variable in ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"):
        value = os.environ.get(variable)
        if value and not named_interfaces(variable, value, existing):
            remedy = f"export {variable}={interface}" if interface else f"unset {variable}"
            problem = f"{variable}={value} is no interface of this host, which has {', '.join(existing)}"
            return Check("network", False, f"{problem}; {remedy}")
    detail = f"{address} is reached through {interface or 'an unknown interface'} ({here})"
    if interface not in (None, "lo") and "GLOO_SOCKET_IFNAME" not in os.environ and _gloo_listens_on_loopback():
        problem = "by its own name this host would tell other hosts to call it on loopback (gloo)"
        return Check("network", True, f"{detail}; {problem}: export GLOO_SOCKET_IFNAME={interface}", warning=True)
    return Check("network", True, detail)


def interface_to(address: str) -> tuple[str | None, str]:
    """The interface through which packets to an address leave this host, and this host's own address there.

    Raises:
        `OSError`: the name is unknown, or there is no way to the address.
    """
    family, _, _, _, target = socket.getaddrinfo(address, 9, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect(target)  # chooses the way; a datagram socket sends nothing here
        here = probe.getsockname()[0]
    for name, addresses in psutil.net_if_addrs().items():
        if any(entry.address.partition("%")[0] == here for entry in addresses):
            return name, here
    return None, here


def named_interfaces(variable: str, value: str, existing: list[str]) -> list[str]:
    """The interfaces that `NCCL_SOCKET_IFNAME` or `GLOO_SOCKET_IFNAME` allows, of those that exist.

    gloo takes names. NCCL takes beginnings of names, names after `=`, and after `^` those to leave out.
    """
    names = [name for name in value.lstrip("^=").split(",") if name]
    exactly = variable != "NCCL_SOCKET_IFNAME" or "=" in value[:2]
    match = {name for name in existing if name in names or (not exactly and name.startswith(tuple(names)))}
    return [name for name in existing if (name not in match) == value.startswith("^")]


def _interfaces() -> list[str]:
    return sorted(name for name, state in psutil.net_if_stats().items() if state.isup)


def _gloo_listens_on_loopback() -> bool:
    """Whether the host's own name is an address of loopback, or of nothing, when gloo takes loopback too."""
    try:
        return socket.gethostbyname(socket.gethostname()).startswith("127.")
    except OSError:
        return True
