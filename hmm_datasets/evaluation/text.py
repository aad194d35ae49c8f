"""A model on held-out text: nats per token, perplexity and bits per byte, with intervals, on any number of ranks.

The text is either a token stream, read in windows, or a list of texts, for any tokenizer. Intervals are over
documents ([`~hmm_datasets.intervals`]), or over windows if these have several documents.
"""

import math
import sys
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from jaxtyping import Float64, Int64
from torch.utils.data import Subset

from ..data.windows import IGNORED
from ..errors import InputError
from ..paired_differences import ratio_interval
from ..runtime.progress import progress_bar
from ..text.tokenizers.text_sizes import LostText, changing_normalizer, token_bytes, token_characters
from .continuations import score_rows
from .label_scores import score_labels
from .model_limits import check_vocabulary, context_limit
from .rank_batches import share_rows, shared_batches

if TYPE_CHECKING:
    from accelerate import Accelerator
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from ..data.windows import StridedWindows, TokenWindows
from .bits_per_byte import bits_per_byte
from .document_windows import DocumentWindows

LEVEL = 0.95


def measure_text(
    model: "PreTrainedModel",
    tokenizer: "PreTrainedTokenizerBase",
    windows: "TokenWindows | StridedWindows | DocumentWindows",
    accelerator: "Accelerator",
    *,
    batch_size: int = 32,
    seed: int = 0,
    max_windows: int | None = None,
) -> dict[str, Any]:
    """Perplexity and bits per byte of held-out text, over the tokens that have labels.

    Windows are read independently, so a token is predicted from those before it in its window. With `StridedWindows`
    and `DocumentWindows` every token counts once and has at least `length - stride` tokens before it. Of windows that
    do not overlap (`TokenWindows`, or a stride of `length`) the first token is only context and is never scored.
    Log-probabilities are computed in float64, without the logits of all tokens.

    Args:
        model ([`~transformers.PreTrainedModel`]): a causal language model on the device of the accelerator.
        tokenizer ([`~transformers.PreTrainedTokenizerBase`]): the tokenizer of the text; for a token stream it must be
            byte-level.
        windows ([`~hmm_datasets.data.windows.StridedWindows`], [`~hmm_datasets.data.windows.TokenWindows`] or
            [`DocumentWindows`]): the text, with the context of each token.
        accelerator ([`~accelerate.Accelerator`]): divides the rows among ranks.
        batch_size (`int`, *optional*, defaults to 32): rows per rank in one forward pass.
        seed (`int`, *optional*, defaults to 0): seed of the bootstrap.
        max_windows (`int`, *optional*): read only the first windows.

    Returns:
        `dict`: `perplexity`, `nats_per_token`, `bits_per_byte` and its `standard_error`; `perplexity_low`,
        `perplexity_high`, `bits_per_byte_low` and `bits_per_byte_high`, bounds of intervals at `level`, None for a
        single document; `bits_per_character` and `characters` (None for a stream with unknown tokens); `num_tokens`,
        `bytes`, `num_documents`; `lost_text`, what of the text the tokenizer loses (None if nothing), which is also
        printed on stderr; `window`, `stride` and `least_context`, the minimum number of tokens before a scored one
        except near the beginning of a document; `unit`, what was resampled (`document` or `window`); and `items`, for
        each unit its number, `nats`, `tokens` and `bytes`. Empty on ranks other than the main one.

    Raises:
        `InputError`: a model with fewer tokens than the text has, or a window too long for the model.
    """
    limit = context_limit(model)
    if limit is not None and windows.length - 1 > limit:
        raise InputError(f"window={windows.length}: the model takes {limit} tokens; set window to {limit + 1} or less")
    if isinstance(windows, DocumentWindows):
        if max_windows is not None:
            windows = windows.first(max_windows)
        nats, counts = _score_documents(model, windows, accelerator, batch_size)
        lost = windows.lost
        unit, num_documents = "document", len(windows.rows)
    else:
        count = len(windows) if max_windows is None else min(max_windows, len(windows))
        nats, counts, lost = _score_stream(model, tokenizer, windows, count, accelerator, batch_size)
        unit, num_documents = "window", _documents_read(windows, count)
    if not accelerator.is_main_process:
        return {}
    if getattr(windows, "by_document", False):
        unit = "document"
        texts = windows.texts(np.arange(count))
        nats, *counts = (np.bincount(texts, weights=values) for values in (nats, *counts))
        counts = [values.astype(np.int64) for values in counts]
    if lost.describe():
        print(lost.describe(), file=sys.stderr)
    return _figures(nats, *counts, unit, seed) | {
        "lost_text": lost.report(),
        "num_documents": num_documents,
        "window": windows.length,
        "stride": windows.stride,
        "least_context": max(1, windows.length - windows.stride),
    }


def _figures(
    nats: Float64[np.ndarray, "D"],
    tokens: Int64[np.ndarray, "D"],
    num_bytes: Int64[np.ndarray, "D"],
    characters: Int64[np.ndarray, "D"],
    unit: str,
    seed: int,
) -> dict[str, Any]:
    bits = bits_per_byte(-nats, num_bytes, level=LEVEL, seed=seed)
    low, high = ratio_interval(nats, tokens, level=LEVEL, seed=seed)
    mean = float(nats.sum() / tokens.sum())
    figures = {
        "perplexity": _exp(mean),
        "perplexity_low": None if low is None else _exp(low),
        "perplexity_high": None if high is None else _exp(high),
        "nats_per_token": mean,
        **bits,
        "bits_per_character": float(nats.sum() / math.log(2) / characters.sum()) if characters.sum() else None,
        "characters": int(characters.sum()) or None,
    }
    rows = zip(nats.tolist(), tokens.tolist(), num_bytes.tolist(), strict=True)
    items = [{unit: index, "nats": n, "tokens": t, "bytes": b} for index, (n, t, b) in enumerate(rows)]
    return {name: value if value is not None and math.isfinite(value) else None for name, value in figures.items()} | {
        "num_tokens": int(tokens.sum()),
        "unit": unit,
        "level": LEVEL,
        "items": items,
    }


def _exp(value: float) -> float:
    return math.exp(value) if value < 700 else math.inf


def _score_documents(
    model: "PreTrainedModel", windows: DocumentWindows, accelerator: "Accelerator", batch_size: int
) -> tuple[np.ndarray, list[np.ndarray]]:
    """Nats of each document; and its tokens, bytes and characters."""
    groups = [[row] for rows in windows.rows for row in rows]
    bar = progress_bar(len(groups), " windows", desc="evaluate")
    with bar:
        scores = score_rows(model, groups, accelerator, batch_size=batch_size, progress=bar.update)
    counts = [len(rows) for rows in windows.rows]
    owners = np.repeat(np.arange(len(counts)), counts)
    nats = np.bincount(owners, weights=scores.nats.numpy(), minlength=len(counts))
    return nats, [windows.tokens, windows.bytes, windows.characters]


def _score_stream(
    model: "PreTrainedModel",
    tokenizer: "PreTrainedTokenizerBase",
    windows: "TokenWindows | StridedWindows",
    count: int,
    accelerator: "Accelerator",
    batch_size: int,
) -> tuple[np.ndarray, list[np.ndarray], LostText]:
    """Nats of each of the first `count` windows; their tokens, bytes and characters; and what was lost of the text."""
    check_vocabulary(model, windows.stream.index.vocab_size, "tokens")
    sizes = [torch.from_numpy(values) for values in (token_bytes(tokenizer), token_characters(tokenizer))]
    unknown, lost = getattr(tokenizer, "unk_token_id", None), LostText()
    lost.normalizer = None if tokenizer is None else changing_normalizer(tokenizer)
    nats, counts = [], [[], [], []]
    for rows in shared_batches(Subset(windows, range(count)), batch_size, accelerator, "windows"):
        mine = {name: share_rows(column, accelerator) for name, column in rows.items()}
        targets = mine["labels"][:, 1:]
        scores = score_labels(model, targets, input_ids=mine["input_ids"][:, :-1], use_cache=False).nats.sum(1)
        labels = rows["labels"][:, 1:]
        scored = labels != IGNORED
        nats.append(accelerator.gather(scores)[: len(labels)].cpu().numpy())
        counts[0].append(scored.sum(-1).numpy())
        for values, size in zip(counts[1:], sizes, strict=True):
            values.append(torch.where(scored, size[labels.clamp(min=0)], 0).sum(-1).numpy())
        if unknown is not None and sizes[0][unknown]:
            lost.unknown += int((labels == unknown).sum())
    arrays = [np.concatenate(values) for values in counts]
    if count == len(windows) and getattr(windows, "by_document", False) and windows.stream.index.num_bytes is not None:
        lost.changed_bytes = windows.stream.index.num_bytes - int(arrays[1].sum())
    if lost.unknown:  # it is not known how many characters its bytes are
        arrays[2] = np.zeros_like(arrays[2])
    return np.concatenate(nats), arrays, lost


def _documents_read(windows: "TokenWindows | StridedWindows", count: int) -> int:
    """Documents of which the first `count` windows read something."""
    stream = windows.stream
    if count == len(windows):
        return stream.num_documents
    if getattr(windows, "by_document", False):
        return int(windows.texts(np.array([count - 1]))[0]) + 1
    starts, _ = stream.bounds(np.arange(stream.num_documents))
    return int((starts < windows.length + (count - 1) * windows.stride).sum())
