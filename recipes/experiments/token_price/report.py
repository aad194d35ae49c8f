"""The report of the experiment: its tables, in bits per symbol."""

import math
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from mean_text import mean_text
from plot import plot_prices, plot_windows
from prices import FLIPS, Result, excess, price, together, unigram_curve
from report_page import write_report_page

from hmm_datasets.report.tables import Table


def write_report(folder: Path, results: Sequence[Result], settings: Mapping[str, Any]) -> None:
    """Write `report.json`, `report.md`, `token_price.png` and `windows.png`; print the tables.

    Args:
        folder (`Path`): folder of the experiment.
        results (sequence of `dict`): for each tokenizer its `source`, `order`, `tokenizer` and `vocab_size`, what
            [`exact_losses`][texts.exact_losses] returns, and `models`, by seed.
        settings (mapping): those of the experiment.
    """
    window, curve = settings["window"], unigram_curve()
    tables = [prices_table(results, window), parts_table(results, window), leaks_table(results, window)]
    tables.append(unigram_table(curve))
    figures = {"settings": dict(settings), "results": list(results), "unigram": curve}
    pictures = {"token_price.png": partial(plot_prices, results, window)}
    pictures["windows.png"] = partial(plot_windows, results, curve)
    write_report_page(folder, tables, figures, pictures)


def prices_table(results: Sequence[Result], window: int) -> Table:
    """The price of each tokenizer's window and the excess of its models."""
    rows = []
    for result in results:
        cells = [f"{result['symbols_per_token']:.2f}", f"{result['models'][0]['steps']:,}"]
        cells += [mean_text(part(result, window), ".4f") for part in (price, excess)]
        rows.append([named(result), *cells, f"{together(result, window):.4f}"])
    rates = {result["source"]: result["entropy_rate"] / math.log(2) for result in results}
    note = (
        f"window: what the best predictor loses in windows of {window} tokens, beside that of all tokens; model: what "
        "a Llama loses beside that. ± 95%, over rows of the test text for windows, over seeds for models. Entropy "
        "rates: " + "; ".join(f"{source} {rate:.4f}" for source, rate in rates.items())
    )
    header = ["tokens", "symbols per token", "steps", "window", "model", "both"]
    return Table("Bits per symbol above the entropy rate", header, rows, note)


def parts_table(results: Sequence[Result], window: int) -> Table:
    """What tokens gain over symbols, and which part of it is the best predictor's."""
    rows = []
    alone = {result["source"]: result for result in results if result["tokenizer"] == "symbols"}
    for result in results:
        if result["tokenizer"] == "symbols":
            continue
        symbols = alone[result["source"]]
        differences = [part(result, window) - part(symbols, window) for part in (price, excess)]
        total = together(result, window) - together(symbols, window)
        rows.append([named(result), f"{total:+.4f}", *(mean_text(values, "+.4f") for values in differences)])
    header = ["tokens", "both", "window", "model"]
    return Table("Bits per symbol beyond those of the model that reads symbols", header, rows)


def leaks_table(results: Sequence[Result], window: int) -> Table:
    """What a tokenizer gains that was trained on the test text too."""
    rows = []
    by_size = {(r["source"], r["vocab_size"]): r for r in results if r["tokenizer"] == "clean"}
    for result in results:
        if result["tokenizer"] != "leaky":
            continue
        clean = by_size[result["source"], result["vocab_size"]]
        share = 100 * (np.array(result["tokens"]) / clean["tokens"] - 1)
        differences = [part(result, window) - part(clean, window) for part in (price, excess)]
        cells = [mean_text(values, "+.4f") for values in differences]
        rows.append([f"{result['source']}, {result['vocab_size']:,}", mean_text(share, "+.2f"), *cells])
    header = ["tokens", "tokens of the test text, %", "window", "model"]
    return Table("Leaky minus clean, bits per symbol", header, rows)


def unigram_table(curve: Mapping[str, Any]) -> Table:
    """Unigram models of tokens of a chain."""
    rows = [[size, f"{losses['exact']:.4f}", f"{losses['counted']:.4f}"] for size, losses in curve["losses"].items()]
    title = f"Unigram models of tokens of a chain that flips with {FLIPS} (entropy rate {curve['entropy_rate']:.4f})"
    return Table(f"{title}, nats per symbol", ["tokens", "exact", "counted"], rows)


def named(result: Result) -> str:
    """A tokenizer in the tables."""
    kind = result["tokenizer"]
    return f"{result['source']}: " + (kind if kind == "symbols" else f"{result['vocab_size']:,}, {kind}")
