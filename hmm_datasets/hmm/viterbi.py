"""The most probable path of states.

It comes from the max-plus recursion (Viterbi, IEEE Trans. Inf. Theory 13, 1967), in logarithms, which cannot
underflow. Scores are kept near 0, so that they do not lose digits as the sequence grows. Time is `O(B T H^2)`, in the
compiled loops of `kernels.viterbi`, on the CPU wherever tokens are. Memory is `O(T H)` for the rows processed together
by each thread.
"""

from typing import NamedTuple

from jaxtyping import Float, Int
from torch import Tensor

from ..errors import InputError
from .inference import Parameters
from .kernels.viterbi import MAX_STATES, LogTables, best_paths


class Path(NamedTuple):
    """A most probable path: `states` (B, T) and `log_probability` (B,), `log P(states, tokens)` in nats."""

    states: Int[Tensor, "B T"]
    log_probability: Float[Tensor, "B"]


def viterbi(hmm: Parameters, tokens: Int[Tensor, "B T"], lengths: Int[Tensor, "B"] | None = None) -> Path:
    """The states that emit the tokens with the greatest joint probability.

    Args:
        hmm ([`~hmm_datasets.hmm.inference.Parameters`]): the tables.
        tokens (`torch.Tensor` of shape `(B, T)`, int64): symbols in `[0, E)`.
        lengths (`torch.Tensor` of shape `(B,)`, *optional*): number of tokens in each row; the rest is padding.

    Returns:
        [`Path`]: the best path, on the device of the tokens. Of two paths that tie it is the one whose last differing
            state is lower. Beyond the length of a row the state is 0. An impossible sequence has state 0 throughout
            and log-probability -inf.

    Raises:
        `InputError`: the HMM has more than 65,536 states.
    """
    if len(hmm.start) > MAX_STATES:
        raise InputError(f"viterbi of an HMM of {len(hmm.start):,} states; expected at most {MAX_STATES:,}")
    states, scores = best_paths(LogTables(hmm), tokens.cpu(), None if lengths is None else lengths.cpu())
    return Path(states.to(tokens.device), scores.to(tokens.device, hmm.start.dtype))
