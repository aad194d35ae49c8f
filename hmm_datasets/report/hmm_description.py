"""What is known of an HMM beyond other processes: mixing, states and what they emit, and plots of its tables."""

import os
from pathlib import Path
from typing import Any

import numpy as np

from ..hmm.analysis.stationary import entropy, mixing_time
from ..hmm.model import HMM
from .belief_warnings import belief_warnings
from .tables import text_table

_MAX_STATES = 12  # rows of the table of states


def hmm_facts(hmm: HMM) -> dict[str, Any]:
    """Facts of an HMM, ready for JSON.

    Returns:
        `dict`: `edge_emitting`, `unifilar`, `starts_stationary`; `mixing_time` (steps, `None` if the chain never
        mixes); perplexities of the state (`states_in_use`), and given the state of the next one (`ways_on`) and of the
        symbol (`symbols_a_state`); `states`, most frequent first; `warnings`, why an experiment on beliefs would be
        void.
    """
    stationary = hmm.stationary()
    steps = mixing_time(hmm.transition, stationary)
    return {
        "edge_emitting": hmm.edges is not None,
        "unifilar": hmm.is_unifilar(),
        "starts_stationary": bool(np.abs(hmm.start - stationary).max() < 1e-9),
        "mixing_time": None if np.isinf(steps) else steps,
        "states_in_use": float(np.exp(entropy(stationary))),
        "ways_on": float(np.exp(stationary @ entropy(hmm.transition))),
        "symbols_a_state": float(np.exp(stationary @ entropy(hmm.emission))),
        "states": _states(hmm, stationary),
        "warnings": belief_warnings(hmm),
    }


def hmm_lines(description: dict[str, Any]) -> list[str]:
    """[`hmm_facts`]'s result, in a description with `num_states`, as lines and a table for the terminal."""
    steps = description["mixing_time"]
    start = "its stationary distribution" if description["starts_stationary"] else "another distribution"
    return [
        f"{'unifilar' if description['unifilar'] else 'not unifilar'}; starts in {start}; "
        + ("never mixes" if steps is None else f"mixing time {steps:,.0f} steps"),
        f"perplexity of the state {description['states_in_use']:.2f}, of the next state given the state "
        f"{description['ways_on']:.2f}, of the symbol given the state {description['symbols_a_state']:.2f}",
        *(f"beliefs: {warning}" for warning in description["warnings"]),
        "",
        _states_table(description),
    ]


def plot_hmm(hmm: HMM, folder: str | os.PathLike, *, seed: int = 0) -> list[Path]:
    """Write `transition.png` and `emission.png`, and for 3 or 4 states `beliefs.png`; return their paths."""
    from .hmm_plots import plot_simplices, plot_table

    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / "transition.png", folder / "emission.png"]
    plot_table(hmm.transition, paths[0], title="P(next state | state)", columns="next state")
    plot_table(hmm.emission, paths[1], title="P(symbol | state)", columns="symbol", names=hmm.vocabulary)
    if hmm.num_states in (3, 4):
        paths.append(folder / "beliefs.png")
        tokens = hmm.sample(400, 256, seed=seed)
        beliefs = hmm.beliefs(tokens)[:, 8:].reshape(-1, hmm.num_states)
        plot_simplices({"beliefs before a token": beliefs}, paths[-1])
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
