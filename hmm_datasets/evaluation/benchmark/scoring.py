"""Scores of a model on the benchmark: nats per symbol above the optimum, on each process and in the mean.

Where a tokenizer writes every symbol as the same tokens and one of its own, the distribution over the symbols is known
too, apart from what the model gives to words that are no symbols. Then there are three figures more: the excess of the
distribution normalized over the symbols, which is its divergence from the exact one; the accuracy, the probability
that the symbol it finds most probable comes next, beside that of the exact distribution; and both kinds of excess by
position. The first two are expectations over the next symbol, so they vary less than losses.

The score of a process is the mean over sequences of the model's loss minus that of the exact HMM on the same symbols.
It is 0 in expectation for the HMM itself and positive for any other model. The standard error is over sequences (see
[`~hmm_datasets.statistics`]), and that of the mean over processes follows from theirs, since their sequences are
independent.
"""

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from ...hmm.analysis.divergence import kl_divergence
from ...runtime.progress import progress_bar
from ...statistics import clustered_mean, gap_figures
from .held_out import HeldOut
from .tracks import Predictions, first_scored, predictions_of

if TYPE_CHECKING:
    from accelerate import Accelerator
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


def score_model(
    models: Mapping[str, "PreTrainedModel"],
    tokenizer: "PreTrainedTokenizerBase | None",
    processes: Sequence[HeldOut],
    accelerator: "Accelerator",
    *,
    batch_size: int = 32,
) -> dict[str, Any]:
    """Score the baselines, and the model of each process, which is usually one and the same.

    Args:
        models (mapping of [`~transformers.PreTrainedModel`]): the causal language model to score on each process, on
            the device of the accelerator and in eval mode.
        tokenizer ([`~transformers.PreTrainedTokenizerBase`], *optional*): None for the track `ids`, else `text`.
        processes (sequence of [`HeldOut`]): sequences to score on.
        accelerator ([`~accelerate.Accelerator`]): divides the sequences among ranks.
        batch_size (`int`, *optional*, defaults to 32): sequences per rank in one forward pass, at most.

    Returns:
        `dict`: `track`; `processes`, for each the results of [`summarize_scores`]; and `mean`, of all processes.
    """
    track, scores = "ids" if tokenizer is None else "text", {}
    with progress_bar(sum(process.num_sequences for process in processes), " sequences", desc="benchmark") as bar:
        for process in processes:
            predictions = predictions_of(
                process, models[process.name], tokenizer, accelerator, batch_size=batch_size, progress=bar.update
            )
            scores[process.name] = summarize_scores(predictions, process, track)
    return {"track": track, "processes": scores, "mean": mean_of(scores)}


def summarize_scores(predictions: Predictions, held_out: HeldOut, track: str) -> dict[str, Any]:
    """The score of one process from what a model predicts of its sequences.

    Returns:
        `dict`: in nats per symbol, `optimum` and `model` (mean losses), `excess` (their difference) with its
        `standard_error`, and `baselines`, the excess of each. `share` is the share of the way from the uniform
        distribution to the optimum: 1 at the optimum. Where the model's distribution over the symbols is known also
        `over_symbols` with the `excess` of the distribution normalized over the symbols, its `standard_error` and
        `share`; and `accuracy`, the probability that the most probable symbol comes next, of `model` and `optimum`.
    """
    first, above = first_scored(track), excess_of_baselines(held_out, track)
    optimum = -held_out.log_probs[:, first:]
    if predictions.log_probs is None:  # the losses of whole sequences
        optimum = optimum.mean(axis=1, keepdims=True)
    gap = gap_figures(predictions.nats, optimum)
    scores = {
        "optimum": gap["optimum"],
        "model": gap["model"],
        **_excess(gap["bayes_gap"], gap["standard_error"], above["uniform"]),
        "baselines": above,
    }
    if predictions.log_probs is None:
        return scores
    exact = torch.from_numpy(held_out.probs[:, first:])
    divergences = clustered_mean(kl_divergence(exact, predictions.log_probs.log_softmax(-1)).numpy())
    guesses = {"model": predictions.log_probs, "optimum": exact}
    return scores | {
        "over_symbols": _excess(divergences.mean, divergences.standard_error, above["uniform"]),
        "accuracy": {
            who: float(exact.gather(-1, probs.argmax(-1, keepdim=True)).mean()) for who, probs in guesses.items()
        },
    }


def excess_of_baselines(held_out: HeldOut, track: str) -> dict[str, float]:
    """The excess of each baseline over the optimum, in nats per symbol."""
    scored = slice(first_scored(track), None)
    optimum = -held_out.log_probs[:, scored].mean()
    return {name: float(losses[scored].mean() - optimum) for name, losses in held_out.baselines.items()}


def _excess(excess: float, error: float | None, uniform: float) -> dict[str, float | None]:
    return {"excess": excess, "standard_error": error, "share": 1 - excess / uniform}


def mean_of(scores: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """The mean over processes of results of [`summarize_scores`], of the figures that all of them have.

    `share` is the mean of the shares, in which processes that are hardly predictable weigh as much as others;
    `share_of_mean` is the share that the mean excess has of the mean excess of the uniform distribution.
    """
    means = _means(list(scores.values()))
    for row in (means, means.get("over_symbols", {})):
        if "excess" in row:
            row["share_of_mean"] = 1 - row["excess"] / means["baselines"]["uniform"]
    return means


def _means(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    means: dict[str, Any] = {}
    for name in [name for name in rows[0] if all(name in row for row in rows)]:
        values = [row[name] for row in rows]
        if isinstance(values[0], dict):
            means[name] = _means(values)
        elif name == "standard_error":
            means[name] = None if None in values else math.hypot(*values) / len(values)
        else:
            means[name] = values[0] if name == "first" else np.mean(values, axis=0).tolist()
    return means
