"""How many steps a budget allows, and how a global batch is divided among processes.

Tokens are model inputs without padding. A step with global batch `G` and row length `T` consumes `G T` tokens,
whatever the world size, micro-batch and accumulation whose product is `G`.
"""

import math
from dataclasses import dataclass, fields

from ...errors import InputError
from .batch_schedule import BatchSchedule

CHINCHILLA_TOKENS_PER_PARAMETER = 20.0
"""Approximately compute-optimal number of tokens per parameter (Hoffmann et al., "Training compute-optimal large
language models", 2022, table 3: 8.0 billion tokens for 0.4 billion parameters, 205 billion for 10 billion)."""


UNITS = ("examples", "tokens_per_parameter", "flops", "hours", "cost")
"""Units of `train_budget`, in addition to `max_steps`, `num_train_epochs` and `train_tokens`."""


def read_budget(text: str | None) -> dict[str, float]:
    """The amount of a budget by its unit, as in `12 hours`; empty for None.

    Raises:
        `InputError`: no number, or another unit.

    ```python
    >>> read_budget("1e18 flops"), read_budget(None)
    ({'flops': 1e+18}, {})

    ```
    """
    if text is None:
        return {}
    amount, _, unit = text.strip().partition(" ")
    try:
        number = float(amount)
    except ValueError:
        number = math.nan
    if unit.strip() not in UNITS or math.isnan(number):
        raise InputError(
            f"train_budget is {text!r}; expected a number and a unit, one of {', '.join(UNITS)}, as in '12 hours'"
        )
    return {unit.strip(): number}


@dataclass(frozen=True)
class Budget:
    """What a run may spend, given by one of these arguments; by default 20 tokens per parameter.

    Budgets of steps, tokens and FLOPs are reached, so the last step may exceed them. Budgets of epochs, examples,
    hours and money are never exceeded.

    Args:
        max_steps (`int`, *optional*): optimizer steps.
        train_tokens (`int`, *optional*): tokens.
        examples (`float`, *optional*): rows, or the conversations in them if they are packed.
        tokens_per_parameter (`float`, *optional*): tokens for each parameter of the model, embeddings included.
        flops (`float`, *optional*): FLOPs of the model, as counted by [`flops_per_token`].
        num_train_epochs (`float`, *optional*): passes over the corpus.
        hours (`float`, *optional*): hours, at the assumed rate.
        cost (`float`, *optional*): money, at the assumed rate and price.

    Raises:
        `InputError`: more than one budget, or one that is not positive.
    """

    max_steps: int | None = None
    train_tokens: int | None = None
    examples: float | None = None
    tokens_per_parameter: float | None = None
    flops: float | None = None
    num_train_epochs: float | None = None
    hours: float | None = None
    cost: float | None = None

    def __post_init__(self):
        given = self.given
        if len(given) > 1:
            named = " and ".join(f"{name} {value:g}" for name, value in given.items())
            raise InputError(f"{named} are both budgets; expected one of them")
        for name, value in given.items():
            if not (value > 0 and math.isfinite(value)):
                raise InputError(
                    f"{name} is {value}; expected a number above 0; `hmm-datasets plan` checks settings without "
                    "training"
                )

    @property
    def given(self) -> dict[str, float]:
        """The budgets that are set, by name."""
        return {item.name: value for item in fields(self) if (value := getattr(self, item.name)) is not None}

    @property
    def name(self) -> str:
        """Name of the budget that is set, or of the default."""
        return next(iter(self.given), "tokens_per_parameter")

    @property
    def amount(self) -> float:
        """Amount of the budget that is set, or of the default."""
        return self.given.get(self.name, CHINCHILLA_TOKENS_PER_PARAMETER)

    def steps(
        self,
        schedule: BatchSchedule,
        *,
        tokens_per_row: float,
        parameters: int,
        flops_per_token: int,
        rows_per_epoch: int | None = None,
        examples_per_row: float = 1.0,
        tokens_per_second: float | None = None,
        money_per_second: float | None = None,
    ) -> int:
        """The number of optimizer steps that the budget allows.

        Args:
            schedule ([`~hmm_datasets.training.plan.batch_schedule.BatchSchedule`]): rows per step.
            tokens_per_row (`float`): average number of tokens per row, without padding.
            parameters (`int`): number of parameters of the model.
            flops_per_token (`int`): training FLOPs of the model per token.
            rows_per_epoch (`int`, *optional*): rows of the corpus; None if it is endless.
            examples_per_row (`float`, *optional*, defaults to 1): average number of conversations packed into a row.
            tokens_per_second (`float`, *optional*): assumed rate over all devices.
            money_per_second (`float`, *optional*): assumed price of all devices.

        Raises:
            `InputError`: the budget is less than one step, or an argument that this budget needs is missing.

        ```python
        >>> kwargs = dict(tokens_per_row=65.0, parameters=10_000, flops_per_token=60_000)
        >>> Budget(train_tokens=1_000_000).steps(BatchSchedule((), 64), **kwargs)
        241
        >>> Budget().steps(BatchSchedule((), 64), **kwargs)
        49

        ```
        """
        name, amount = self.name, self.amount
        if name == "max_steps":
            return int(amount)
        if name == "num_train_epochs":
            if rows_per_epoch is None:
                raise InputError(f"num_train_epochs is {amount:g}, but these rows are endless; set train_tokens")
            return self._within(schedule, math.floor(amount * rows_per_epoch + 1e-9))
        if name == "examples":
            return self._within(schedule, math.floor(amount / examples_per_row + 1e-9))
        if name in ("hours", "cost"):
            if tokens_per_second is None:
                raise InputError(f"train_budget is {amount:g} {name}, but no rate is known; set assumed_rate")
            seconds = amount * 3600
            if name == "cost":
                if money_per_second is None:
                    raise InputError(f"train_budget is {amount:g} cost, but price_per_hour is not set")
                seconds = amount / money_per_second
            return self._within(schedule, math.floor(seconds * tokens_per_second / tokens_per_row))
        return schedule.steps_for_rows(math.ceil(self.tokens(parameters, flops_per_token) / tokens_per_row))

    def tokens(self, parameters: int, flops_per_token: int) -> float:
        """The minimum number of tokens to train on; 0 if the budget is not one of tokens or FLOPs."""
        return {
            "train_tokens": self.amount,
            "tokens_per_parameter": self.amount * parameters,
            "flops": self.amount / flops_per_token,
        }.get(self.name, 0.0)

    def _within(self, schedule: BatchSchedule, rows: int) -> int:
        steps = schedule.steps_for_rows(rows)
        steps -= schedule.rows_before(steps) > rows
        if steps < 1:
            raise InputError(
                f"{self.name} {self.amount:g} allows {rows:,} rows, and the first step takes {schedule.size(0):,}; "
                "raise it or lower the global batch"
            )
        return steps


def accumulation_steps(global_batch_size: int, world_size: int, micro_batch_size: int) -> int:
    """Micro-batches a rank runs before each optimizer step: `G / (world size * micro-batch)`.

    Raises:
        `InputError`: `global_batch_size` is not a multiple of world size times micro-batch, or one is not positive.

    ```python
    >>> accumulation_steps(64, world_size=2, micro_batch_size=8)
    4

    ```
    """
    if min(global_batch_size, world_size, micro_batch_size) < 1:
        raise InputError(
            f"global_batch_size {global_batch_size}, world size {world_size}, per_device_train_batch_size "
            f"{micro_batch_size}; expected all positive"
        )
    steps, rest = divmod(global_batch_size, world_size * micro_batch_size)
    if rest != 0 or steps == 0:
        share, left = divmod(global_batch_size, world_size)
        fitting = [rows for rows in range(1, micro_batch_size + 1) if share and not left and share % rows == 0]
        example = f", such as --per_device_train_batch_size {fitting[-1]}" if fitting else ""
        raise InputError(
            f"global_batch_size {global_batch_size} is not a multiple of world size {world_size} x "
            f"per_device_train_batch_size {micro_batch_size}; change one of the three{example}"
        )
    return steps
