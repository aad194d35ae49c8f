"""What is measured of an HMM at each epoch of its fit: losses on held-out sequences, and how far it is from n-grams.

The n-grams are those of the training data: the frequencies of the symbols, and those of the symbols after each symbol.
A divergence is the mean of `KL(n-gram || HMM)` over the positions of held-out sequences, in nats per token. While an
HMM learns, it comes nearer to the unigram first and then to the bigram, and leaves each behind.

Time is that of the forward pass twice for each set of sequences, and `O(H E)` per position of the divergences, which
are measured on at most 16,384 tokens, and on fewer if there are more than 1,024 symbols: 2^24 probabilities in all.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from jaxtyping import Int

from ..model import HMM
from ..token_files import TokenRows
from .losses import mean_losses
from .predictors import StationaryDistributions

_MEASURED_TOKENS, _MEASURED_ENTRIES = 1 << 14, 1 << 24
_CHUNK_ENTRIES = 1 << 22  # probabilities in memory at once
_LARGE = 1e200


class FitMetrics:
    """Measures an HMM; see the module.

    Args:
        train ([`~hmm_datasets.hmm.token_files.TokenRows`] or array of shape `(N, L)`): the training sequences.
        held_out (mapping of `str` to the same): sets of held-out sequences by name; without any the divergences are
            measured on training sequences.
        device (*optional*): where to compute; the CPU by default.

    ```python
    >>> from hmm_datasets.hmm import processes
    >>> mess3 = processes.mess3(0.15, 0.6)
    >>> tokens = mess3.sample(200, 20)
    >>> measured = FitMetrics(tokens, {"test": tokens[:50]})(mess3)
    >>> measured["kl_bigram"] < measured["kl_unigram"]
    True

    ```
    """

    def __init__(self, train: Any, held_out: Mapping[str, Any], *, device: Any = None):
        self._train, self._device = _rows(train), device
        self._held_out = {name: _rows(tokens) for name, tokens in held_out.items()}
        self._measured = next(iter(self._held_out.values()), self._train)
        self._ngrams: tuple[torch.Tensor, ...] | None = None

    def __call__(self, hmm: HMM) -> dict[str, float | None]:
        """The losses of each set (`NAME_cross_entropy`, `NAME_final_token_cross_entropy`) and the divergences
        (`kl_uniform`, `kl_unigram`, `kl_bigram`), nats per token; None where infinite."""
        values = {}
        for name, tokens in self._held_out.items():
            losses = mean_losses(hmm, *tokens, device=self._device, show_progress=False)
            values |= {f"{name}_{loss}": losses[loss] for loss in ("cross_entropy", "final_token_cross_entropy")}
        return values | {name: value if np.isfinite(value) else None for name, value in self._divergences(hmm).items()}

    def _divergences(self, hmm: HMM) -> dict[str, float]:
        symbols = hmm.num_symbols
        if self._ngrams is None:
            # Uniform and unigram, and the distribution after each symbol, with their entropies.
            ngrams = ngrams_of(*self._train, symbols, device=self._device)
            always = torch.stack([torch.full_like(ngrams.symbol, 1 / symbols), ngrams.symbol])
            entropies = [-torch.special.xlogy(table, table).sum(-1) for table in (always, ngrams.following)]
            self._ngrams = always, ngrams.following, *entropies
        always, bigram, entropy, bigram_entropy = self._ngrams
        totals = torch.zeros(3, dtype=torch.float64, device=self._device)
        most, count = max(1, min(_MEASURED_TOKENS, _MEASURED_ENTRIES // symbols)), 0
        measured = self._measured.part(slice(max(1, np.searchsorted(np.cumsum(self._measured.ends), most, "right"))))
        for _, rows in measured.parts(_CHUNK_ENTRIES // symbols):
            part = torch.from_numpy(rows.marked[:, :most]).to(self._device)
            counted = part >= 0
            before = torch.nn.functional.pad(part.masked_fill(part < 0, symbols), (1, -1), value=symbols)[counted]
            # That of 0 is a number, since the probability of the n-gram may be 0 too.
            log_hmm = hmm.next_token_probs(part)[:, :-1][counted].log_().clamp_(min=-_LARGE)
            totals[:2] -= (log_hmm @ always.T + entropy).sum(0)
            totals[2] -= torch.linalg.vecdot(log_hmm, bigram[before]).sum() + bigram_entropy[before].sum()
            count += int(counted.sum())
        names = ("kl_uniform", "kl_unigram", "kl_bigram")
        means = (totals / count).tolist()
        return {name: mean if mean < _LARGE / 1e50 else np.inf for name, mean in zip(names, means, strict=True)}


def ngrams_of(
    tokens: Int[Any, "N L"], lengths: Int[np.ndarray, "N"] | None, num_symbols: int, *, device: Any = None
) -> StationaryDistributions:
    """The frequencies of symbols, and of symbols after each symbol; after one that nothing follows, the former.

    The last of the distributions after a symbol is that after a missing token: the frequencies of symbols.
    """
    symbol, following = np.zeros(num_symbols), np.zeros(num_symbols**2)
    for _, part in TokenRows(np.asarray(tokens), lengths).parts(_CHUNK_ENTRIES):
        table, counted = part.tokens.astype(np.int64), part.observed
        symbol += np.bincount(table[counted], minlength=num_symbols)
        pairs = (table[:, :-1] * num_symbols + table[:, 1:])[counted[:, :-1] & counted[:, 1:]]
        following += np.bincount(pairs, minlength=num_symbols**2)
    symbol, following = symbol / symbol.sum(), following.reshape(num_symbols, num_symbols)
    count = following.sum(1, keepdims=True)
    following = np.vstack([np.where(count > 0, following / np.maximum(count, 1), symbol), symbol])
    return StationaryDistributions(torch.tensor(symbol, device=device), torch.tensor(following, device=device))


def _rows(tokens: Any) -> TokenRows:
    return tokens if isinstance(tokens, TokenRows) else TokenRows(tokens)
