"""Inference in an HMM of blocks, by the compiled loops of `kernels.blocks`."""

from functools import cached_property
from typing import TYPE_CHECKING, Self

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from ..inference import in_given_order, longest_first
from ..kernels.blocks import count_blocks, filter_blocks
from ..kernels.counts import backward_bound
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

    def filtered(
        self, tokens: Int[np.ndarray, "B T"], num_live: Int[np.ndarray, "T"] | None = None, *, keep: bool = True
    ) -> tuple[Float[np.ndarray, "B T+1 W"], Float[np.ndarray, "B T"]]:
        """Beliefs over classes before every token and after the last, and the probability of every token.

        Args:
            tokens (`np.ndarray` of shape `(B, T)`, int64): symbols in `[0, E]`, `E` where one is missing; longest rows
                first.
            num_live (`np.ndarray` of shape `(T,)`, *optional*): number of rows with a token at each position.
            keep (`bool`, *optional*, defaults to `True`): whether to keep all beliefs; the last two if not.

        Returns:
            Beliefs `(B, T + 1, W)` of the `R` classes and padding, and the probabilities, 1 beyond the length.
        """
        batch, length = tokens.shape
        num_live = np.full(length, batch) if num_live is None else num_live
        beliefs = np.empty((batch, length + 1 if keep else 2, len(self._start)), self._dtype)
        scales = np.ones(tokens.shape, self._dtype)
        tables = self._start, *self._panels, self._emission, *self._blocks
        filter_blocks(*tables, tokens, num_live, beliefs.shape[1], beliefs.reshape(-1), scales)
        return beliefs, scales

    def with_missing(self) -> Self:
        """These tables, which have a symbol for missing tokens."""
        return self

    def log_likelihood(self, tokens: Int[Tensor, "B T"], lengths: Int[Tensor, "B"] | None) -> Float[Tensor, "B"]:
        """`log P(tokens)` of each row in nats, float64."""
        order, num_live, rows = longest_first(tokens, lengths)
        return _summed_logs(self.filtered(rows.numpy(), np.array(num_live), keep=False)[1], order)

    def sums(
        self, tokens: Int[Tensor, "B T"], lengths: Int[Tensor, "B"] | None, weights: Float[Tensor, "B"] | None
    ) -> tuple[dict[str, Tensor], Float[Tensor, "B"]]:
        """Expected counts of each table by its name, float64, and `log P(tokens)` of each row in nats."""
        order, counts_of_live, sorted_rows = longest_first(tokens, lengths)
        rows, num_live = sorted_rows.numpy(), np.array(counts_of_live)
        weight = np.ones(len(rows)) if weights is None else (weights if order is None else weights[order]).numpy()
        beliefs, scales = self.filtered(rows, num_live)
        sums = [np.zeros(table.size) for table in self._panels]
        starts, emitted = np.zeros(len(self._start)), np.zeros(self._emission.shape)
        bound = self._dtype(backward_bound(np.dtype(self._dtype)))
        count_blocks(
            *self._panels, *self._exchanged, self._emission, *self._blocks, rows,
            num_live, weight.astype(self._dtype), beliefs.reshape(-1), scales, bound, starts, *sums, emitted,
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
        return {name: torch.from_numpy(table) for name, table in counts.items()}, _summed_logs(scales, order)


def _summed_logs(scales: Float[np.ndarray, "B T"], order: Tensor | None) -> Float[Tensor, "B"]:
    with np.errstate(divide="ignore"):
        return in_given_order(torch.from_numpy(np.log(scales, dtype=np.float64).sum(1)), order)
