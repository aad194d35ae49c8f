"""Losses of predictors on sequences of a process, position by position, and their table."""

from typing import Any

import numpy as np
import torch

from ..errors import InputError
from ..hmm.analysis.predictors import predictors_of, stream
from ..hmm.integers import integer
from ..hmm.process import Process
from ..statistics import clustered_mean
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
    if process.has_states:  # by the loop that is compiled for the entropy rate; the other one would take seconds
        tokens, _ = process.sample_with_states(num_sequences, length, seed)
    else:
        tokens = process.sample(num_sequences, length, seed)
    first = 0
    for batch, distributions in stream(predictors[leading], tokens):
        predicted = {name: predictor(batch) for name, predictor in predictors.items() if name != leading}
        predicted[leading] = distributions
        if has_oracle:
            predicted["oracle"] = process.oracle_next_token_probs(batch, seed=seed, first=first)
        first += len(batch)
        truth = predicted["oracle" if has_oracle else "bayes"][:, :-1]
        for name, distribution in predicted.items():
            nats = -torch.xlogy(truth, distribution[:, :-1]).sum(-1)
            if process.padding is not None:
                nats[batch == process.padding] = torch.nan
            parts[name].append(nats.numpy())
    results = {}
    for name, values in parts.items():
        report = clustered_mean(np.concatenate(values), padded=process.padding is not None).report("mean")
        results[name] = {key: report[key] for key in ("by_position", "mean", "standard_error")}
    return results


def predictors_table(description: dict[str, Any]) -> str:
    """The `cross_entropy` of a description as a table for the terminal, at powers of two and the last position."""
    entropies = description["cross_entropy"]
    length = len(entropies["uniform"]["by_position"])
    positions = sorted({1, length} | {1 << power for power in range(length.bit_length()) if 1 << power <= length})
    rows = [
        [
            title,
            *(f"{entropies[name]['by_position'][position - 1]:z.4f}" for position in positions),
            f"{entropies[name]['mean']:z.4f}",
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
