"""What decoding does to a known distribution, exactly.

Every beginning of a sequence is given to `generate` for one token, with the settings that are on trial. The scores
that it returns are the distribution it draws from, so the product over positions is the distribution of whole
sequences, whatever the settings are: it is nothing that was written here, but what transformers does.
"""

from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor
from transformers import PreTrainedModel, WatermarkingConfig

from hmm_datasets import processes
from hmm_datasets.hmm.causal_lm import HMMForCausalLM

SETTINGS: dict[str, dict[str, Any]] = {
    "none": {},
    "temperature 1.3": {"temperature": 1.3},
    "temperature 0.7": {"temperature": 0.7},
    "top-k 4": {"top_k": 4},
    "top-p 0.95": {"top_p": 0.95},
    "top-p 0.8": {"top_p": 0.8},
    "temperature 0.6, top-p 0.95": {"temperature": 0.6, "top_p": 0.95},
    "min-p 0.1": {"min_p": 0.1},
    "typical 0.9": {"typical_p": 0.9},
    "epsilon 0.03": {"epsilon_cutoff": 0.03},
    "eta 0.03": {"eta_cutoff": 0.03},
    "top-H 0.5": {"top_h": 0.5},
    "repetition penalty 1.2": {"repetition_penalty": 1.2},
    "no repeated pair": {"no_repeat_ngram_size": 2},
    "watermark, bias 1": {"watermarking_config": WatermarkingConfig(greenlist_ratio=0.5, bias=1.0)},
    "watermark, bias 2": {"watermarking_config": WatermarkingConfig(greenlist_ratio=0.5, bias=2.0)},
}
"""Settings of `generate` by name; what they leave out is switched off."""
_OFF = {"do_sample": True, "top_k": 0, "max_new_tokens": 1, "output_scores": True, "return_dict_in_generate": True}


def next_log_probs(model: PreTrainedModel, num_symbols: int, length: int, **settings: Any) -> list[Tensor]:
    """The distribution that `generate` draws from with these settings, after every beginning of a sequence.

    Args:
        model: a causal language model with a beginning token and no end.
        num_symbols (`int`): `E`; the symbols are the first tokens.
        length (`int`): `L`.
        settings: of `generate`.

    Returns:
        list of `L` `torch.Tensor` of shape `(E**t, E)`, float64: log-probabilities after all beginnings of `t`
            symbols, in alphabetical order, also after those that would not be emitted.
    """
    rows, tables = torch.full((1, 1), model.config.bos_token_id), []
    pad = {"pad_token_id": model.config.bos_token_id}
    for _ in range(length):
        drawn = model.generate(rows, attention_mask=torch.ones_like(rows), **{**_OFF, **pad, **settings})
        tables.append(drawn.scores[0].double()[:, :num_symbols].log_softmax(-1))
        symbols = torch.arange(num_symbols).repeat(len(rows))[:, None]
        rows = torch.cat([rows.repeat_interleave(num_symbols, 0), symbols], 1)
    return tables


def all_rows(num_symbols: int, length: int) -> Int[np.ndarray, "S L"]:
    """All `E**L` sequences, in alphabetical order."""
    return np.stack(np.unravel_index(np.arange(num_symbols**length), (num_symbols,) * length), axis=1)


def log_probs_of_all(tables: list[Tensor]) -> Float[Tensor, "S"]:
    """The log-probability of all `E**L` sequences in alphabetical order, float64; see [`next_log_probs`]."""
    found = torch.zeros(1).double()
    for table in tables:
        found = (found[:, None] + table).flatten()
    return found


def distance(log_p: Float[Tensor, "S"], log_q: Float[Tensor, "S"], length: int) -> dict[str, float]:
    """How far what is emitted is from the process.

    Returns:
        `dict`: `divergence`, `KL(q || p)` in nats per token; `variation`, the total variation of whole sequences;
        `lost`, the share of the process' sequences that are never emitted; `entropy`, of what is emitted in nats per
        token; and `true_entropy`, of the process.
    """
    p, q = log_p.exp(), log_q.exp()
    emitted = q > 0
    return {
        "divergence": max(0.0, float((q * (log_q - log_p))[emitted].sum()) / length),
        "variation": 0.5 * float((p - q).abs().sum()),
        "lost": float(p[~emitted].sum()),
        "entropy": -float((q * log_q)[emitted].sum()) / length,
        "true_entropy": -float((p * log_p)[p > 0].sum()) / length,
    }


def beams(
    num_hmms: int, num_states: int, num_symbols: int, length: int, widths: list[int], first_seed: int = 0
) -> dict[int, np.ndarray]:
    """By width, how many nats below the most likely sequence the one that beam search finds is, for random HMMs.

    The most likely sequence is found by going through all of them.
    """
    gaps: dict[int, list[float]] = {width: [] for width in widths}
    for seed in range(first_seed, first_seed + num_hmms):
        hmm = processes.random(num_states, num_symbols, alpha=0.3, seed=seed)
        log_p = hmm.log_likelihood(all_rows(num_symbols, length))
        model = HMMForCausalLM.from_hmm(hmm, bos_token_id=num_symbols)
        for width in widths:
            row = model.generate(
                torch.full((1, 1), num_symbols),
                num_beams=width,
                do_sample=False,
                max_new_tokens=length,
                pad_token_id=num_symbols,
            )[0, 1:]
            place = np.ravel_multi_index(row.tolist(), (num_symbols,) * length)
            gaps[width].append(float(log_p.max() - log_p[place]))
    return {width: np.array(found) for width, found in gaps.items()}


def expected_calibration_error(confidence: np.ndarray, accuracy: np.ndarray, weights: np.ndarray, bins: int) -> float:
    """The error that harnesses report (Guo et al., arXiv 1706.04599), of predictions with these weights."""
    place = np.minimum((confidence * bins).astype(int), bins - 1)
    total = 0.0
    for one in range(bins):
        here = place == one
        if (mass := weights[here].sum()) > 0:
            total += abs((weights[here] * (confidence[here] - accuracy[here])).sum() / mass) * mass
    return total / weights.sum()


def chance_of_variation(probs: np.ndarray, count: int, draws: int = 200, seed: int = 0) -> tuple[float, float]:
    """Median and 99th percentile of the total variation between a distribution and `count` draws from it."""
    counts = np.random.default_rng(seed).multinomial(count, probs, draws)
    values = 0.5 * np.abs(counts / count - probs).sum(1)
    return float(np.median(values)), float(np.quantile(values, 0.99))


def smallest_shown(probs: np.ndarray, count: int, most: float, draws: int = 200, seed: int = 0) -> float:
    """The smallest total variation from a distribution that `count` draws would show.

    Of a mixture with the uniform distribution, so far away nine of ten samples are further than `most`.
    """
    low, high, target = 0.0, 1.0, np.full(len(probs), 1 / len(probs))
    for _ in range(12):
        share = (low + high) / 2
        counts = np.random.default_rng(seed).multinomial(count, (1 - share) * probs + share * target, draws)
        is_shown = (0.5 * np.abs(counts / count - probs).sum(1) > most).mean() >= 0.9
        low, high = (low, share) if is_shown else (share, high)
    return high * 0.5 * float(np.abs(probs - target).sum())
