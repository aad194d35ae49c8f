"""Beliefs of Markov order `k`: what the last `k` symbols alone say about the future, as a control for probes.

The belief of order `k` after the symbols `x_1 .. x_t` is the belief of the process after `x_{t-k+1} .. x_t`, where the
process starts in its stationary distribution; for `t < k` after all `t` symbols. In the stationary process

    E[belief given x_1 .. x_t | last k symbols] = belief given the last k symbols

since a belief is linear in probabilities of the future. So no function of the last `k` symbols is nearer to the exact
beliefs in mean square than the beliefs of order `k`: a probe with a lower RMSE reads what is not in the last `k`
symbols. arXiv 2507.07432 compares probes with those for a Markov approximation of order 3.

A process that is not stationary starts as it does by itself, as if its sequence had begun `k` symbols ago.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ..hmm.model import HMM
from ..hmm.process import Process


class Starts:
    """A process that starts in its stationary distribution.

    Args:
        process ([`~hmm_datasets.hmm.process.Process`]): a process with beliefs.

    ```python
    >>> from hmm_datasets import processes
    >>> tokens = torch.tensor([[1, 0, 1, 1, 1, 1]])
    >>> Starts(processes.golden_mean()).markov_beliefs(tokens, 1)[0, :, 0].round(decimals=3).tolist()
    [0.667, 1.0, 0.0, 1.0, 1.0, 1.0, 1.0]

    ```
    """

    def __init__(self, process: Process):
        is_hmm = isinstance(process, HMM)
        self.process = HMM(**{**process.tables(), "start": process.stationary()}) if is_hmm else process

    def markov_beliefs(self, tokens: Int[Tensor, "B T"], order: int) -> Float[Tensor, "B T+1 W"]:
        """The beliefs of Markov order `order` before each token and after the last.

        Windows that occur more than once are computed once.

        Args:
            tokens (`torch.Tensor` of shape `(B, T)`): symbols.
            order (`int`): `k`, 1 or more.
        """
        first = self.process.beliefs(tokens[:, : order - 1])
        if tokens.shape[1] < order:
            return first
        windows = tokens.unfold(1, order, 1)
        distinct, which = torch.unique(windows.reshape(-1, order), dim=0, return_inverse=True)
        last = self.process.beliefs(distinct)[:, -1]
        return torch.cat([first, last[which].unflatten(0, windows.shape[:2])], dim=1)
