"""A process of independent pieces, each followed by a delimiter, as the examples of a prompt are.

The pieces are sequences of another process, all of one length. The delimiter may be a symbol of that process too. Time
and memory are those of the other process on the pieces.
"""

from typing import Any, ClassVar

import numpy as np
import torch
from jaxtyping import Float, Int

from ...errors import InputError
from ..arrays import tokens_with_gaps
from ..integers import integer
from ..process import Process, Rows
from ..sampling import derived_seed
from .wrapped import WrappedProcess


class DelimitedProcess(WrappedProcess):
    """Independent sequences of a process, each of `piece_length` tokens and followed by a delimiter.

    Piece `k` of a row is the sequence of the same index that the process draws with a seed derived from that of the
    stream and `k`. In a mixture of such processes ([`~hmm_datasets.hmm.families.mixture.ProcessMixture`]) the pieces
    of a row have the same component, so that the first pieces are examples from which the others can be predicted.

    Args:
        process ([`~hmm_datasets.hmm.process.Process`]): any process.
        piece_length (`int`): tokens of a piece, without its delimiter; 1 or more.
        delimiter (`int`): a symbol of the process.

    Raises:
        `InputError`: `piece_length` is no such number, or the process has no such symbol.

    ```python
    >>> from hmm_datasets import processes
    >>> pairs = DelimitedProcess(processes.umbrella(), 2, delimiter=0)
    >>> pairs.next_token_probs([[1, 1, 0]])[0].round(3).tolist()
    [[0.45, 0.55], [0.361, 0.639], [1.0, 0.0], [0.45, 0.55]]

    ```
    """

    stored_name: ClassVar[str] = "delimited"

    def __init__(self, process: Process, piece_length: int, delimiter: int = 0):
        super().__init__(process)
        self.piece_length = integer("piece_length", piece_length, 1, 31)
        self.delimiter = integer("delimiter", delimiter, 0, 31)
        if self.delimiter >= process.num_symbols:
            raise InputError(
                f"delimiter is {delimiter}; expected a symbol of {process!r}, from 0 to {process.num_symbols - 1}"
            )
        self.vocabulary = process.vocabulary

    @property
    def num_symbols(self) -> int:
        """`E`."""
        return self.process.num_symbols

    def settings(self) -> dict[str, Any]:
        """`piece_length` and `delimiter`."""
        return {"piece_length": self.piece_length, "delimiter": self.delimiter}

    def describe(self) -> str:
        """What the process is, in a few words."""
        return (
            f"pieces of {self.piece_length} tokens of {self.process.describe()}, with symbol {self.delimiter} between"
        )

    def _draw(self, seed: np.uint64, first: np.uint64, step: np.uint64, out: Rows) -> None:
        count, length = out.shape
        for k, begin in enumerate(range(0, length, self.piece_length + 1)):
            piece = out[:, begin : begin + self.piece_length]
            own_seed = derived_seed(int(seed), k)
            piece[:] = self.process.sample(count, piece.shape[1], own_seed, int(first), step=int(step), num_threads=1)
        out[:, self.piece_length :: self.piece_length + 1] = self.delimiter

    def next_token_probs(self, tokens: Int[Any, "B T"]) -> Float[Any, "B T+1 E"]:
        """The distribution of token `t` given those before it, for `t = 0 .. T`; zeros after impossible tokens."""
        values = tokens_with_gaps(tokens, self.num_symbols).tokens
        (batch, length), size = values.shape, self.piece_length
        num_whole = length // (size + 1)
        after = num_whole * (size + 1)
        probs = values.new_zeros((batch, length + 1, self.num_symbols), dtype=torch.float64)
        probs[:, size :: size + 1, self.delimiter] = 1.0
        whole = values[:, :after].reshape(batch * num_whole, size + 1)[:, :size]
        pieces = probs[:, :after].view(batch, num_whole, size + 1, self.num_symbols)
        pieces[:, :, :size] = self._of_pieces(whole).view(batch, num_whole, size, self.num_symbols)
        begun = self._of_pieces(values[:, after : after + size])
        probs[:, after : after + size] = begun[:, : length + 1 - after]
        drawn = probs[:, :-1].gather(2, values.clamp(min=0).unsqueeze(2)).squeeze(2)
        alive = ((drawn > 0) | (values < 0)).cumprod(1)
        probs[:, 1:] *= alive.unsqueeze(2)
        return probs

    def _of_pieces(self, pieces: Int[torch.Tensor, "P t"]) -> Float[torch.Tensor, "P s E"]:
        """The distributions of the tokens of pieces given those before, up to the last one that belongs to them."""
        return torch.as_tensor(self.process.next_token_probs(pieces)).double()[:, : self.piece_length]

    def __repr__(self) -> str:
        return f"DelimitedProcess({self.process!r}, piece_length={self.piece_length}, delimiter={self.delimiter})"
