"""What a check reports, what a run needs, and checks as a table."""

from dataclasses import dataclass

from ...errors import InputError

GIB = 1 << 30


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
class PreflightSettings:
    """What a run needs.

    Args:
        min_disk_gib (`float`, *optional*, defaults to 10.0): free disk space at the output folder.
        min_memory_gib (`float`, *optional*, defaults to 2.0): free memory for all processes on this machine.
        min_shm_gib (`float`, *optional*, defaults to 0.5): free space in `/dev/shm`, through which DataLoader workers
            send batches.
        min_bus_bandwidth (`float`, *optional*, defaults to 0.0): bus bandwidth of an all-reduce in GB/s.
        seconds (`float`, *optional*, defaults to 2.0): how long each rank repeats its matrix product.
        timeout (`float`, *optional*, defaults to 60.0): seconds for the all-reduce, including the rendezvous, and for
            other ranks to report after this one.
        push (`bool`, *optional*, defaults to `False`): whether the run pushes to the Hub, which must then answer.
        config (`str`, *optional*): settings file of a recipe, whose first rows are then read on every rank.
        flags (`tuple` of `str`, *optional*): flags of that recipe, which override the file.
    """

    min_disk_gib: float = 10.0
    min_memory_gib: float = 2.0
    min_shm_gib: float = 0.5
    min_bus_bandwidth: float = 0.0
    seconds: float = 2.0
    timeout: float = 60.0
    push: bool = False
    config: str | None = None
    flags: tuple[str, ...] = ()

    def __post_init__(self):
        for name in ("min_disk_gib", "min_memory_gib", "min_shm_gib", "min_bus_bandwidth", "seconds", "timeout"):
            if not getattr(self, name) >= 0:
                raise InputError(f"{name} is {getattr(self, name)}; expected 0 or more")


def format_checks(checks: list[Check]) -> str:
    """Checks as a table, one line each."""
    width = max(len(check.name) for check in checks)
    return "\n".join(f"{check.mark:<4}  {check.name:<{width}}  {check.detail}" for check in checks)
