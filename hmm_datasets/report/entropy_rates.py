"""The entropy rate of a process, exact, bounded or estimated, and how it is printed."""

from typing import Any

import numpy as np

from ..errors import InputError
from ..hmm.analysis.entropy import bounds_of_rate, made_to_agree
from ..hmm.process import Process


def entropy_rate_of(process: Process) -> dict[str, float] | None:
    """The entropy rate of a process in nats per token, ready for JSON; None if it is not stationary.

    Returns:
        `dict`: `value` and `standard_error`; also `lower`, `upper`, `lower_error` and `upper_error` if the process has
        `entropy_rate_bounds`, or if the value is a closed form. An estimate is never outside its bounds.
    """
    if not process.is_stationary:
        return None
    rate = process.entropy_rate()
    try:
        bounds = bounds_of_rate(process, rate)
    except InputError:  # no bounds are known
        return rate._asdict()
    rate, bounds = made_to_agree(rate, bounds)
    return rate._asdict() | bounds._asdict()


def rate_line(description: dict[str, Any]) -> str:
    """The entropy rate beside the loss of the uniform predictor."""
    rate, uniform = description["entropy_rate"], np.log(description["num_symbols"])
    precision = "exact" if rate["standard_error"] == 0 else f"standard error {rate['standard_error']:.1e}"
    return f"entropy rate {rate['value']:z.5f} nats per token ({precision}); the uniform predictor needs {uniform:.5f}"


def rate_bounds(rate: dict[str, float]) -> list[str]:
    """The lower and the upper bound, each with its error."""
    return [f"{rate[side]:z.5f} (+- {rate[f'{side}_error']:.1e})" for side in ("lower", "upper")]
