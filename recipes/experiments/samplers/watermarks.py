"""Watermarks: what they do to a known distribution, and how many of the marked texts are found, exactly.

That of Kirchenbauer et al. (arXiv 2301.10226) is in the scores that `generate` returns. SynthID-Text (Dathathri et
al., Nature 634, 2024) remembers the contexts of a text that it has marked before, so its processor is led through all
sequences at once here.
"""

from typing import Any

import numpy as np
import torch
from decoding import all_rows
from jaxtyping import Float
from torch import Tensor
from transformers import SynthIDTextWatermarkingConfig
from transformers.generation.logits_process import SynthIDTextWatermarkLogitsProcessor, WatermarkLogitsProcessor

SYNTHID = {
    "SynthID, 1 layer": {"layers": 1},
    "SynthID, 2 layers": {"layers": 2},
    "SynthID, 9 layers": {"layers": 9},
    "SynthID, 30 layers": {"layers": 30},
    "SynthID, 30 layers, four tokens skipped": {"layers": 30, "skip_first_ngram_calls": True},
}
"""Layers of tournaments, and settings; the paper has 30, and contexts of four tokens."""


def synthid_config(layers: int, seed: int, ngram_len: int = 5, **settings: Any) -> SynthIDTextWatermarkingConfig:
    """The setting `watermarking_config` of `generate`, with random keys."""
    keys = np.random.default_rng(seed).integers(1, 2**31, layers).tolist()
    return SynthIDTextWatermarkingConfig(ngram_len=ngram_len, keys=keys, **settings)


def synthid(
    tables: list[Tensor], config: SynthIDTextWatermarkingConfig, bos_token_id: int
) -> tuple[Float[Tensor, "S"], Float[np.ndarray, "S"]]:
    """What SynthID makes of a distribution, with one set of keys.

    Args:
        tables: without it; see [`decoding.next_log_probs`].
        config: see [`synthid_config`].
        bos_token_id (`int`): the prompt.

    Returns:
        `torch.Tensor` of shape `(S,)`, float64: the log-probability of every sequence, in alphabetical order;
        `np.ndarray` of shape `(S,)`: the mean over layers of its g-values, summed over the tokens that were marked,
        which is what detectors without training add up. By chance a token has one half.
    """
    num_symbols, length = tables[0].shape[1], len(tables)
    words = torch.from_numpy(all_rows(num_symbols, length))
    count = len(words)
    rows = torch.cat([torch.full((count, 1), bos_token_id), words], dim=1)
    processor = config.construct_processor(num_symbols, "cpu")
    assert isinstance(processor, SynthIDTextWatermarkLogitsProcessor)
    found = torch.zeros(count).double()
    for t, table in enumerate(tables):
        before = table.float().repeat_interleave(count // len(table), dim=0)
        after = processor(rows[:, : t + 1], before).double().log_softmax(-1)
        found += after.gather(1, words[:, t : t + 1])[:, 0]
    # A text begins after zeros, whatever the prompt is.
    padded = torch.cat([torch.zeros(count, config.ngram_len - 1, dtype=torch.long), words], dim=1)
    values = processor.compute_g_values(padded).sum(-1) * processor.compute_context_repetition_mask(padded)
    skipped = config.ngram_len - 1 if config.skip_first_ngram_calls else 0
    # Divided last, so that equal scores are equal numbers.
    return found, values[:, skipped:].sum(1).numpy() / len(config.keys)


def detection(
    log_p: Float[Tensor, "S"], log_q: Float[Tensor, "S"], scores: Float[np.ndarray, "S"], rate: float = 0.01
) -> float:
    """The share of watermarked sequences that a test of a score finds, at this false alarm.

    Args:
        log_p, log_q (`torch.Tensor` of shape `(S,)`): without and with the watermark.
        scores (`np.ndarray` of shape `(S,)`): of each sequence, green tokens for example.
        rate (`float`, *optional*, defaults to 0.01): share of sequences without the watermark that may be accused.
    """
    _, place = np.unique(-scores, return_inverse=True)
    p, q = (np.bincount(place, log.exp().numpy()) for log in (log_p, log_q))
    left = rate - (p.cumsum() - p)
    # Of the last score some are accused, so that the rate is kept exactly.
    shares = np.clip(np.divide(left, p, out=np.ones_like(p), where=p > 0), 0, 1)
    return float(shares @ q)


def best_detection(log_p: Float[Tensor, "S"], log_q: Float[Tensor, "S"]) -> float:
    """The share that the best of all tests finds: that of the likelihood ratio, which needs both distributions."""
    return detection(log_p, log_q, (log_q - log_p).numpy())


def green_tokens(num_symbols: int, length: int, bos_token_id: int) -> Float[np.ndarray, "S"]:
    """Green tokens of every sequence, in alphabetical order, by the scheme of [`decoding.SETTINGS`]."""
    marks = WatermarkLogitsProcessor(vocab_size=num_symbols + 1, device="cpu", greenlist_ratio=0.5, bias=1.0)
    tokens = torch.arange(num_symbols + 1)[:, None]
    is_green = (marks(tokens, torch.zeros(num_symbols + 1, num_symbols + 1)) > 0).numpy()
    words = all_rows(num_symbols, length)
    before = np.concatenate([np.full((len(words), 1), bos_token_id), words[:, :-1]], axis=1)
    return is_green[before, words].sum(1).astype(float)
