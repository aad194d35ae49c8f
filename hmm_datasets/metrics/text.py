"""A model on held-out text, on every rank."""

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.nn.functional import cross_entropy

from ..text.windows import IGNORED
from . import load_metric
from .ranks import check_vocabulary, share_rows, shared_batches

if TYPE_CHECKING:
    from accelerate import Accelerator
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from ..text.windows import StridedWindows, TokenWindows


def measure_text(
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

    check_vocabulary(model, windows.stream.index.vocab_size, "tokens")
    sizes = torch.from_numpy(token_bytes(tokenizer))
    nats, num_bytes, count = [], [], 0
    for rows in shared_batches(windows, batch_size, accelerator, "windows"):
        mine = {name: share_rows(column, accelerator) for name, column in rows.items()}
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
    bits = load_metric("bits_per_byte").compute(predictions=-nats, references=num_bytes)
    return {**bits, **result}


def _log_likelihood(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Return the summed log-probability of the targets that count, float64."""
    scored = targets != IGNORED  # chosen first, since most of a strided window is not
    return -cross_entropy(logits[scored].double(), targets[scored], reduction="sum")
