"""The entropy rate of a process, exact, bounded or estimated, and how it is printed."""

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


def rate_text(rate: dict[str, float] | None) -> str:
    """The result of [`entropy_rate_of`]: the closed form, or an estimate with its error and bounds."""
    if rate is None:
        return "by position"
    if rate["standard_error"] == 0:
        return f"{rate['value']:z.6f}, exact"
    text = f"{rate['value']:z.6f} +- {rate['standard_error']:.1e}"
    if "lower" not in rate:
        return text
    error = max(rate["lower_error"], rate["upper_error"])
    return f"{text}, in {rate['lower']:z.6f} .. {rate['upper']:z.6f}" + (f" (+- {error:.1e})" if error > 0 else "")
