"""Scores of a model on the benchmark: nats per symbol above the optimum, on each process and in the mean.

There are two tracks, because models read sequences in two ways.

- `ids`: the model's tokens are the symbols, after a beginning token, as in models trained with this package. Every
  symbol is scored.
- `text`: any causal language model with a tokenizer reads `A B B A`. The log-probability of a symbol is the sum over
  the tokens of its text, so models with different tokenizers compare. The first symbol is context and is not scored,
  because it is predicted from nothing but the format. The model knows nothing of the process.

Where a tokenizer writes every symbol as the same tokens and one of its own, the distribution over the symbols is known
too, apart from what the model gives to words that are no symbols. Then there are three figures more: the excess of the
distribution normalized over the symbols, which is its divergence from the exact one; the accuracy, the probability
that the symbol it finds most probable comes next, beside that of the exact distribution and of the last state of the
Viterbi path; and both kinds of excess by position. The first two are expectations over the next symbol, so they vary
less than losses.

The score of a process is the mean over sequences of the model's loss minus that of the exact HMM on the same symbols.
It is 0 in expectation for the HMM itself and positive for any other model. The standard error is over sequences (see
`evaluation.clustered`), and that of the mean over processes follows from theirs, since their sequences are
independent.

Loading the models that the benchmark scores.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import cache, reduce
from operator import getitem
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Float64
from transformers import AutoModelForCausalLM

from ...errors import InputError
from ...hmm.analysis.divergence import kl_divergence
from ...hmm.analysis.predictors import predictors_of, stream, viterbi_predictions
from ...hmm.causal_lm import HMMForCausalLM
from ...hub.download import ModelName
from ...runtime.progress import progress_bar
from ...statistics import clustered_mean
from ...text.tokenizers.encoding import encode_texts
from ...training.models import load_pretrained
from ..scoring import Row, beginning_token, common_prefix, context_limit, score_rows
from .held_out import LENGTH, HeldOut
from .processes import DIAL, LETTERS, chosen_processes, mixture
from .symbols import SymbolTokens, symbol_predictions

if TYPE_CHECKING:
    from accelerate import Accelerator
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


def load_models(name: str, processes: Sequence[str], accelerator: "Accelerator") -> "dict[str, PreTrainedModel]":
    """The model to score on each process, by its name.

    Args:
        name (`str`): folder or Hub name of one model for all processes, or a folder with a model for each process in
            the subfolder of that name.
        processes (sequence of `str`): names of processes.
        accelerator ([`~accelerate.Accelerator`]): its device is where the models go.

    Raises:
        `InputError`: there is no such model.
    """
    folder = Path(name)
    if not folder.is_dir() or (folder / "config.json").exists() or ModelName.parse(folder).gguf_file is not None:
        return dict.fromkeys(processes, load_causal_lm(name, accelerator))
    missing = [one for one in processes if not (folder / one / "config.json").is_file()]
    if missing:
        raise InputError(
            f"{folder}: has neither config.json of a model nor {missing[0]}/config.json of a model for that process"
        )
    return {one: load_causal_lm(str(folder / one), accelerator) for one in processes}


def load_causal_lm(name: str, accelerator: "Accelerator") -> "PreTrainedModel":
    """A causal language model in eval mode; an HMM gets a beginning token, from which it predicts the first symbol."""
    model = load_pretrained(AutoModelForCausalLM, name)
    if isinstance(model, HMMForCausalLM) and model.config.bos_token_id is None:
        hmm = model.to_hmm()
        model = HMMForCausalLM.from_hmm(hmm, bos_token_id=hmm.num_symbols)
    return model.to(accelerator.device).eval()


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


def first_scored(track: str) -> int:
    """Position of the first symbol that a track scores."""
    return 0 if track == "ids" else 1


def symbol_tokens(
    held_out: HeldOut,
    model: "PreTrainedModel",
    tokenizer: "PreTrainedTokenizerBase | None",
    names: Sequence[str],
    separator: str,
) -> SymbolTokens | None:
    """How a model reads the symbols; None if its tokenizer joins them or writes them as different numbers of tokens.

    Raises:
        `InputError`: without a tokenizer, the model has too few tokens or no beginning token.
    """
    needed = held_out.hmm.num_symbols
    if tokenizer is not None:
        try:
            return SymbolTokens.of(tokenizer, names[:needed], separator)
        except InputError:
            return None
    bos = model.config.bos_token_id
    if model.config.vocab_size <= needed:
        raise InputError(
            f"the model has {model.config.vocab_size} tokens, but {held_out.name} has {needed} symbols and a "
            "beginning token; choose the processes that the model knows with --process"
        )
    if bos is None or bos < needed:
        raise InputError(
            f"the model's bos_token_id is {bos}; expected the id of its beginning token, {needed} or more for "
            f"{held_out.name}; set it in config.json, or choose the processes that the model knows with --process"
        )
    return SymbolTokens.ids(bos, needed)


def _text_rows(
    held_out: HeldOut, tokenizer: "PreTrainedTokenizerBase", names: Sequence[str], separator: str
) -> list[Row]:
    """Rows whose scored tokens are those after the first symbol, for any tokenizer."""
    beginning, _ = beginning_token(tokenizer)
    before = [] if beginning is None else [beginning]
    texts, starts = held_out.texts(names, separator), [names[row[0]] for row in held_out.tokens]
    rows = []
    for whole, start in zip(encode_texts(tokenizer, texts), encode_texts(tokenizer, starts), strict=True):
        # Where a tokenizer joins the first symbol with what follows, the joint token is scored.
        context = common_prefix([whole, start])
        rows.append(Row([*before, *whole], max(1, len(before) + context)))
    return rows


def optimal_nats(held_out: HeldOut, track: str) -> Float[np.ndarray, "N"]:
    """The loss of the exact HMM on the scored symbols of each sequence, in nats per symbol."""
    return -held_out.log_probs[:, first_scored(track) :].mean(axis=1)


class Predictions(NamedTuple):
    """What a model predicts of the held-out sequences of a process.

    Attributes:
        nats (`np.ndarray` of shape `(N,)`): the loss on the scored symbols of each sequence, in nats per symbol.
        log_probs (`torch.Tensor` of shape `(N, S, E)`, *optional*): of every symbol at each scored position.
    """

    nats: Float[np.ndarray, "N"]
    log_probs: Float64[torch.Tensor, "N S E"] | None


def predictions_of(
    held_out: HeldOut,
    model: "PreTrainedModel",
    tokenizer: "PreTrainedTokenizerBase | None",
    accelerator: "Accelerator",
    *,
    names: Sequence[str] = LETTERS,
    separator: str = " ",
    batch_size: int,
    progress: Callable[[int], Any] = lambda done: None,
) -> Predictions:
    """Read the held-out sequences of a process, as symbols without a tokenizer (track `ids`), else as text.

    Raises:
        `InputError`: the model cannot read them.
    """
    symbols = symbol_tokens(held_out, model, tokenizer, names, separator)
    if symbols is not None:
        found = symbol_predictions(
            model, symbols, held_out.tokens, accelerator, batch_size=batch_size, progress=progress
        )
        scored = torch.from_numpy(held_out.tokens[:, symbols.scored_from :].astype(np.int64))
        return Predictions(-found.gather(-1, scored[..., None])[..., 0].mean(1).numpy(), found)
    rows = _text_rows(held_out, tokenizer, names, separator)
    limit, longest = context_limit(model), max(len(row.tokens) for row in rows)
    if limit is not None and longest - 1 > limit:
        raise InputError(
            f"the model reads at most {limit} tokens, but a sequence of {held_out.name} has {longest}; the benchmark "
            f"needs a model for sequences of {LENGTH} symbols"
        )
    nats = score_rows(model, [[row] for row in rows], accelerator, batch_size=batch_size, progress=progress).nats
    return Predictions(nats.numpy() / (LENGTH - first_scored("text")), None)


def baseline_losses(held_out: HeldOut) -> dict[str, Float[np.ndarray, "N L"]]:
    """The loss of each of [`BASELINES`] on every symbol, in nats; computed once, however many models are scored."""
    return _baseline_losses(held_out.name, held_out.num_sequences)


@cache
def _baseline_losses(name: str, num_sequences: int) -> dict[str, Float[np.ndarray, "N L"]]:
    held_out = HeldOut(name, chosen_processes([name])[name], num_sequences)
    predictors = predictors_of(held_out.hmm) | {"mixture": mixture(name in DIAL).next_token_probs}
    found = {}
    for baseline in BASELINES:
        losses = [
            -probs[:, :-1].gather(-1, tokens.unsqueeze(-1)).squeeze(-1).log()
            for tokens, probs in stream(predictors[baseline], held_out.tokens, show_progress=False)
        ]
        found[baseline] = torch.cat(losses).numpy()
    return found


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
    found = {}
    with progress_bar(sum(one.num_sequences for one in processes), " sequences", desc="benchmark") as bar:
        for one in processes:
            nats, log_probs = predictions_of(
                one, models[one.name], tokenizer, accelerator,
                names=names, separator=separator, batch_size=batch_size, progress=bar.update,
            )  # fmt: skip
            found[one.name] = summarize_scores(nats, one, track, baseline_losses(one))
            if log_probs is not None:
                found[one.name] |= summarize_symbols(log_probs, one, track, baseline_losses(one))
    return {"track": track, "processes": found, "mean": mean_of(found)}


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


def mean_of(found: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """The mean over processes of the results of [`summarize_scores`], and of those of [`summarize_symbols`].

    `share` is the mean of the shares, in which processes that are hardly predictable weigh as much as others;
    `share_of_mean` is the share that the mean excess has of the mean excess of the uniform distribution.
    """
    rows = list(found.values())

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
