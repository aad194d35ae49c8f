"""The losses of a process itself on sequences: the mean over a sequence, and the loss at its last token.

The latter is `log P(x_1 .. x_(L-1)) - log P(x_1 .. x_L)`, the loss with the longest context that a sequence offers.
Two forward passes compute both, for an HMM in `O(N L H^2)` time and `O(B H)` memory for batches of `B` rows.
"""

from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int

from ...errors import InputError
from ...runtime.progress import progress_bar
from ..arrays import token_table
from ..model import HMM
from ..process import Process
from ..token_files import TokenRows

_CHUNK_TOKENS = 1 << 22


def window_losses(
    source: Process,
    tokens: Int[Any, "N L"],
    lengths: Int[np.ndarray, "N"] | None = None,
    *,
    device: "torch.device | str | None" = None,
    show_progress: bool = True,
) -> tuple[Float[np.ndarray, "N"], Float[np.ndarray, "N"]]:
    """The loss per token of every sequence, and its loss at the last token, in nats.

    Args:
        source ([`~hmm_datasets.hmm.process.Process`]): what the sequences are scored by.
        tokens (array of shape `(N, L)`): symbols.
        lengths (array of shape `(N,)`, *optional*): number of tokens in each row, of an HMM; the rest is padding.
        device (*optional*): where to compute; the CPU by default.
        show_progress (`bool`, *optional*, defaults to `True`): show a progress bar.

    Returns:
        `tuple` of two arrays of shape `(N,)`; both are infinite for a sequence that the source cannot emit. Tokens of
            -1 are missing: the first array is per observed token, NaN where there is none; the second is NaN where the
            last token is missing.

    ```python
    >>> from hmm_datasets.hmm import processes
    >>> mean, last = window_losses(processes.golden_mean(), np.array([[1, 0, 1]]))  # after 0 comes 1
    >>> float(last[0].round(12)) + 0.0
    0.0

    ```
    """
    sequences = _sequences(tokens, lengths)
    count, length = sequences.shape
    if length == 0:
        raise InputError(f"tokens have shape {tokens.shape}; expected (N, L) with one token or more in each sequence")
    # An HMM keeps one belief per row, other processes the distributions of all tokens.
    width = source.num_states if isinstance(source, HMM) else length * source.num_symbols
    total, before, is_last = np.empty(count), np.empty(count), np.empty(count, bool)
    with progress_bar(sequences.tokens.size, " tokens", shown=show_progress) as bar:
        for rows, (part, ends) in sequences.parts(_CHUNK_TOKENS, width):
            total[rows] = _log_likelihood(source, part, device, ends)
            shorter = (part[:, :-1], None) if ends is None else (part, np.maximum(ends - 1, 0))
            before[rows] = _log_likelihood(source, shorter[0], device, shorter[1])
            stops = TokenRows(part, ends).ends
            is_last[rows] = (stops > 0) & (part[np.arange(len(part)), np.maximum(stops, 1) - 1].astype(np.int64) >= 0)
            bar.update(part.size)
    impossible = np.isinf(total)
    before[impossible] = 0.0
    last = np.where(impossible, np.inf, before - total)
    observed = sequences.row_counts
    return -total / np.where(observed > 0, observed, np.nan), np.where(is_last, last, np.nan)


def _sequences(tokens: Any, lengths: Any) -> TokenRows:
    tokens = token_table(tokens)
    return TokenRows(tokens.numpy(force=True) if isinstance(tokens, torch.Tensor) else tokens, lengths)


def mean_losses(
    source: Process, tokens: Int[Any, "N L"], lengths: Int[np.ndarray, "N"] | None = None, **options: Any
) -> dict[str, float | int | None]:
    """Means of [`window_losses`] over sequences, or over those of their tokens that were observed; ready for JSON.

    Args:
        source, tokens, lengths, options: see [`window_losses`].

    Returns:
        `dict`: `cross_entropy` and `final_token_cross_entropy`, nats per token, or `None` if the source cannot emit
        a sequence; `windows` and `length`, the numbers of sequences and of tokens in the longest.
    """
    if len(tokens) == 0:
        raise InputError("tokens hold no sequence; expected one or more")
    names = ("cross_entropy", "final_token_cross_entropy")
    losses, last = window_losses(source, tokens, lengths, **options)
    sequences = TokenRows(np.asarray(tokens), lengths)
    observed, (count, length) = sequences.row_counts, sequences.shape
    if (observed < length).any():
        kept = observed > 0
        means = float(np.average(losses[kept], weights=observed[kept])), float(last[~np.isnan(last)].mean())
    else:
        means = float(losses.mean()), float(last.mean())
    finite_means = {name: mean if np.isfinite(mean) else None for name, mean in zip(names, means, strict=True)}
    return {**finite_means, "windows": count, "length": length}


def _log_likelihood(
    source: Process, tokens: np.ndarray, device: "torch.device | str | None", lengths: np.ndarray | None = None
) -> np.ndarray:
    known = {} if lengths is None else {"lengths": lengths}
    if device is None:
        return source.log_likelihood(tokens, **known)
    return source.log_likelihood(torch.from_numpy(tokens.astype(np.int64)).to(device), **known).cpu().numpy()
