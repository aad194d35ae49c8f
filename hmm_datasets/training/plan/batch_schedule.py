"""A global batch that grows in stages: the rows before a step, and the steps needed for a number of rows.

Step `t` (from 0) trains on rows `[S_t, S_{t+1})`, where `S` is the cumulative sum of the global batches. This does not
depend on the world size, micro-batch and accumulation, whose product is the global batch. Without stages all steps
have the same global batch `G`, and `S_t = t G`. If the global batch was changed at a checkpoint, the run continues at
the row it had reached, so `S` is shifted by the difference. All functions take `O(stages)` time. McCandlish et al.,
"An empirical model of large-batch training", 2018, explain why a batch may grow as the loss falls.
"""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ...errors import InputError

if TYPE_CHECKING:
    from ..checkpoints.resuming import Start


@dataclass(frozen=True)
class BatchSchedule:
    """Global batches of the steps of a run.

    Args:
        stages (sequence of `(int, int)`): pairs of a global batch and the number of steps that use it, in order.
            After the last stage all steps use `global_batch_size`.
        global_batch_size (`int`): `G`, rows per step after the last stage.
        offset (`int`, *optional*, defaults to 0): difference between the rows consumed and those that these global
            batches add up to; not 0 if earlier steps had other global batches.

    Raises:
        `InputError`: a stage without rows or steps, or with more rows than `global_batch_size`.

    ```python
    >>> schedule = BatchSchedule(((16, 100), (32, 300)), global_batch_size=64)
    >>> schedule.size(99), schedule.size(100), schedule.size(400)
    (16, 32, 64)
    >>> schedule.rows_before(401)
    11264
    >>> schedule.steps_for_rows(11264)
    401

    ```
    """

    stages: tuple[tuple[int, int], ...]
    global_batch_size: int
    offset: int = 0

    def __post_init__(self):
        object.__setattr__(self, "stages", tuple(map(tuple, self.stages)))
        for rows, steps in self.stages:
            if not 1 <= rows <= self.global_batch_size or steps < 1:
                raise InputError(
                    f"batch_ramp: {rows}:{steps} means {rows} rows in each of {steps} steps; expected 1 to "
                    f"global_batch_size {self.global_batch_size} rows, and 1 step or more"
                )

    @classmethod
    def parse(cls, stages: Sequence[str], global_batch_size: int) -> "BatchSchedule":
        """Read stages written `ROWS:STEPS`, or a whole ramp written `START+INCREMENT:ROWS`; see [`linear_ramp`].

        ```python
        >>> BatchSchedule.parse(["16:100", "32:300"], 64).stages
        ((16, 100), (32, 300))
        >>> BatchSchedule.parse(["16+16:4800"], 64).stages
        ((16, 100), (32, 50), (48, 34))

        ```
        """
        if len(stages) == 1 and (ramp := re.fullmatch(r"(\d+)\+(\d+):(\d[\d_]*)", str(stages[0]))):
            start, increment, rows = map(int, ramp.groups())
            return cls(linear_ramp(start, increment, rows, global_batch_size), global_batch_size)
        for stage in stages:
            if not re.fullmatch(r"\d+:\d+", str(stage)):
                raise InputError(
                    f"batch_ramp: {stage!r} is not a stage; expected ROWS:STEPS, such as 16:100 for 100 steps of 16 "
                    "rows (in YAML within quotation marks), or a single START+INCREMENT:ROWS"
                )
        return cls(tuple(tuple(map(int, stage.split(":"))) for stage in stages), global_batch_size)

    def continued(self, start: "Start | None", rows: int) -> "BatchSchedule":
        """The schedule of a run that continues from a checkpoint.

        Args:
            start ([`~hmm_datasets.training.checkpoints.resuming.Start`], *optional*): the checkpoint; None at the
                beginning.
            rows (`int`): world size x per_device_train_batch_size, which must divide the global batch of every
                remaining stage.

        Raises:
            `InputError`: `rows` does not divide the global batch of a remaining stage.
        """
        self.check_divides(rows, 0 if start is None else start.step)
        if start is None or start.rows is None:
            return self
        return self.reaching(start.rows, start.step)

    def reaching(self, rows: int, step: int) -> "BatchSchedule":
        """The same global batches for a run that has consumed `rows` rows in its first `step` steps.

        ```python
        >>> BatchSchedule((), 64).reaching(rows=320, step=10).rows_before(11)
        384

        ```
        """
        return replace(self, offset=rows - replace(self, offset=0).rows_before(step))

    def size(self, step: int) -> int:
        """Rows of a step, counted from 0."""
        for rows, steps in self.stages:
            if step < steps:
                return rows
            step -= steps
        return self.global_batch_size

    def rows_before(self, step: int) -> int:
        """Rows of all steps before `step`: the index of the first row it trains on.

        ```python
        >>> BatchSchedule((), 64).rows_before(10)
        640

        ```
        """
        total = self.offset
        for rows, steps in self.stages:
            taken = min(step, steps)
            total += taken * rows
            step -= taken
        return total + step * self.global_batch_size

    def steps_for_rows(self, rows: int) -> int:
        """The smallest number of steps that train on at least this many rows.

        ```python
        >>> BatchSchedule(((16, 100),), 64).steps_for_rows(1601)
        101

        ```
        """
        before, rows = 0, rows - self.offset
        for size, steps in self.stages:
            if rows <= size * steps:
                return before - (-rows // size)
            rows -= size * steps
            before += steps
        return before - (-rows // self.global_batch_size)

    def possible_ranks(self, micro_batch_size: int) -> list[int]:
        """Numbers of ranks that divide the global batch of every step into micro-batches of this many rows.

        ```python
        >>> BatchSchedule(((16, 100), (32, 300)), global_batch_size=64).possible_ranks(4)
        [1, 2, 4]

        ```
        """
        rows = math.gcd(self.global_batch_size, *(rows for rows, _ in self.stages))
        return [ranks for ranks in range(1, rows // micro_batch_size + 1) if rows % (ranks * micro_batch_size) == 0]

    def check_divides(self, rows: int, step: int = 0) -> None:
        """Check that the global batch of every remaining stage is a multiple of `rows`, one micro-batch on every rank.

        Args:
            rows (`int`): world size x per_device_train_batch_size.
            step (`int`, *optional*, defaults to 0): steps that are done.

        Raises:
            `InputError`: a stage is not a multiple; the message names it.
        """
        end = 0
        for size, steps in self.stages:
            end += steps
            if end > step and size % rows != 0:
                raise InputError(
                    f"batch_ramp: {size}:{steps} is not a multiple of world size x per_device_train_batch_size "
                    f"{rows}; use a multiple of it, or a smaller micro-batch"
                )


def linear_ramp(start: int, increment: int, rows: int, global_batch_size: int) -> tuple[tuple[int, int], ...]:
    """The stages of a global batch that grows linearly with the rows consumed, as Megatron's `--rampup-batch-size`.

    Args:
        start (`int`): rows of the first step.
        increment (`int`): rows by which the batch grows, each time that an equal share of `rows` is consumed.
        rows (`int`): rows after which it is `global_batch_size`.
        global_batch_size (`int`): rows per step after the ramp.

    Raises:
        `InputError`: `global_batch_size` is not `start` and some increments.

    ```python
    >>> linear_ramp(16, 16, 4800, 64)
    ((16, 100), (32, 50), (48, 34))

    ```
    """
    grows = increment > 0 and 0 < start < global_batch_size and (global_batch_size - start) % increment == 0
    if not grows or rows < 1:
        raise InputError(
            f"batch_ramp: {start}+{increment}:{rows} does not lead to global_batch_size {global_batch_size}; expected "
            "a smaller first batch, increments that add up to the rest, and 1 row or more"
        )
    count, consumed, stages = (global_batch_size - start) // increment, 0, []
    for number in range(count):
        size = start + number * increment
        steps = -(-((number + 1) * rows - count * consumed) // (count * size))
        if steps > 0:
            stages.append((size, steps))
            consumed += steps * size
    return tuple(stages)
