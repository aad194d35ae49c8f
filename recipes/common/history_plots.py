"""Plots of histories of runs: losses of a model and the predictors of its HMM, and the loss from stage to stage."""

import os
from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.ticker import EngFormatter

from hmm_datasets.report.plots import logarithmic_counts, logarithmic_divergences, paper_figure, predictor_styles


def plot_loss(history: Sequence[dict[str, Any]], path: str | os.PathLike, *, title: str) -> None:
    """Plot the model's held-out cross-entropy against tokens, with the predictors of the HMM as horizontal lines.

    Args:
        history (sequence of `dict`): rows of `history.jsonl`, some with `eval_cross_entropy` and
            `eval_cross_entropy_NAME`.
        path (path): where the PNG goes.
        title (`str`): title of the plot.
    """
    held_out = _evaluations(history)
    with paper_figure(path, 2.6) as (_, (axes,)):
        for name, style in _styles(held_out[-1], "eval_cross_entropy_"):
            level = held_out[-1][f"eval_cross_entropy_{name}"]
            axes.axhline(level, linewidth=1.4, **{**style, "label": f"{style['label']}: {level:.3f}"})
        tokens, losses = zip(*((row["tokens"], row["eval_cross_entropy"]) for row in held_out), strict=True)
        axes.plot(tokens, losses, color="black", marker="o", markersize=3, linewidth=1.4, label="model")
        axes.set(xlabel="tokens", ylabel="held-out cross-entropy (nats per token)", title=title)
        logarithmic_counts(axes)


def plot_divergence(history: Sequence[dict[str, Any]], path: str | os.PathLike, *, title: str) -> None:
    """Plot the KL divergence of the model from each predictor against the training step, on logarithmic axes.

    At a minimum of a curve the model predicts most like that predictor.
    """
    held_out = _evaluations(history)
    steps = [row["step"] for row in held_out]
    with paper_figure(path, 2.6) as (_, (axes,)):
        for name, style in _styles(held_out[-1], "eval_kl_"):
            values = [row[f"eval_kl_{name}"] for row in held_out]
            axes.plot(steps, values, marker="o", markersize=3, linewidth=1.4, **style)
        axes.set(xlabel="optimizer step", ylabel="KL(predictor || model) (nats per token)", title=title)
        logarithmic_counts(axes)
        logarithmic_divergences(axes)


def plot_stages(stages: dict[str, Sequence[dict[str, Any]]], path: str | os.PathLike, *, title: str) -> None:
    """Plot the training loss of consecutive stages (pretraining, midtraining, SFT) against all tokens seen."""
    with paper_figure(path, 2.6) as (_, (axes,)):
        before = 0
        for color, (name, history) in zip(("#0072B2", "#E69F00", "#009E73"), stages.items(), strict=False):
            train = [(before + row["tokens"], row["loss"]) for row in history if "loss" in row]
            if not train:
                continue  # the stage was shorter than its logging_steps
            axes.plot(*zip(*train, strict=True), color=color, linewidth=1.5, label=name)
            before = train[-1][0]
        axes.set(xlabel="tokens", ylabel="training loss (nats per token)", title=title)
        axes.xaxis.set_major_formatter(EngFormatter(sep=""))


def _styles(values: Mapping[str, Any], prefix: str) -> list[tuple[str, dict[str, Any]]]:
    """The predictors that `values` has under a prefix, with their plot styles."""
    return predictor_styles(key.removeprefix(prefix) for key in values if key.startswith(prefix))


def _evaluations(history: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows of evaluations after step 0, which a logarithmic axis can show, one per step."""
    rows = {row["step"]: row for row in history if "eval_cross_entropy" in row and row["step"] > 0}
    return list(rows.values())
