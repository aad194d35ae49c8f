"""A process whose sequences end with a symbol, so that they have different lengths; padding fills their rows.

The padding is one more symbol, `E`, which has probability one after the end: it says nothing, and no loss counts it.
Data sets give it the label -100 and leave it out of the attention mask, and evaluations leave it out of every mean.
"""

from typing import Any, ClassVar

import numpy as np
import torch
from jaxtyping import Bool, Float, Int

from ...errors import InputError
from ..arrays import as_tokens
from ..integers import integer
from ..process import Process, Rows
from .wrapped import WrappedProcess


class EndedProcess(WrappedProcess):
    """The sequences of a process up to the first `end`, and padding after it.

    Args:
        process ([`~hmm_datasets.hmm.process.Process`]): any process.
        end (`int`, or `str` for a process with a vocabulary): the symbol that ends a sequence; it belongs to it.

    ```python
    >>> from hmm_datasets import processes
    >>> ended = EndedProcess(processes.coin(0.5), end=1)
    >>> ended.padding, ended.next_token_probs([[0, 1]])[0].tolist()
    (2, [[0.5, 0.5, 0.0], [0.5, 0.5, 0.0], [0.0, 0.0, 1.0]])

    ```
    """

    stored_name: ClassVar[str] = "ended"

    def __init__(self, process: Process, end: int | str):
        super().__init__(process)
        if process.padding is not None:
            raise InputError(f"process is {process!r}; expected a process whose sequences do not end yet")
        names = process.vocabulary
        if isinstance(end, str):
            if names is None or end not in names:
                raise InputError(f"end is {end!r}; expected {'a number' if names is None else 'one of ' + str(names)}")
            end = names.index(end)
        self.end = integer("end", end, 0, 31)
        if self.end >= process.num_symbols:
            raise InputError(f"end is {end}; expected a symbol of {process!r}, from 0 to {process.num_symbols - 1}")
        self.vocabulary = None if names is None else (*names, "<pad>")
        self.padding = process.num_symbols

    @property
    def num_symbols(self) -> int:
        """The symbols of the process, and the padding."""
        return self.process.num_symbols + 1

    def settings(self) -> dict[str, Any]:
        """`end`."""
        return {"end": self.end}

    def describe(self) -> str:
        """What the process is, in a few words."""
        return f"{self.process.describe()}, whose sequences end with symbol {self.end}"

    def _draw(self, seed: np.uint64, first: np.uint64, step: np.uint64, out: Rows) -> None:
        count, length = out.shape
        out[:] = self.process.sample(count, length, int(seed), int(first), step=int(step), num_threads=1)
        ended = np.logical_or.accumulate(out == self.end, axis=1)
        out[:, 1:][ended[:, :-1]] = self.padding

    def next_token_probs(self, tokens: Int[Any, "B T"]) -> Float[Any, "B T+1 E"]:
        """The distribution of token `t` given those before it: of the process before the end, of the padding after."""
        values = as_tokens(tokens, self.num_symbols)
        is_padding = torch.eq(values, self.process.num_symbols)
        ended = _shifted(torch.eq(values, self.end).cummax(dim=1).values)
        inner = torch.as_tensor(self.process.next_token_probs(values.masked_fill(is_padding, self.end))).double()
        probs = torch.cat([inner * ~ended.unsqueeze(-1), ended.unsqueeze(-1).double()], dim=-1)
        # Padding before the end, and other symbols after it, are impossible, and so is what the process cannot emit.
        wrong = _shifted(torch.ne(is_padding, ended[:, :-1]))
        wrong |= (inner == 0).all(-1) & ~_shifted(ended[:, :-1])
        return probs * ~wrong.cummax(dim=1).values.unsqueeze(-1)

    def __repr__(self) -> str:
        return f"EndedProcess({self.process!r}, end={self.end})"


def _shifted(flags: Bool[torch.Tensor, "B T"]) -> Bool[torch.Tensor, "B T+1"]:
    """Flags of the tokens before each position, given those of each token."""
    return torch.nn.functional.pad(flags, (1, 0), value=False)
