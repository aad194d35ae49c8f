"""Description of any process: of an HMM with its tables, of others with what they have, and losses of predictors.

Losses of predictors on sequences of a process, position by position, and their table.

Description of an HMM: sizes, entropy rate, stationary distribution, losses of predictors, plots.

The table of processes that can be named: call, sizes, entropy rate, source.
"""

import inspect
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ..errors import InputError
from ..hmm.analysis.entropy import bounds_of_rate, made_to_agree
from ..hmm.analysis.predictors import predictors_of, stream
from ..hmm.analysis.stationary import entropy, mixing_time
from ..hmm.families.family import Family
from ..hmm.integers import integer
from ..hmm.model import HMM
from ..hmm.names import PREFIX, constructors, example_of, named_process, signature_of
from ..hmm.process import Process
from .tables import PREDICTORS, text_table


def predictor_losses(process: Process, length: int, num_sequences: int, seed: int) -> dict[str, dict[str, Any]]:
    """Nats by position for each predictor, in expectation over the next token, which reduces the sampling noise.

    The expectation is under the distribution of the oracle where the process has one, else under the Bayes-optimal
    one.

    Args:
        process ([`~hmm_datasets.hmm.process.Process`]): the process.
        length (`int`): number of positions.
        num_sequences (`int`): number of sequences, 2 or more.
        seed (`int`): seed of the sequences.

    Returns:
        `dict`: for each predictor `by_position` (a list of `length` numbers), their `mean` and its `standard_error`.

    Raises:
        `InputError`: a number is out of range, or the process has neither an exact distribution nor an oracle.
    """
    check_sizes(length, num_sequences)
    if not (process.has_exact_distribution or process.has_oracle):
        raise InputError(f"{process!r} has neither an exact distribution nor an oracle, so that no loss is known")
    predictors, has_oracle = predictors_of(process), process.has_oracle
    parts = {name: [] for name in [*predictors, *["oracle"] * has_oracle]}
    leading = "uniform" if has_oracle else "bayes"  # the predictor whose distributions `stream` yields
    first = 0
    for batch, distributions in stream(predictors[leading], process.sample(num_sequences, length, seed)):
        found = {name: predictor(batch) for name, predictor in predictors.items() if name != leading}
        found[leading] = distributions
        if has_oracle:
            found["oracle"] = process.oracle_next_token_probs(batch, seed=seed, first=first)
        first += len(batch)
        truth = found["oracle" if has_oracle else "bayes"][:, :-1]
        for name, distribution in found.items():
            parts[name].append(-torch.xlogy(truth, distribution[:, :-1]).sum(-1).numpy())
    nats = {name: np.concatenate(values) for name, values in parts.items()}
    return {
        name: {
            "by_position": values.mean(axis=0).tolist(),
            "mean": float(values.mean()),
            "standard_error": float(values.mean(axis=1).std(ddof=1) / np.sqrt(num_sequences)),
        }
        for name, values in nats.items()
    }


def predictors_table(description: dict[str, Any]) -> str:
    """The `cross_entropy` of a description as a table for the terminal, at powers of two and the last position."""
    entropies = description["cross_entropy"]
    length = len(entropies["uniform"]["by_position"])
    positions = sorted({1, length} | {1 << power for power in range(length.bit_length()) if 1 << power <= length})
    rows = [
        [
            title,
            *(f"{entropies[name]['by_position'][position - 1]:.4f}" for position in positions),
            f"{entropies[name]['mean']:.4f}",
            f"{entropies[name]['standard_error']:.4f}",
        ]
        for name, title in PREDICTORS.items()
        if name in entropies
    ]
    table = text_table(["nats at position", *map(str, positions), "mean", "+-"], rows)
    return f"{table}\nmeasured on {description['num_sequences']:,} sequences of {length:,} tokens"


def check_sizes(length: int, num_sequences: int) -> None:
    """Raise `InputError` unless there are positions to measure at, and sequences for a standard error."""
    integer("length", length, 1, 31), integer("num_sequences", num_sequences, 2, 63)


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
        `states`, most frequent first; `cross_entropy`, for each predictor the nats by position, their mean and its
        standard error.
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
        _rate_line(description),
        "bounds on it: {} with the first state known, {} without".format(*_bounds(description["entropy_rate"])),
        f"starts in {start}; " + ("never mixes" if steps is None else f"mixing time {steps:,.0f} steps"),
        f"perplexity of the state {description['states_in_use']:.2f}, of the next state given the state "
        f"{description['ways_on']:.2f}, of the symbol given the state {description['symbols_a_state']:.2f}",
        "",
        _states_table(description),
        "",
        predictors_table(description),
    ]
    return "\n".join(lines)


def plot_hmm(hmm: HMM, folder: str | os.PathLike, *, seed: int = 0) -> list[Path]:
    """Write `transition.png` and `emission.png`, and for 3 states `beliefs.png`; return their paths."""
    from .hmm_plots import plot_beliefs, plot_table

    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / "transition.png", folder / "emission.png"]
    plot_table(hmm.transition, paths[0], title="P(next state | state)", columns="next state")
    plot_table(hmm.emission, paths[1], title="P(symbol | state)", columns="symbol", names=hmm.vocabulary)
    if hmm.num_states == 3:
        paths.append(folder / "beliefs.png")
        tokens = hmm.sample(400, 256, seed=seed)
        plot_beliefs(hmm.beliefs(tokens)[:, 8:].reshape(-1, 3), paths[-1], title="beliefs before a token")
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


def describe_process(
    process: Process, *, length: int = 64, num_sequences: int = 2048, seed: int = 0
) -> dict[str, Any]:
    """Describe a process; the arguments are those of [`~hmm_datasets.report.process_description.describe`].

    Returns:
        `dict`, ready for JSON. For an HMM see [`~hmm_datasets.report.process_description.describe`]. For a family:
        `family` and its `settings`; `num_symbols`, `group`; `exact`, whether the optimum is known in closed form. For
        another process: `process`, its stored name, and what it is in words as `summary`; `num_symbols`, `max_states`,
        `belief_width`, `exact`, `has_oracle`; and for a stationary one `entropy_rate`, with bounds where the process
        has some. All have `fingerprint`, `num_sequences`, and `cross_entropy`: for each predictor the nats by
        position, their mean and its standard error.
    """
    check_sizes(length, num_sequences)
    if isinstance(process, HMM):
        return describe(process, length=length, num_sequences=num_sequences, seed=seed)
    own = _of_family(process) if isinstance(process, Family) else _of_process(process)
    return own | {
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
        lines.append(_rate_line(description))
        if rate["standard_error"] > 0 and "lower" in rate:
            lines.append(f"bounds on it: {' and '.join(_bounds(rate))}")
    return [*lines, f"optimum: {_optimum(description)}"]


def _rate_line(description: dict[str, Any]) -> str:
    rate, uniform = description["entropy_rate"], np.log(description["num_symbols"])
    precision = "exact" if rate["standard_error"] == 0 else f"standard error {rate['standard_error']:.1e}"
    return f"entropy rate {rate['value']:.5f} nats per token ({precision}); the uniform predictor needs {uniform:.5f}"


def _bounds(rate: dict[str, float]) -> list[str]:
    return [f"{rate[side]:.5f} (+- {rate[f'{side}_error']:.1e})" for side in ("lower", "upper")]


def _optimum(description: dict[str, Any]) -> str:
    return "known exactly" if description["exact"] else "not known in closed form; the oracle bounds it from below"


_CITED = re.compile(r"\(([^()]*(?:\([^()]*\))?[^()]*\b(?:1[89]|20)\d\d\b[^()]*|[^()]*\b(?:figure|section)\b[^()]*)\)")


def process_rows(calls: Sequence[str] = (), *, rates: bool = True) -> list[dict[str, Any]]:
    """What there is to know of named processes, one `dict` for each, ready for JSON.

    Args:
        calls (sequence of `str`, *optional*): which ones, such as `"mess3(x=0.05)"`; by default each that can be
            named, with its defaults or an example of its arguments.
        rates (`bool`, *optional*, defaults to `True`): whether to compute entropy rates, which takes 20 s for all.

    Returns:
        list of `dict`: `name`, `signature` and `call`; `summary` and `source`, from the documentation of the
        constructor, the latter None if it cites nothing; `num_symbols`, `num_states` and `belief_width` (None where
        there are none); `fingerprint`; and with `rates` the `entropy_rate` as in
        [`~hmm_datasets.report.process_description.entropy_rate_of`].

    Raises:
        `InputError`: a call names no process.

    ```python
    >>> [row] = process_rows(["golden_mean"])
    >>> row["num_states"], round(row["entropy_rate"]["value"], 4), row["source"]
    (2, 0.4621, 'a subshift of finite type; Crutchfield and Feldman 2003')

    ```
    """
    known = constructors()
    shown = [call.removeprefix(PREFIX) for call in calls] or [call for call in map(example_of, known) if call]
    return [_row(call, known, rates) for call in shown]


def _row(call: str, known: dict[str, Any], rates: bool) -> dict[str, Any]:
    process = named_process(PREFIX + call)
    name = call.partition("(")[0].strip()
    documentation = inspect.getdoc(known[name]) or ""
    cited = _CITED.search(" ".join(documentation.split()))
    return {
        "name": name,
        "signature": signature_of(name, known[name]),
        "call": call,
        "summary": " ".join(documentation.split("\n\n")[0].split()),
        "source": cited and cited[1],
        "num_symbols": process.num_symbols,
        "num_states": process.max_states,
        "belief_width": process.belief_width,
        "fingerprint": process.fingerprint(),
        **({"entropy_rate": entropy_rate_of(process)} if rates else {}),
    }


def process_table(rows: Sequence[dict[str, Any]], width: int = 100) -> str:
    """[`process_rows`]'s result as a table for the terminal, with what was computed of each: the entropy rate in nats
    per token, or else what the process is.

    A closed form has one number. Otherwise there are bounds from below and above, both exact or with their standard
    errors, or an estimate with its standard error.

    Args:
        rows (list of `dict`): see [`process_rows`].
        width (`int`, *optional*, defaults to 100): columns of the terminal.
    """
    cells = [
        [
            _shortened(row["call"] if "(" in row["call"] else row["signature"], 36),
            "-" if row["num_states"] is None else f"{row['num_states']:,}",
            f"{row['num_symbols']:,}",
            _rate(row["entropy_rate"]) if "entropy_rate" in row else row["summary"].replace("`", ""),
        ]
        for row in rows
    ]
    rates = "entropy_rate" in rows[0]
    header = ["process", "states", "symbols", "entropy rate, nats per token" if rates else "what it is"]
    taken = sum(max(len(line[column]) for line in [header, *cells]) + 2 for column in range(3))
    cells = [[*others, _shortened(last, max(width - taken, 20))] for *others, last in cells]
    note = "Give one as NAME(ARGUMENTS) wherever a process is named; `hmm-datasets describe NAME` describes it."
    return f"{text_table(header, cells, left=(0,) if rates else (0, 3))}\n{note}"


def _rate(rate: dict[str, float] | None) -> str:
    if rate is None:
        return "by position"
    if rate["standard_error"] == 0:
        return f"{rate['value']:.6f}"
    if "lower" not in rate:
        return f"{rate['value']:.6f} +- {rate['standard_error']:.1e}"
    error = max(rate["lower_error"], rate["upper_error"])
    return f"{rate['lower']:.6f} .. {rate['upper']:.6f}" + (f" +- {error:.1e}" if error > 0 else "")


def _shortened(text: str, width: int) -> str:
    return text if len(text) <= width else f"{text[: width - 3].rstrip(' ,;')}..."
