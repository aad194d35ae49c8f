"""A model beside the predictors of its data's distribution, on held-out rows, on every rank.

Each rank turns the distributions of its rows into a few numbers per token (losses and divergences, float64), which are
what is gathered and kept: `O(N T K)` memory for `K` predictors, whatever the number of symbols. The figures are those
of the metric modules (`bayes_gap` and so on), which the same functions compute; `evaluate.load` would keep whole
distributions in memory, and take many times as long to store them as to add them up.
"""

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from ..errors import InputError
from .baselines import BaselineComparison, token_scores
from .calibration import Calibration
from .clustered import (
    clustered_mean,
    cross_entropy_figures,
    final_token_figures,
    gap_figures,
)
from .ranks import check_vocabulary, share_rows, shared_batches

if TYPE_CHECKING:
    from accelerate import Accelerator
    from transformers import PreTrainedModel

    from ..data.hmm_sequences import HMMSequences
    from ..hmm.families import Family
    from ..hmm.model import HMM


def measure_optimum(
    model: "PreTrainedModel",
    source: "HMM | Family",
    rows: "HMMSequences",
    accelerator: "Accelerator",
    *,
    batch_size: int = 32,
    order: int = 2,
) -> dict[str, Any]:
    """How far a model is from the predictors of an HMM, or of a family of them.

    Of a family there is also `oracle`, the distribution of one who is told the HMM of each row. No predictor that sees
    the tokens alone loses less on average; where the family has no exact distribution the gap is measured from there,
    and is more than the gap to the optimum.

    Args:
        model ([`~transformers.PreTrainedModel`]): a causal language model on the device of the accelerator.
        source ([`~hmm_datasets.HMM`] or [`~hmm_datasets.hmm.families.Family`]): the distribution of the rows.
        rows ([`~hmm_datasets.HMMSequences`]): held-out sequences of it, 2 or more.
        accelerator ([`~accelerate.Accelerator`]): who shares the rows.
        batch_size (`int`, *optional*, defaults to 32): rows a rank runs at once.
        order (`int`, *optional*, defaults to 2): of the longest n-gram in context.

    Returns:
        `dict`: `cross_entropy`, of `model` and each predictor the result of `token_cross_entropy`; `final_token`, of
        the same the result of `final_token_cross_entropy`; `kl`, of each predictor that of `predictor_kl`;
        `bayes_gap`, and `floor`, the predictor that it is measured from, `bayes` or `oracle`; `calibration`, see
        [`Calibration`]; `items`, of each sequence the nats of model and floor; what
        was measured on. On ranks other than the main one an empty `dict`.

    Raises:
        `InputError`: fewer than 2 rows, or a model that does not know all symbols.
    """
    from ..hmm.families import Family

    check_vocabulary(model, rows.vocab_size, "symbols")
    if len(rows) < 2:
        raise InputError(f"{len(rows)} sequence to measure on; expected 2 or more, for a standard error")
    baselines = BaselineComparison(source, bos=rows.bos_token_id is not None, order=order)
    names = [*baselines.names, *["oracle"] * isinstance(source, Family)]
    floor = "bayes" if "bayes" in names else "oracle"
    scores, calibration = [], Calibration()
    first = 0
    for batch in shared_batches(rows, batch_size, accelerator, "sequences"):
        labels = batch["input_ids"]
        # Every rank runs as many batches; what padded the last one is cut off after gathering.
        mine = share_rows(labels, accelerator)
        with torch.inference_mode():
            found = baselines.rows(model(input_ids=mine, use_cache=False).logits, mine)
            if "oracle" in names:
                place = first + int(share_rows(torch.arange(len(labels)).unsqueeze(1), accelerator)[0])
                found.distributions["oracle"] = _oracle(source, rows, mine, place)
            tables = token_scores(found), Calibration.sums(found.log_model, found.distributions[floor], found.symbols)
        gathered = [accelerator.gather(table)[: len(labels)].cpu() for table in tables]
        scores.append(gathered[0].numpy())
        calibration.add(gathered[1])
        first += len(labels)
    if not accelerator.is_main_process:
        return {}
    return _figures(np.concatenate(scores), names, floor) | {
        "calibration": calibration.result(),
        "num_sequences": len(rows),
        "length": rows.length,
        "seed": rows.seed,
        "first": rows.first,
        "fingerprint": source.fingerprint(),
        "source": type(source).__name__,
        "num_states": getattr(source, "num_states", None),
        "num_symbols": source.num_symbols,
    }


def _oracle(source: "Family", rows: "HMMSequences", mine: torch.Tensor, place: int) -> torch.Tensor:
    """Return the distributions of one who is told the HMM of each row; `place` is that of the first in the view."""
    skipped = 0 if rows.bos_token_id is not None else 1
    symbols = mine[:, 1 - skipped :]
    return source.oracle_next_token_probs(symbols, rows.seed, rows.first + place)[:, skipped:-1]


def _figures(scores: np.ndarray, names: list[str], floor: str) -> dict[str, Any]:
    """Summaries of the columns of `token_scores`, (N, T, 1 + 2K)."""
    count = len(names)
    losses = {name: scores[..., k] for k, name in enumerate(["model", *names])}
    divergences = {name: scores[..., 1 + count + k] for k, name in enumerate(names)}

    totals = zip(*(losses[name].sum(axis=1).tolist() for name in ("model", floor)), strict=True)
    return {
        "cross_entropy": {name: cross_entropy_figures(nats) for name, nats in losses.items()},
        "final_token": {name: final_token_figures(nats) for name, nats in losses.items()},
        "kl": {name: clustered_mean(nats).report("kl") for name, nats in divergences.items()},
        "bayes_gap": gap_figures(losses["model"], losses[floor]),
        "floor": floor,
        "items": [
            {"sequence": index, "nats": nats, "floor_nats": least, "tokens": scores.shape[1]}
            for index, (nats, least) in enumerate(totals)
        ],
    }
