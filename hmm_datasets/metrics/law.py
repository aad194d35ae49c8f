"""A model beside the predictors of its data's law, on held-out rows, on every rank."""

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from . import load_metric
from .ladder import Ladder
from .ranks import check_vocabulary, share_rows, shared_batches

if TYPE_CHECKING:
    from accelerate import Accelerator
    from transformers import PreTrainedModel

    from ..data.views import HMMSequences
    from ..hmm.families import Family
    from ..hmm.model import HMM


def measure_law(
    model: "PreTrainedModel",
    source: "HMM | Family",
    rows: "HMMSequences",
    accelerator: "Accelerator",
    *,
    batch_size: int = 32,
) -> dict[str, Any]:
    """How far a model is from the predictors of an HMM, or of a family of them.

    Of a family there is also `informed`, the law of one who is told the HMM of each row. No predictor that sees the
    tokens alone loses less on average; where the family has no exact law the gap is measured from there, and is more
    than the gap to the optimum.

    Args:
        model ([`~transformers.PreTrainedModel`]): a causal language model on the device of the accelerator.
        source ([`~hmm_datasets.HMM`] or [`~hmm_datasets.hmm.families.Family`]): the law of the rows.
        rows ([`~hmm_datasets.HMMSequences`]): held-out sequences of it.
        accelerator ([`~accelerate.Accelerator`]): who shares the rows.
        batch_size (`int`, *optional*, defaults to 32): rows a rank runs at once.

    Returns:
        `dict`: `cross_entropy`, of `model` and each predictor the result of `token_cross_entropy`; `kl`, of each
        predictor that of `predictor_kl`; `floor`, the predictor that `bayes_gap` is measured from, `bayes` or
        `informed`; counts. On ranks other than the main one an empty `dict`.
    """
    from ..hmm.families import Family

    check_vocabulary(model, rows.vocab_size, "symbols")
    bos = rows.bos_token_id is not None
    ladder = Ladder(source, bos=bos)
    informed = isinstance(source, Family)
    names = [*ladder.names, *["informed"] * informed]
    floor = "bayes" if "bayes" in names else "informed"
    cross_entropy = {name: load_metric("token_cross_entropy") for name in ["model", *names]}
    divergence = {name: load_metric("predictor_kl") for name in names}
    gap = load_metric("bayes_gap")
    first = rows.first
    for batch in shared_batches(rows, batch_size, accelerator, "sequences"):
        labels = batch["input_ids"]
        # Every rank runs as many batches; what padded the last one is cut off after gathering.
        mine = share_rows(labels, accelerator)
        with torch.inference_mode():
            log_model, symbols, laws = ladder.rows(model(input_ids=mine, use_cache=False).logits, mine)
        log_model, symbols, *tables = (
            accelerator.gather(table)[: len(labels)].cpu().numpy() for table in (log_model, symbols, *laws.values())
        )
        if not accelerator.is_main_process:
            continue
        if informed:
            law = source.informed_next_token_probs(labels[:, int(bos) :], rows.seed, first)
            tables.append(law[:, 0 if bos else 1 : -1].numpy())
        first += len(labels)
        scores = {"model": _pick(log_model, symbols)}
        for name, law in zip(names, tables, strict=True):
            scores[name] = np.log(_pick(law, symbols))
            divergence[name].add_batch(predictions=log_model, references=law)
        for name, score in scores.items():
            cross_entropy[name].add_batch(predictions=score)
        gap.add_batch(predictions=scores["model"], references=scores[floor])
    if not accelerator.is_main_process:
        return {}
    return {
        "cross_entropy": {name: metric.compute() for name, metric in cross_entropy.items()},
        "kl": {name: metric.compute() for name, metric in divergence.items()},
        "bayes_gap": gap.compute(),
        "floor": floor,
        "num_sequences": len(rows),
        "length": rows.length,
        "fingerprint": source.fingerprint(),
    }


def _pick(table: np.ndarray, symbols: np.ndarray) -> np.ndarray:
    return np.take_along_axis(table, symbols[..., None], axis=-1)[..., 0]
