"""Description of any process: what it is, its entropy rate, what is known of an HMM, and losses of predictors."""

from typing import Any

import numpy as np

from ..hmm.families.family import Family
from ..hmm.model import HMM
from ..hmm.process import Process
from .entropy_rates import entropy_rate_of, rate_text
from .hmm_description import hmm_facts, hmm_lines
from .predictor_losses import check_sizes, predictor_losses, predictors_table


def process_facts(process: Process, *, rate: bool = True) -> dict[str, Any]:
    """What is known of a process without its sequences, ready for JSON; the entropy rate only if that is asked for."""
    facts = {
        "process": "hmm" if isinstance(process, HMM) else process.stored_name,
        "summary": process.describe(),
        "num_symbols": process.num_symbols,
        "num_states": process.max_states,
        "belief_width": process.belief_width,
        "exact": process.has_exact_distribution,
        "has_oracle": process.has_oracle,
        "fingerprint": process.fingerprint(),
    }
    return facts | ({"entropy_rate": entropy_rate_of(process)} if rate else {})


def describe_process(
    process: Process, *, length: int = 64, num_sequences: int = 2048, seed: int = 0
) -> dict[str, Any]:
    """Describe a process.

    Args:
        process ([`~hmm_datasets.hmm.process.Process`]): the distribution.
        length (`int`, *optional*, defaults to 64): number of positions at which predictors are measured.
        num_sequences (`int`, *optional*, defaults to 2048): number of sequences on which they are measured.
        seed (`int`, *optional*, defaults to 0): seed of these sequences.

    Returns:
        `dict`, ready for JSON: `process`, its stored name, and what it is in words as `summary`; `num_symbols`,
        `num_states` (at most) and `belief_width`; `exact`, whether the optimum is known in closed form; `has_oracle`;
        `fingerprint`; `entropy_rate`, None if it is not stationary; `num_sequences`, and `cross_entropy`: for each
        predictor the nats by position, their mean and its standard error. Families also have `family`, their
        `settings` and `group`, and HMMs the results of [`~hmm_datasets.report.hmm_description.hmm_facts`].
    """
    check_sizes(length, num_sequences)
    facts = process_facts(process)
    if isinstance(process, HMM):
        facts |= hmm_facts(process)
    if isinstance(process, Family):
        facts |= {"family": process.stored_name, "settings": process.settings(), "group": process.group}
    return facts | {
        "cross_entropy": predictor_losses(process, length, num_sequences, seed),
        "num_sequences": num_sequences,
    }


def process_text(description: dict[str, Any]) -> str:
    """[`describe_process`]'s result as tables for the terminal."""
    lines = [f"{description['process']}: {description['summary']}; fingerprint {description['fingerprint']}"]
    settings = {name: value for name, value in description.get("settings", {}).items() if value is not None}
    if settings:
        lines.append(f"settings: {', '.join(f'{name} {value}' for name, value in settings.items())}")
    sizes = {"num_symbols": "symbols", "num_states": "hidden states", "belief_width": "numbers in a belief"}
    known = {title: description[name] for name, title in sizes.items() if description[name] is not None}
    lines.append(", ".join(f"{size:,} {title}" for title, size in known.items()))
    if description["entropy_rate"] is not None:
        uniform = np.log(description["num_symbols"])
        lines.append(
            f"entropy rate, nats per token: {rate_text(description['entropy_rate'])}; of the uniform predictor "
            f"{uniform:.6f}"
        )
    optimum = "known exactly" if description["exact"] else "not known in closed form; the oracle bounds it from below"
    lines.append(f"optimum: {optimum}")
    lines += hmm_lines(description) if "states" in description else []
    return "\n".join([*lines, "", predictors_table(description)])
