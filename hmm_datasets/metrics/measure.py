"""Runs a model over held-out rows on every rank and feeds the metrics of this folder on the main one.

Rows are shared out in order and gathered in order, so the figures do not depend on the number of processes but for
rounding.
"""

from typing import TYPE_CHECKING, Any

import evaluate
import numpy as np
import torch
from tqdm.auto import tqdm

from ..errors import InputError
from . import metric_path
from .ladder import Ladder

if TYPE_CHECKING:
    from accelerate import Accelerator
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from ..data.views import HMMSequences
    from ..hmm.families import Family
    from ..hmm.model import HMM
    from ..text.windows import TokenWindows


def measure_on_hmm(
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

    _check_vocabulary(model, rows.vocab_size, "symbols")
    bos = rows.bos_token_id is not None
    ladder = Ladder(source, bos=bos)
    informed = isinstance(source, Family)
    names = [*ladder.names, *["informed"] * informed]
    floor = "bayes" if "bayes" in names else "informed"
    cross_entropy = {name: _load("token_cross_entropy") for name in ["model", *names]}
    divergence = {name: _load("predictor_kl") for name in names}
    gap = _load("bayes_gap")
    first = rows.first
    for labels in _batches(rows, batch_size, accelerator, "sequences"):
        # Every rank runs as many batches; what padded the last one is cut off after gathering.
        mine = _share(labels, accelerator)
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


def measure_on_text(
    model: "PreTrainedModel",
    tokenizer: "PreTrainedTokenizerBase",
    windows: "TokenWindows",
    accelerator: "Accelerator",
    *,
    batch_size: int = 32,
) -> dict[str, Any]:
    """Bits per byte on windows of a token stream; a window's first token is context, and its bytes do not count.

    Each window is read by itself, so a token is predicted from those before it in its window alone.

    Returns:
        `dict`: the result of `bits_per_byte`, with `nats_per_token` and `num_tokens`; empty on other ranks.
    """
    from ..text.bpe import token_bytes

    _check_vocabulary(model, windows.stream.index.vocab_size, "tokens")
    sizes = torch.from_numpy(token_bytes(tokenizer))
    bits = _load("bits_per_byte")
    total, count = 0.0, 0
    for labels in _batches(windows, batch_size, accelerator, "windows"):
        mine = _share(labels, accelerator)
        with torch.inference_mode():
            log_model = torch.log_softmax(model(input_ids=mine, use_cache=False).logits[:, :-1].double(), dim=-1)
            scores = log_model.gather(-1, mine[:, 1:].unsqueeze(-1)).squeeze(-1).sum(-1)
        scores = accelerator.gather(scores)[: len(labels)].cpu().numpy()
        total, count = total + float(scores.sum()), count + labels[:, 1:].numel()
        if accelerator.is_main_process:
            bits.add_batch(predictions=scores, references=sizes[labels[:, 1:]].sum(-1).numpy())
    if not accelerator.is_main_process:
        return {}
    return {**bits.compute(), "nats_per_token": -total / count, "num_tokens": count}


def _load(name: str) -> evaluate.EvaluationModule:
    return evaluate.load(metric_path(name), keep_in_memory=True)


def _pick(table: np.ndarray, symbols: np.ndarray) -> np.ndarray:
    return np.take_along_axis(table, symbols[..., None], axis=-1)[..., 0]


def _batches(rows: Any, batch_size: int, accelerator: "Accelerator", unit: str):
    """Yield the token ids of consecutive rows, as many as all ranks run at once, with a progress bar."""
    step = batch_size * accelerator.num_processes
    bar = tqdm(total=len(rows), desc="evaluate", unit=f" {unit}", disable=not accelerator.is_main_process)
    for first in range(0, len(rows), step):
        batch = rows.__getitems__(range(first, min(first + step, len(rows))))
        yield torch.stack([torch.as_tensor(row["input_ids"]) for row in batch])
        bar.update(len(batch))
    bar.close()


def _share(labels: torch.Tensor, accelerator: "Accelerator") -> torch.Tensor:
    # As many rows on every rank, padded at the end of the whole: accelerate's split_between_processes pads each rank's
    # share, so that from three ranks on padding would stand between the rows gathered.
    share = -(-len(labels) // accelerator.num_processes)
    short = share * accelerator.num_processes - len(labels)
    padded = torch.cat([labels, labels[-1:].expand(short, -1)])
    return padded[share * accelerator.process_index :][:share].to(accelerator.device)


def _check_vocabulary(model: "PreTrainedModel", needed: int, kind: str) -> None:
    if model.config.vocab_size < needed:
        raise InputError(
            f"the model knows {model.config.vocab_size} tokens, the data have {needed} {kind}; measure it on what it "
            "was trained on"
        )
