"""Tables for the terminal."""

import itertools
import math
from collections.abc import Sequence
from typing import Any

LADDER = {
    "informed": "told the HMM of each row",
    "bayes": "Bayes floor",
    "model": "model",
    "process_bigram": "bigram of the process",
    "process_unigram": "unigram of the process",
    "bigram": "bigram, in context",
    "unigram": "unigram, in context",
    "uniform": "uniform",
}
"""The rows of the table, those that there are, best first as a good model on one HMM has them."""

_FLOORS = {"bayes": "Bayes floor", "informed": "lower bound"}


def text_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table of text: first column to the left, the others to the right.

    ```python
    >>> print(text_table(["name", "nats"], [["a", "1.0"], ["bc", "10.0"]]))
    name  nats
    ----  ----
    a      1.0
    bc    10.0

    ```
    """
    cells = [list(header), *(list(map(str, row)) for row in rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(header))]

    def line(row: Sequence[str]) -> str:
        first, *others = (cell.rjust(width) for cell, width in zip(row, widths, strict=True))
        return "  ".join([row[0].ljust(len(first)), *others]).rstrip()

    return "\n".join([line(cells[0]), "  ".join("-" * w for w in widths), *map(line, cells[1:])])


def hmm_table(measured: dict[str, Any]) -> str:
    """The result of [`~hmm_datasets.metrics.law.measure_law`] as a table, and its Bayes gap in a line."""
    rows = []
    for name, title in LADDER.items():
        if name not in measured["cross_entropy"]:
            continue
        entropy = measured["cross_entropy"][name]
        divergence = measured["kl"].get(name)
        rows.append(
            [
                title,
                f"{entropy['cross_entropy']:.4f}",
                f"{entropy['standard_error']:.4f}",
                "" if divergence is None else f"{divergence['kl']:.4f}",
                "" if divergence is None else f"{divergence['standard_error']:.4f}",
            ]
        )
    gap = measured["bayes_gap"]
    table = text_table(["predictor", "nats/token", "+-", "KL(predictor || model)", "+-"], rows)
    order = "in order" if not out_of_order(measured) else "NOT in order: " + "; ".join(out_of_order(measured))
    floor = _FLOORS[measured["floor"]]
    return (
        f"{table}\n"
        f"excess over the {floor}: {gap['bayes_gap']:.4f} +- {gap['standard_error']:.4f} nats a token "
        f"({measured['num_sequences']:,} held-out sequences of {measured['length']})\n"
        f"{floor} <= model <= unigram <= uniform: {order}"
    )


def out_of_order(measured: dict[str, Any], num_errors: float = 3.0) -> list[str]:
    """Where `floor <= model <= unigram <= uniform` fails by more than `num_errors` standard errors."""
    faults = []
    chain = (measured["floor"], "model", "unigram", "uniform")
    for better, worse in itertools.pairwise(chain):
        low, high = (measured["cross_entropy"][name] for name in (better, worse))
        error = math.hypot(low["standard_error"], high["standard_error"])
        if low["cross_entropy"] > high["cross_entropy"] + num_errors * error:
            faults.append(f"{better} {low['cross_entropy']:.4f} > {worse} {high['cross_entropy']:.4f}")
    return faults
