"""Runs a model over held-out rows on every rank and feeds the metrics of this folder on the main one.

Rows are shared out in order and gathered in order, so the figures do not depend on the number of processes but for
rounding.
"""

from typing import TYPE_CHECKING, Any

import evaluate
import numpy as np
import torch
from torch.nn.functional import cross_entropy
from tqdm.auto import tqdm

from ..errors import InputError
from ..text.windows import IGNORED
from . import metric_path
from .ladder import Ladder

if TYPE_CHECKING:
    from accelerate import Accelerator
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from ..data.views import HMMSequences
    from ..hmm.families import Family
    from ..hmm.model import HMM
    from ..text.windows import StridedWindows, TokenWindows


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
    for batch in _batches(rows, batch_size, accelerator, "sequences"):
        labels = batch["input_ids"]
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
    windows: "TokenWindows | StridedWindows",
    accelerator: "Accelerator",
    *,
    batch_size: int = 32,
) -> dict[str, Any]:
    """Bits per byte on windows of a token stream: of the tokens that have labels, and of their bytes alone.

    Each window is read by itself, so a token is predicted from those before it in its window. With `StridedWindows`
    every token counts once and has at least `length - stride` before it; with `TokenWindows` a window's first token is
    context alone and counts nowhere. Logits are turned to float64 a row at a time.

    Args:
        model ([`~transformers.PreTrainedModel`]): a causal language model on the device of the accelerator.
        tokenizer ([`~transformers.PreTrainedTokenizerBase`]): that of the stream, byte-level.
        windows ([`~hmm_datasets.text.windows.StridedWindows`] or [`~hmm_datasets.text.windows.TokenWindows`]): what to
            read, with what context.
        accelerator ([`~accelerate.Accelerator`]): who shares the rows.
        batch_size (`int`, *optional*, defaults to 32): rows a rank runs at once.

    Returns:
        `dict`: the result of `bits_per_byte`, with `nats_per_token`, `num_tokens`, and `window` and `stride`, the
        tokens a window and those it scores; where windows are by document also `documents`, lists of the `nats` and
        `bytes` of each. Empty on other ranks.
    """
    from ..text.bpe import token_bytes

    _check_vocabulary(model, windows.stream.index.vocab_size, "tokens")
    sizes = torch.from_numpy(token_bytes(tokenizer))
    nats, num_bytes, count = [], [], 0
    for rows in _batches(windows, batch_size, accelerator, "windows"):
        mine = {name: _share(column, accelerator) for name, column in rows.items()}
        targets = mine.pop("labels")[:, 1:]
        with torch.inference_mode():
            logits = model(**mine, use_cache=False).logits[:, :-1]
            scores = torch.stack([_log_likelihood(*row) for row in zip(logits, targets, strict=True)])
        labels = rows["labels"][:, 1:]
        scored = labels != IGNORED
        nats.append(-accelerator.gather(scores)[: len(labels)].cpu().numpy())
        num_bytes.append(torch.where(scored, sizes[labels.clamp(min=0)], 0).sum(-1).numpy())
        count += int(scored.sum())
    if not accelerator.is_main_process:
        return {}
    nats, num_bytes = np.concatenate(nats), np.concatenate(num_bytes)
    result = {
        "nats_per_token": float(nats.sum()) / count,
        "num_tokens": count,
        "window": windows.length,
        "stride": windows.stride,
    }
    if getattr(windows, "by_document", False):
        texts = windows.texts(np.arange(len(windows)))
        nats, num_bytes = (np.bincount(texts, weights=values) for values in (nats, num_bytes))
        num_bytes = num_bytes.astype(np.int64)
        result["documents"] = {"nats": nats.tolist(), "bytes": num_bytes.tolist()}
    bits = _load("bits_per_byte").compute(predictions=-nats, references=num_bytes)
    return {**bits, **result}


def _log_likelihood(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Return the summed log-probability of the targets that count, float64."""
    scored = targets != IGNORED  # chosen first, since most of a strided window is not
    return -cross_entropy(logits[scored].double(), targets[scored], reduction="sum")


def _load(name: str) -> evaluate.EvaluationModule:
    return evaluate.load(metric_path(name), keep_in_memory=True)


def _pick(table: np.ndarray, symbols: np.ndarray) -> np.ndarray:
    return np.take_along_axis(table, symbols[..., None], axis=-1)[..., 0]


def _batches(rows: Any, batch_size: int, accelerator: "Accelerator", unit: str):
    """Yield the columns of consecutive rows, as many as all ranks run at once, with a progress bar."""
    step = batch_size * accelerator.num_processes
    bar = tqdm(total=len(rows), desc="evaluate", unit=f" {unit}", disable=not accelerator.is_main_process)
    for first in range(0, len(rows), step):
        batch = rows.__getitems__(range(first, min(first + step, len(rows))))
        yield {name: torch.stack([row[name] for row in batch]) for name in batch[0]}
        bar.update(len(batch))
    bar.close()


def _share(rows: torch.Tensor, accelerator: "Accelerator") -> torch.Tensor:
    # As many rows on every rank, padded at the end of the whole: accelerate's split_between_processes pads each rank's
    # share, so that from three ranks on padding would stand between the rows gathered.
    share = -(-len(rows) // accelerator.num_processes)
    short = share * accelerator.num_processes - len(rows)
    padded = torch.cat([rows, rows[-1:].expand(short, -1)])
    return padded[share * accelerator.process_index :][:share].to(accelerator.device)


def _check_vocabulary(model: "PreTrainedModel", needed: int, kind: str) -> None:
    if model.config.vocab_size < needed:
        raise InputError(
            f"the model knows {model.config.vocab_size} tokens, the data have {needed} {kind}; measure it on what it "
            "was trained on"
        )
