"""How often the intervals of `hmm_datasets.intervals` cover the truth, and how often a comparison finds a difference
where there is none: `python benchmarks/interval_coverage.py [--repeats 2000]`.

Documents have sizes whose logarithm is normal with a standard deviation of `spread` (0.5 and 1 are those of stories
and of web pages), and losses per byte that differ from document to document by 15% as a gamma distribution. Two models
share nine tenths of the variance. Questions are right with the same probability in each task, or one from 0.1 to 0.95
by task. Of sequences, losses have the skewness of a gamma distribution of shape 20.
"""

import argparse

import numpy as np

from hmm_datasets.intervals import half_width, mean_of_changes, mean_of_shares
from hmm_datasets.paired_differences import paired_difference, ratio_interval
from hmm_datasets.report.tables import text_table

DOCUMENTS = (2, 3, 5, 10, 20, 50, 200)
CHANCES = (0.02, 0.5, 0.99, None)
TASKS = ((1, 10), (1, 50), (3, 20), (22, 10), (22, 100))


def documents(generator: np.random.Generator, count: int, spread: float) -> tuple[np.ndarray, np.ndarray]:
    """The losses of two equally good models on documents, and the sizes of these: arrays (2, D) and (D,)."""
    sizes = np.ceil(np.exp(generator.normal(7, spread, count)))
    shared = generator.gamma(20, 1 / 20, count)
    rates = shared + 0.05 * generator.standard_normal((2, count))
    return rates * sizes, sizes


def of_documents(count: int, spread: float, repeats: int) -> tuple[float, float]:
    """The coverage of a ratio, and the share of comparisons that find a difference."""
    generator = np.random.default_rng([count, round(10 * spread)])
    covered = different = 0
    for seed in range(repeats):
        losses, sizes = documents(generator, count, spread)
        low, high = ratio_interval(losses[0], sizes, seed=seed, resamples=500)
        covered += low <= 1 <= high
        found = paired_difference(*losses, sizes, seed=seed, resamples=500)
        different += not found.low <= 0 <= found.high
    return covered / repeats, different / repeats


def of_questions(tasks: int, items: int, chance: float | None, repeats: int) -> tuple[float, float]:
    """The coverage of a mean of accuracies, and the share of comparisons of equals that find a difference."""
    generator = np.random.default_rng([tasks, items])
    right = np.full(tasks, chance) if chance is not None else np.linspace(0.1, 0.95, tasks)
    weights, sizes = np.ones(tasks), np.full(tasks, items)
    truth, covered, different = right.mean(), 0, 0
    for _ in range(repeats):
        low, high = mean_of_shares(generator.binomial(items, right), sizes, weights)
        covered += low <= truth <= high
        gained, lost, _ = generator.multinomial(items, (0.1, 0.1, 0.8), tasks).T
        low, high = mean_of_changes(gained, lost, sizes, weights / tasks)
        different += not low <= 0 <= high
    return covered / repeats, different / repeats


def of_sequences(count: int, repeats: int) -> float:
    """The coverage of a mean over sequences."""
    values = np.random.default_rng(count).gamma(20, 1 / 20, (repeats, count))
    half = half_width(values.std(axis=1, ddof=1) / np.sqrt(count), count)
    return float((np.abs(values.mean(axis=1) - 1) <= half).mean())


def main(repeats: int) -> None:
    """Print three tables."""
    rows = [
        [str(count), *(f"{share:.1%}" for spread in (0.5, 1.0) for share in of_documents(count, spread, repeats)),
         f"{of_sequences(count, 10 * repeats):.1%}"]
        for count in DOCUMENTS
    ]  # fmt: skip
    header = ["documents", "covered", "false difference", "covered, uneven", "false difference", "covered, sequences"]
    print(text_table(header, rows), end="\n\n")
    rows = [
        [f"{tasks} of {items}", *(f"{of_questions(tasks, items, chance, repeats)[0]:.1%}" for chance in CHANCES),
         f"{of_questions(tasks, items, 0.5, repeats)[1]:.1%}"]
        for tasks, items in TASKS
    ]  # fmt: skip
    print(text_table(["tasks", "accuracy 0.02", "0.5", "0.99", "0.1 to 0.95", "false difference"], rows))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=2000)
    main(parser.parse_args().repeats)
