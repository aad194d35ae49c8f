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
        `dict`, ready for JSON. For an HMM see [`~hmm_datasets.report.hmm_description.describe`]. For a family:
        `family` and its `settings`; `num_symbols`, `group`; `exact`, whether the optimum is known in closed form. For
        another process: `process`, its stored name, and what it is in words as `summary`; `num_symbols`, `max_states`,
        `belief_width`, `exact`, `has_oracle`; and for a stationary one `entropy_rate`, with bounds where the process
        has some. All have `fingerprint`, `num_sequences`, and `cross_entropy`: for each predictor the nats by
        position, their mean and its standard error.
    """
    check_sizes(length, num_sequences)
    if isinstance(process, HMM):
        return describe(process, length=length, num_sequences=num_sequences, seed=seed)
    facts = _of_family(process) if isinstance(process, Family) else _of_process(process)
    return facts | {
        "fingerprint": process.fingerprint(),
        "cross_entropy": predictor_losses(process, length, num_sequences, seed),
        "num_sequences": num_sequences,
    }


def _of_family(family: Family) -> dict[str, Any]:
    return {
        "family": family.stored_name,
        "settings": family.settings(),
        "num_symbols": family.num_symbols,
        "group": family.group,
        "exact": family.has_exact_distribution,
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
    if "family" in description:
        lines = _family_lines(description)
    elif "process" in description:
        lines = _process_lines(description)
    else:
        return description_text(description)
    return "\n".join([*lines, "", predictors_table(description)])


def _family_lines(description: dict[str, Any]) -> list[str]:
    rows = "every sequence" if description["group"] == 1 else f"every {description['group']:,} sequences"
    settings = ", ".join(f"{name} {value}" for name, value in description["settings"].items() if value is not None)
    return [
        f"{description['family']}: a new HMM for {rows}, {description['num_symbols']:,} symbols; fingerprint "
        f"{description['fingerprint']}",
        f"settings: {settings or 'none'}",
        f"optimum: {_optimum(description)}",
    ]


def _process_lines(description: dict[str, Any]) -> list[str]:
    lines = [f"{description['process']}: {description['summary']}; fingerprint {description['fingerprint']}"]
    sizes = {"hidden states": description["max_states"], "numbers in a belief": description["belief_width"]}
    known = [f"{size:,} {name}" for name, size in sizes.items() if size is not None]
    lines += [", ".join(known)] * bool(known)
    rate = description["entropy_rate"]
    if rate is not None:
        lines.append(rate_line(description))
        if rate["standard_error"] > 0 and "lower" in rate:
            lines.append(f"bounds on it: {' and '.join(rate_bounds(rate))}")
    return [*lines, f"optimum: {_optimum(description)}"]


def _optimum(description: dict[str, Any]) -> str:
    return "known exactly" if description["exact"] else "not known in closed form; the oracle bounds it from below"
