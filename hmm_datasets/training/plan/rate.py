"""The assumed speed of a run: tokens per second, the rate of an earlier run, or a share of the peak of a device."""

import math
import statistics
from dataclasses import dataclass
from pathlib import Path

from ...errors import InputError
from ...runtime.run_records import read_history
from .accelerators import Device, find_device

_MFU = 0.4  # share of the peak of a device, if none is given


@dataclass(frozen=True)
class Rate:
    """The assumed speed of a run.

    Args:
        total (`float`, *optional*): tokens per second over all devices.
        flops_per_device (`float`, *optional*): FLOPs of the model per second and device.
        source (`str`): where the number comes from, in words.
        device ([`~hmm_datasets.training.plan.accelerators.Device`], *optional*): the assumed device, if one is named.
    """

    total: float | None = None
    flops_per_device: float | None = None
    source: str = ""
    device: Device | None = None

    def tokens_per_second(self, flops_per_token: int, world_size: int) -> float:
        """Tokens per second over all devices."""
        return self.total if self.total is not None else self.flops_per_device * world_size / flops_per_token


def read_rate(rate: float | str | None, precision: str = "bf16") -> Rate | None:
    """The rate that `assumed_rate` gives: a number, the rate of an earlier run, or that of a device; None without it.

    Args:
        rate (`float` or `str`, *optional*): tokens per second over all devices; the folder of a run, whose history
            gives the model FLOPs per second and device; or a name that
            [`~hmm_datasets.training.plan.accelerators.find_device`] knows, and a share of its peak, as in `H200:0.5`.
        precision (`str`, *optional*, defaults to `"bf16"`): precision of the peak, see
            [`~hmm_datasets.training.plan.accelerators.Device.peak`].

    Raises:
        `InputError`: none of these, a number or a share that is out of range, or a run without a history.

    ```python
    >>> read_rate("H200:0.5").source, read_rate("A100").source
    ('H200 at 50% MFU', 'A100 at 40% MFU')

    ```
    """
    if rate is None:
        return None
    if not isinstance(rate, str):
        if not (rate > 0 and math.isfinite(rate)):
            raise InputError(f"assumed_rate is {rate} tokens per second; expected a number above 0")
        return Rate(total=rate, source="as given")
    name, _, share = rate.partition(":")
    device = find_device(name)
    if device is None:
        if Path(rate).is_dir():
            return _rate_of_run(Path(rate))
        raise InputError(
            f"assumed_rate is {rate!r}; expected a device such as H200, H100 SXM, A100 or RTX 4090, the folder of a "
            "run, or tokens per second"
        )
    try:
        mfu = float(share or _MFU)
    except ValueError:
        mfu = math.nan
    if not 0 < mfu <= 1:
        raise InputError(f"device {rate}: expected a share of its peak above 0 and up to 1, as in {name}:0.5")
    return Rate(None, mfu * device.peak(precision), f"{device.name} at {mfu:.0%} MFU", device)


def _rate_of_run(run: Path) -> Rate:
    path = run / "history.jsonl"
    if not path.exists():
        raise InputError(f"assumed_rate {run}: it has no history.jsonl; give the folder of a run of these recipes")
    rows = [row for row in read_history(path) if "tokens_per_second_per_device" in row and row.get("tokens")]
    if not rows:
        raise InputError(f"{path}: no row has tokens_per_second_per_device; give a run that logged its rate")
    # The first row includes one-off work, such as compiling and filling caches.
    rows = rows[1:] or rows
    rates = [row["tokens_per_second_per_device"] * row["flops"] / row["tokens"] for row in rows]
    return Rate(flops_per_device=statistics.median(rates), source=f"measured in {run}")
