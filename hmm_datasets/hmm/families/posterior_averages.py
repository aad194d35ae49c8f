"""Next-token distributions averaged over hypotheses by their posterior probabilities, one hypothesis at a time."""

from collections.abc import Iterable, Iterator

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import one_hot, pad

from ..inference import forward_backward as inference
from ..model import HMM

Hypothesis = tuple[Float[Tensor, "B T+1"], Float[Tensor, "B T+1 E"]]
"""`log P(hypothesis, tokens before t)`, and the distribution of token `t` given both, for `t = 0 .. T`."""


def posterior_mean(hypotheses: Iterable[Hypothesis]) -> Float[Tensor, "B T+1 E"]:
    """The distribution of token `t` given those before it; zeros after tokens that no hypothesis allows.

    Memory is that of two hypotheses, however many there are, because running sums are kept, relative to the maximum
    weight so far.
    """
    best = total = distribution = None
    for log_weight, own in hypotheses:
        if best is None:
            best, total, distribution = torch.full_like(log_weight, -torch.inf), torch.zeros_like(log_weight), 0 * own
        highest = torch.maximum(best, log_weight)
        # If all hypotheses so far are impossible, `highest` is -inf, and -inf - -inf would be NaN. The clamp makes
        # their weights zero.
        old, new = ((log - highest.clamp(min=-1e300)).exp() for log in (best, log_weight))
        total = total * old + new
        distribution = distribution * old.unsqueeze(-1) + own * new.unsqueeze(-1)
        best = highest
    return distribution / torch.where(total > 0, total, 1.0).unsqueeze(-1)


def components(hmms: Iterable[HMM], weights: Iterable[float], tokens: Int[Tensor, "B T"]) -> Iterator[Hypothesis]:
    """The components of a mixture as hypotheses, by their filters."""
    for hmm, weight in zip(hmms, weights, strict=True):
        parameters = hmm.parameters(device=tokens.device)
        filtered = inference.forward_filter(parameters, tokens)
        own = inference.next_token_probs(parameters, filtered.beliefs)
        yield own.new_tensor(weight).log() + pad(filtered.log_scale.cumsum(1), (1, 0)), own


def urns(sizes: range, alpha: float, num_symbols: int, tokens: Int[Tensor, "B T"]) -> Iterator[Hypothesis]:
    """Observed chains with Dirichlet rows and a random subset of the symbols: a hypothesis per size in `sizes`.

    Given `H` states, a symbol that has been seen comes next with probability `(alpha + times it followed the last
    token) / (H alpha + times the last token was followed)`, as in a Pólya urn. The rest of the probability is shared
    equally by the symbols not seen yet.
    """
    shown = one_hot(tokens, num_symbols).to(torch.float64)
    seen = pad(shown, (0, 0, 1, 0)).cummax(dim=1).values
    followed = torch.zeros_like(seen)
    if tokens.shape[1] > 0:
        # earlier[b, t, s]: token s equals token t and comes before it, so that token s + 1 counts as following it.
        earlier = (tokens.unsqueeze(2) == tokens.unsqueeze(1)).to(torch.float64).tril(diagonal=-1)
        followed[:, 1:] = earlier[:, :, :-1] @ shown[:, 1:]
    times = followed.sum(-1, keepdim=True)
    num_seen = seen.sum(-1, keepdim=True)
    num_unseen = num_symbols - num_seen
    for size in sizes:
        fresh = (size - num_seen).clamp(min=0) * alpha / num_unseen.clamp(min=1)
        own = torch.where(seen > 0, alpha + followed, fresh) / (size * alpha + times)
        drawn = own[:, :-1].gather(2, tokens.unsqueeze(2)).squeeze(2)
        yield pad(drawn.log().cumsum(1), (1, 0)), own
