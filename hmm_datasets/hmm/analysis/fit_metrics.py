"""What is measured of an HMM at each epoch of its fit: losses on held-out sequences, and how far it is from n-grams.

The n-grams are those of the training data: the frequencies of the symbols, and those of the symbols after each symbol.
A divergence is the mean of `KL(n-gram || HMM)` over the positions of held-out sequences, in nats per token. While an
HMM learns, it comes nearer to the unigram first and then to the bigram, and leaves each behind.

Time is that of the forward pass twice for each set of sequences, and `O(H E)` per position of the divergences, which
are measured on at most 16,384 tokens.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from jaxtyping import Int

from ..model import HMM
from .divergence import kl_divergence
from .losses import mean_losses
from .predictors import StationaryDistributions, process_bigram, process_unigram, uniform

_MEASURED_TOKENS = 1 << 14
_CHUNK_ENTRIES = 1 << 22  # probabilities in memory at once


class FitMetrics:
    """Measures an HMM; see the module.

    Args:
        train (array of shape `(N, L)`): the training sequences.
        held_out (mapping of `str` to arrays of shape `(M, L)`): sets of held-out sequences by name; without any the
            divergences are measured on training sequences.
        device (*optional*): where to compute; the CPU by default.

    ```python
    >>> from hmm_datasets.hmm import processes
    >>> tokens = processes.golden_mean().sample(50, 20)
    >>> measured = FitMetrics(tokens, {"test": tokens[:5]})(processes.golden_mean())
    >>> [name for name in measured if name.startswith("kl")], measured["kl_bigram"] < 0.05 < measured["kl_unigram"]
    (['kl_uniform', 'kl_unigram', 'kl_bigram'], True)

    ```
    """

    def __init__(self, train: Int[Any, "N L"], held_out: Mapping[str, Int[Any, "M L"]], *, device: Any = None):
        self._train, self._held_out, self._device = train, held_out, device
        measured = next(iter(held_out.values()), train)
        rows = max(1, _MEASURED_TOKENS // max(measured.shape[1], 1))
        self._measured = torch.from_numpy(np.asarray(measured[:rows]).astype(np.int64))
        self._ngrams: StationaryDistributions | None = None

    def __call__(self, hmm: HMM) -> dict[str, float | None]:
        """The losses of each set (`NAME_cross_entropy`, `NAME_final_token_cross_entropy`) and the divergences
        (`kl_uniform`, `kl_unigram`, `kl_bigram`), nats per token; None where infinite."""
        values = {}
        for name, tokens in self._held_out.items():
            losses = mean_losses(hmm, tokens, device=self._device, show_progress=False)
            values |= {f"{name}_{loss}": losses[loss] for loss in ("cross_entropy", "final_token_cross_entropy")}
        return values | {name: value if np.isfinite(value) else None for name, value in self._divergences(hmm).items()}

    def _divergences(self, hmm: HMM) -> dict[str, float]:
        if self._ngrams is None:
            self._ngrams = ngrams_of(self._train, hmm.num_symbols, self._device)
        ngrams, totals = self._ngrams, dict.fromkeys(("kl_uniform", "kl_unigram", "kl_bigram"), 0.0)
        rows = max(1, _CHUNK_ENTRIES // (self._measured.shape[1] * hmm.num_symbols))
        for part in self._measured.split(rows):
            part = part.to(self._device)
            log_hmm = hmm.next_token_probs(part)[:, :-1].log()
            distributions = {
                "kl_uniform": uniform(part, hmm.num_symbols),
                "kl_unigram": process_unigram(part, ngrams),
                "kl_bigram": process_bigram(part, ngrams),
            }
            for name, distribution in distributions.items():
                totals[name] += float(kl_divergence(distribution[:, :-1], log_hmm).sum())
        return {name: total / self._measured.numel() for name, total in totals.items()}


def ngrams_of(tokens: Int[Any, "N L"], num_symbols: int, device: Any = None) -> StationaryDistributions:
    """The frequencies of symbols, and of symbols after each symbol; after one that nothing follows, the former."""
    table = np.asarray(tokens).astype(np.int64)
    symbol = np.bincount(table.ravel(), minlength=num_symbols) / table.size
    pairs = (table[:, :-1] * num_symbols + table[:, 1:]).ravel()
    following = np.bincount(pairs, minlength=num_symbols**2).reshape(num_symbols, num_symbols)
    count = following.sum(1, keepdims=True)
    following = np.where(count > 0, following / np.maximum(count, 1), symbol)
    return StationaryDistributions(torch.tensor(symbol, device=device), torch.tensor(following, device=device))
