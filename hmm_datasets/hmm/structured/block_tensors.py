"""Inference in an HMM of blocks by torch, on a device that has no compiled loops for it.

At every step all sequences take one product with the tables of their block, which are gathered for some of them at a
time, and the products for the counts are taken for all tokens of a block together. So a step starts a few programs on
a GPU, however many blocks there are. Tokens that are missing take products with the tables of all blocks. The order of
addition is fixed.
"""

import copy
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from ..inference import (
    divisor,
    falls_below,
    in_given_order,
    largest_inverse,
    longest_first,
    rows_times,
    sum_by_symbol,
)
from ..kernels.counts import backward_bound
from .block_logs import ScoredRows

if TYPE_CHECKING:
    from .blocked import BlockedHMM

_PIECE = 1 << 14  # tokens whose moves are counted by one product; their sums are added in float64


class _Smoothed(NamedTuple):
    """What is kept of every token for the counts, by time; of the products only the entries of the token's block."""

    entering: Float[Tensor, "T B R"]
    leaving: Float[Tensor, "T B S"]
    arriving: Float[Tensor, "T B S"]
    after: Float[Tensor, "T B R"]
    posterior: Float[Tensor, "T B S"]


class BlockTensors(ScoredRows):
    """The tables of a [`~hmm_datasets.hmm.structured.blocked.BlockedHMM`] as tensors, with the methods of
    [`~hmm_datasets.hmm.structured.block_tables.BlockTables`] that a fit needs.

    Args:
        hmm ([`~hmm_datasets.hmm.structured.blocked.BlockedHMM`]): the HMM.
        dtype (`torch.dtype`, *optional*, defaults to `torch.float64`): type of the recursions.
        device (`torch.device` or `str`): where to compute.
    """

    def __init__(self, hmm: "BlockedHMM", dtype: torch.dtype | None, device: Any):
        dtype, self._hmm = dtype or torch.float64, hmm
        self._dtype = np.float32 if dtype == torch.float32 else np.float64
        self._start, self._emission = (torch.tensor(t, dtype=dtype, device=device) for t in (hmm.start, hmm.emission))
        enter, leave = (torch.tensor(table, dtype=dtype, device=device) for table in (hmm.enter, hmm.leave))
        self._enter = enter.view(hmm.rank, hmm.num_blocks, -1).transpose(0, 1).contiguous()  # (K, R, S)
        self._leave = leave.view(hmm.num_blocks, -1, hmm.rank)  # (K, S, R)
        self._blocks, self._has_missing = torch.tensor(hmm.blocks, device=device), False

    def with_missing(self) -> Self:
        """These tables, with the symbol `E` for tokens that were not observed."""
        tables = copy.copy(self)
        tables._has_missing = True
        return tables

    def _scores(self, tokens: Tensor, lengths: Tensor | None) -> Tensor:
        order, num_live, rows = longest_first(tokens, lengths)
        total_B = torch.zeros(len(tokens), dtype=torch.float64, device=tokens.device)
        for belief_BR, scale_B in self._filter(rows.T, num_live):
            total_B[: len(scale_B)] += scale_B.double().log()
            total_B[: len(scale_B)][falls_below(belief_BR, self.lowest_safe)] = torch.nan
        return in_given_order(total_B, order)

    def _sums(
        self, tokens: Tensor, lengths: Tensor | None, weights: Tensor | None
    ) -> tuple[dict[str, Tensor], Tensor]:
        order, num_live, rows = longest_first(tokens, lengths)
        symbols_TB = rows.T.contiguous()
        length, batch = symbols_TB.shape
        weight_B = self._start.new_ones(batch) if weights is None else weights.to(self._start)
        weight_B = weight_B if order is None else weight_B[order]
        beliefs_TBR = self._start.new_empty(length, batch, len(self._start))
        scale_TB = self._start.new_ones(length, batch)
        for t, (belief_BR, scale_B) in enumerate(self._filter(symbols_TB, num_live)):
            beliefs_TBR[t, : num_live[t]], scale_TB[t, : num_live[t]] = belief_BR, scale_B
        counts, lost_B = self._counts(symbols_TB, num_live, beliefs_TBR, scale_TB, weight_B)
        scores = scale_TB.double().log().sum(0)
        if scores.isinf().any() and self.lowest_safe > 0:
            lost_B |= scores.isinf()
        return counts, in_given_order(scores.masked_fill(lost_B, torch.nan), order)

    def _filter(self, symbols_TB: Tensor, num_live: list[int]) -> Iterator[tuple[Tensor, Tensor]]:
        # The belief before every token, and the probability of the token.
        belief_BR = self._start.expand(symbols_TB.shape[1], -1)
        for rows, symbol_B in zip(num_live, symbols_TB, strict=True):
            belief_BR, (symbol_B, missing_B) = belief_BR[:rows], self._observed(symbol_B[:rows])
            left_BS = rows_times(belief_BR, self._enter, self._blocks[symbol_B]) * self._emission[symbol_B]
            next_BR = rows_times(left_BS, self._leave, self._blocks[symbol_B])
            if self._has_missing:
                next_BR[missing_B] = belief_BR[missing_B] @ self._all_entering @ self._all_leaving
            scale_B = next_BR.sum(1)
            yield belief_BR, scale_B
            belief_BR = next_BR / divisor(scale_B)

    def _observed(self, symbols: Int[Tensor, "..."]) -> tuple[Tensor, Tensor]:
        # Symbols with 0 where one is missing, and where that is.
        missing = symbols == len(self._blocks)
        return symbols.masked_fill(missing, 0), missing

    @property
    def _all_entering(self) -> Float[Tensor, "R H"]:
        return self._enter.transpose(0, 1).reshape(len(self._start), -1)

    @property
    def _all_leaving(self) -> Float[Tensor, "H R"]:
        return self._leave.reshape(-1, len(self._start))

    def _counts(
        self, symbols_TB: Tensor, num_live: list[int], beliefs_TBR: Tensor, scale_TB: Tensor, weight_B: Tensor
    ) -> tuple[dict[str, Tensor], Tensor]:
        # The value of a class is P(tokens after t | class of token t + 1) / P(tokens after t | tokens up to t) times
        # the weight of the row. Rows in which one passes its bound may have lost a class.
        length, batch = symbols_TB.shape
        inverse_TB, bound = largest_inverse(scale_TB), backward_bound(self._start.dtype)
        size, rank = self._emission.shape[1], len(self._start)
        kept = _Smoothed(beliefs_TBR, *(beliefs_TBR.new_empty(length, batch, n) for n in (size, size, rank, size)))
        value_BR, lost_B = weight_B.unsqueeze(1).repeat(1, rank), torch.zeros_like(weight_B, dtype=torch.bool)
        entered, left = (torch.zeros_like(t, dtype=torch.float64) for t in (self._all_entering, self._all_leaving))
        for t in reversed(range(length)):
            rows = num_live[t]
            belief_BR, after_BR = beliefs_TBR[t, :rows], value_BR[:rows]
            symbol_B, missing_B = self._observed(symbols_TB[t, :rows])
            block_B, inverse_B = self._blocks[symbol_B], inverse_TB[t, :rows, None]
            factor_BS = self._emission[symbol_B] * inverse_B
            kept.after[t, :rows] = after_BR
            kept.after[t, num_live[t + 1] if t + 1 < length else 0 : rows] = 0  # after the last token there is no move
            ahead_BS = rows_times(after_BR, self._leave.transpose(1, 2), block_B)
            leaving_BS = rows_times(belief_BR, self._enter, block_B) * factor_BS
            arriving_BS = (ahead_BS * factor_BS).clamp(max=bound)
            kept.leaving[t, :rows], kept.arriving[t, :rows] = leaving_BS, arriving_BS
            kept.posterior[t, :rows] = leaving_BS * ahead_BS
            before_BR = rows_times(arriving_BS, self._enter.transpose(1, 2), block_B)
            if self._has_missing:
                inverse_B, leaving_BR, after = inverse_B[missing_B], belief_BR[missing_B], after_BR[missing_B]
                arriving_BH = (after @ self._all_leaving.T * inverse_B).clamp(max=bound)
                entered += leaving_BR.T @ arriving_BH
                left += (leaving_BR @ self._all_entering * inverse_B).T @ kept.after[t, :rows][missing_B]
                before_BR[missing_B] = arriving_BH @ self._all_entering.T
            lost_B[:rows] |= (arriving_BS >= bound).any(1) | (before_BR >= bound).any(1)
            before_BR = before_BR.clamp(max=bound)
            # The sum is the weight but for rounding, which would multiply from step to step.
            total_B = torch.linalg.vecdot(belief_BR, before_BR)
            value_BR[:rows] = before_BR * (weight_B[:rows] / divisor(total_B).squeeze(1)).unsqueeze(1)
        live = torch.tensor(num_live, device=symbols_TB.device).unsqueeze(1)
        ended_TB = torch.arange(batch, device=symbols_TB.device) >= live
        by_block = self._by_block(kept, symbols_TB.masked_fill(ended_TB, len(self._blocks)))
        entered += by_block[0].transpose(0, 1).reshape(entered.shape)
        left += by_block[1].reshape(left.shape)
        emitted = sum_by_symbol(kept.posterior, symbols_TB, num_live, len(self._blocks) + 1).T[:-1]
        starts = beliefs_TBR[0] * value_BR if length else value_BR.new_zeros(0, rank)
        return {
            "start": starts[: num_live[0] if length else 0].sum(0).double(),
            "enter": entered * self._all_entering,
            "leave": left * self._all_leaving,
            "emission": emitted.double(),
        }, lost_B

    def _by_block(self, kept: _Smoothed, symbols_TB: Tensor) -> tuple[Tensor, Tensor]:
        # (K, R, S) and (K, S, R): sums of products over the observed tokens of each block.
        num_blocks, (symbols_TB, left_out_TB) = len(self._enter), self._observed(symbols_TB)
        block_N, order_N = self._blocks[symbols_TB].masked_fill(left_out_TB, num_blocks).flatten().sort(stable=True)
        entered, left = (torch.zeros_like(table, dtype=torch.float64) for table in (self._enter, self._leave))
        entering, leaving, arriving, after = (table.flatten(0, 1) for table in kept[:4])
        tokens_of_blocks = order_N.split(torch.bincount(block_N, minlength=num_blocks + 1).tolist())
        for block, tokens in enumerate(tokens_of_blocks[:num_blocks]):
            for piece in tokens.split(_PIECE):
                entered[block] += entering[piece].T @ arriving[piece]
                left[block] += leaving[piece].T @ after[piece]
        return entered, left


def numbers_per_token(rank: int, block_size: int, device: torch.device) -> int:
    """Numbers that are kept of each token of a batch for the counts: its belief, and by torch what `_Smoothed` has."""
    return rank if device.type == "cpu" else 2 * rank + 3 * block_size
