"""Inference in an HMM of blocks, by the compiled loops of `kernels.blocks`."""

from functools import cached_property, partial
from typing import TYPE_CHECKING, Self

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from ..inference import chosen_rows, in_given_order, longest_first, with_lost_rows
from ..kernels.blocks import count_blocks, filter_blocks
from ..kernels.logs import safe_beliefs
from ..kernels.panels import packed, unpacked, widened

if TYPE_CHECKING:
    from .blocked import BlockedHMM


class BlockTables:
    """The tables of a [`~hmm_datasets.hmm.structured.blocked.BlockedHMM`] as the kernels read them.

    Args:
        hmm ([`~hmm_datasets.hmm.structured.blocked.BlockedHMM`]): the HMM.
        dtype (`type`, *optional*, defaults to `np.float64`): type of the recursions, or `np.float32`.
    """

    def __init__(self, hmm: "BlockedHMM", dtype: type = np.float64):
        self._hmm, self._dtype = hmm, dtype
        self._enter = hmm.enter.reshape(hmm.rank, hmm.num_blocks, hmm.block_size).transpose(1, 0, 2)
        self._leave = hmm.leave.reshape(hmm.num_blocks, hmm.block_size, hmm.rank)
        self._panels = packed(self._enter, dtype), packed(self._leave, dtype)
        self._start = widened(hmm.start, dtype, 1)
        # The last row for tokens that are missing, which every state emits.
        emission = np.vstack([hmm.emission, np.ones(hmm.block_size)])
        self._emission = widened(emission, dtype, 2)[: len(emission)]
        self._blocks = np.append(hmm.blocks, hmm.num_blocks), hmm.num_blocks

    @cached_property
    def _exchanged(self) -> tuple[Float[np.ndarray, "P"], ...]:
        """The panels with rows and columns exchanged, which the way back in time needs."""
        return tuple(packed(table.transpose(0, 2, 1), self._dtype) for table in (self._enter, self._leave))

    @cached_property
    def lowest_safe(self) -> float:
        """The lowest belief from which on no product underflows."""
        tables = self._hmm.start, self._hmm.emission, self._hmm.enter, self._hmm.leave
        return safe_beliefs(*(table.astype(self._dtype) for table in tables))[0]

    def filtered(
        self, tokens: Int[np.ndarray, "B T"], num_live: Int[np.ndarray, "T"] | None = None, *, keep: bool = True
    ) -> tuple[Float[np.ndarray, "B T+1 W"], Float[np.ndarray, "B T"], Bool[np.ndarray, "B"]]:
        """Beliefs over classes before every token and after the last, and the probability of every token.

        Args:
            tokens (`np.ndarray` of shape `(B, T)`, int64): symbols in `[0, E]`, `E` where one is missing; longest rows
                first.
            num_live (`np.ndarray` of shape `(T,)`, *optional*): number of rows with a token at each position.
            keep (`bool`, *optional*, defaults to `True`): whether to keep all beliefs; the last two if not.

        Returns:
            Beliefs `(B, T + 1, W)` of the `R` classes and padding, the probabilities, 1 beyond the length, and whether
            a belief of a row may have underflowed.
        """
        batch, length = tokens.shape
        num_live = np.full(length, batch) if num_live is None else num_live
        beliefs = np.empty((batch, length + 1 if keep else 2, len(self._start)), self._dtype)
        scales = np.ones(tokens.shape, self._dtype)
        tables = self._start, *self._panels, self._emission, *self._blocks
        is_watched = self.lowest_safe > 0
        lowest = np.full(batch if is_watched else 0, self._start[self._start > 0].min())
        filter_blocks(*tables, tokens, num_live, beliefs.shape[1], beliefs.reshape(-1), scales, lowest)
        return beliefs, scales, lowest < self.lowest_safe if is_watched else np.zeros(batch, bool)

    def with_missing(self) -> Self:
        """These tables, which have a symbol for missing tokens."""
        return self

    def log_likelihood(self, tokens: Int[Tensor, "B T"], lengths: Int[Tensor, "B"] | None) -> Float[Tensor, "B"]:
        """`log P(tokens)` of each row in nats, float64."""
        order, num_live, rows = longest_first(tokens, lengths)
        _, scales, lost = self.filtered(rows.numpy(), np.array(num_live), keep=False)
        scores = _summed_logs(scales, lost, order)
        for row, symbols in chosen_rows(tokens, lengths, scores.isnan()):
            scores[row] = self._hmm._logs.filtered(symbols)[1].sum()
        return scores

    def sums(
        self, tokens: Int[Tensor, "B T"], lengths: Int[Tensor, "B"] | None, weights: Float[Tensor, "B"] | None
    ) -> tuple[dict[str, Tensor], Tensor]:
        """Expected counts of each table by its name, float64, and `log P(tokens)` of each row in nats."""
        compute = partial(self._sums, tokens, lengths)
        return with_lost_rows(compute, tokens, lengths, weights, self._hmm._logs.counts)

    def _sums(
        self, tokens: Tensor, lengths: Tensor | None, weights: Tensor | None
    ) -> tuple[dict[str, Tensor], Tensor]:
        order, counts_of_live, sorted_rows = longest_first(tokens, lengths)
        rows, num_live = sorted_rows.numpy(), np.array(counts_of_live)
        weight = np.ones(len(rows)) if weights is None else (weights if order is None else weights[order]).numpy()
        beliefs, scales, _ = self.filtered(rows, num_live)
        sums = [np.zeros(table.size) for table in self._panels]
        starts, emitted = np.zeros(len(self._start)), np.zeros(self._emission.shape)
        lost = np.zeros(len(rows), bool)
        count_blocks(
            *self._panels, *self._exchanged, self._emission, *self._blocks, rows,
            num_live, weight.astype(self._dtype), beliefs.reshape(-1), scales, lost, starts, *sums, emitted,
        )  # fmt: skip
        entered, left = (
            unpacked(total * panels, table.shape, self._dtype)
            for total, panels, table in zip(sums, self._panels, (self._enter, self._leave), strict=True)
        )
        counts = {
            "start": starts[: self._hmm.rank],
            "enter": entered.transpose(1, 0, 2).reshape(self._hmm.enter.shape),
            "leave": left.reshape(self._hmm.leave.shape),
            "emission": emitted[:-1, : self._hmm.block_size],
        }
        if self.lowest_safe > 0:
            lost |= (scales == 0).any(1)
        return {name: torch.from_numpy(table) for name, table in counts.items()}, _summed_logs(scales, lost, order)


def _summed_logs(
    scales: Float[np.ndarray, "B T"], lost: Bool[np.ndarray, "B"], order: Tensor | None
) -> Float[Tensor, "B"]:
    # NaN for rows that are lost.
    with np.errstate(divide="ignore"):
        scores = np.where(lost, np.nan, np.log(scales, dtype=np.float64).sum(1))
    return in_given_order(torch.from_numpy(scores), order)
