"""Description of an HMM: sizes, entropy rate, stationary distribution, losses of predictors, plots."""

import os
from pathlib import Path
from typing import Any

import numpy as np

from ..hmm.analysis.entropy import made_to_agree
from ..hmm.analysis.stationary import entropy, mixing_time
from ..hmm.model import HMM
from .belief_warnings import belief_warnings
from .entropy_rates import rate_bounds, rate_line
from .predictor_losses import check_sizes, predictor_losses, predictors_table
from .tables import text_table

_MAX_STATES = 12  # rows of the table of states


def describe(hmm: HMM, *, length: int = 64, num_sequences: int = 2048, seed: int = 0) -> dict[str, Any]:
    """Describe an HMM.

    Args:
        hmm ([`~hmm_datasets.HMM`]): the distribution.
        length (`int`, *optional*, defaults to 64): number of positions at which predictors are measured.
        num_sequences (`int`, *optional*, defaults to 2048): number of sequences on which they are measured.
        seed (`int`, *optional*, defaults to 0): seed of these sequences.

    Returns:
        `dict`, ready for JSON: sizes; `entropy_rate`; `mixing_time` (steps, `None` if the chain never mixes);
        `states`, most frequent first; `warnings`, why an experiment on beliefs would be void; `cross_entropy`, for
        each predictor the nats by position, their mean and its standard error.
    """
    check_sizes(length, num_sequences)
    stationary = hmm.stationary()
    steps = mixing_time(hmm.transition, stationary)
    rate, bounds = made_to_agree(hmm.entropy_rate(), hmm.entropy_rate_bounds(length=512))
    return {
        "num_states": hmm.num_states,
        "num_symbols": hmm.num_symbols,
        "edge_emitting": hmm.edges is not None,
        "unifilar": hmm.is_unifilar(),
        "fingerprint": hmm.fingerprint(),
        "starts_stationary": bool(np.abs(hmm.start - stationary).max() < 1e-9),
        "mixing_time": None if np.isinf(steps) else steps,
        "entropy_rate": {**rate._asdict(), **bounds._asdict()},
        "states_in_use": float(np.exp(entropy(stationary))),
        "ways_on": float(np.exp(stationary @ entropy(hmm.transition))),
        "symbols_a_state": float(np.exp(stationary @ entropy(hmm.emission))),
        "states": _states(hmm, stationary),
        "warnings": belief_warnings(hmm),
        "cross_entropy": predictor_losses(hmm, length, num_sequences, seed),
        "num_sequences": num_sequences,
    }


def description_text(description: dict[str, Any]) -> str:
    """[`describe`]'s result as tables for the terminal."""
    kind = "edge" if description["edge_emitting"] else "state"
    steps = description["mixing_time"]
    start = "its stationary distribution" if description["starts_stationary"] else "another distribution"
    lines = [
        f"{description['num_states']:,} states, {description['num_symbols']:,} symbols, {kind}-emitting"
        f"{', unifilar' if description['unifilar'] else ''}; fingerprint {description['fingerprint']}",
        rate_line(description),
        "bounds on it: {} with the first state known, {} without".format(*rate_bounds(description["entropy_rate"])),
        f"starts in {start}; " + ("never mixes" if steps is None else f"mixing time {steps:,.0f} steps"),
        f"perplexity of the state {description['states_in_use']:.2f}, of the next state given the state "
        f"{description['ways_on']:.2f}, of the symbol given the state {description['symbols_a_state']:.2f}",
        *(f"beliefs: {warning}" for warning in description["warnings"]),
        "",
        _states_table(description),
        "",
        predictors_table(description),
    ]
    return "\n".join(lines)


def plot_hmm(hmm: HMM, folder: str | os.PathLike, *, seed: int = 0) -> list[Path]:
    """Write `transition.png` and `emission.png`, and for 3 or 4 states `beliefs.png`; return their paths."""
    from .hmm_plots import plot_beliefs, plot_table

    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / "transition.png", folder / "emission.png"]
    plot_table(hmm.transition, paths[0], title="P(next state | state)", columns="next state")
    plot_table(hmm.emission, paths[1], title="P(symbol | state)", columns="symbol", names=hmm.vocabulary)
    if hmm.num_states in (3, 4):
        paths.append(folder / "beliefs.png")
        tokens = hmm.sample(400, 256, seed=seed)
        plot_beliefs(hmm.beliefs(tokens)[:, 8:].reshape(-1, hmm.num_states), paths[-1], title="beliefs before a token")
    return paths


def _states(hmm: HMM, stationary: np.ndarray) -> list[dict[str, Any]]:
    order = np.argsort(-stationary, kind="stable")[:_MAX_STATES]
    stays = hmm.transition.diagonal()
    rows = []
    for state in order.tolist():
        symbols = np.argsort(-hmm.emission[state], kind="stable")[:4]
        rows.append(
            {
                "state": state,
                "share": float(stationary[state]),
                "dwell": None if stays[state] == 1 else float(1 / (1 - stays[state])),
                "symbols": [
                    (hmm.vocabulary[x] if hmm.vocabulary else str(x), float(hmm.emission[state, x]))
                    for x in symbols.tolist()
                    if hmm.emission[state, x] > 0
                ],
            }
        )
    return rows


def _states_table(description: dict[str, Any]) -> str:
    rows = [
        [
            str(row["state"]),
            f"{row['share']:.4f}",
            "forever" if row["dwell"] is None else f"{row['dwell']:.2f}",
            ", ".join(f"{name} {probability:.2f}" for name, probability in row["symbols"]),
        ]
        for row in description["states"]
    ]
    table = text_table(["state", "share", "stays (steps)", "symbols"], rows)
    left = description["num_states"] - len(rows)
    return table if left == 0 else f"{table}\n... and {left:,} states with smaller shares"
