"""How far a language model is, as a policy, from the exact optimum of post-training.

Sequences are drawn from the policy: a beginning token, then `L` symbols; no other token is ever drawn. The divergence
from the optimum is the sum over positions of the exact divergence of the next-token distributions, averaged over
sequences. It is never negative, and its standard error is far smaller than that of a mean of log-ratios. One pass
costs `L` steps of generation and one forward pass.
"""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from symbol_predictions import symbol_log_probs

from hmm_datasets.evaluation.policy import draw_from_policy
from hmm_datasets.hmm.analysis.divergence import kl_divergence
from hmm_datasets.hmm.integers import integer
from hmm_datasets.hmm.tilted import TiltedHMM

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@dataclass(frozen=True)
class PolicyDistance:
    """Where a policy is.

    Attributes:
        divergence (`float`): `KL(policy || optimum)`, nats per token.
        standard_error (`float`): of the divergence, over sequences.
        reward (`float`): mean reward of a sequence.
        kl_to_reference (`float`): `KL(policy || HMM)`, nats per sequence.
    """

    divergence: float
    standard_error: float
    reward: float
    kl_to_reference: float


def measure_policy(
    model: "PreTrainedModel", optimum: TiltedHMM, num_sequences: int = 4096, *, seed: int = 0
) -> PolicyDistance:
    """Draw sequences from a policy and measure it; torch's random state is left as it was.

    Args:
        model ([`~transformers.PreTrainedModel`]): a causal language model whose tokens are the symbols, then a
            beginning token.
        optimum ([`~hmm_datasets.hmm.tilted.TiltedHMM`]): the exact optimum.
        num_sequences (`int`, *optional*, defaults to 4096): how many sequences to draw, 2 or more.
        seed (`int`, *optional*, defaults to 0): seed of the draws.
    """
    num_sequences = integer("num_sequences", num_sequences, 2, 31)
    was_training = model.training
    model.eval()
    devices = [model.device] if model.device.type == "cuda" else []
    with torch.no_grad(), torch.random.fork_rng(devices=devices):
        torch.manual_seed(seed)
        tokens = draw_from_policy(model, num_sequences, optimum.length, optimum.num_symbols)
        log_probs = symbol_log_probs(model, tokens, optimum.num_symbols)
    model.train(was_training)
    divergence = optimum.divergence(log_probs, tokens).sum(1) / optimum.length
    reference = optimum.hmm.next_token_probs(tokens)[:, :-1].log()
    to_reference = kl_divergence(log_probs.exp(), reference).sum(1)
    return PolicyDistance(
        divergence.mean().item(),
        divergence.std().item() / math.sqrt(num_sequences),
        optimum.reward(tokens).mean().item(),
        to_reference.mean().item(),
    )
