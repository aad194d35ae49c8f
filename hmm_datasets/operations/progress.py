"""The status of a run, computed from its `history.jsonl` alone.

The rate is the median over the latest intervals between rows, so one slow evaluation or a restart does not affect it.
"""

import math
import os
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any

from ..display import format_date, format_duration
from ..errors import InputError
from ..records import Finite, is_record
from ..report.curves import loss_unit
from ..runtime.events import seconds_since
from ..runtime.run_records import read_history

HISTORY_NAME = "history.jsonl"

_WINDOW = 50  # latest rows from which the rate is computed


@dataclass(frozen=True)
class RunStatus:
    """The status of a run.

    Attributes:
        step (`int`): latest step.
        max_steps (`int`, *optional*): last step of the run, if known.
        loss (`float`, *optional*), loss_unit (`str`): latest loss, and its unit.
        reward (`float`, *optional*): latest mean reward of a run that learns from rewards.
        tokens (`int`, *optional*): tokens consumed so far.
        steps_per_second (`float`, *optional*): rate over the latest rows.
        tokens_per_second (`float`, *optional*): rate over the latest rows.
        fraction (`float`, *optional*): share of the plan that is done, from the rows' `fraction` or else from steps.
        seconds_left (`float`, *optional*): seconds to the end at that rate.
        skipped_steps (`int`, *optional*): number of steps that were skipped because their gradient was not finite.
        seconds_silent (`float`): seconds since the latest row.
        host (`str`, *optional*): host that wrote the latest row.
        not_finite (`tuple` of rows): steps whose loss is NaN or infinite, with their hosts.
    """

    step: int
    max_steps: int | None
    loss: float | None
    loss_unit: str
    reward: float | None
    tokens: int | None
    steps_per_second: float | None
    tokens_per_second: float | None
    fraction: float | None
    skipped_steps: int | None
    seconds_left: float | None
    seconds_silent: float
    host: str | None
    not_finite: tuple[tuple[int, float, str | None], ...]

    @property
    def finished(self) -> bool:
        """Whether the last step is done."""
        return self.max_steps is not None and self.step >= self.max_steps


def read_status(folder: str | os.PathLike) -> RunStatus:
    """The status of the run in a folder.

    Raises:
        `InputError`: no such file, or no row with `step` and `time`.
    """
    path = Path(folder) / HISTORY_NAME
    rows = [
        row for row in read_history(path) if is_record(row.get("step"), Finite) and is_record(row.get("time"), Finite)
    ]
    if not rows:
        raise InputError(f"{path}: no row with step and time yet; is the run writing here?")
    return summarize(rows, time.time())


def summarize(rows: list[dict[str, Any]], now: float) -> RunStatus:
    """The status of a run from its rows, which have `step`, `time` and maybe `loss`, `tokens`, `max_steps`, `host`.

    ```python
    >>> rows = [{"step": s, "time": 10.0 * s, "loss": 2.0, "max_steps": 9} for s in range(1, 6)]
    >>> status = summarize(rows, now=55.0)
    >>> status.steps_per_second, status.seconds_left
    (0.1, 40.0)

    ```
    """
    last = rows[-1]
    max_steps = max(_last(rows, "max_steps") or 0, 0) or None
    losses = [
        (int(row["step"]), float(row["loss"]), row.get("host")) for row in rows if is_record(row.get("loss"), float)
    ]
    # Steps differ in size when the global batch grows; then the rows have the share of the plan that is done.
    done, whole = _last(rows, "fraction", float), 1.0
    rate = _per_second(rows, "step" if done is None else "fraction")
    if max_steps is not None and (done is None or last["step"] >= max_steps):
        done, whole = min(last["step"], max_steps), max_steps
    left = None if done is None or rate is None else (whole - done) / rate
    return RunStatus(
        step=int(last["step"]),
        max_steps=max_steps,
        loss=losses[-1][1] if losses else None,
        loss_unit=loss_unit(rows),
        reward=_last(rows, "reward", float),
        tokens=_last(rows, "tokens"),
        steps_per_second=_per_second(rows, "step"),
        tokens_per_second=_per_second(rows, "tokens"),
        fraction=None if done is None else done / whole,
        skipped_steps=_last(rows, "skipped_steps"),
        seconds_left=0.0 if done == whole else left,
        seconds_silent=seconds_since(last["time"], now),
        host=last.get("host"),
        not_finite=tuple(row for row in losses if not math.isfinite(row[1])),
    )


def status_rows(status: RunStatus) -> list[tuple[str, str]]:
    """A status as names and values."""
    done = "" if status.fraction is None else f" ({status.fraction:.1%})"
    of = "" if status.max_steps is None else f" of {status.max_steps:,}"
    left = "unknown"
    if status.seconds_left is not None:
        left = f"{format_duration(status.seconds_left)}, until {format_date(time.time() + status.seconds_left)}"
    rate = "unknown until there are two rows"
    if status.steps_per_second is not None:
        tokens = "" if status.tokens_per_second is None else f", {status.tokens_per_second:,.0f} tokens per second"
        rate = f"{status.steps_per_second:.3g} steps per second{tokens}"
    rows = [
        ("step", f"{status.step:,}{of}{done}"),
        ("loss", "none yet" if status.loss is None else f"{status.loss:z.4f} {status.loss_unit}".strip()),
        ("tokens", "not counted" if status.tokens is None else f"{status.tokens:,}"),
        ("rate", rate),
        ("time left", "finished" if status.finished else left),
        ("last row", f"{format_duration(status.seconds_silent)} ago" + (f", on {status.host}" if status.host else "")),
        ("NaN or infinite", _list(status.not_finite)),
    ]
    if status.reward is not None:
        rows.insert(1, ("reward", f"{status.reward:.4f}"))
    if status.skipped_steps is not None:
        rows.append(("skipped", f"{status.skipped_steps:,} steps"))
    return rows


def two_columns(rows: list[tuple[str, str]]) -> str:
    """Names and values as lines, the values below each other."""
    width = max(len(name) for name, _ in rows)
    return "\n".join(f"{name:<{width}}  {value}" for name, value in rows)


def _per_second(rows: list[dict[str, Any]], name: str) -> float | None:
    """The median growth of a value per second, over the latest rows that have it.

    Training and evaluation write rows of one step, of which the first counts. A smaller value marks a restart.
    """
    known = [row for row in rows if is_record(row.get(name), Finite)]
    firsts = [next(same) for _, same in groupby(known, key=lambda row: row[name])]
    rates = [
        (b[name] - a[name]) / (b["time"] - a["time"])
        for a, b in pairwise(firsts)
        if b[name] > a[name] and b["time"] > a["time"]
    ]
    return statistics.median(rates[-_WINDOW:]) if rates else None


def _last(rows: list[dict], name: str, kind: Callable[[float], Any] = int) -> Any:
    return next((kind(row[name]) for row in reversed(rows) if is_record(row.get(name), Finite)), None)


def _list(rows: tuple[tuple[int, float, str | None], ...]) -> str:
    if not rows:
        return "none"
    latest = ", ".join(
        f"{loss:.4g} at step {step:,}" + (f" on {host}" if host else "") for step, loss, host in rows[-3:]
    )
    return latest if len(rows) <= 3 else f"{len(rows)}, the latest: {latest}"
