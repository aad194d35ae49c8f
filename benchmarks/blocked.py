"""HMMs of thousands of states: how fast they are, and how well they predict words.

    python benchmarks/blocked.py speed [--threads N]
    python benchmarks/blocked.py losses DENSE_FIT BLOCKED_FITS...

`speed` has a row for each size: tokens per second of drawing, of the filter and of Baum-Welch, float32, beside a dense
HMM of as many states where its tables fit the memory. `losses` reads folders of `hmm-datasets fit` of one corpus, each
with its `hmm/`, and prints the loss of held-out words under each beside n-gram models with interpolated modified
Kneser-Ney smoothing (Chen and Goodman, "An empirical study of smoothing techniques", 1998, section 3), and sentences.
"""

import argparse
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float, Int
from machine import print_heading

from hmm_datasets import HMM, load_source
from hmm_datasets.files import read_json
from hmm_datasets.hmm import processes
from hmm_datasets.hmm.fitting.growth import grown
from hmm_datasets.hmm.kernels.threads import in_parallel
from hmm_datasets.hmm.structured.blocked import BlockedHMM
from hmm_datasets.intervals import influence_interval
from hmm_datasets.report.tables import interval_text, text_table
from hmm_datasets.text.tokenizers.words import WordCorpus

ROUNDS = 3
NUM_SYMBOLS, BLOCKS, RANK = 4096, 128, 128
MAX_DENSE = 2048


def speed() -> None:
    """Drawing, filter and Baum-Welch by the number of states, of random tables."""
    rows = []
    for block_size in (1, 4, 16, 64, 128):
        states = BLOCKS * block_size
        if states <= MAX_DENSE:
            dense = processes.random(states, NUM_SYMBOLS, alpha=0.5)
            rows.append([f"{states:,}", "dense", *_rates(dense)])
        rows.append([f"{states:,}", f"{BLOCKS} blocks", *_rates(_random_blocks(block_size))])
    print(
        f"\n{NUM_SYMBOLS:,} symbols, rank {RANK}, 1,024 sequences of 64, float32, {torch.get_num_threads()} threads\n"
    )
    heading = ["states", "", "draws, M tokens/s", "filter, k tokens/s", "Baum-Welch, k tokens/s", "numbers in tables"]
    print(text_table(heading, rows))


def _random_blocks(block_size: int) -> BlockedHMM:
    generator = np.random.default_rng(0)
    blocks = np.concatenate([np.arange(BLOCKS), generator.integers(0, BLOCKS, NUM_SYMBOLS - BLOCKS)])
    one = BlockedHMM(
        start=generator.dirichlet(np.ones(RANK)),
        enter=generator.dirichlet(np.ones(BLOCKS), RANK),
        leave=generator.dirichlet(np.ones(RANK), BLOCKS),
        emission=(1 / np.bincount(blocks))[blocks][:, None],
        blocks=blocks,
    )
    return grown(one, block_size=block_size)


def _rates(hmm: HMM | BlockedHMM) -> list[str]:
    hmm.sample(2, 2)
    threads = torch.get_num_threads()
    draws = _per_second(lambda: hmm.sample(1024, 512, num_threads=threads), 1024 * 512)
    tables = hmm.parameters(torch.float32)
    tokens = torch.from_numpy(hmm.sample(1024, 64).astype(np.int64))
    parts = tokens.chunk(threads)
    torch.set_num_threads(1)
    rates = []
    for work in (lambda part: tables.log_likelihood(part, None), lambda part: tables.sums(part, None, None)):
        work(tokens[:2, :2])
        rates.append(_per_second(lambda work=work: in_parallel(work, parts, threads), tokens.numel()))
    torch.set_num_threads(threads)
    size = sum(table.size for table in hmm.tables().values())
    return [f"{draws / 1e6:.1f}", *(f"{rate / 1e3:,.0f}" for rate in rates), f"{size / 1e6:,.2f} million"]


def _per_second(work: Callable[[], object], count: int) -> float:
    seconds = []
    for _ in range(ROUNDS):
        began = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - began)
    return count / min(seconds)


def losses(folders: list[Path]) -> None:
    """Held-out loss of fits and of n-gram models, per word."""
    record = read_json(folders[0] / "run.json")["settings"]
    words = WordCorpus.load(folders[0] / "words")
    train, test = (words.as_windows(split, record["length"], seed=record["seed"]) for split in ("train", "test"))
    rows = []
    for order in (1, 2, 3, 4):
        nats = kneser_ney(train, test, len(words.vocabulary), order)
        rows.append([f"{order}-gram, Kneser-Ney", "", *_loss(nats)])
    for folder in folders:
        hmm = load_source(folder / "hmm")
        summary = read_json(folder / "summary.json")
        nats = -hmm.log_likelihood(test) / test.shape[1]
        rows.append([repr(hmm), f"{summary['parameters']:,}", *_loss(nats[:, None])])
        print(f"\n{hmm!r}")
        for row in hmm.sample(3, 24, seed=1):
            print("    " + " ".join(words.vocabulary[x] for x in row))
    print(f"\n{train.size:,} words, {test.size:,} held out, {len(words.vocabulary):,} different\n")
    print(text_table(["model", "parameters", "nats per held-out word", "95% interval over windows"], rows))


def _loss(nats: Float[np.ndarray, "N T"]) -> list[str]:
    by_window = nats.mean(1)
    shares = np.full(len(by_window), 1 / len(by_window))
    bounds = influence_interval(float(by_window.mean()), shares * (by_window - by_window.mean()), shares)
    return [f"{by_window.mean():.4f}", interval_text(bounds.low, bounds.high)]


def kneser_ney(
    train: Int[np.ndarray, "N L"], test: Int[np.ndarray, "M L"], num_symbols: int, order: int
) -> Float[np.ndarray, "M L"]:
    """Nats per token under an n-gram model; before the first token of a row is a symbol of its own."""
    base = num_symbols + 1
    before = lambda rows: np.pad(rows.astype(np.int64), ((0, 0), (order - 1, 0)), constant_values=num_symbols)  # noqa: E731
    seen, asked = before(train), before(test)
    length = train.shape[1]

    def codes(rows: np.ndarray, size: int) -> np.ndarray:
        # Of the n-grams that end at each token.
        code = np.zeros((len(rows), length), np.int64)
        for back in range(size - 1, -1, -1):
            begin = order - 1 - back
            code = code * base + rows[:, begin : begin + length]
        return code

    kinds, counts = np.unique(codes(seen, order), return_counts=True)
    levels = [(kinds, counts)]
    for size in range(order - 1, 0, -1):
        # Below the highest order a count is the number of different symbols before.
        levels.append(np.unique(levels[-1][0] % base**size, return_counts=True))
    probability = np.full(test.shape, 1 / num_symbols)
    for size, (kinds, counts) in enumerate(reversed(levels), start=1):
        discount = _discounts(counts)[np.minimum(counts, 3)]
        contexts, of_context = np.unique(kinds // base, return_inverse=True)
        total, spared = np.bincount(of_context, counts), np.bincount(of_context, discount)
        code = codes(asked, size)
        kept = np.where((found := _place(kinds, code)) >= 0, (counts - discount)[found], 0.0)
        context = _place(contexts, code // base)
        mixed = (kept + spared[context] * probability) / total[context]
        probability = np.where(context >= 0, mixed, probability)
    return -np.log(probability)


def _place(sorted_codes: Int[np.ndarray, "K"], codes: Int[np.ndarray, "M L"]) -> Int[np.ndarray, "M L"]:
    place = np.minimum(np.searchsorted(sorted_codes, codes), len(sorted_codes) - 1)
    return np.where(sorted_codes[place] == codes, place, -1)


def _discounts(counts: Int[np.ndarray, "K"]) -> Float[np.ndarray, "4"]:
    """For counts of 0, 1, 2 and more (Chen and Goodman, equation 26)."""
    n1, n2, n3, n4 = (max(1, int((counts == k).sum())) for k in (1, 2, 3, 4))
    y = n1 / (n1 + 2 * n2)
    return np.clip([0, 1 - 2 * y * n2 / n1, 2 - 3 * y * n3 / n2, 3 - 4 * y * n4 / n3], 0, [0, 1, 2, 3])


def main() -> None:
    """Print the heading of the machine, then the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=["speed", "losses"])
    parser.add_argument("folders", nargs="*", type=Path)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    print_heading(["hmm-datasets", "torch", "numpy", "numba"])
    if arguments.part == "speed":
        speed()
    else:
        losses(arguments.folders)


if __name__ == "__main__":
    main()
