"""Scores of a model on the benchmark: nats per symbol above the optimum, on each process and in the mean.

Where a tokenizer writes every symbol as the same tokens and one of its own, the distribution over the symbols is known
too, apart from what the model gives to words that are no symbols. Then there are three figures more: the excess of the
distribution normalized over the symbols, which is its divergence from the exact one; the accuracy, the probability
that the symbol it finds most probable comes next, beside that of the exact distribution and of the last state of the
Viterbi path; and both kinds of excess by position. The first two are expectations over the next symbol, so they vary
less than losses.

The score of a process is the mean over sequences of the model's loss minus that of the exact HMM on the same symbols.
It is 0 in expectation for the HMM itself and positive for any other model. The standard error is over sequences (see
[`~hmm_datasets.statistics`]), and that of the mean over processes follows from theirs, since their sequences are
independent.
"""

import math
from collections.abc import Mapping, Sequence
from functools import cache, reduce
from operator import getitem
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from jaxtyping import Float, Float64

from ...hmm.analysis.divergence import kl_divergence
from ...hmm.analysis.predictors import predictors_of, stream, viterbi_predictions
from ...runtime.progress import progress_bar
from ...statistics import clustered_mean
from .held_out import HeldOut
from .processes import DIAL, LETTERS, chosen_processes, mixture

if TYPE_CHECKING:
    from accelerate import Accelerator
    from transformers import PreTrainedModel, PreTrainedTokenizerBase
from .tracks import first_scored, optimal_nats, predictions_of

BASELINES = {
    "uniform": "uniform",
    "unigram": "unigram, in context",
    "bigram": "bigram, in context",
    "process_bigram": "bigram of the process",
    "mixture": "knows the twelve processes",  # of the dial, for one of these
}
"""The baselines and their titles: the uniform distribution over the symbols of the process, n-grams counted in the
sequence, the bigram of the process, and the optimum of a predictor that knows the twelve processes but not which of
them it reads."""


def baseline_losses(held_out: HeldOut) -> dict[str, Float[np.ndarray, "N L"]]:
    """The loss of each of [`BASELINES`] on every symbol, in nats; computed once, however many models are scored."""
    return _baseline_losses(held_out.name, held_out.num_sequences)


@cache
def _baseline_losses(name: str, num_sequences: int) -> dict[str, Float[np.ndarray, "N L"]]:
    held_out = HeldOut(name, chosen_processes([name])[name], num_sequences)
    predictors = predictors_of(held_out.hmm) | {"mixture": mixture(name in DIAL).next_token_probs}
    by_baseline = {}
    for baseline in BASELINES:
        losses = [
            -probs[:, :-1].gather(-1, tokens.unsqueeze(-1)).squeeze(-1).log()
            for tokens, probs in stream(predictors[baseline], held_out.tokens, show_progress=False)
        ]
        by_baseline[baseline] = torch.cat(losses).numpy()
    return by_baseline


def score_model(
    models: Mapping[str, "PreTrainedModel"],
    tokenizer: "PreTrainedTokenizerBase | None",
    processes: Sequence[HeldOut],
    accelerator: "Accelerator",
    *,
    names: Sequence[str] = LETTERS,
    separator: str = " ",
    batch_size: int = 32,
) -> dict[str, Any]:
    """Score the baselines, and the model of each process, which is usually one and the same.

    Args:
        models (mapping of [`~transformers.PreTrainedModel`]): the causal language model to score on each process, on
            the device of the accelerator and in eval mode.
        tokenizer ([`~transformers.PreTrainedTokenizerBase`], *optional*): None for the track `ids`, else `text`.
        processes (sequence of [`HeldOut`]): sequences to score on.
        accelerator ([`~accelerate.Accelerator`]): divides the sequences among ranks.
        names (sequence of `str`, *optional*), separator (`str`, *optional*, defaults to `" "`): what symbols are
            written as in text, by default letters, and what stands between them.
        batch_size (`int`, *optional*, defaults to 32): sequences per rank in one forward pass, at most.

    Returns:
        `dict`: `track`; `processes`, for each the results of [`summarize_scores`] and, where the model's distribution
        over the symbols is known, of [`summarize_symbols`]; and `mean`, of all processes.
    """
    track = "ids" if tokenizer is None else "text"
    scores = {}
    with progress_bar(sum(process.num_sequences for process in processes), " sequences", desc="benchmark") as bar:
        for process in processes:
            nats, log_probs = predictions_of(
                process, models[process.name], tokenizer, accelerator,
                names=names, separator=separator, batch_size=batch_size, progress=bar.update,
            )  # fmt: skip
            scores[process.name] = summarize_scores(nats, process, track, baseline_losses(process))
            if log_probs is not None:
                scores[process.name] |= summarize_symbols(log_probs, process, track, baseline_losses(process))
    return {"track": track, "processes": scores, "mean": mean_of(scores)}


def summarize_scores(
    nats: Float[np.ndarray, "N"], held_out: HeldOut, track: str, baselines: Mapping[str, Float[np.ndarray, "N L"]]
) -> dict[str, Any]:
    """The score of one process from the model's loss on each sequence and the losses of the baselines.

    Returns:
        `dict`: in nats per symbol, `optimum` and `model` (mean losses), `excess` (their difference) with its
        `standard_error`, and `baselines`, the excess of each. `share` is the share of the way from the uniform
        distribution to the optimum: 1 at the optimum.
    """
    optimum, first = optimal_nats(held_out, track), first_scored(track)
    excess = clustered_mean((nats - optimum)[:, None])
    above = {name: float(losses[:, first:].mean() - optimum.mean()) for name, losses in baselines.items()}
    return {
        "optimum": float(optimum.mean()),
        "model": float(nats.mean()),
        "excess": excess.mean,
        "standard_error": excess.standard_error,
        "share": 1 - excess.mean / above["uniform"],
        "baselines": above,
    }


def summarize_symbols(
    log_probs: Float64[torch.Tensor, "N S E"],
    held_out: HeldOut,
    track: str,
    baselines: Mapping[str, Float[np.ndarray, "N L"]],
) -> dict[str, Any]:
    """The scores of one process that need the model's distribution over the symbols.

    Returns:
        `dict`: `over_symbols` with the `excess` of the distribution normalized over the symbols, its `standard_error`
        and `share`; `accuracy`, the probability that the most probable symbol comes next, of `model`, `viterbi`
        (the last state of the most probable path) and `optimum`; and `positions` with `excess` and `over_symbols`,
        means over sequences at each scored position, and `first`, the number of symbols before the first position.
    """
    first = first_scored(track)
    exact = torch.from_numpy(held_out.probs[:, first:])
    scored = torch.from_numpy(held_out.tokens[:, first:].astype(np.int64))[..., None]
    divergences = clustered_mean(kl_divergence(exact, log_probs.log_softmax(-1)).numpy())
    losses = (exact.gather(-1, scored).log() - log_probs.gather(-1, scored))[..., 0]
    uniform = float(baselines["uniform"][:, first:].mean() + held_out.log_probs[:, first:].mean())
    path = torch.from_numpy(viterbi_predictions(held_out.tokens, held_out.hmm)[:, first:-1])

    def accuracy(predicted: torch.Tensor) -> float:
        return float(exact.gather(-1, predicted.argmax(-1, keepdim=True)).mean())

    return {
        "over_symbols": {
            "excess": divergences.mean,
            "standard_error": divergences.standard_error,
            "share": 1 - divergences.mean / uniform,
        },
        "accuracy": {"model": accuracy(log_probs), "viterbi": accuracy(path), "optimum": accuracy(exact)},
        "positions": {
            "first": first,
            "excess": losses.mean(0).tolist(),
            "over_symbols": divergences.by_position.tolist(),
        },
    }


def mean_of(scores: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """The mean over processes of the results of [`summarize_scores`], and of those of [`summarize_symbols`].

    `share` is the mean of the shares, in which processes that are hardly predictable weigh as much as others;
    `share_of_mean` is the share that the mean excess has of the mean excess of the uniform distribution.
    """
    rows = list(scores.values())

    def mean(*keys: str) -> float:
        return sum(reduce(getitem, keys, row) for row in rows) / len(rows)

    def error(*keys: str) -> float | None:
        errors = [reduce(getitem, keys, row) for row in rows]
        return None if None in errors else math.hypot(*errors) / len(rows)

    baselines = {name: mean("baselines", name) for name in BASELINES}
    means = {name: mean(name) for name in ("optimum", "model", "excess")} | {"standard_error": error("standard_error")}
    means |= {"share": mean("share"), "share_of_mean": 1 - means["excess"] / baselines["uniform"]}
    means["baselines"] = baselines
    if all("over_symbols" in row for row in rows):
        excess = mean("over_symbols", "excess")
        means["over_symbols"] = {
            "excess": excess,
            "standard_error": error("over_symbols", "standard_error"),
            "share": mean("over_symbols", "share"),
            "share_of_mean": 1 - excess / baselines["uniform"],
        }
        means["accuracy"] = {who: mean("accuracy", who) for who in ("model", "viterbi", "optimum")}
        means["positions"] = {
            "first": rows[0]["positions"]["first"],
            **{
                kind: np.mean([row["positions"][kind] for row in rows], axis=0).tolist()
                for kind in ("excess", "over_symbols")
            },
        }
    return means
