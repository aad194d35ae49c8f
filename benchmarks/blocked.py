"""HMMs of thousands of states: how fast they are, and how well they predict words.

    python benchmarks/blocked.py speed [--threads N]
    python benchmarks/blocked.py losses WORDS [--rank R] [--block_sizes 4 16 ...]

`speed` has a row for each size: tokens per second of drawing, and in float32 of the filter, of Viterbi and of
Baum-Welch, and the most memory that a process took for all of them, beside a dense HMM of as many states where its
tables fit the memory. `losses` fits the words in the folder `words/` of an
`hmm-datasets fit`: a dense HMM of 128 states, then blocks of each size, each from the fit before it. It prints the
loss of held-out words under each beside n-gram models with interpolated modified Kneser-Ney smoothing (Chen and
Goodman, "An empirical study of smoothing techniques", 1998, section 3), and ten sentences of each; `states-H/` beside
the folder has the HMM of blocks with `H` states.
"""

import argparse
import multiprocessing
import resource
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float, Int
from machine import print_heading

from hmm_datasets import HMM, fit_hmm
from hmm_datasets.hmm import processes
from hmm_datasets.hmm.fitting.growth import blocks_of, grown
from hmm_datasets.hmm.fitting.state import FitResult
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
    sizes = [BLOCKS * block_size for block_size in (1, 4, 16, 64, 128)]
    cells = [(states, dense) for states in sizes for dense in (True, False) if states <= MAX_DENSE or not dense]
    # A process for each row, whose memory is its own.
    context, threads = multiprocessing.get_context("spawn"), torch.get_num_threads()
    with ProcessPoolExecutor(1, context, torch.set_num_threads, (threads,), max_tasks_per_child=1) as pool:
        rows = [pool.submit(_speed_row, *cell).result() for cell in cells]
    print(
        f"\n{NUM_SYMBOLS:,} symbols, rank {RANK}, 1,024 sequences of 64, float32, {torch.get_num_threads()} threads\n"
    )
    rates = ["draws, M tokens/s", "filter, k tokens/s", "Viterbi, k tokens/s", "Baum-Welch, k tokens/s"]
    print(text_table(["states", "", *rates, "numbers in tables", "memory"], rows))


def _speed_row(states: int, dense: bool) -> list[str]:
    hmm = processes.random(states, NUM_SYMBOLS, alpha=0.5) if dense else _random_blocks(states // BLOCKS)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    cells = [f"{states:,}", "dense" if dense else f"{BLOCKS} blocks", *_rates(hmm)]
    return [*cells, f"{(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1e6:.2f} GB"]


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
    torch.set_num_threads(1)
    rates = []
    options = {"dtype": torch.float32} if isinstance(hmm, HMM) else {}
    works = [
        (lambda part: tables.log_likelihood(part, None), tokens),
        (lambda part: hmm.viterbi(part, **options), tokens[:64]),
        (lambda part: tables.sums(part, None, None), tokens),
    ]
    for work, rows in works:
        work(rows[:2, :2])
        call = lambda work=work, rows=rows: in_parallel(work, rows.chunk(threads), threads)  # noqa: E731
        rates.append(_per_second(call, rows.numel()))
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


def losses(folder: Path, rank: int, block_sizes: list[int]) -> None:
    """Held-out loss per word, of fits by their number of states and of n-gram models."""
    words = WordCorpus.load(folder)
    train, test = (words.as_windows(split, 128, seed=0) for split in ("train", "test"))
    rows = []
    for order in (1, 2, 3, 4):
        nats = kneser_ney(train, test, len(words.vocabulary), order)
        rows.append([f"{order}-gram, Kneser-Ney", *[""] * 4, *_loss(nats)])
    settings = {"test_tokens": test, "show_progress": False, "patience": 2}
    result = fit_hmm(train, num_states=128, max_epochs=20, vocabulary=words.vocabulary, **settings)
    rows.append(_fit_row(result, test))
    guess = blocks_of(result.hmm)
    for block_size in block_sizes:
        guess = grown(guess, block_size=block_size, rank=max(rank, guess.rank))
        result = fit_hmm(train, initial=guess, max_epochs=30, **settings)
        guess = result.hmm
        guess.save_pretrained(folder.parent / f"states-{guess.num_states}")
        rows.append(_fit_row(result, test))
    print(f"\n{train.size:,} words, {test.size:,} held out, {len(words.vocabulary):,} different; windows of 128\n")
    heading = ["model", "parameters", "epochs", "k words/s", "train", "held out", "95% interval over windows"]
    print(text_table(heading, rows))
    print(f"\nLosses in nats per word. {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6:.1f} GB of memory.")


def _fit_row(result: FitResult, test: Int[np.ndarray, "M L"]) -> list[str]:
    hmm, rate = result.hmm, np.median([row["tokens_per_second"] for row in result.history])
    print(f"\n{hmm!r}", flush=True)
    for row in hmm.sample(10, 256, seed=1):
        # The first sentence that begins and ends in these words.
        _, sentence, *_ = " ".join(hmm.vocabulary[x] for x in row).split(" . ")
        print(f"    {sentence} .")
    cells = [repr(hmm), f"{result.num_parameters:,}", str(len(result.history)), f"{rate / 1e3:,.0f}"]
    return [*cells, f"{-result.train_log_likelihood:.4f}", *_loss(-hmm.log_likelihood(test)[:, None] / test.shape[1])]


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
    parser.add_argument("words", nargs="?", type=Path)
    parser.add_argument("--rank", type=int, default=256)
    parser.add_argument("--block_sizes", type=int, nargs="+", default=[4, 16, 64, 128])
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    print_heading(["hmm-datasets", "torch", "numpy", "numba"])
    if arguments.part == "speed":
        speed()
    else:
        losses(arguments.words, arguments.rank, arguments.block_sizes)


if __name__ == "__main__":
    main()
