"""Description of any process: of an HMM with its tables, of others with what they have, and losses of predictors."""

from typing import Any

from ..hmm.families.family import Family
from ..hmm.model import HMM
from ..hmm.process import Process
from .entropy_rates import entropy_rate_of, rate_bounds, rate_line
from .hmm_description import describe, description_text
from .predictor_losses import check_sizes, predictor_losses, predictors_table


def describe_process(
    process: Process, *, length: int = 64, num_sequences: int = 2048, seed: int = 0
) -> dict[str, Any]:
    """Describe a process; the arguments are those of [`~hmm_datasets.report.hmm_description.describe`].

    Returns:
        `dict`, ready for JSON. For an HMM see [`~hmm_datasets.report.hmm_description.describe`]. For another process:
        `process`, its stored name, and what it is in words as `summary`; `num_symbols`, `max_states`, `belief_width`;
        `exact`, whether the optimum is known in closed form; `has_oracle`; and for a stationary one `entropy_rate`,
        with bounds where the process has some. Families also have `family`, their `settings` and `group`. All have
        `fingerprint`, `num_sequences`, and `cross_entropy`: for each predictor the nats by position, their mean and
        its standard error.
    """
    check_sizes(length, num_sequences)
    if isinstance(process, HMM):
        return describe(process, length=length, num_sequences=num_sequences, seed=seed)
    facts = _of_process(process)
    if isinstance(process, Family):
        facts |= {"family": process.stored_name, "settings": process.settings(), "group": process.group}
    return facts | {
        "fingerprint": process.fingerprint(),
        "cross_entropy": predictor_losses(process, length, num_sequences, seed),
        "num_sequences": num_sequences,
    }


def _of_process(process: Process) -> dict[str, Any]:
    return {
        "process": process.stored_name,
        "summary": process.describe(),
        "num_symbols": process.num_symbols,
        "max_states": process.max_states,
        "belief_width": process.belief_width,
        "exact": process.has_exact_distribution,
        "has_oracle": process.has_oracle,
        "entropy_rate": entropy_rate_of(process),
    }


def process_text(description: dict[str, Any]) -> str:
    """[`describe_process`]'s result as tables for the terminal."""
    if "process" not in description:
        return description_text(description)
    lines = [f"{description['process']}: {description['summary']}; fingerprint {description['fingerprint']}"]
    settings = {name: value for name, value in description.get("settings", {}).items() if value is not None}
    if settings:
        lines.append(f"settings: {', '.join(f'{name} {value}' for name, value in settings.items())}")
    sizes = {
        "symbols": description["num_symbols"],
        "hidden states": description["max_states"],
        "numbers in a belief": description["belief_width"],
    }
    lines.append(", ".join(f"{size:,} {name}" for name, size in sizes.items() if size is not None))
    rate = description["entropy_rate"]
    if rate is not None:
        lines.append(rate_line(description))
        if rate["standard_error"] > 0 and "lower" in rate:
            lines.append(f"bounds on it: {' and '.join(rate_bounds(rate))}")
    optimum = "known exactly" if description["exact"] else "not known in closed form; the oracle bounds it from below"
    return "\n".join([*lines, f"optimum: {optimum}", "", predictors_table(description)])
