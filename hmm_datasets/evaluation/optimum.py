"""Comparing a model with the optimum and other predictors of its data, on held-out rows and on any number of ranks.

Each rank reduces the distributions of its rows to a few numbers per token (losses and divergences, float64), and only
these are gathered: `O(N T K)` memory for `K` predictors, whatever the number of symbols. The results are those of the
metric modules (`bayes_gap` and so on), computed by the same functions. Computing them with `evaluate.load` would store
whole distributions, which takes much more memory and many times as long.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from ..errors import InputError
from ..hmm.process import Process
from ..statistics import clustered_mean, cross_entropy_figures, final_token_figures, gap_figures
from .model_outputs import GivesLogits, OneProcess, check_inputs, logits_of
from .rank_batches import share_rows, shared_batches

if TYPE_CHECKING:
    from accelerate import Accelerator

    from ..data.sequences import HMMSequences
from .baselines import BaselineComparison, token_scores


def measure_optimum(
    model: GivesLogits,
    source: Process,
    rows: "HMMSequences",
    accelerator: "Accelerator | None" = None,
    *,
    batch_size: int = 32,
    order: int = 2,
    metrics: Sequence[str] = (),
) -> dict[str, Any]:
    """How far a model is from the optimum and from other predictors of a process.

    For a process with an oracle, such as a family, there is also the predictor `oracle`, which knows what varies
    from row to row, such as the HMM. No predictor that sees only the tokens has a lower expected loss. If the process
    has no exact distribution, the gap is measured from the oracle, and is larger than the gap to the optimum.

    Args:
        model ([`~transformers.PreTrainedModel`], `torch.nn.Module`, callable or array): gives logits of shape
            `(B, T, V)`, or an object that has them as `logits`, for tokens `(B, T)`: those of the next token after
            each token, the beginning token included. It is measured in eval mode. Or an array of shape `(N, T, V)`,
            the log-probabilities of all rows.
        source ([`~hmm_datasets.hmm.process.Process`]): the distribution of the rows.
        rows ([`~hmm_datasets.HMMSequences`]): held-out sequences of the source, 2 or more.
        accelerator ([`~accelerate.Accelerator`], *optional*): divides the rows among ranks; the model is on its
            device. By default one process measures on the device of the model; a function gets tokens on the CPU.
        batch_size (`int`, *optional*, defaults to 32): rows per rank in one forward pass.
        order (`int`, *optional*, defaults to 2): maximum order of the n-grams in context.
        metrics (sequence of `str`, *optional*): names of further metrics, see [`~hmm_datasets.load_metric`], which are
            computed from the log-probabilities of the tokens under the model as `predictions`, of shape `(N, T)`, and,
            if they take `references`, under the predictor from which the gap is measured.

    Returns:
        `dict`: `cross_entropy` and `final_token`, the results of the metrics `token_cross_entropy` and
        `final_token_cross_entropy` for `model` and each predictor; `kl`, the result of `predictor_kl` for each
        predictor; `bayes_gap`, and `floor`, the predictor from which it is measured (`bayes` or `oracle`);
        `items`, for each sequence the nats of model and that predictor; and a
        description of the data; with `metrics` their results by name. Empty on ranks other than the main one.

    Raises:
        `InputError`: fewer than 2 rows, a process with neither an exact distribution nor an oracle, a model whose
            vocabulary is smaller than the number of symbols, or logits of a wrong shape or with NaN.

    ```python
    >>> from hmm_datasets import HMMSequences, processes
    >>> hmm = processes.mess3()
    >>> rows = HMMSequences(hmm, length=8, first=2**63, num_sequences=100)
    >>> found = measure_optimum(lambda tokens: hmm.next_token_probs(tokens[:, 1:]).log(), hmm, rows)
    >>> abs(found["bayes_gap"]["bayes_gap"]) < 1e-12
    True

    ```
    """
    check_inputs(model, rows)
    logits = logits_of(model, rows)
    if len(rows) < 2:
        raise InputError(f"{len(rows)} sequence to measure on; expected 2 or more, for a standard error")
    if not (source.has_exact_distribution or source.has_oracle):
        raise InputError(
            f"{source!r} has neither an exact distribution nor an oracle, so that no optimal loss is known"
        )
    baselines = BaselineComparison(source, bos=rows.bos_token_id is not None, order=order)
    further = {name: _metric_of_rows(name) for name in metrics}
    if further and source.padding is not None:
        raise InputError(f"metrics is set, but they would count the padding of rows of {source!r}; leave it out")
    names = [*baselines.names, *["oracle"] * source.has_oracle]
    best = "bayes" if "bayes" in names else "oracle"
    accelerator = accelerator or OneProcess(model)
    scores, first = [], 0
    for batch in shared_batches(rows, batch_size, accelerator, "sequences"):
        labels = batch["input_ids"]
        # Every rank runs the same number of rows; those that pad the last batch are cut off after gathering.
        mine = share_rows(labels, accelerator)
        index = share_rows(torch.arange(first, first + len(labels)).unsqueeze(1), accelerator).squeeze(1)
        with torch.no_grad():
            predictions = baselines.rows(logits(mine, index), mine)
            if "oracle" in names:
                predictions.distributions["oracle"] = _oracle(source, rows, mine, int(index[0]))
            table = token_scores(predictions)
        scores.append(accelerator.gather(table)[: len(labels)].cpu().numpy())
        first += len(labels)
    if not accelerator.is_main_process:
        return {}
    table = np.concatenate(scores)
    inputs = {"predictions": -table[..., 0], "references": -table[..., 1 + names.index(best)]}
    computed = {
        name: metric.compute(**{part: inputs[part] for part in metric.features}) for name, metric in further.items()
    }
    result = _figures(table, names, best, padded=source.padding is not None)
    result |= {"metrics": computed} if computed else {}
    return result | {
        "num_sequences": len(rows),
        "length": rows.length,
        "seed": rows.seed,
        "first": rows.first,
        "fingerprint": source.fingerprint(),
        "source": type(source).__name__,
        "num_states": getattr(source, "num_states", None),
        "num_symbols": source.num_symbols,
    }


def _metric_of_rows(name: str) -> Any:
    """A metric of the log-probabilities of tokens.

    Raises:
        `InputError`: it is unknown, or has other inputs.
    """
    from .metrics import ROW, load_metric

    metric = load_metric(name)
    if any(part not in ("predictions", "references") or kind != ROW for part, kind in metric.features.items()):
        raise InputError(
            f"metric {name} takes {metric.features}; expected predictions, and perhaps references, of the type "
            f"ROW, the log-probabilities of tokens; call load_metric({name!r}) with its inputs"
        )
    return metric


def _oracle(source: Process, rows: "HMMSequences", mine: torch.Tensor, first: int) -> torch.Tensor:
    """The distributions of a predictor that knows the HMM of each row; `first` is the index of the first row."""
    skipped = 0 if rows.bos_token_id is not None else 1
    symbols = mine[:, 1 - skipped :]
    symbols = symbols if source.computes_on_devices else symbols.cpu()
    return source.oracle_next_token_probs(symbols, rows.seed, rows.first + first)[:, skipped:-1].to(mine.device)


def _figures(scores: np.ndarray, names: list[str], best: str, *, padded: bool) -> dict[str, Any]:
    """Summaries of the columns of `token_scores`, (N, T, 1 + 2K), which are NaN at padding."""
    count = len(names)
    losses = {name: scores[..., k] for k, name in enumerate(["model", *names])}
    divergences = {name: scores[..., 1 + count + k] for k, name in enumerate(names)}

    totals = zip(*(np.nansum(losses[name], axis=1).tolist() for name in ("model", best)), strict=True)
    tokens = (~np.isnan(losses[best])).sum(axis=1).tolist()
    return {
        "cross_entropy": {name: cross_entropy_figures(nats, padded=padded) for name, nats in losses.items()},
        "final_token": {name: final_token_figures(nats, padded=padded) for name, nats in losses.items()},
        "kl": {name: clustered_mean(nats, padded=padded).report("kl") for name, nats in divergences.items()},
        "bayes_gap": gap_figures(losses["model"], losses[best], padded=padded),
        "floor": best,
        "items": [
            {"sequence": index, "nats": nats, "floor_nats": best_nats, "tokens": tokens[index]}
            for index, (nats, best_nats) in enumerate(totals)
        ],
    }
