"""The pictures of the experiment."""

import math
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from panels import shared_legend, wrapped_title
from prices import FLIPS, Result, bound, excess, price

from hmm_datasets.intervals import half_width
from hmm_datasets.report.plots import PAPER, markers, run_style, save_figure

WINDOW_COLOR, MODEL_COLOR, UNIGRAM_COLOR = "#0072B2", "#E69F00", "#CC79A7"


@rc_context(PAPER)
def plot_prices(results: Sequence[Result], window: int, path: Path) -> None:
    """Draw for each source, by tokenizer, the price of the window and the excess of the models above it."""
    sources = list(dict.fromkeys(result["source"] for result in results))
    figure = Figure(figsize=(0.6 + 2.4 * len(sources), 2.8), layout="constrained")
    for axes, source in zip(figure.subplots(1, len(sources), squeeze=False)[0], sources, strict=True):
        chosen = [result for result in results if result["source"] == source]
        windows = [price(result, window).mean() for result in chosen]
        models = [excess(result, window) for result in chosen]
        heights = [values.mean() for values in models]
        # Intervals are over seeds, if there are several.
        halves = [interval(values) for values in models] if len(chosen[0]["models"]) > 1 else None
        axes.bar(
            range(len(chosen)), windows, color=WINDOW_COLOR, label=f"best predictor of windows of {window} tokens"
        )
        style = {"color": MODEL_COLOR, "label": "Llama of equal compute, beside that", "error_kw": {"linewidth": 0.8}}
        axes.bar(range(len(chosen)), heights, bottom=windows, yerr=halves, **style)
        labels = [label_of(result).removesuffix(" tokens") for result in chosen]
        axes.set_xticks(range(len(chosen)), labels, rotation=90)
        axes.set(title=wrapped_title(source), ylabel="bits per symbol\nabove the entropy rate")
        axes.set_ylim(bottom=0)
        axes.grid(visible=False, axis="x")
    figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=2)
    save_figure(figure, path)


@rc_context(PAPER)
def plot_windows(results: Sequence[Result], curve: Mapping[str, Any], path: Path) -> None:
    """Draw the price by size of the window, the gap of short contexts beside its bound, and unigram models."""
    clean = [result for result in results if result["tokenizer"] != "leaky"]
    sources = list(dict.fromkeys(result["source"] for result in clean))
    by_source = {source: [result for result in clean if result["source"] == source] for source in sources}
    drawn = [partial(plot_spans, results=chosen) for chosen in by_source.values()]
    drawn += [partial(plot_gaps, results=chosen) for chosen in by_source.values() if chosen[0]["order"]]
    drawn.append(partial(plot_unigrams, curve=curve))
    rows = math.ceil(len(drawn) / 3)
    figure = Figure(figsize=(7.6, 2.6 * rows), layout="constrained")
    for axes, draw in zip_longest(figure.subplots(rows, 3, squeeze=False).flat, drawn):
        if draw is None:
            axes.set_axis_off()
        else:
            draw(axes)
    shared_legend(figure, 4)
    save_figure(figure, path)


def plot_spans(axes: Axes, results: Sequence[Result]) -> None:
    """Draw the price of the windows of a source by how many symbols they hold on average."""
    for number, result in enumerate(results):
        sizes = [int(size) for size in result["windows"]]
        spans = np.multiply(sizes, result["symbols_per_token"])
        prices = [price(result, size).mean() for size in sizes]
        axes.plot(spans, prices, label=label_of(result), **run_style(number), **markers(number, len(sizes)))
    axes.set(title=wrapped_title(results[0]["source"]), xlabel="symbols in the window", xscale="log", yscale="log")
    axes.set(ylabel="price of the window\n(bits per symbol)")


def plot_gaps(axes: Axes, results: Sequence[Result]) -> None:
    """Draw what the next token costs more after few tokens, and the bound of it."""
    order = results[0]["order"]
    for number, result in enumerate(results):
        contexts = [int(context) for context in result["gaps"] if 0 < int(context) <= order]
        gaps = [result["gaps"][str(context)] / math.log(2) for context in contexts]
        color = run_style(number)["color"]
        axes.plot(contexts, np.maximum(gaps, 1e-9), label=label_of(result), color=color, marker="o")
        axes.plot(contexts, [max(bound(result, context), 1e-9) for context in contexts], color=color, linestyle=":")
    axes.set(title=f"{wrapped_title(results[0]['source'])}\ndotted: bound", xlabel="tokens read", yscale="log")
    axes.set(ylabel="gap at the next token\n(bits per symbol)", ylim=(1e-6, 20))


def plot_unigrams(axes: Axes, curve: Mapping[str, Any]) -> None:
    """Draw the losses of unigram models of the tokens of a chain."""
    sizes = list(map(int, curve["losses"]))
    for name, style in (("exact unigrams", {}), ("counted unigrams", {"marker": "o", "linestyle": ""})):
        values = [losses[name.split()[0]] / math.log(2) for losses in curve["losses"].values()]
        axes.plot(sizes, values, label=name, color=UNIGRAM_COLOR, **style)
    axes.axhline(curve["entropy_rate"] / math.log(2), color="black", linestyle=":", label="entropy rate")
    axes.set(
        title=f"chain that flips with {FLIPS}", xlabel="tokens", ylabel="unigram model of tokens\n(bits per symbol)"
    )
    axes.set_xscale("log", base=2)


def interval(values: Float[np.ndarray, "N"]) -> float:
    """Half of the 95% interval of a mean."""
    return half_width(values.std(ddof=1) / math.sqrt(len(values)), len(values))


def label_of(result: Result) -> str:
    """A tokenizer in the pictures of its source."""
    if result["tokenizer"] == "symbols":
        return "symbols"
    return f"{result['vocab_size']:,} tokens" if result["tokenizer"] == "clean" else f"{result['vocab_size']:,} leaky"
