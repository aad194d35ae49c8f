"""Which predictor a language model is like, by the number of symbols that it has read of a chain it does not know."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from context_spans import context_spans
from matplotlib import rc_context
from matplotlib.figure import Figure
from transformers import PreTrainedModel

from hmm_datasets.evaluation.benchmark.symbols import SymbolTokens, symbol_predictions
from hmm_datasets.hmm.analysis.divergence import kl_divergence
from hmm_datasets.hmm.analysis.predictors import predictors_of
from hmm_datasets.hmm.process import Process
from hmm_datasets.intervals import half_width
from hmm_datasets.report.plots import PAPER, STYLES, WIDTH, save_figure
from hmm_datasets.report.tables import Table
from hmm_datasets.statistics import clustered_mean


def divergences(
    model: PreTrainedModel, symbols: SymbolTokens, process: Process, tokens: np.ndarray, batch_size: int
) -> dict[str, np.ndarray]:
    """KL(predictor || model) of every predictor, in nats, by the number of symbols read.

    The model's probabilities are normalized over the symbols. Predictors are those of
    [`~hmm_datasets.hmm.analysis.predictors.predictors_of`].

    Args:
        model ([`~transformers.PreTrainedModel`]): a causal language model in eval mode.
        symbols ([`SymbolTokens`]): how it reads symbols.
        process ([`Process`]): the family of the sequences.
        tokens (`np.ndarray` of shape `(N, T)`): sequences of symbols.
        batch_size (`int`): sequences of a forward pass.

    Returns:
        `dict`: for each predictor an array of shape `(N, T - 1)`, whose column `t` has `t + 1` symbols of context.
    """
    values = torch.from_numpy(tokens.astype(np.int64))
    log_model = symbol_predictions(model, symbols, tokens, batch_size=batch_size).log_softmax(-1)
    log_model = log_model[:, 1 - symbols.scored_from :]  # models of token ids are scored on the first symbol too
    return {
        name: kl_divergence(predict(values)[:, 1:-1], log_model).numpy()
        for name, predict in predictors_of(process).items()
    }


def summarize(by_predictor: dict[str, np.ndarray]) -> list[dict[str, Any]]:
    """Means over spans of context, each twice as long as the one before, with standard errors over sequences."""
    rows = []
    for first, last in context_spans(next(iter(by_predictor.values())).shape[1] + 1):
        means = {name: clustered_mean(values[:, first - 1 : last - 1]) for name, values in by_predictor.items()}
        nearest = min(means, key=lambda name: means[name].mean)
        rows.append(
            {
                "first": first,
                "last": last - 1,
                "nearest": nearest,
                "num_sequences": len(next(iter(by_predictor.values()))),
            }
            | {
                name: {"kl": estimate.mean, "standard_error": estimate.standard_error}
                for name, estimate in means.items()
            }
        )
    return rows


def table(rows: list[dict[str, Any]], title: str) -> Table:
    """The divergences as a table."""
    names = [name for name in rows[0] if name in STYLES]
    cells = [
        [
            f"{row['first']} to {row['last']}",
            *(_with_error(row[name], row["num_sequences"]) for name in names),
            STYLES[row["nearest"]]["label"],
        ]
        for row in rows
    ]
    return Table(title, ["symbols read", *(STYLES[name]["label"] for name in names), "nearest"], cells)


def _with_error(row: dict[str, Any], num_sequences: int) -> str:
    half = half_width(row["standard_error"], num_sequences)
    return f"{row['kl']:.3f}" + ("" if half is None else f" ± {half:.3f}")


def draw(models: dict[str, list[dict[str, Any]]], path: Path) -> None:
    """Draw the divergences by context, a panel for each model, with 95% intervals."""
    with rc_context(PAPER):
        figure = Figure(figsize=(WIDTH * max(1, 0.66 * len(models)), 2.6), layout="constrained")
        panels = figure.subplots(1, len(models), squeeze=False, sharey=True)[0]
        for axes, (name, rows) in zip(panels, models.items(), strict=True):
            middle = [(row["first"] * row["last"]) ** 0.5 for row in rows]
            for number, predictor in enumerate(label for label in rows[0] if label in STYLES):
                means = [row[predictor]["kl"] for row in rows]
                errors = [half_width(row[predictor]["standard_error"], row["num_sequences"]) for row in rows]
                axes.errorbar(middle, means, yerr=errors, marker="osD^"[number % 4], **STYLES[predictor])
            axes.set(xscale="log", yscale="log", xlabel="symbols read", title=name)
        panels[0].set_ylabel("divergence of the model\nfrom a predictor (nats)")
        figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=2)
        save_figure(figure, path)
