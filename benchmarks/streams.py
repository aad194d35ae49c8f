"""Streams: tokens per second as users read them through `datasets`, beside the same rows from a Parquet file.

    pip install -e ".[bench]"
    python benchmarks/streams.py [--rounds 3] [--seconds 1.5]

Prints machine, versions, then a table: a row per way of reading, a column per source. Sources are an HMM of 200 states
and 200 symbols, a family of its permutations, and windows of a token stream, all by their `load_dataset(...,
streaming=True)`, and the HMM's rows in a Parquet file, which `datasets` streams without this package. A round reads
ours and Parquet in processes of their own, one after the other, on one thread; the table has medians over the rounds,
and the ratio is the median of those of the rounds. Only `input_ids` are counted; our rows have `labels` too, those in
the Parquet file have not.

A second table has the columns of what is known of the sequences, each read alone in batches of 256 in NumPy format,
for Mess3 (3 states, 3 symbols), for the HMM above, and for random chains of 3 states in groups of 256. What one would
take instead is to compute the column oneself from the rows as they are drawn; where the HMM has a method for it, the
second number is the rate of that. Run it on a quiet machine.
"""

import argparse
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path

os.environ |= {"OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1", "HF_DATASETS_DISABLE_PROGRESS_BARS": "1"}

STATES = SYMBOLS = 200
LENGTH, BATCH = 100, 256
ROWS_IN_PARQUET = 200_000
VIEWS = "HMMSequences in a DataLoader of 256"
LOADED = "DataLoader of 256, rows in torch format"
COLUMNS = (
    *("input_ids", "states", "beliefs", "next_token_probs", "log_probs", "entropies"),
    *("oracle_log_probs", "own_hmm", "text"),
)
PACKAGES = ("datasets", "pyarrow", "torch", "transformers", "numpy", "numba")


def main() -> None:
    """Measure in child processes; print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3, help="default 3")
    parser.add_argument("--seconds", type=float, default=1.5, help="for each way of reading, default 1.5")
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    settings = parser.parse_args()
    if settings.child is not None:
        source, folder = settings.child
        rates = _column_rates if (Path(folder) / "chains").exists() else _rates
        print(json.dumps(rates(source, Path(folder), settings.seconds)))
        return

    from machine import print_heading

    from hmm_datasets.report.tables import text_table

    print_heading(PACKAGES)
    with tempfile.TemporaryDirectory() as folder:
        _write(Path(folder))
        sources = ("HMM", "family", "windows", "Parquet")
        rounds = [
            {source: _child(source, folder, settings.seconds) for source in sources} for _ in range(settings.rounds)
        ]
    rows = []
    for way in rounds[0]["HMM"]:
        medians = {
            source: statistics.median(found[source][way] for found in rounds)
            for source in sources
            if way in rounds[0][source]
        }
        cells = [f"{medians[source] / 1e6:.2f}" if source in medians else "" for source in sources]
        against = way if "Parquet" in medians else LOADED
        ratio = statistics.median(found["HMM"][way] / found["Parquet"][against] for found in rounds)
        rows.append([way, *cells, f"{ratio:.1f}"])
    print(f"\nMillions of tokens per second, rows of {LENGTH}, one thread, medians of {settings.rounds} rounds\n")
    print(text_table(["read as", *sources, "HMM is times Parquet"], rows))
    print(f"\n{VIEWS} is compared with Parquet's rows in torch format in such a loader.")
    with tempfile.TemporaryDirectory() as folder:
        _write_sources(Path(folder))
        names = ("Mess3", "HMM", "chains")
        rounds = [{name: _child(name, folder, settings.seconds) for name in names} for _ in range(settings.rounds)]
    rows = []
    for column in COLUMNS:
        found = {name: [of[name][column] for of in rounds if column in of[name]] for name in names}
        rows.append([column, *(_both(found[name]) for name in names)])
    print("\nThousands of tokens per second by column: load_dataset / the method of the process\n")
    print(text_table(["column", *names], rows))


def _write(folder: Path) -> None:
    """The HMM, the family, the token stream and the Parquet file."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq

    from hmm_datasets.hmm import processes
    from hmm_datasets.hmm.families import PermutedEmissions
    from hmm_datasets.text.stream import write_tokens

    hmm = processes.random(STATES, SYMBOLS, alpha=0.5, seed=1)
    hmm.save_pretrained(folder / "HMM")
    PermutedEmissions(hmm, group=8).save_pretrained(folder / "family")
    tokens = hmm.sample(ROWS_IN_PARQUET, LENGTH)
    write_tokens(
        (document + 1 for document in np.split(tokens.astype(np.int64).ravel(), 20_000)),
        *(folder / "windows",),
        **{"vocab_size": SYMBOLS + 1, "eos_id": 0, "tokenizer_hash": "none", "corpus": "symbols"},
    )
    offsets = pa.array(np.arange(0, tokens.size + 1, LENGTH, dtype=np.int32))
    column = pa.ListArray.from_arrays(offsets, pa.array(tokens.ravel()))
    pq.write_table(pa.table({"input_ids": column}), folder / "rows.parquet")


def _both(found: list[list[float]]) -> str:
    """Medians of the rates of a column, and of the method where there is one, in thousands."""
    medians = [statistics.median(values) for values in zip(*found, strict=True)]
    return " / ".join(f"{value / 1e3:,.0f}" for value in medians)


def _write_sources(folder: Path) -> None:
    """The processes whose columns are read."""
    from hmm_datasets import HMM
    from hmm_datasets.hmm import processes
    from hmm_datasets.hmm.families import RandomChains

    HMM(**processes.mess3(0.15, 0.6).tables(), vocabulary=("a", "b", "c")).save_pretrained(folder / "Mess3")
    processes.random(STATES, SYMBOLS, alpha=0.5, seed=1).save_pretrained(folder / "HMM")
    RandomChains(3, alpha=1.0, group=BATCH).save_pretrained(folder / "chains")


def _column_rates(source: str, folder: Path, seconds: float) -> dict[str, list[float]]:
    """Tokens per second of each column that a process has, and of the method that computes it."""
    import torch
    from datasets import load_dataset

    from hmm_datasets import InputError
    from hmm_datasets.hmm.families import load_source

    torch.set_num_threads(1)
    process = load_source(folder / source)
    methods = {"input_ids": lambda rows: rows, "states": lambda rows: rows}
    methods |= {name: getattr(process, name) for name in ("beliefs", "next_token_probs") if hasattr(process, name)}
    settings = {"split": "train", "streaming": True, "cache_dir": str(folder / "cache")}
    found = {}
    for column in COLUMNS:
        try:
            stream = load_dataset("hmm", data_dir=str(folder / source), length=LENGTH, columns=[column], **settings)
        except InputError:
            continue  # the process does not have it
        found[column] = [_rate(stream.with_format("numpy").batch(BATCH), LENGTH * BATCH, seconds)]
        if column in methods:
            draw = process.sample_with_states if column == "states" else process.sample
            batches = (methods[column](draw(BATCH, LENGTH, first=BATCH * n)) for n in itertools.count())
            found[column].append(_rate(batches, LENGTH * BATCH, seconds))
    return found


def _child(source: str, folder: str, seconds: float) -> dict[str, float]:
    command = [sys.executable, __file__, "--seconds", str(seconds), "--child", source, folder]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()[-1])


def _rates(source: str, folder: Path, seconds: float) -> dict[str, float]:
    """Tokens per second of every way of reading one source."""
    import torch

    torch.set_num_threads(1)
    jobs = {way: (open_rows, tokens) for way, open_rows, tokens in _ways(source, folder)}
    return {way: _rate(open_rows(), tokens, seconds) for way, (open_rows, tokens) in jobs.items()}


def _ways(source: str, folder: Path) -> Iterable[tuple[str, Callable[[], Iterable], int]]:
    """Each way of reading: its name, what opens it, and the tokens of an item."""
    from torch.utils.data import DataLoader
    from transformers import default_data_collator

    stream = _stream(source, folder)
    yield "rows as lists", lambda: stream, LENGTH
    yield "rows in torch format", lambda: stream.with_format("torch"), LENGTH
    for name in ("torch", "numpy", "arrow"):
        yield f".batch(256) in {name} format", lambda name=name: stream.with_format(name).batch(BATCH), LENGTH * BATCH

    def loaded(rows, batch_size=BATCH, collate=default_data_collator):
        return DataLoader(rows, batch_size=batch_size, collate_fn=collate)

    yield "DataLoader of 256, rows as lists", lambda: loaded(stream), LENGTH * BATCH
    for name in ("torch", "numpy"):
        rows = f"DataLoader of 256, rows in {name} format"
        yield rows, lambda name=name: loaded(stream.with_format(name)), LENGTH * BATCH
    batches = "DataLoader of .batch(256) in torch format"
    yield batches, lambda: loaded(stream.with_format("torch").batch(BATCH), None, None), LENGTH * BATCH
    if source in ("HMM", "family"):
        from hmm_datasets import HMMSequences
        from hmm_datasets.hmm.families import load_source

        view = HMMSequences(load_source(folder / source), LENGTH, bos=False)
        yield f"{VIEWS}, endless", lambda: loaded(view), LENGTH * BATCH
        yield f"{VIEWS}, by index", lambda: loaded(view.by_index()), LENGTH * BATCH


def _stream(source: str, folder: Path):
    from datasets import load_dataset

    settings = {"split": "train", "streaming": True, "cache_dir": str(folder / "cache")}
    if source == "Parquet":
        return load_dataset("parquet", data_files=str(folder / "rows.parquet"), **settings).repeat(None)

    import hmm_datasets  # noqa: F401 (makes "hmm" and "token_shards" known)

    name = "token_shards" if source == "windows" else "hmm"
    stream = load_dataset(name, data_dir=str(folder / source), length=LENGTH, **settings)
    return stream.repeat(None) if source == "windows" else stream


def _rate(items: Iterable, tokens: int, seconds: float) -> float:
    """Tokens per second, after a first part that is not counted."""
    iterator = iter(items)
    at_once = max(1, 2 * BATCH * LENGTH // tokens)
    for _ in itertools.islice(iterator, 2 * at_once):
        pass
    count, began = 0, time.perf_counter()
    while (spent := time.perf_counter() - began) < seconds:
        for _ in itertools.islice(iterator, at_once):
            count += 1
    return count * tokens / spent


if __name__ == "__main__":
    main()
